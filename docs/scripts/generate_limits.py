"""Write the measured part of docs/use/limits.md from benchmarks/results/limits.csv."""

import csv
from collections.abc import Callable
from pathlib import Path

import numpy as np
from measured_parts import fill
from scipy.stats import spearmanr

DOCS = Path(__file__).resolve().parent.parent
PAGE = DOCS / "use" / "limits.md"
RESULTS = DOCS.parent / "benchmarks" / "results" / "limits.csv"
ALL = "all"
REDRAWS = 2000
CORRELATION, DIFFERENCE = "rank correlation over ", "mean difference over "
COLUMNS = ("all", "scratch", "dent", "stain", "hole", "foreign", "faint", "medium", "clear")
RENDERED = tuple(f"rendered_{name}" for name in COLUMNS)
SHOWN = ("median_size", *RENDERED)


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
        "Rank correlation (Spearman) of the two shares, by what is rendered, and that of the median size alone:",
        "",
        f"| over | size alone | {' | '.join(COLUMNS)} |",
        f"|---|---:|{'---:|' * len(COLUMNS)}",
        *(summary_row(row, CORRELATION, SHOWN, shown) for row in rows),
        f"| {len(kinds)} kinds, 95 % of redraws | {' | '.join(interval(kinds, name) for name in SHOWN)} |",
        "",
        f"Last row: where the correlation over kinds lies if the parts are drawn again {REDRAWS} times (bootstrap).",
        "",
        "Mean difference between the two shares, in percentage points:",
        "",
        f"| over | {' | '.join(COLUMNS)} |",
        f"|---|{'---:|' * len(COLUMNS)}",
        *(summary_row(row, DIFFERENCE, RENDERED, lambda text: f"{100 * float(text):.0f}") for row in rows),
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
    return "\n".join(line for line in lines if line is not None)


def redraw(kinds: list[dict[str, str]], column: str) -> tuple[float, float]:
    """The range that holds 95 % of the correlations over kinds, where whole parts are drawn again.

    Kinds of one part share a model and a threshold, so that they are no independent observations.
    """
    random, parts = np.random.default_rng(0), list(dict.fromkeys(row["part"] for row in kinds))
    pairs = {part: [row for row in kinds if row["part"] == part] for part in parts}
    values = {
        part: np.array([(float(row["real_found"]), float(row[column])) for row in rows]) for part, rows in pairs.items()
    }
    drawn = []
    for _ in range(REDRAWS):
        chosen = np.concatenate([values[parts[place]] for place in random.integers(len(parts), size=len(parts))])
        chosen = chosen[np.isfinite(chosen).all(axis=1)]
        if len(np.unique(chosen[:, 0])) > 1 and len(np.unique(chosen[:, 1])) > 1:
            drawn.append(float(spearmanr(*chosen.T).statistic))
    low, high = np.percentile(drawn, (2.5, 97.5))
    return float(low), float(high)


def interval(kinds: list[dict[str, str]], column: str) -> str:
    """That range, as the table shows it."""
    low, high = redraw(kinds, column)
    return f"{low:.2f} to {high:.2f}"


def summary_row(
    row: dict[str, str], beginning: str, columns: tuple[str, ...], describe: Callable[[str], str]
) -> str | None:
    """A row over all parts or kinds, if it is one."""
    if not row["part"].startswith(beginning):
        return None
    values = " | ".join(describe(row[name]) for name in columns)
    return f"| {row['real']} {row['part'].removeprefix(beginning)} | {values} |"


def shown(text: str) -> str:
    """A correlation as the table shows it."""
    return "-" if text in ("", "nan") else f"{float(text):.2f}"


if __name__ == "__main__":
    main()
