"""The markup of a report: cards with pictures, tables, and the page round them. No script, nothing from elsewhere."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from procon.evaluation.metrics import MetricValues
from procon.evaluation.paper.results import Cell, Result
from procon.evaluation.paper.tables import ALL, TITLES
from procon.evaluation.report import charts
from procon.evaluation.report.charts import safe_text
from procon.evaluation.report.pictures import Scale

FIRST = 4  # cards in view; the others unfold


@dataclass(frozen=True)
class CaseCard:
    """One test image as the page shows it."""

    name: str
    kind: str
    score: float
    rank: str
    note: str
    verdict: str
    wrong: bool
    part: str | None
    """The image as a data URI; None if it is gone."""
    heat: str
    """The image under its map, as a data URI."""
    outlines: str
    """SVG of the ground truth, laid over both pictures; empty where there is none."""

    def size(self) -> int:
        """Bytes on the page."""
        return len(self.part or "") + len(self.heat) + 2 * len(self.outlines) + 1000


def outlines(size: tuple[int, int], truth: str, region: str) -> str:
    """Borders over a picture, ``size`` is the (height, width) they are given in; ``region`` is drawn stronger."""
    if not truth:
        return ""
    paths = f'<path class="halo" d="{truth}"></path><path class="edge" d="{truth}"></path>'
    if region:
        paths += f'<path class="edge meant" d="{region}"></path>'
    box = f"0 0 {size[1]} {size[0]}"
    return f'<svg class="truth" viewBox="{box}" preserveAspectRatio="none" aria-hidden="true">{paths}</svg>'


def card_html(card: CaseCard, scale: Scale) -> str:
    """Input and map side by side, the colour bar under the map, and what is to be said."""
    name = safe_text(card.name)
    if card.part is None:
        first = '<div class="gone">image is gone</div>'
    else:
        first = f'<div class="stack"><img src="{card.part}" alt="{name}, input">{card.outlines}</div>'
    heat = f'<div class="stack"><img src="{card.heat}" alt="{name}, map of scores">{card.outlines}</div>'
    verdict = f'<b class="{"wrong" if card.wrong else "right"}">{safe_text(card.verdict)}</b>' if card.verdict else ""
    return (
        f'<li><div class="pair"><figure>{first}<figcaption>input</figcaption></figure>'
        f"<figure>{heat}{color_bar(scale)}</figure></div>"
        f'<p class="say"><b class="score">{card.score:.4f}</b> {verdict} <span>{safe_text(card.rank)}</span></p>'
        f'<p class="say">{safe_text(card.note)}</p><p class="file">{safe_text(card.kind)} · {name}</p></li>'
    )


def color_bar(scale: Scale) -> str:
    """A bar with its three numbers. Its colours come from ``--bar`` of the element around all of a variant's cards."""
    at = min(68.0, max(32.0, 100 * scale.place(scale.limit)))  # so that the numbers do not touch
    return (
        '<figcaption class="bar"><i></i><span class="numbers">'
        f'<span>{scale.typical:.3f}</span><span class="mid" style="left:{at:.0f}%">{scale.limit:.3f}</span>'
        f"<span>{scale.peak:.3f}</span></span></figcaption>"
    )


def card_list(title: str, intro: str, cards: Sequence[CaseCard], scale: Scale) -> str:
    """A heading, a sentence and the cards; all but the first few unfold."""
    parts = [f"<h3>{safe_text(title)}</h3><p>{safe_text(intro)}</p>"]
    if cards:
        parts.append(f'<ul class="cards">{"".join(card_html(card, scale) for card in cards[:FIRST])}</ul>')
    if len(cards) > FIRST:
        rest = "".join(card_html(card, scale) for card in cards[FIRST:])
        parts.append(f'<details><summary>{len(cards) - FIRST} more</summary><ul class="cards">{rest}</ul></details>')
    return "".join(parts)


def facts(pairs: Sequence[tuple[str, str]]) -> str:
    """What was run."""
    return '<dl class="facts">' + "".join(f"<dt>{safe_text(k)}</dt><dd>{safe_text(v)}</dd>" for k, v in pairs) + "</dl>"


