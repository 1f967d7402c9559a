"""The markup of a report: tables, lists of terms, and the whole page. No script, and nothing from elsewhere."""

import math
from collections.abc import Mapping, Sequence

from procon.evaluation.metrics import MetricValues
from procon.evaluation.paper.results import Result
from procon.evaluation.paper.tables import TITLES
from procon.evaluation.report.charts import CHART_CSS, DARK_CHART_CSS, safe_text

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
        parts.append(f"<div{why}><dt>{title}</dt><dd>{_percent(metrics[name])}</dd></div>")
    return f'<dl class="strip">{"".join(parts)}</dl>'


def metrics_table(caption: str, headings: Sequence[str], rows: Sequence[MetricsRow], *, rivals: bool) -> str:
    """A table of metrics in percent after the columns ``headings``; the best of rivals are strong."""
    best = {name: max((m[name] for *_, m in rows if not math.isnan(m[name])), default=math.nan) for name in TITLES}
    lines = []
    for name, texts, metrics in rows:
        cells = [safe_text(text) for text in texts]
        for key, highest in best.items():
            strong = rivals and metrics[key] == highest
            cells.append(f"<b>{_percent(metrics[key])}</b>" if strong else _percent(metrics[key]))
        lines.append([name, *cells])
    return html_table(caption, [*headings, *TITLES.values()], lines)


def result_table(result: Result, notes: Sequence[str]) -> str:
    """A table of the paper: ours, and below it the paper's value and the difference; then ``notes``."""
    rows = result.rows(" *", "<small>paper {paper}, {difference}</small>", escape=safe_text)
    return html_table(result.title, result.headings(), rows) + note_list(notes)


def note_list(notes: Sequence[str]) -> str:
    """Small print; nothing where there is none."""
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


def _percent(value: float) -> str:
    return "n/a" if math.isnan(value) else f"{100 * value:.2f}"


def whole_page(title: str, controls: str, body: str, variants: int) -> str:
    """The finished page; ``variants`` is how many may be chosen among."""
    rules = [f"body:has(#v{place}:checked) .view.v{place} {{ display: block; }}" for place in range(variants)]
    chosen = "\n".join(rules) if variants > 1 else ".view { display: block; }"
    style = PAGE_CSS.replace("%CHART%", CHART_CSS).replace("%DARK%", DARK_CHART_CSS).replace("%CHOSEN%", chosen)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; img-src data:; '
        "style-src 'unsafe-inline'\">\n"
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{safe_text(title)}</title>\n<style>{style}</style>\n</head>\n<body>\n"
        f"<header>\n<h1>{safe_text(title)}</h1>\n</header>\n{controls}\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    )


