"""Write a finished table for a terminal, a spreadsheet, a Markdown page or a paper."""

import csv
import io
import math
from typing import Any

from rich.table import Table as RichTable

from procon.evaluation.paper.results import Cell, Result

_COMPARED = " ({paper}, {difference})"


def to_terminal(result: Result) -> RichTable:
    """For a terminal: our value, and below it in brackets the paper's value and the difference."""
    caption = "\n".join(_all_notes(result))
    table = RichTable(title=result.title, caption=caption, title_justify="left", caption_justify="left")
    for number, heading in enumerate(result.headings()):
        table.add_column(heading, justify="right" if number else "left")
    for row in result.rows(" *", "\n({paper}, {difference})"):
        table.add_row(*row)
    return table


def to_csv(result: Result) -> str:
    """For a spreadsheet: every number in a column of its own, in full precision; empty where there is none."""
    records: list[dict[str, Any]] = []
    for line in result.lines:
        record: dict[str, Any] = {"table": result.name, "row": line.label, "published": line.published}
        for column in result.columns:
            cell = line.cells.get(column, Cell())
            numbers = {"": cell.value, "_spread": cell.spread, "_paper": cell.paper, "_difference": cell.difference}
            for suffix, number in numbers.items():
                record[column + suffix] = "" if number is None or math.isnan(number) else number
        records.append(record)
    stream = io.StringIO()
    writer = csv.DictWriter(stream, list(records[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return stream.getvalue()


def to_markdown(result: Result) -> str:
    """For a Markdown page."""
    lines = [
        f"**{result.title}**\n",
        "| " + " | ".join(result.headings()) + " |",
        "|---" + "|---:" * len(result.columns) + "|",
        *("| " + " | ".join(row) + " |" for row in result.rows(" \\*", _COMPARED)),
        "",
        *(f"- {note}" for note in _all_notes(result)),
    ]
    return "\n".join(lines) + "\n"


def to_latex(result: Result) -> str:
    """For a paper, with booktabs; the paper's value follows ours in a smaller size."""
    rows = result.rows("$^*$", " {{\\scriptsize({paper})}}", escape=_escape)
    caption = _escape(" ".join([result.title + ".", *result.notes]))
    lines = [
        "\\begin{table}[t]",
        "\\centering",
        f"\\begin{{tabular}}{{l{'r' * len(result.columns)}}}",
        "\\toprule",
        " & ".join(result.headings()) + " \\\\",
        "\\midrule",
        *(" & ".join(row).replace("±", "$\\pm$") + " \\\\" for row in rows),
        "\\bottomrule",
        "\\end{tabular}",
        f"\\caption{{{caption}}}",
        f"\\label{{tab:{result.name}}}",
        "\\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _all_notes(result: Result) -> list[str]:
    compared = any(cell.difference is not None for line in result.lines for cell in line.cells.values())
    return [*(["In brackets: the paper's value and ours less the paper's."] if compared else []), *result.notes]


_SPECIAL = {"\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}"}
_SPECIAL |= {character: f"\\{character}" for character in "%&_#${}"}


def _escape(text: str) -> str:
    return "".join(_SPECIAL.get(character, character) for character in text)