def metric_strip(metrics: MetricValues) -> str:
    """The nine metrics in percent, with the reason where one is undefined."""
    parts = []
    for name in ALL:
        why = f' title="{safe_text(metrics.reasons[name])}"' if name in metrics.reasons else ""
        parts.append(f"<div{why}><dt>{TITLES[name]}</dt><dd>{_percent(metrics[name])}</dd></div>")
    return f'<dl class="strip">{"".join(parts)}</dl>'


def metrics_table(
    label: str,
    caption: str,
    rows: Sequence[tuple[str, str, Mapping[str, float]]],
    extra: Mapping[str, Sequence[str]],
    *,
    rivals: bool,
) -> str:
    """Rows of (label, link or nothing, metrics) in percent, after columns of texts; the best of rivals are strong."""
    best = {name: max((m[name] for _, _, m in rows if not math.isnan(m[name])), default=math.nan) for name in ALL}
    lines = []
    for place, (name, link, metrics) in enumerate(rows):
        shown = f'<a href="#{link}">{safe_text(name)}</a>' if link else safe_text(name)
        cells = "".join(f"<td>{safe_text(texts[place])}</td>" for texts in extra.values())
        for key in ALL:
            strong = rivals and metrics[key] == best[key]
            cells += f"<td>{'<b>' if strong else ''}{_percent(metrics[key])}{'</b>' if strong else ''}</td>"
        lines.append(f'<tr><th scope="row">{shown}</th>{cells}</tr>')
    return _table(caption, [label, *extra, *(TITLES[key] for key in ALL)], lines)


def result_table(result: Result, notes: Sequence[str]) -> str:
    """A table of the paper: ours, and below it the paper's value and the difference; then those of its notes."""
    lines = []
    for line in result.lines:
        cells = "".join(f"<td>{_cell(line.cells.get(column, Cell()))}</td>" for column in result.columns)
        star = " *" if line.published else ""
        lines.append(f'<tr><th scope="row">{safe_text(line.label + star)}</th>{cells}</tr>')
    label = "Category" if result.name == "per-category" else "Variant"
    return _table(result.title, [label, *result.column_titles()], lines) + note_list(notes)


def note_list(notes: Sequence[str]) -> str:
    """Small print; nothing where there is none."""
    return f'<ul class="notes">{"".join(f"<li>{safe_text(note)}</li>" for note in notes)}</ul>' if notes else ""


def _table(caption: str, heads: Sequence[str], lines: Sequence[str]) -> str:
    head = "".join(f'<th scope="col">{safe_text(text)}</th>' for text in heads)
    return (
        f'<p class="caption">{safe_text(caption)}</p>'
        f'<div class="scroll" tabindex="0" role="region" aria-label="{safe_text(caption)}"><table>'
        f"<thead><tr>{head}</tr></thead>"
        f"<tbody>{''.join(lines)}</tbody></table></div>"
    )


def _percent(value: float) -> str:
    return "n/a" if math.isnan(value) else f"{100 * value:.2f}"


def _cell(cell: Cell) -> str:
    ours = "" if cell.value is None else "n/a" if math.isnan(cell.value) else f"{cell.value:.2f}"
    if cell.spread is not None:
        ours += f" ± {cell.spread:.2f}"
    if cell.paper is None:
        return ours
    if cell.value is None:
        return f"{cell.paper:.2f}"
    return f"{ours}<small>paper {cell.paper:.2f}, {cell.value - cell.paper:+.2f}</small>"


def whole_page(title: str, controls: str, body: str, variants: int) -> str:
    """The finished page; ``variants`` is how many may be chosen among."""
    chosen = ".view { display: block; }"
    if variants > 1:
        rules = [f"body:has(#v{place}:checked) .view.v{place} {{ display: block; }}" for place in range(variants)]
        chosen = "\n".join(rules)
    style = CSS.replace("%CHART%", charts.CSS).replace("%DARK%", charts.DARK).replace("%CHOSEN%", chosen)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; img-src data:; '
        "style-src 'unsafe-inline'\">\n"
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{safe_text(title)}</title>\n<style>{style}</style>\n</head>\n<body>\n"
        f"<header>\n<h1>{safe_text(title)}</h1>\n</header>\n{controls}\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    )


CSS = """
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