PAGE_CSS = """
:root { color-scheme: light dark; --fg: #1c2024; --soft: #5b6570; --bg: #fafafa; --card: #fff; --line: #d9dce1;
  --bad: #c81e3c; --ok: #1e7d46; --link: #0b5cad; }
%CHART%
@media (prefers-color-scheme: dark) { :root { --fg: #e8eaed; --soft: #a3adb7; --bg: #14171a; --card: #1d2125;
  --line: #343a40; --bad: #ff7d90; --ok: #5ecb8a; --link: #7db9ff; } %DARK% }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1280px; padding: 1.25rem clamp(.8rem, 3vw, 2rem) 3rem; color: var(--fg);
  background: var(--bg); font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.6rem; margin: 0 0 .6rem; line-height: 1.2; overflow-wrap: anywhere; }
h2 { font-size: 1.35rem; margin: 2.6rem 0 .6rem; padding-top: .8rem; border-top: 2px solid var(--line); }
h3 { font-size: 1.08rem; margin: 1.6rem 0 .2rem; } p { margin: .2rem 0 .6rem; max-width: 75ch; }
a { color: var(--link); } .warn { border-left: 4px solid var(--bad); padding: .3rem .8rem; background: var(--card); }
.controls { position: sticky; top: 0; z-index: 2; background: var(--bg); border-bottom: 1px solid var(--line);
  padding: .4rem 0; display: flex; flex-wrap: wrap; gap: .3rem 1.4rem; align-items: center; }
.controls fieldset { border: 0; margin: 0; padding: 0; display: flex; flex-wrap: wrap; gap: .2rem 1rem; min-width: 0; }
.controls legend { float: left; padding: 0 .6rem 0 0; font-weight: 600; }
.controls label { cursor: pointer; overflow-wrap: anywhere; }
.facts { display: grid; grid-template-columns: max-content 1fr; gap: .15rem 1rem; margin: .6rem 0; }
.facts dt { color: var(--soft); } .facts dd { margin: 0; overflow-wrap: anywhere; }
.strip { display: flex; flex-wrap: wrap; gap: .5rem 1.5rem; margin: .6rem 0; }
.strip dt { color: var(--soft); font-size: .85rem; }
.strip dd { margin: 0; font-size: 1.15rem; font-variant-numeric: tabular-nums; font-weight: 600; }
.view { display: none; }
%CHOSEN%
@supports not selector(:has(a)) { .view { display: block; } }
.cards { list-style: none; padding: 0; margin: .6rem 0; display: grid; gap: .9rem;
  grid-template-columns: repeat(auto-fill, minmax(min(100%, 440px), 1fr)); }
.cards li { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: .6rem; min-width: 0; }
.pair { display: grid; grid-template-columns: 1fr 1fr; gap: .5rem; align-items: start; }
section { scroll-margin-top: 3rem; }
figure { margin: 0; min-width: 0; } figcaption { color: var(--soft); font-size: .8rem; }
.stack { position: relative; line-height: 0; } .stack img { width: 100%; height: auto; border-radius: 4px; }
.truth { position: absolute; inset: 0; width: 100%; height: 100%; }
.truth path { fill: none; vector-effect: non-scaling-stroke; stroke-linecap: square; }
.halo { stroke: #000; stroke-width: 3; stroke-opacity: .55; } .edge { stroke: #00e5ff; stroke-width: 1.25; }
.truth .meant { stroke: #fff; stroke-width: 2.5; }
body:has(#truth:not(:checked)) .truth { display: none; }
.gone { aspect-ratio: 1; display: grid; place-items: center; border: 1px dashed var(--line); border-radius: 4px;
  color: var(--soft); font-size: .85rem; }
.bar i { display: block; height: .6rem; margin-top: .3rem; border-radius: 2px; background: var(--bar); }
.numbers { display: flex; justify-content: space-between; position: relative; font-variant-numeric: tabular-nums;
  font-size: .75rem; } .mid { position: absolute; transform: translateX(-50%); }
.say { margin: .35rem 0 0; font-size: .92rem; } .score { font-variant-numeric: tabular-nums; font-size: 1.05rem; }
.wrong { color: var(--bad); } .right { color: var(--ok); } .say span { color: var(--soft); }
.file { margin: .25rem 0 0; color: var(--soft); font-size: .85rem; overflow-wrap: anywhere; }
.charts { display: grid; gap: 1rem; grid-template-columns: repeat(auto-fit, minmax(min(100%, 270px), 1fr)); }
.charts .chart { width: 100%; background: var(--card); border: 1px solid var(--line); border-radius: 8px;
  padding: .3rem; }
.scroll { overflow-x: auto; margin: 0 0 .8rem; } .scroll:focus-visible { outline: 2px solid var(--link); }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .92rem; }
.caption { font-weight: 600; margin: 1rem 0 .2rem; max-width: none; }
th, td { padding: .28rem .7rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap;
  vertical-align: top; }
thead th { color: var(--soft); font-weight: 600; }
th[scope=row], thead th:first-child { text-align: left; position: sticky; left: 0; background: var(--bg); }
th[scope=row] { font-weight: 500; white-space: normal; min-width: 8rem; max-width: 26rem; overflow-wrap: anywhere; }
td small { display: block; color: var(--soft); } .notes { color: var(--soft); font-size: .9rem; max-width: 85ch; }
summary { cursor: pointer; color: var(--link); padding: .3rem 0; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; }
@media (max-width: 640px) { .controls { position: static; } .facts { grid-template-columns: 1fr; }
  .facts dd { margin-bottom: .35rem; } th[scope=row] { max-width: 11rem; } }
@media print { .controls { display: none; } .cards li { break-inside: avoid; } }
"""
