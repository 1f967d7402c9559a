"""Write the measured part of docs/use/teach.md from benchmarks/results/teach.csv."""

import csv
from pathlib import Path

from measured_parts import fill

DOCS = Path(__file__).resolve().parent.parent
PAGE = DOCS / "use" / "teach.md"
RESULTS = DOCS.parent / "benchmarks" / "results" / "teach.csv"

Row = dict[str, str]


def main() -> None:
    """Replace the part."""
    PAGE.write_text(fill(PAGE, Path(__file__).name, ["measured"], lambda _: measured(read_rows())), encoding="utf-8")


def read_rows() -> list[Row]:
    """The measured rows."""
    with RESULTS.open(encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def percent(text: str) -> str:
    """A share as the table shows it."""
    return f"{100 * float(text):.0f} %"


def change(row: Row, group: str) -> str:
    """A share before and after, with the range over the draws."""
    low, high = (f"{100 * float(row[f'{group}_{end}']):.0f}" for end in ("low", "high"))
    return f"{percent(row[f'{group}_before'])} → {percent(row[f'{group}_after'])} ({low} to {high})"


def measured(rows: list[Row]) -> str:
    """What lessons change, then where none was measured."""
    lessons = [row for row in rows if row["taught"] != "0"]
    taught = {(row["part"], row["kind"]) for row in lessons}
    others = [row for row in rows if row["taught"] == "0" and row["kind"] != "good"]
    without = [row for row in others if (row["part"], row["kind"]) not in taught]
    few = ", ".join(f"{row['part']} {row['kind']} ({row['found']} of {row['images']} found)" for row in without)
    return "\n".join(
        [
            "| part | kind | missed | taught | others of the kind found | other kinds found | false alarms | refused |",
            "|---|---|---:|---:|---:|---:|---:|---:|",
            *(
                f"| {row['part']} | {row['kind']} | {row['missed']} | {row['taught']} | {change(row, 'others')} | "
                f"{change(row, 'other_kinds') if row['other_kinds_images'] != '0' else '-'} | {change(row, 'good')} | "
                f"{row['refused']} of {row['draws']} |"
                for row in lessons
            ),
            "",
            f"Kinds of which fewer than two were missed, so that there is nothing to teach and test: {few or 'none'}.",
            "",
            "ViT-S/14 (Depth Anything V2), one bank of 1 %, at most 40 training images and 12 test images of a kind, "
            "ten draws,",
            "on two cores: `python benchmarks/teach.py measure FILE --data DATA --weights WEIGHTS`, then "
            "`python benchmarks/teach.py summarize FILE`.",
        ]
    )


if __name__ == "__main__":
    main()
