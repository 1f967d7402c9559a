"""Histograms and curves as SVG, without a drawing library: for a page, or as separate files."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from procon.arrays import AnyFloats
from procon.showing.markup import safe_text

WIDTH, HEIGHT = 360, 270
LEFT, RIGHT, TOP, BOTTOM = 46, 348, 48, 226  # of the frame that values are drawn in
_BARS = 32
_TICKS = 6  # of an axis, at most
_STATIC = Path(__file__).parent / "static"
_HEAD = 18  # pixels above a chart in a separate file


@dataclass(frozen=True)
class ChartLine:
    """One line of a chart."""

    label: str
    x: AnyFloats
    y: AnyFloats
    steps: bool = False  # a value of y holds from the x before up to its own


def draw_histogram(title: str, good: AnyFloats, defective: AnyFloats, thresholds: Mapping[str, float | None]) -> str:
    """Scores of good images upwards and of defective ones downwards from one axis, with named ``thresholds``."""
    cuts = [(name, value) for name, value in thresholds.items() if value is not None]
    values = np.concatenate([good, defective, np.array([value for _, value in cuts])]).astype(float)
    low, high = float(values.min()), float(values.max())
    if high <= low:
        low, high = low - 0.5, high + 0.5
    edges = np.linspace(low, high, _BARS + 1)
    counts = {name: np.histogram(part, edges)[0] for name, part in (("good", good), ("bad", defective))}
    most = max(1, *(int(count.max()) for count in counts.values()))
    middle, half = (TOP + BOTTOM) / 2, (BOTTOM - TOP) / 2
    step = (RIGHT - LEFT) / _BARS
    parts = []
    for name, count in counts.items():
        for place in np.flatnonzero(count):
            size = half * int(count[place]) / most
            top = middle - size if name == "good" else middle
            parts.append(
                f'<rect class="{name}" x="{LEFT + place * step + 0.5:.1f}" y="{top:.1f}" width="{step - 1:.1f}" '
                f'height="{size:.1f}"></rect>'
            )
    parts.append(f'<line class="frame" x1="{LEFT}" x2="{RIGHT}" y1="{middle}" y2="{middle}"></line>')
    parts += [_y_mark(middle - half, str(most)), _y_mark(middle, "0"), _y_mark(middle + half, str(most))]
    scale = (RIGHT - LEFT) / (high - low)
    parts += [_x_mark(LEFT + scale * (tick - low), text) for tick, text in choose_ticks(low, high)]
    for line, (name, value) in enumerate(cuts):
        x = LEFT + scale * (value - low)
        side, gap = ("end", -5) if x > (LEFT + RIGHT) / 2 else ("start", 5)
        parts.append(
            f'<line class="cut" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{BOTTOM}"></line>'
            f'<text class="soft" x="{x + gap:.1f}" y="{TOP + 16 + 14 * line}" text-anchor="{side}">'
            f"{safe_text(name)} at {value:.3f}</text>"
        )
    parts.append(
        f'<rect class="good" x="{LEFT}" y="30" width="10" height="10"></rect>'
        f'<text x="{LEFT + 15}" y="39">{len(good)} good</text>'
        f'<rect class="bad" x="{LEFT + 150}" y="30" width="10" height="10"></rect>'
        f'<text x="{LEFT + 165}" y="39">{len(defective)} defective</text>'
    )
    about = f"{title}: scores of {len(good)} good images above the axis, of {len(defective)} defective ones below"
    return _chart(title, about, "image score", "images", parts)


def draw_curves(title: str, curves: Sequence[ChartLine], x_title: str, y_title: str, right: float = 1.0) -> str:
    """At most two curves over 0..``right``, with a legend above them."""
    parts = [_x_mark(LEFT + (RIGHT - LEFT) * tick / right, text) for tick, text in choose_ticks(0.0, right)]
    parts += [_y_mark(BOTTOM - (BOTTOM - TOP) * tick, text) for tick, text in choose_ticks(0.0, 1.0)]
    for place, curve in enumerate(curves):
        x, y = LEFT + 150 * place, 39
        parts.append(
            f'{_path(curve, place, right)}<path class="curve k{place}" d="M{x} {y - 4}h24"></path>'
            f'<text x="{x + 30}" y="{y}">{safe_text(curve.label)}</text>'
        )
    if not curves:
        parts.append(f'<text class="soft" x="{LEFT + 12}" y="{(TOP + BOTTOM) / 2}">undefined on these images</text>')
    about = f"{title}: " + ("; ".join(curve.label for curve in curves) or "undefined on these images")
    return _chart(title, about, x_title, y_title, parts)


def choose_ticks(low: float, high: float) -> list[tuple[float, str]]:
    """At most six round numbers from ``low`` to ``high``, with their texts."""
    span = high - low
    size = 10.0 ** math.floor(math.log10(span / _TICKS))
    step = next(size * factor for factor in (1, 2, 5, 10, 20) if span / (size * factor) <= _TICKS - 1)
    digits = max(0, -math.floor(math.log10(step) + 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [(place * step, f"{place * step:.{digits}f}") for place in range(first, last + 1)]


def make_standalone(chart: str, about: str) -> str:
    """A chart as an SVG file, dark lines on white, with a line above its title that says what it is about."""
    colors = "svg { --fg: #1c2024; --soft: #5b6570; --line: #e3e6ea; }"
    size = f'width="{2 * WIDTH}" height="{2 * (HEIGHT + _HEAD)}"'
    opened = chart.replace("<svg ", f'<svg xmlns="http://www.w3.org/2000/svg" {size} ', 1)
    opened = opened.replace(f'"0 0 {WIDTH} {HEIGHT}"', f'"0 {-_HEAD} {WIDTH} {HEIGHT + _HEAD}"', 1)
    head, mark, rest = opened.partition(">")
    return (
        f"{head}{mark}<style>{colors}{read_style('chart')}</style>"
        f'<rect y="{-_HEAD}" width="100%" height="100%" fill="#fff"></rect>'
        f'<text class="soft" x="{LEFT}" y="0">{safe_text(about)}</text>{rest}\n'
    )


def _chart(title: str, about: str, x_title: str, y_title: str, parts: Sequence[str]) -> str:
    x_middle, y_middle = (LEFT + RIGHT) / 2, (TOP + BOTTOM) / 2
    return (
        f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{safe_text(about)}">'
        f'<text class="head" x="{LEFT}" y="20">{safe_text(title)}</text>'
        f'<rect class="frame" x="{LEFT}" y="{TOP}" width="{RIGHT - LEFT}" height="{BOTTOM - TOP}"></rect>'
        + "".join(parts)
        + f'<text class="soft" x="{x_middle}" y="{HEIGHT - 8}" text-anchor="middle">{safe_text(x_title)}</text>'
        f'<text class="soft" x="12" y="{y_middle}" text-anchor="middle" transform="rotate(-90 12 {y_middle})">'
        f"{safe_text(y_title)}</text></svg>"
    )


def _path(curve: ChartLine, place: int, right: float) -> str:
    inside = curve.x <= right
    x, y = curve.x[inside], curve.y[inside]
    if not inside.all():  # the curve goes on: draw it up to the frame
        y = np.append(y, curve.y[len(x)] if curve.steps else np.interp(right, curve.x, curve.y))
        x = np.append(x, right)
    across = np.round(LEFT + (RIGHT - LEFT) * x / right, 1)
    down = np.round(BOTTOM - (BOTTOM - TOP) * y, 1)
    moved = np.append(True, (np.diff(across) != 0) | (np.diff(down) != 0))
    across, down = across[moved], down[moved]
    if not len(across):
        return ""
    to = "V{1:g}H{0:g}" if curve.steps else "L{0:g} {1:g}"
    points = "".join(to.format(float(a), float(b)) for a, b in zip(across[1:], down[1:], strict=True))
    return f'<path class="curve k{place}" d="M{across[0]:g} {down[0]:g}{points}"></path>'


def _x_mark(x: float, text: str) -> str:
    return (
        f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{BOTTOM}" y2="{BOTTOM + 4}"></line>'
        f'<text class="soft" x="{x:.1f}" y="{BOTTOM + 18}" text-anchor="middle">{text}</text>'
    )


def _y_mark(y: float, text: str) -> str:
    return (
        f'<line class="grid" x1="{LEFT}" x2="{RIGHT}" y1="{y:.1f}" y2="{y:.1f}"></line>'
        f'<text class="soft" x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{text}</text>'
    )


def read_style(name: str) -> str:
    """The style sheet ``name``."""
    return (_STATIC / f"{name}.css").read_text(encoding="utf-8")
