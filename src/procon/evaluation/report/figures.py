"""The paper's figures from the raw results of a run: anomaly maps side by side, residual maps by layer, curves.

Pictures are drawn with Pillow and charts as SVG. Every map has a colour bar with the numbers it stands for.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from procon.arrays import Bools, Bytes
from procon.errors import ConfigError
from procon.evaluation.report.cases import examples
from procon.evaluation.report.charts import standalone
from procon.evaluation.report.lineup import known_titles, layer_variants, main_variant, paper_columns, title_of
from procon.evaluation.report.pictures import plain, seen, truth
from procon.evaluation.report.views import look
from procon.evaluation.runs.raw import Raw, Run
from procon.files import atomic_path, atomic_text

ROWS = 5
"""Examples in a figure, unless they are given."""
SIDE = 200  # pixels of a picture

_GAP, _MARGIN, _LINE, _BAR = 8, 16, 18, 12  # pixels
_INK, _SOFT, _PAPER = "#1c2024", "#5b6570", "#ffffff"
_WHOLE = "from the median of the good test images to the highest value of any test image of the category"

Span = tuple[float, float]


@dataclass(frozen=True)
class _Column:
    """Maps of one variant, and the values at the ends of their colour bar."""

    title: str
    raw: Raw
    span: Span


def qualitative_grid(
    run: Run,
    category: str,
    variants: Mapping[str, str] | None = None,
    indices: Sequence[int] | None = None,
    *,
    side: int = SIDE,
) -> Image.Image:
    """Input, ground truth and the map of each variant; a row for each example.

    ``variants`` are columns as title -> variant name, by default hard NN, SPM and ProCon as far as they are stored.
    ``indices`` are test images; by default evenly spaced by score, so that nobody chose them. Each column has a scale
    of its own, because distances in different memories are not comparable.
    """
    columns = dict(variants) if variants is not None else paper_columns(run, [category])
    if not columns:
        one = main_variant(run)
        columns = {title_of(one, {}): one}
    drawn = [_column(title, run.load(category, variant)) for title, variant in columns.items()]
    known = known_titles(run)
    which = ", ".join(known.get(variant, variant) for variant in columns.values())
    note = f"{which}. Each column has its own scale: {_WHOLE}. {_chosen(indices)}"
    return _grid(f"{place_name(run, category)}: anomaly maps", note, drawn, indices, side)


def layer_maps(
    run: Run,
    category: str,
    variant: str | None = None,
    indices: Sequence[int] | None = None,
    *,
    side: int = SIDE,
) -> Image.Image:
    """Input, ground truth, the residual map of every single layer, and the map they fuse to.

    All maps share one scale: the fused map is their mean, so their values are comparable.
    """
    found = layer_variants(run, category, variant)
    single = [_column(title, run.load(category, name)) for title, name in found.items()]
    span = min(column.span[0] for column in single), max(column.span[1] for column in single)
    drawn = [_Column(column.title, column.raw, span) for column in single]
    title = f"{place_name(run, category)}: residual maps of single layers and their mean"
    known = known_titles(run).get(found["S_map"], found["S_map"])
    note = (
        f"S_map: {known}. All maps share one scale, from the lowest median of good test images to the highest value of "
        f"any map. {_chosen(indices)}"
    )
    return _grid(title, note, drawn, indices, side)


def place_name(run: Run, category: str) -> str:
    """Dataset and category, once where they are the same."""
    return category if run.dataset.title == category else f"{run.dataset.title}, {category}"


def _chosen(indices: Sequence[int] | None) -> str:
    """How the examples were found, unless somebody chose them."""
    return "" if indices is not None else "Examples are evenly spaced by score within each kind."


def _column(title: str, raw: Raw) -> _Column:
    labels = np.array(raw.labels)
    typical = float(np.median(raw.maps[~labels] if not labels.all() else raw.maps))
    peak = max(float(values.max()) for values in map(raw.pixel_map, range(len(raw.scores))))
    return _Column(title, raw, (typical, peak))


def _grid(title: str, note: str, columns: Sequence[_Column], indices: Sequence[int] | None, side: int) -> Image.Image:
    """Rows of pictures under headings, colour bars below the maps, the note at the foot."""
    last = columns[-1].raw
    chosen = list(indices) if indices is not None else examples(last, ROWS)
    if not chosen or not all(0 <= index < len(last.scores) for index in chosen):
        raise ConfigError(f"indices must be of test images, 0 to {len(last.scores) - 1}, got {chosen}")
    parts = {index: seen(last, index, side) for index in chosen}
    heights = {index: _height(last, parts[index], side) for index in chosen}
    width = 2 * _MARGIN + (2 + len(columns)) * (side + _GAP) - _GAP
    feet = _wrap(note, width - 2 * _MARGIN)
    top = _MARGIN + 2 * _LINE + 10
    rows = sum(height + _LINE + _GAP for height in heights.values())
    canvas = Image.new("RGB", (width, top + rows + _BAR + 2 * _LINE + _LINE * len(feet) + _MARGIN), _PAPER)
    draw = ImageDraw.Draw(canvas)
    draw.text((_MARGIN, _MARGIN), title, fill=_INK, font=_font(16))
    lefts = [_MARGIN + place * (side + _GAP) for place in range(2 + len(columns))]
    for left, heading in zip(lefts, ["Input", "Ground truth", *(column.title for column in columns)], strict=True):
        _fitted(draw, (left + side // 2, top - 8), heading, side, _INK, "ms")
    for index in chosen:
        size = (side, heights[index])
        _paste(canvas, draw, parts[index], (lefts[0], top), size, "image is gone")
        _paste(canvas, draw, _mask_picture(last, index), (lefts[1], top), size, "no mask")
        _fitted(draw, (lefts[0], top + size[1] + 13), _name(last, index), 2 * side, _SOFT, "ls")
        for left, column in zip(lefts[2:], columns, strict=True):
            _paste(canvas, draw, plain(column.raw.pixel_map(index), *column.span), (left, top), size)
            score = f"score {column.raw.scores[index]:.3f}"
            draw.text((left, top + size[1] + 13), score, fill=_SOFT, font=_font(12), anchor="ls")
        top += size[1] + _LINE + _GAP
    for left, column in zip(lefts[2:], columns, strict=True):
        _color_bar(canvas, draw, (left, top), side, column.span)
    for place, line in enumerate(feet):
        draw.text((_MARGIN, top + _BAR + 2 * _LINE + 8 + place * _LINE), line, fill=_SOFT, font=_font(12), anchor="ls")
    return canvas


def _height(raw: Raw, part: Bytes | None, side: int) -> int:
    """Of the pictures of a row, so that the part keeps its proportions."""
    height, width = raw.size if part is None else part.shape[:2]
    return int(max(1, round(side * height / width)))


def _paste(
    canvas: Image.Image,
    draw: ImageDraw.ImageDraw,
    pixels: Bytes | None,
    at: tuple[int, int],
    size: tuple[int, int],
    otherwise: str = "",
) -> None:
    """A picture in its place, or an empty frame with words."""
    if pixels is None:
        draw.rectangle((*at, at[0] + size[0] - 1, at[1] + size[1] - 1), outline=_SOFT)
        middle = (at[0] + size[0] // 2, at[1] + size[1] // 2)
        draw.text(middle, otherwise, fill=_SOFT, font=_font(12), anchor="mm")
        return
    canvas.paste(Image.fromarray(pixels).resize(size, Image.Resampling.BICUBIC), at)


def _mask_picture(raw: Raw, index: int) -> Bytes | None:
    """The mask in black and white; black for a good image, None where it is not known."""
    mask: Bools | None = truth(raw, index)
    if mask is None and raw.samples[index].defective:
        return None
    marked = np.zeros(raw.size, np.bool_) if mask is None else mask
    return np.repeat(np.where(marked, np.uint8(255), np.uint8(0))[:, :, None], 3, axis=2)


def _color_bar(canvas: Image.Image, draw: ImageDraw.ImageDraw, at: tuple[int, int], width: int, span: Span) -> None:
    """The colours of a column with the numbers at the ends and, where there is room, in the middle."""
    low, high = span
    values = np.linspace(low, high, width, dtype=np.float32)[None].repeat(_BAR, axis=0)
    canvas.paste(Image.fromarray(plain(values, low, high)), at)
    marks = [(0.0, "ls"), (0.5, "ms"), (1.0, "rs")] if width >= 120 else [(0.0, "ls"), (1.0, "rs")]
    for place, anchor in marks:
        text = f"{low + place * (high - low):.3f}"
        x = at[0] + place * (width - 1)
        draw.text((x, at[1] + _BAR + 15), text, fill=_INK, font=_font(12), anchor=anchor)


def _name(raw: Raw, index: int) -> str:
    sample = raw.samples[index]
    return f"{sample.kind}  {sample.path.name}".encode("ascii", "replace").decode()


def _fitted(
    draw: ImageDraw.ImageDraw, at: tuple[float, float], text: str, width: float, fill: str, anchor: str
) -> None:
    """Text that is cut where it would leave its column."""
    size = 14 if anchor == "ms" else 12
    while len(text) > 4 and draw.textlength(text, font=_font(size)) > width:
        text = text[:-4] + "..."
    draw.text(at, text, fill=fill, font=_font(size), anchor=anchor)


def _wrap(text: str, width: int) -> list[str]:
    """Lines of at most ``width`` pixels."""
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".strip()
        if lines[-1] and _font(12).getlength(longer) > width:
            lines.append(word)
        else:
            lines[-1] = longer
    return lines


def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    """Pillow's own font, the same on every machine."""
    return ImageFont.load_default(size)


