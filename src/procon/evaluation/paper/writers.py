"""A finished table as a terminal, a spreadsheet, a web page or a paper wants it."""

import csv
import io
import math

from rich.table import Table as RichTable

from procon.evaluation.paper.results import Cell, Result, as_records


def to_terminal(result: Result) -> RichTable:
    """For a terminal: ours, and below it in brackets the paper's value and the difference."""
    notes = _all_notes(result)
    table = RichTable(title=result.title, caption="\n".join(notes), title_justify="left", caption_justify="left")
    table.add_column(_heading(result))
    for title in result.column_titles():
        table.add_column(title, justify="right")
    for line in result.lines:
        cells = [_text(line.cells.get(column, Cell()), "\n") for column in result.columns]
        table.add_row(line.label + (" *" if line.published else ""), *cells)
    return table


def to_csv(result: Result) -> str:
    """For a spreadsheet: every number in a column of its own, full precision, NaN and nothing as empty."""
    records = as_records(result)
    stream = io.StringIO()
    writer = csv.DictWriter(stream, list(records[0]), lineterminator="\n")
    writer.writeheader()
    for record in records:
        writer.writerow({name: "" if _nothing(value) else value for name, value in record.items()})
    return stream.getvalue()


def to_markdown(result: Result) -> str:
    """For a page."""
    lines = [f"**{result.title}**", ""]
    lines.append("| " + " | ".join([_heading(result), *result.column_titles()]) + " |")
    lines.append("|---" + "|---:" * len(result.columns) + "|")
    for line in result.lines:
        cells = [_text(line.cells.get(column, Cell())) for column in result.columns]
        lines.append("| " + " | ".join([line.label + (" \\*" if line.published else ""), *cells]) + " |")
    return "\n".join([*lines, "", *(f"- {note}" for note in _all_notes(result))]) + "\n"


def to_latex(result: Result) -> str:
    """For a paper, with booktabs; where the paper has a value it follows in a smaller size."""
    width = len(result.columns)
    lines = ["\\begin{table}[t]", "\\centering", f"\\begin{{tabular}}{{l{'r' * width}}}", "\\toprule"]
    lines.append(" & ".join([_heading(result), *result.column_titles()]) + " \\\\")
    lines.append("\\midrule")
    for line in result.lines:
        label = _escape(line.label) + ("$^*$" if line.published else "")
        cells = [_latex(line.cells.get(column, Cell())) for column in result.columns]
        lines.append(" & ".join([label, *cells]) + " \\\\")
    caption = _escape(" ".join([result.title + ".", *result.notes]))
    lines += [
        "\\bottomrule",
        "\\end{tabular}",
        f"\\caption{{{caption}}}",
        f"\\label{{tab:{result.name}}}",
        "\\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _heading(result: Result) -> str:
    return "Category" if result.name in ("per-category", "bench") else "Variant"


def _all_notes(result: Result) -> list[str]:
    compared = any(cell.difference is not None for line in result.lines for cell in line.cells.values())
    return [*(["In brackets: the paper's value and ours less the paper's."] if compared else []), *result.notes]


def _nothing(value: object) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))


def _number(value: float) -> str:
    return "n/a" if math.isnan(value) else f"{value:.2f}"


def _ours(cell: Cell) -> str:
    if cell.value is None:
        return ""
    return _number(cell.value) + (f" ± {cell.spread:.2f}" if cell.spread is not None else "")


def _text(cell: Cell, between: str = " ") -> str:
    if cell.value is None or cell.paper is None:
        return _ours(cell) if cell.paper is None else _number(cell.paper)
    return f"{_ours(cell)}{between}({_number(cell.paper)}, {cell.value - cell.paper:+.2f})"


def _latex(cell: Cell) -> str:
    ours = _ours(cell).replace("±", "$\\pm$")
    if cell.paper is None:
        return ours
    return _number(cell.paper) if cell.value is None else f"{ours} {{\\scriptsize({_number(cell.paper)})}}"


_SPECIAL = {"\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}"}


def _escape(text: str) -> str:
    return "".join(_SPECIAL.get(one, f"\\{one}" if one in "%&_#${}" else one) for one in text)
