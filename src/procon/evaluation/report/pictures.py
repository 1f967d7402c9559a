"""Maps as pictures: one colour scale for all images of a category under a variant, over the part that the model saw."""

import base64
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from procon.arrays import Bools, Bytes, Floats
from procon.errors import ImageError
from procon.evaluation.runs.raw import Raw
from procon.vision.images import crop_origin, open_image
from procon.vision.pictures import jpeg, shrink, shrink_map

THUMBNAIL = 320  # pixels of the longer side
_GREY = 128  # the ground of a map whose image is gone

# Paint by level: 0 at the typical value, 1 at the limit, 2 at the peak. Below the first stop a part keeps its looks.
_STOPS = np.array([0.5, 0.8, 1.0, 1.5, 2.0])
_COLORS = np.array([[255, 236, 130], [255, 205, 60], [250, 120, 30], [224, 30, 60], [150, 0, 110]], np.float32)
_OPACITY = np.array([0.0, 0.28, 0.46, 0.6, 0.72])

_DISC = np.array([[0, 1, 0], [1, 1, 1], [0, 1, 0]], bool)

# A plain map, without a part under it: dark to bright, each step lighter than the one before.
_RAMP = np.array(
    [[10, 10, 26], [58, 22, 92], [126, 32, 108], [194, 54, 88], [236, 102, 58], [250, 166, 52], [255, 244, 190]],
    np.float32,
)


@dataclass(frozen=True)
class Scale:
    """What values mean in colour: fixed for a category and a variant, never set by a single image."""

    typical: float
    """Median of the patches of good test images: colourless."""
    limit: float
    """One in a thousand pixels of good test images lies above."""
    peak: float
    """The highest pixel of any test image."""

    def knots(self) -> tuple[float, float, float]:
        """The three values, each above the one before also where all maps are alike."""
        least = 1e-6 * max(1.0, abs(self.typical))
        limit = max(self.limit, self.typical + least)
        return self.typical, limit, max(self.peak, limit + least)

    def level(self, values: Floats) -> NDArray[np.float64]:
        """0 at ``typical``, 1 at ``limit``, 2 at ``peak``, straight between."""
        return np.interp(values, self.knots(), (0.0, 1.0, 2.0))

    def place(self, value: float) -> float:
        """Where on a colour bar from ``typical`` to ``peak`` a value stands, 0 to 1."""
        low, _, high = self.knots()
        return min(1.0, max(0.0, (value - low) / (high - low)))

    def gradient(self) -> str:
        """The colour bar as a CSS background, linear in the value, as it looks on a grey part."""
        values = np.interp(_STOPS, (0.0, 1.0, 2.0), self.knots())
        stops = ["rgb(128 128 128) 0%"]
        for value, color, opacity in zip(values, _COLORS, _OPACITY, strict=True):
            red, green, blue = (round(float(c * opacity + _GREY * (1 - opacity))) for c in color)
            stops.append(f"rgb({red} {green} {blue}) {100 * self.place(float(value)):.1f}%")
        return f"linear-gradient(90deg,{','.join(stops)})"


def paint(pixels: Bytes, heatmap: Floats, scale: Scale) -> Bytes:
    """A part [H, W, 3] under its map [H, W]."""
    level = scale.level(heatmap)
    opacity = np.interp(level, _STOPS, _OPACITY)[:, :, None]
    color = np.stack([np.interp(level, _STOPS, _COLORS[:, channel]) for channel in range(3)], axis=2)
    return np.asarray((pixels * (1 - opacity) + color * opacity).clip(0, 255), np.uint8)


def plain(values: Floats, low: float, high: float) -> Bytes:
    """A map [H, W] alone in colour [H, W, 3], linear from ``low`` to ``high``."""
    place = (values - low) / max(high - low, 1e-12) * (len(_RAMP) - 1)
    steps = np.arange(len(_RAMP))
    return np.stack([np.interp(place, steps, _RAMP[:, channel]) for channel in range(3)], axis=2).astype(np.uint8)


def seen(raw: Raw, index: int, longest: int = THUMBNAIL) -> Bytes | None:
    """What the model saw of an image, in its own proportions, at most ``longest`` pixels a side; None if it is gone."""
    try:
        pixels = open_image(raw.samples[index].path).rgb8()
    except ImageError:
        return None
    if raw.resize is not None:
        height, width = pixels.shape[:2]
        top, left = (start / raw.resize for start in crop_origin(raw.size, raw.resize))
        bottom, right = top + raw.size[0] / raw.resize, left + raw.size[1] / raw.resize
        pixels = pixels[round(top * height) : round(bottom * height), round(left * width) : round(right * width)]
    return shrink(pixels, longest)


def truth(raw: Raw, index: int) -> Bools | None:
    """The mask of an image; None for a good image, or where it cannot be read."""
    try:
        return raw.mask(index)
    except ImageError:
        return None


def painted(raw: Raw, index: int, scale: Scale, part: Bytes | None) -> Bytes:
    """The map of an image over ``part``, or over grey where the image is gone."""
    heatmap = raw.pixel_map(index)
    if part is None:
        part = np.full((*heatmap.shape, 3), _GREY, np.uint8)
        part = shrink(part, THUMBNAIL)
    height, width = part.shape[:2]
    return paint(part, shrink_map(np.ascontiguousarray(heatmap, np.float32), (height, width)), scale)


def data_uri(pixels: Bytes) -> str:
    """A picture inside a page."""
    return "data:image/jpeg;base64," + base64.b64encode(jpeg(pixels, quality=80)).decode()


def outline(mask: Bools, away: int = 0) -> str:
    """The border of a mask [H, W], ``away`` pixels outside of it, as the ``d`` of an SVG path: runs of pixel edges."""
    if away:
        mask = np.asarray(ndimage.binary_dilation(mask, _DISC, iterations=away), np.bool_)
    parts = []
    above = np.pad(mask, ((1, 1), (0, 0)))
    for row, line in enumerate(above[1:] != above[:-1]):
        parts += [f"M{start} {row}H{stop}" for start, stop in _runs(line)]
    beside = np.pad(mask, ((0, 0), (1, 1)))
    for column, line in enumerate((beside[:, 1:] != beside[:, :-1]).T):
        parts += [f"M{column} {start}V{stop}" for start, stop in _runs(line)]
    return "".join(parts)


def _runs(line: Bools) -> list[tuple[int, int]]:
    """(start, stop) of every run of True."""
    padded = np.concatenate(([False], line, [False]))
    places = np.flatnonzero(padded[1:] != padded[:-1])
    return [(int(start), int(stop)) for start, stop in zip(places[::2], places[1::2], strict=True)]
