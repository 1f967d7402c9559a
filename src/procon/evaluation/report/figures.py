"""The paper's figures from the raw results of a run: anomaly maps side by side, residual maps by layer, curves.

Pictures are drawn with Pillow and charts as SVG. Every map has a colour bar with the numbers it stands for.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image

from procon.arrays import Bytes
from procon.errors import ConfigError
from procon.evaluation.report.cases import choose_examples
from procon.evaluation.report.charts import make_standalone
from procon.evaluation.report.lineup import layer_variants, main_variant, paper_columns, title_of, variant_titles
from procon.evaluation.report.pictures import color_map, load_input, load_mask
from procon.evaluation.report.views import good_patch_scores, open_view
from procon.evaluation.runs.raw import Raw
from procon.evaluation.runs.run import Run
from procon.files import atomic_path, write_text
from procon.progress import Progress
from procon.showing.sheet import INK, SOFT, Point, Sheet, break_lines, cut_text

_ROWS = 5  # examples in a figure, unless they are given
_SIDE = 200  # pixels of a picture
_GAP, _MARGIN, _LINE, _BAR = 8, 16, 18, 12  # pixels
_SMALL = 12  # size of captions and notes
_WHOLE = "from the median of the good test images to the highest value of any test image of the category"

Span = tuple[float, float]


@dataclass(frozen=True)
class _Column:
    """Maps of one variant, and the values at the ends of their colour bar."""

    title: str
    raw: Raw
    span: Span


def qualitative_grid(
    run: Run, category: str, indices: Sequence[int] | None = None, *, side: int = _SIDE
) -> Image.Image:
    """Input, ground truth and the maps of hard NN, SPM and ProCon, where they are stored; a row for each example.

    ``indices`` are test images; by default they are evenly spaced by score, so that nobody picks them. Each column has
    its own scale, because distances in different memories are not comparable.
    """
    columns = paper_columns(run, [category])
    if not columns:
        main = main_variant(run)
        columns = {title_of(main, {}): main}
    titles = variant_titles(run)
    names = ", ".join(titles.get(variant, variant) for variant in columns.values())
    note = f"{names}. Each column has its own scale: {_WHOLE}. {_describe_choice(indices)}"
    title = f"{place_name(run, category)}: anomaly maps"
    return _grid(title, note, [_column(run, category, *item) for item in columns.items()], indices, side)


def layer_maps(
    run: Run, category: str, variant: str | None = None, indices: Sequence[int] | None = None, *, side: int = _SIDE
) -> Image.Image:
    """Input, ground truth, the residual map of every single layer, and the map they fuse to.

    All maps share one scale: the fused map is their mean, so their values are comparable.
    """
    variants = layer_variants(run, category, variant)
    columns = [_column(run, category, *item) for item in variants.items()]
    span = min(column.span[0] for column in columns), max(column.span[1] for column in columns)
    title = f"{place_name(run, category)}: residual maps of single layers and their mean"
    note = (
        f"S_map: {variant_titles(run).get(variants['S_map'], variants['S_map'])}. All maps share one scale, from the "
        f"lowest median of good test images to the highest value of any map. {_describe_choice(indices)}"
    )
    return _grid(title, note, [replace(column, span=span) for column in columns], indices, side)


def place_name(run: Run, category: str) -> str:
    """The names of dataset and category; one name where they are equal."""
    return category if run.dataset.title == category else f"{run.dataset.title}, {category}"


def _describe_choice(indices: Sequence[int] | None) -> str:
    return "" if indices is not None else "Examples are evenly spaced by score within each kind."


def _column(run: Run, category: str, title: str, variant: str) -> _Column:
    raw = run.load(category, variant)
    peak = max(float(raw.pixel_map(index).max()) for index in range(len(raw.scores)))
    return _Column(title, raw, (float(np.median(good_patch_scores(raw))), peak))


def _grid(title: str, note: str, columns: Sequence[_Column], indices: Sequence[int] | None, side: int) -> Image.Image:
    """Rows of pictures under headings, colour bars below the maps, the note at the foot."""
    last = columns[-1].raw
    chosen = list(indices) if indices is not None else choose_examples(last, _ROWS)
    if not chosen or not all(0 <= index < len(last.scores) for index in chosen):
        raise ConfigError(f"indices must be of test images, 0 to {len(last.scores) - 1}, got {chosen}")
    parts = [load_input(last, index, side) for index in chosen]
    sizes = [last.size if part is None else part.shape[:2] for part in parts]
    heights = [max(1, round(side * height / width)) for height, width in sizes]
    lefts = [_MARGIN + place * (side + _GAP) for place in range(2 + len(columns))]
    width, top = lefts[-1] + side + _MARGIN, _MARGIN + 2 * _LINE + 10
    foot = break_lines(note, width - 2 * _MARGIN, _SMALL)
    bottom = top + sum(heights) + len(chosen) * (_LINE + _GAP)
    sheet = Sheet(width, bottom + _BAR + (2 + len(foot)) * _LINE + _MARGIN, _MARGIN)
    sheet.label((_MARGIN, _MARGIN), title, INK, 16, "la")
    for left, heading in zip(lefts, ["Input", "Ground truth", *(column.title for column in columns)], strict=True):
        sheet.label((left + side // 2, top - 8), cut_text(heading, side, 14), INK, 14, "ms")
    for index, part, height in zip(chosen, parts, heights, strict=True):
        sample = last.samples[index]
        name = f"{sample.kind}  {sample.path.name}".encode("ascii", "replace").decode()
        pictures = [part, _mask_picture(last, index)]
        pictures += [color_map(column.raw.pixel_map(index), *column.span) for column in columns]
        captions = [
            cut_text(name, 2 * side, _SMALL),
            "",
            *(f"score {column.raw.scores[index]:.3f}" for column in columns),
        ]
        for left, pixels, caption in zip(lefts, pictures, captions, strict=True):
            if pixels is None:
                missing = "image is gone" if left == lefts[0] else "no mask"
                sheet.draw.rectangle((left, top, left + side - 1, top + height - 1), outline=SOFT)
                sheet.label((left + side // 2, top + height // 2), missing, size=_SMALL, anchor="mm")
            else:
                picture = Image.fromarray(pixels).resize((side, height), Image.Resampling.BICUBIC)
                sheet.image.paste(picture, (left, top))
            sheet.label((left, top + height + 13), caption, size=_SMALL, anchor="ls")
        top += height + _LINE + _GAP
    for left, column in zip(lefts[2:], columns, strict=True):
        _draw_color_bar(sheet, (left, top), side, column.span)
    for place, line in enumerate(foot):
        sheet.label((_MARGIN, top + _BAR + (2 + place) * _LINE + 8), line, size=_SMALL, anchor="ls")
    return sheet.image


def _mask_picture(raw: Raw, index: int) -> Bytes | None:
    """The mask in black and white; black for a good image, None where it is not known."""
    mask = load_mask(raw, index)
    if mask is None and raw.samples[index].defective:
        return None
    marked = np.zeros(raw.size, np.bool_) if mask is None else mask
    return np.repeat(np.where(marked, np.uint8(255), np.uint8(0))[:, :, None], 3, axis=2)


def _draw_color_bar(sheet: Sheet, at: Point, width: int, span: Span) -> None:
    """The colours of a column with the numbers at the ends and, where there is room, in the middle."""
    low, high = span
    values = np.linspace(low, high, width, dtype=np.float32)[None].repeat(_BAR, axis=0)
    sheet.image.paste(Image.fromarray(color_map(values, low, high)), at)
    for place, anchor in ((0.0, "ls"), (0.5, "ms"), (1.0, "rs")):
        if place != 0.5 or width >= 120:
            text = f"{low + place * (high - low):.3f}"
            sheet.label((at[0] + place * (width - 1), at[1] + _BAR + 15), text, INK, _SMALL, anchor)


def write_figures(
    run: Run, folder: Path, categories: Sequence[str], on_progress: Progress, variant: str | None = None
) -> tuple[list[Path], list[str]]:
    """All figures of ``categories`` into a folder for each; gives the files, and what could not be drawn and why."""
    written: list[Path] = []
    problems: list[str] = []
    main = main_variant(run, variant)
    for place, category in enumerate(categories):
        target = folder / category
        for name, draw in (
            ("qualitative", partial(qualitative_grid, run, category)),
            ("layers", partial(layer_maps, run, category, variant)),
        ):
            try:
                picture = draw()
            except ConfigError as error:
                problems.append(f"{category}: {name}.png was left out: {error}")
                continue
            written.append(target / f"{name}.png")
            with atomic_path(written[-1]) as temporary:
                picture.save(temporary, "PNG", optimize=True)
        about = f"{place_name(run, category)}, {title_of(main, variant_titles(run))}"
        if main in run.list_variants().get(category, ()):
            for name, chart in open_view(run, category, main).draw_charts().items():
                written.append(target / f"{name}.svg")
                write_text(written[-1], make_standalone(chart, about))
        else:
            problems.append(f"{category}: the charts were left out: {main} was not run on it")
        on_progress("drawing figures", place + 1, len(categories))
    return written, problems
