"""One self-contained HTML page of results that loads nothing from elsewhere: it opens from a mail attachment."""

import base64
import html
from collections.abc import Sequence
from dataclasses import dataclass

from procon.amounts import count_of
from procon.arrays import Bytes
from procon.names import show_name, show_text
from procon.prediction import Prediction
from procon.results.drift import Drift
from procon.showing.painting import ColorScale, paint_prediction
from procon.vision.pictures import jpeg, shrink

MOST_CARDS = 200  # a page with more pictures than this is too large to mail


@dataclass(frozen=True)
class Mark:
    """The result of one image on the axis of scores."""

    name: str
    score: float
    is_anomalous: bool | None


@dataclass(frozen=True)
class Card(Mark):
    """The result of one image with its pictures."""

    p_value: float | None
    relative_score: float | None
    part: bytes  # JPEG
    painted: bytes  # JPEG of the part under its heat map


def make_card(name: str, prediction: Prediction, pixels: Bytes, scale: ColorScale) -> Card:
    """The pictures of one prediction at page size."""
    small = shrink(pixels, 448)
    painted = jpeg(paint_prediction(small, prediction, scale))
    judged = prediction.is_anomalous, prediction.p_value, prediction.relative_score
    return Card(name, prediction.score, *judged, jpeg(small), painted)


def render_gallery(
    title: str,
    cards: Sequence[Card],
    marks: Sequence[Mark],
    threshold: float | None,
    facts: Sequence[str],
    drift: Drift | None = None,
    notes: Sequence[str] = (),
) -> str:
    """The page: all scores on one axis, a card for each of the images with the highest scores, and facts."""
    shown = sorted(cards, key=lambda card: -card.score)[:MOST_CARDS]
    flagged = sum(bool(mark.is_anomalous) for mark in marks)
    summary = count_of(len(marks), "image") + (f", {flagged} called anomalous" if threshold is not None else "")
    if len(shown) < len(marks):
        summary += f"; the {len(shown)} with the highest scores are shown"
    body = [
        f"<h1>{html.escape(show_text(title))}</h1>",
        f"<p class=summary>{html.escape(summary)}</p>",
        *(f"<p class=note>{html.escape(note)}</p>" for note in notes),
        f"<p class={'warning' if drift.drifted else 'legend'}>{html.escape(drift.describe())}</p>" if drift else "",
        _score_axis(marks, threshold),
        "<p class=legend><span class=ramp></span> outlined: above the pixel threshold of this model; where an "
        "anomalous part has nothing above it, the area around its peak. "
        "The colours mean the same in every picture. Point at a picture, or focus it, to see the part alone.</p>",
        "<ul class=cards>",
        *(_card(card) for card in shown),
        "</ul>",
        "<h2>Model</h2><ul class=facts>",
        *(f"<li>{html.escape(show_text(fact))}</li>" for fact in facts),
        "</ul>",
    ]
    before, after = _PAGE.split("%BODY%")
    return before.replace("%TITLE%", html.escape(show_text(title))) + "\n".join(body) + after


def _card(card: Card) -> str:
    verdict, label = {True: ("bad", "anomalous"), False: ("ok", "good"), None: ("unknown", "no threshold")}[
        card.is_anomalous
    ]
    p_value = f"p = {card.p_value:.3f}" if card.p_value is not None else ""
    relative = f"{card.relative_score:.2f} x the limit" if card.relative_score is not None else ""
    name = html.escape(show_name(card.name))
    return (
        f"<li class={verdict} tabindex=0><figure>"
        f'<img class=part alt="{name}" src="{_data_uri(card.part)}">'
        f'<img class=heat alt="heat map of {name}" src="{_data_uri(card.painted)}">'
        f"</figure><b>{card.score:.3f}</b> <span class=verdict>{label}</span> "
        f"<span>{relative}</span> <span>{p_value}</span>"
        f"<small>{name}</small></li>"
    )


def _data_uri(image: bytes) -> str:
    return "data:image/jpeg;base64," + base64.b64encode(image).decode()


