"""The markup of a report: tables, lists of terms, and the whole page. No script, and nothing from elsewhere."""

import math
from collections.abc import Mapping, Sequence

from procon.evaluation.metrics import MetricValues
from procon.evaluation.paper.results import Result, show_percent
from procon.evaluation.paper.tables import TITLES
from procon.evaluation.report.charts import read_style
from procon.showing.markup import page_head, safe_text

MetricsRow = tuple[str, Sequence[str], Mapping[str, float]]
"""The heading of a row in HTML, the texts of its first columns, its metrics."""


def term_list(pairs: Sequence[tuple[str, str]]) -> str:
    """Terms and their values."""
    return '<dl class="facts">' + "".join(f"<dt>{safe_text(k)}</dt><dd>{safe_text(v)}</dd>" for k, v in pairs) + "</dl>"


def metric_strip(metrics: MetricValues) -> str:
    """The nine metrics in percent, with the reason where one is undefined."""
    parts = []
    for name, title in TITLES.items():
        why = f' title="{safe_text(metrics.reasons[name])}"' if name in metrics.reasons else ""
        parts.append(f"<div{why}><dt>{title}</dt><dd>{show_percent(100 * metrics[name])}</dd></div>")
    return f'<dl class="strip">{"".join(parts)}</dl>'


def metrics_table(caption: str, headings: Sequence[str], rows: Sequence[MetricsRow], *, rivals: bool) -> str:
    """A table of metrics in percent after the columns ``headings``; with ``rivals``, the best of a column is bold."""
    best = {name: max((m[name] for *_, m in rows if not math.isnan(m[name])), default=math.nan) for name in TITLES}
    lines = []
    for name, texts, metrics in rows:
        cells = [safe_text(text) for text in texts]
        for key, highest in best.items():
            text, strong = show_percent(100 * metrics[key]), rivals and metrics[key] == highest
            cells.append(f"<b>{text}</b>" if strong else text)
        lines.append([name, *cells])
    return html_table(caption, [*headings, *TITLES.values()], lines)


def result_table(result: Result, notes: Sequence[str]) -> str:
    """A table of the paper: our value, and below it the paper's and the difference; then ``notes``."""
    rows = result.rows(" *", "<small>paper {paper}, {difference}</small>", escape=safe_text)
    return html_table(result.title, result.headings(), rows) + note_list(notes)


def note_list(notes: Sequence[str]) -> str:
    """Notes below a table; empty where there are none."""
    return f'<ul class="notes">{"".join(f"<li>{safe_text(note)}</li>" for note in notes)}</ul>' if notes else ""


def html_table(caption: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table that scrolls by itself; the cells of ``rows`` are HTML, the first of each is its heading."""
    head = "".join(f'<th scope="col">{safe_text(text)}</th>' for text in headings)
    lines = (f'<tr><th scope="row">{name}</th><td>{"</td><td>".join(cells)}</td></tr>' for name, *cells in rows)
    return (
        f'<p class="caption">{safe_text(caption)}</p>'
        f'<div class="scroll" tabindex="0" role="region" aria-label="{safe_text(caption)}"><table>'
        f"<thead><tr>{head}</tr></thead>"
        f"<tbody>{''.join(lines)}</tbody></table></div>"
    )


def whole_page(title: str, controls: str, body: str, variants: int) -> str:
    """The finished page; ``variants`` is the number of variants to choose from."""
    rules = [f"body:has(#v{place}:checked) .view.v{place} {{ display: block; }}" for place in range(variants)]
    chosen = "\n".join(rules) if variants > 1 else ".view { display: block; }"
    style = "\n".join([read_style("chart"), read_style("report"), chosen])
    return (
        f"{page_head(title, style)}<body>\n<header>\n<h1>{safe_text(title)}</h1>\n</header>\n{controls}\n"
        f"<main>\n{body}\n</main>\n</body>\n</html>\n"
    )
