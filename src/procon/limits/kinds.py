"""Rendered defects: a scratch, a dent, a stain, a hole or a foreign structure painted on a good image, in numpy.

A rendering depends on its arguments alone. Only pixels of its mask change, and none of them by more than the contrast.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from scipy import ndimage

from procon.arrays import Bools, Reals
from procon.limits.shapes import DefectShape, blob, disc, line

SMALLEST_DEFECT = 3  # pixels


class Window(NamedTuple):
    """Where a defect is painted: a cut-out of the image, and the centre of the defect in it."""

    pixels: Reals  # [h, w, 3] in grey levels from 0 to 255
    center: tuple[float, float]  # (x, y)
    size: int  # longest extent of the defect in pixels
    source: Reals | None  # [h, w, 3]: what lies elsewhere on the part, or nothing


class Painted(NamedTuple):
    """A good image with a defect."""

    pixels: NDArray[Any]  # as the image was: uint8, or float32 in 0..1
    mask: Bools  # [H, W]: the pixels that may have changed
    change: float  # the largest change of a channel, in grey levels of 255


def paint_defect(
    pixels: NDArray[Any],
    kind: str,
    size: int,
    contrast: float,
    center: tuple[int, int],
    random: Generator,
    source: tuple[int, int] | None = None,
) -> Painted | None:
    """A copy of ``pixels`` [H, W, 3] with a defect of a ``kind`` around ``center`` (x, y); None if that is impossible.

    ``size`` is its longest extent in pixels, ``contrast`` its largest change in grey levels of 255. ``source`` is the
    (x, y) from which a foreign structure is taken. It is impossible where the image leaves room for less than half of
    the contrast: a hole in a smooth area, or a change beyond black or white.
    """
    height, width = pixels.shape[:2]
    reach = size // 2 + max(3, size // 3)
    rows, columns = (
        slice(max(0, place - reach), min(length, place + reach + 1))
        for place, length in ((center[1], height), (center[0], width))
    )
    unit = 255.0 if pixels.dtype != np.uint8 else 1.0
    before = pixels[rows, columns].astype(np.float64) * unit
    taken = None if source is None else _cut(pixels, rows, columns, center, source)
    if kind == "foreign" and taken is None:
        return None
    x, y = center[0] - columns.start, center[1] - rows.start
    window = Window(before, (x + random.uniform(-0.4, 0.4), y + random.uniform(-0.4, 0.4)), size, taken)
    shape, full = _KINDS[kind](window, contrast, random)
    highest = float(np.abs(full[shape.mask]).max()) if shape.mask.any() else 0.0
    scale = contrast / highest if highest > 0 else 0.0
    after = np.clip(before + full * (min(1.0, scale) if kind in _TAKEN else scale), 0, 255) / unit
    after = np.rint(after).astype(np.uint8) if pixels.dtype == np.uint8 else after.astype(pixels.dtype)
    painted = pixels.copy()
    painted[rows, columns] = np.where(shape.mask[:, :, None], after, pixels[rows, columns])
    change = float(np.abs(painted[rows, columns].astype(np.float64) * unit - before).max())
    if change < contrast / 2:
        return None
    mask = np.zeros((height, width), np.bool_)
    mask[rows, columns] = shape.mask
    return Painted(painted, mask, change)


def _cut(
    pixels: NDArray[Any], rows: slice, columns: slice, center: tuple[int, int], source: tuple[int, int]
) -> Reals | None:
    """The same window around ``source``; None where it leaves the image or overlaps the window itself."""
    dx, dy = source[0] - center[0], source[1] - center[1]
    there = slice(rows.start + dy, rows.stop + dy), slice(columns.start + dx, columns.stop + dx)
    inside = min(there[0].start, there[1].start) >= 0
    inside = inside and there[0].stop <= pixels.shape[0] and there[1].stop <= pixels.shape[1]
    apart = abs(dx) >= columns.stop - columns.start or abs(dy) >= rows.stop - rows.start
    unit = 255.0 if pixels.dtype != np.uint8 else 1.0
    return pixels[there].astype(np.float64) * unit if inside and apart else None


def _sign(window: Window, shape: DefectShape, contrast: float, random: Generator) -> float:
    """Brighter or darker: either, where there is room for both."""
    level = float(window.pixels[shape.mask].mean()) if shape.mask.any() else 128.0
    up, down = 255 - level >= contrast, level >= contrast
    return random.choice((-1.0, 1.0)) if up == down else (1.0 if up else -1.0)


def _scratch(window: Window, contrast: float, random: Generator) -> tuple[DefectShape, Reals]:
    """A thin, slightly bent line, brighter or darker."""
    shape = line(window.pixels.shape[:2], window.center, window.size, random)
    return shape, contrast * _sign(window, shape, contrast, random) * _spread(shape.cover)


def _dent(window: Window, contrast: float, random: Generator) -> tuple[DefectShape, Reals]:
    """The shading of a smooth dent or bump under light from one side: bright on one flank, dark on the other."""
    shape, shading = disc(window.pixels.shape[:2], window.center, window.size, random)
    return shape, contrast * _spread(shading)


def _stain(window: Window, contrast: float, random: Generator) -> tuple[DefectShape, Reals]:
    """A spot of another colour; of another brightness where the image has no colours."""
    shape = blob(window.pixels.shape[:2], window.center, window.size, random)
    color = random.uniform(0.2, 1.0, 3)
    color[random.integers(3)] = 1.0
    if bool((window.pixels == window.pixels[:, :, :1]).all()):
        color[:] = 1.0
    return shape, contrast * _sign(window, shape, contrast, random) * shape.cover[:, :, None] * color


def _hole(window: Window, _contrast: float, random: Generator) -> tuple[DefectShape, Reals]:
    """What is there is gone, and the surroundings continue over it, with their grain."""
    shape = blob(window.pixels.shape[:2], window.center, window.size, random)
    outside = ~shape.mask
    smooth = _blur_inside(window.pixels, outside, 1.0)
    nearest = ndimage.distance_transform_edt(shape.mask, return_distances=False, return_indices=True)
    filled = smooth[tuple(nearest)]
    filled = np.where(shape.mask[:, :, None], _blur_inside(filled, None, window.size / 6), window.pixels)
    grain = (window.pixels - smooth)[outside]
    filled += random.normal(0, 1, shape.mask.shape)[:, :, None] * (float(grain.std()) if grain.size else 0.0)
    return shape, shape.cover[:, :, None] * (filled - window.pixels)


def _foreign(window: Window, _contrast: float, random: Generator) -> tuple[DefectShape, Reals]:
    """What lies elsewhere on the part, in the wrong place."""
    shape = blob(window.pixels.shape[:2], window.center, window.size, random)
    assert window.source is not None
    return shape, shape.cover[:, :, None] * (window.source - window.pixels)


def _spread(cover: Reals) -> Reals:
    """The same change for all channels."""
    return np.repeat(cover[:, :, None], 3, axis=2)


def _blur_inside(pixels: Reals, counted: Bools | None, sigma: float) -> Reals:
    """A Gaussian blur [h, w, 3] to which only the ``counted`` pixels contribute; other pixels keep their value."""
    weights = np.ones(pixels.shape[:2]) if counted is None else counted.astype(np.float64)
    total = ndimage.gaussian_filter(weights, sigma, mode="nearest")
    sums = np.stack(
        [ndimage.gaussian_filter(pixels[:, :, n] * weights, sigma, mode="nearest") for n in range(3)], axis=2
    )
    blurred = sums / np.maximum(total, 1e-9)[:, :, None]
    return blurred if counted is None else np.where(counted[:, :, None], blurred, pixels)


_TAKEN = ("hole", "foreign")  # what the image has decides their contrast; it can only be made weaker
_KINDS: dict[str, Callable[[Window, float, Generator], tuple[DefectShape, Reals]]] = {
    "scratch": _scratch,
    "dent": _dent,
    "stain": _stain,
    "hole": _hole,
    "foreign": _foreign,
}
PAINTED_KINDS = tuple(_KINDS)
DROPPED_KINDS = ("dent",)  # their share found said nothing certain of real defects, see docs/use/limits.md
RENDERED_KINDS = tuple(kind for kind in PAINTED_KINDS if kind not in DROPPED_KINDS)