def _score_axis(marks: Sequence[Mark], threshold: float | None) -> str:
    """All scores on one axis with the threshold, as SVG; of several ticks at one place, the first is drawn."""
    values = [mark.score for mark in marks] + ([threshold] if threshold is not None else [])
    low, high = min(values), max(values)
    span = (high - low) or 1.0

    def x(value: float) -> float:
        return 20 + 960 * (value - low) / span

    ticks: dict[tuple[str, str], str] = {}
    for mark in marks:
        place, verdict = f"{x(mark.score):.1f}", "bad" if mark.is_anomalous else "ok"
        name = html.escape(f"{show_name(mark.name)}: {mark.score:.3f}")
        line = f'<line x1="{place}" x2="{place}" y1="16" y2="44" class="{verdict}"><title>{name}</title></line>'
        ticks.setdefault((place, verdict), line)
    limit = ""
    if threshold is not None:
        at = x(threshold)
        side, gap = ("end", -6) if at > 800 else ("start", 6)
        limit = (
            f'<line x1="{at:.1f}" x2="{at:.1f}" y1="6" y2="54" class="threshold"/>'
            f'<text x="{at + gap:.1f}" y="66" text-anchor="{side}">threshold {threshold:.3f}</text>'
        )
    ends = f'<text x="20" y="66">{low:.3f}</text><text x="980" y="66" text-anchor="end">{high:.3f}</text>'
    if threshold is not None and min(abs(x(threshold) - 20), abs(x(threshold) - 980)) < 160:
        ends = ""
    return (
        f'<svg class=axis viewBox="0 0 1000 74" role="img" aria-label="scores of all images">'
        f'<line x1="20" x2="980" y1="30" y2="30" class="base"/>{"".join(ticks.values())}{limit}{ends}</svg>'
    )


_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>%TITLE%</title>
<style>
:root { color-scheme: light dark; --fg: #1c2024; --soft: #667; --bg: #fafafa; --card: #fff; --line: #d9dce1;
        --bad: #c81e3c; --ok: #1e7d46; }
@media (prefers-color-scheme: dark) { :root { --fg: #e8eaed; --soft: #9aa4ae; --bg: #14171a; --card: #1d2125;
        --line: #343a40; --bad: #ff6b81; --ok: #5ecb8a; } }
body { margin: 0 auto; max-width: 1240px; padding: 1.5rem; font: 15px/1.45 system-ui, sans-serif;
       color: var(--fg); background: var(--bg); }
h1 { font-size: 1.5rem; margin: 0; } h2 { font-size: 1.1rem; margin-top: 2rem; }
.warning { border: 2px solid var(--bad); border-radius: 8px; padding: .6rem .8rem; color: var(--bad); }
.note { border-left: 4px solid var(--soft); padding-left: .6rem; }
.summary { margin: .2rem 0 1rem; } .legend, .facts, small { color: var(--soft); }
.axis { width: 100%; height: auto; }
.axis .base { stroke: var(--line); stroke-width: 2; } .axis text { fill: var(--soft); font-size: 13px; }
.axis .ok { stroke: var(--ok); stroke-width: 2; } .axis .bad { stroke: var(--bad); stroke-width: 2; }
.axis .threshold { stroke: var(--fg); stroke-width: 2; stroke-dasharray: 5 4; }
.ramp { display: inline-block; width: 8rem; height: .7rem; border-radius: 3px; vertical-align: middle;
        background: linear-gradient(90deg, transparent, #ffcd3c 30%, #fa781e 50%, #e01e3c 75%, #96006e);
        border: 1px solid var(--line); }
.cards { list-style: none; padding: 0; margin: 1rem 0; display: grid; gap: 1rem;
         grid-template-columns: repeat(auto-fill, minmax(220px, 1fr)); }
.cards li { background: var(--card); border: 1px solid var(--line); border-top: 4px solid var(--line);
            border-radius: 8px; padding: .6rem; }
.cards li.bad { border-top-color: var(--bad); } .cards li.ok { border-top-color: var(--ok); }
.bad .verdict { color: var(--bad); } .ok .verdict { color: var(--ok); }
figure { margin: 0 0 .5rem; position: relative; } figure img { width: 100%; display: block; border-radius: 4px; }
.heat { position: absolute; inset: 0; } li:hover .heat, li:focus .heat { opacity: 0; }
.cards span { white-space: nowrap; }
small { display: block; overflow-wrap: anywhere; }
</style>
<body>
%BODY%
</body>
</html>
"""