def write_figures(
    run: Run, folder: Path, categories: Sequence[str], progress: Callable[[int, int], None], variant: str | None = None
) -> tuple[list[Path], list[str]]:
    """All figures of ``categories`` into a folder for each; gives the files, and what could not be drawn and why."""
    written: list[Path] = []
    problems: list[str] = []
    main = main_variant(run, variant)
    for place, category in enumerate(categories):
        target = folder / category
        for name, make in (("qualitative", qualitative_grid), ("layers", layer_maps)):
            try:
                written.append(_save(make(run, category), target / f"{name}.png"))
            except ConfigError as error:
                problems.append(f"{category}: {name}.png was left out: {error}")
        about = f"{place_name(run, category)}, {title_of(main, known_titles(run))}"
        if main in run.stored().get(category, ()):
            for name, chart in look(run, category, main).draw().items():
                with atomic_text(target / f"{name}.svg") as stream:
                    stream.write(standalone(chart, about))
                written.append(target / f"{name}.svg")
        else:
            problems.append(f"{category}: the charts were left out: {main} was not run on it")
        progress(place + 1, len(categories))
    return written, problems


def _save(picture: Image.Image, path: Path) -> Path:
    with atomic_path(path) as temporary:
        picture.save(temporary, "PNG", optimize=True)
    return path
