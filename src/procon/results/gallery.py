"""One self-contained HTML page of results: no script or picture from elsewhere, opens from a mail attachment."""

import base64
import html
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from procon.files import atomic_text
from procon.prediction import Prediction
from procon.results.drift import Drift
from procon.results.rendering import ColorScale, painted
from procon.vision.pictures import jpeg, shrink

MOST_CARDS = 200  # a page of more pictures than this is no longer looked at, or mailed


@dataclass(frozen=True)
class Card:
    """One result as the page shows it."""

    name: str
    score: float
    is_anomalous: bool | None
    p_value: float | None
    regions: int
    part: bytes
    """JPEG of the part."""
    painted: bytes
    """JPEG of the part under its heat map."""


def make_card(name: str, prediction: Prediction, pixels: NDArray[np.uint8], scale: ColorScale) -> Card:
    """The pictures of one prediction at page size."""
    small = shrink(pixels, 448)
    return Card(
        name,
        prediction.score,
        prediction.is_anomalous,
        prediction.p_value,
        len(prediction.regions),
        jpeg(small),
        jpeg(painted(small, prediction, scale)),
    )


@dataclass(frozen=True)
class Mark:
    """One score on the axis."""

    name: str
    score: float
    is_anomalous: bool | None


def write_gallery(
    path: Path,
    title: str,
    cards: Sequence[Card],
    marks: Sequence[Mark],
    threshold: float | None,
    facts: Sequence[str],
    drift: Drift | None = None,
) -> None:
    """Write the page: facts, all scores on one axis, and a card for the images with the highest of them."""
    shown = sorted(cards, key=lambda card: -card.score)[:MOST_CARDS]
    flagged = sum(bool(mark.is_anomalous) for mark in marks)
    summary = f"{len(marks)} images, {flagged} called anomalous" if threshold is not None else f"{len(marks)} images"
    if len(shown) < len(marks):
        summary += f"; the {len(shown)} with the highest scores are shown"
    body = [
        f"<h1>{html.escape(title)}</h1>",
        f"<p class=summary>{html.escape(summary)}</p>",
        _drift_line(drift),
        _score_axis(marks, threshold),
        "<p class=legend><span class=ramp></span> outlined: above the pixel threshold of this model; where an "
        "anomalous part has nothing above it, the area around its peak. "
        "The colours mean the same in every picture. Point at a picture, or focus it, to see the part alone.</p>",
        "<ul class=cards>",
        *(_card(card) for card in shown),
        "</ul>",
        "<h2>Model</h2><ul class=facts>",
        *(f"<li>{html.escape(fact)}</li>" for fact in facts),
        "</ul>",
    ]
    with atomic_text(path) as stream:
        stream.write(_PAGE.replace("%TITLE%", html.escape(title)).replace("%BODY%", "\n".join(body)))


def _drift_line(drift: Drift | None) -> str:
    if drift is None:
        return ""
    return f"<p class={'warning' if drift.drifted else 'legend'}>{html.escape(drift.describe())}</p>"


def _card(card: Card) -> str:
    if card.is_anomalous is None:
        verdict, label = "unknown", "no threshold"
    else:
        verdict, label = ("bad", "anomalous") if card.is_anomalous else ("ok", "good")
    p_value = f"p = {card.p_value:.3f}" if card.p_value is not None else ""
    name = html.escape(card.name)
    return (
        f"<li class={verdict} tabindex=0><figure>"
        f'<img class=part alt="{name}" src="{_data(card.part)}">'
        f'<img class=heat alt="heat map of {name}" src="{_data(card.painted)}">'
        f"</figure><b>{card.score:.3f}</b> <span class=verdict>{label}</span> <span>{p_value}</span>"
        f"<small>{name}</small></li>"
    )


def _data(image: bytes) -> str:
    return "data:image/jpeg;base64," + base64.b64encode(image).decode()


def _score_axis(marks: Sequence[Mark], threshold: float | None) -> str:
    """Every score as a tick on one axis, with the threshold, as SVG; of ticks at one place the first is drawn."""
    values = [mark.score for mark in marks] + ([threshold] if threshold is not None else [])
    low, high = min(values), max(values)
    span = (high - low) or 1.0

    def x(value: float) -> float:
        return 20 + 960 * (value - low) / span

    ticks: dict[tuple[str, str], str] = {}
    for one in marks:
        place, verdict = f"{x(one.score):.1f}", "bad" if one.is_anomalous else "ok"
        name = html.escape(f"{one.name}: {one.score:.3f}")
        line = f'<line x1="{place}" x2="{place}" y1="16" y2="44" class="{verdict}"><title>{name}</title></line>'
        ticks.setdefault((place, verdict), line)
    mark = ""
    if threshold is not None:
        at = x(threshold)
        side, gap = ("end", -6) if at > 800 else ("start", 6)
        mark = (
            f'<line x1="{at:.1f}" x2="{at:.1f}" y1="6" y2="54" class="threshold"/>'
            f'<text x="{at + gap:.1f}" y="66" text-anchor="{side}">threshold {threshold:.3f}</text>'
        )
    ends = f'<text x="20" y="66">{low:.3f}</text><text x="980" y="66" text-anchor="end">{high:.3f}</text>'
    if threshold is not None and min(abs(x(threshold) - 20), abs(x(threshold) - 980)) < 160:
        ends = ""
    return (
        f'<svg class=axis viewBox="0 0 1000 74" role="img" aria-label="scores of all images">'
        f'<line x1="20" x2="980" y1="30" y2="30" class="base"/>{"".join(ticks.values())}{mark}{ends}</svg>'
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
