"""Write the measured part of docs/use/limits.md from benchmarks/results/limits.csv."""

import csv
from pathlib import Path

from measured_parts import fill

DOCS = Path(__file__).resolve().parent.parent
PAGE = DOCS / "use" / "limits.md"
RESULTS = DOCS.parent / "benchmarks" / "results" / "limits.csv"
ALL = "all"
CORRELATION = "rank correlation over "
COLUMNS = ("all", "scratch", "dent", "stain", "hole", "foreign", "faint", "medium", "clear")


def main() -> None:
    """Replace the part."""
    PAGE.write_text(fill(PAGE, Path(__file__).name, ["measured"], lambda _: measured(read_rows())), encoding="utf-8")


def read_rows() -> list[dict[str, str]]:
    """The measured rows."""
    with RESULTS.open(encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def percent(text: str) -> str:
    """A share as the tables show it."""
    return "-" if text in ("", "nan") else f"{100 * float(text):.0f} %"


def measured(rows: list[dict[str, str]]) -> str:
    """Parts, then rank correlations, then kinds."""
    parts = [row for row in rows if row["real_kind"] == ALL]
    kinds = [row for row in rows if row["real_kind"] not in (ALL, "")]
    correlations = [row for row in rows if row["part"].startswith(CORRELATION)]
    lines = [
        "Share found at the same threshold, among real defects and among rendered ones of the same sizes:",
        "",
        "| part | real defects | median size | real, found | rendered, found |",
        "|---|---:|---:|---:|---:|",
        *(
            f"| {row['part']} | {row['real']} | {row['median_size']} px | {percent(row['real_found'])} | "
            f"{percent(row['rendered_all'])} |"
            for row in parts
        ),
        "",
        "Rank correlation (Spearman) of the two shares, by what is rendered:",
        "",
        f"| over | {' | '.join(COLUMNS)} |",
        f"|---|{'---:|' * len(COLUMNS)}",
        *(
            f"| {row['real']} {row['part'].removeprefix(CORRELATION)} | "
            + " | ".join(shown(row[f"rendered_{name}"]) for name in COLUMNS)
            + " |"
            for row in correlations
        ),
        "",
        '<details markdown="1"><summary>Every kind of real defect</summary>',
        "",
        f"| part | kind | defects | median size | real, found | rendered: {' | '.join(COLUMNS)} |",
        f"|---|---|---:|---:|---:|{'---:|' * len(COLUMNS)}",
        *(
            f"| {row['part']} | {row['real_kind']} | {row['real']} | {row['median_size']} px | "
            f"{percent(row['real_found'])} | " + " | ".join(percent(row[f"rendered_{name}"]) for name in COLUMNS) + " |"
            for row in kinds
        ),
        "",
        "</details>",
        "",
        "ViT-S/14 (Depth Anything V2), one bank of 1 %, at most 40 training images, a sample of the test images, two "
        "rendered",
        "defects of each kind, size and contrast, on two cores: `python benchmarks/limits.py measure FILE --data DATA "
        "--weights",
        "WEIGHTS`, then `python benchmarks/limits.py summarize FILE`.",
    ]
    return "\n".join(lines)


def shown(text: str) -> str:
    """A correlation as the table shows it."""
    return "-" if text in ("", "nan") else f"{float(text):.2f}"


if __name__ == "__main__":
    main()
