"""Heat maps as pictures, over the part that the model saw: one colour scale per category and variant."""

from dataclasses import dataclass

import numpy as np
from scipy import ndimage

from procon.arrays import Bools, Bytes, Floats
from procon.errors import ImageError
from procon.evaluation.runs.raw import Raw
from procon.showing.painting import ColorScale, paint
from procon.vision.framing import crop_origin
from procon.vision.images import open_image
from procon.vision.pictures import shrink, shrink_map

THUMBNAIL = 320  # pixels of the longer side
_GREY = 128  # the ground of a map whose image is gone
_GRADIENT_LEVELS = np.array([0, 0.55, 0.8, 1, 1.4, 2])

# Colours of a map without a part under it: dark to bright, each step lighter than the one before.
_RAMP = np.array(
    [[10, 10, 26], [58, 22, 92], [126, 32, 108], [194, 54, 88], [236, 102, 58], [250, 166, 52], [255, 244, 190]],
    np.float32,
)


@dataclass(frozen=True)
class PeakScale(ColorScale):
    """The colours of map values, fixed for a category and a variant.

    ``typical`` is the median patch of good test images and ``threshold`` is exceeded by one in a thousand of their
    pixels; ``peak`` is the highest pixel of any test image.
    """

    peak: float

    def knots(self) -> tuple[float, float, float]:
        """The three values, each above the one before even where all maps are equal."""
        least = 1e-6 * max(1.0, abs(self.typical))
        threshold = max(self.threshold, self.typical + least)
        return self.typical, threshold, max(self.peak, threshold + least)

    def level(self, heatmap: Floats) -> Floats:
        """0 at ``typical``, 1 at ``threshold``, 2 at ``peak``, linear in between."""
        return np.interp(heatmap, self.knots(), (0.0, 1.0, 2.0)).astype(np.float32)

    def place(self, value: float) -> float:
        """The position of a value on a colour bar from ``typical`` to ``peak``, 0 to 1."""
        low, _, high = self.knots()
        return min(1.0, max(0.0, (value - low) / (high - low)))

    def gradient(self) -> str:
        """The colour bar as a CSS background, linear in the value, as it looks on a grey part."""
        values = np.interp(_GRADIENT_LEVELS, (0.0, 1.0, 2.0), self.knots())
        grey = np.full((1, len(values), 3), _GREY, np.uint8)
        stops = []
        for value, color in zip(values.tolist(), paint(grey, values[None], self)[0].tolist(), strict=True):
            stops.append(f"rgb({' '.join(map(str, color))}) {100 * self.place(value):.1f}%")
        return f"linear-gradient(90deg,{','.join(stops)})"


def color_map(values: Floats, low: float, high: float) -> Bytes:
    """A map [H, W] alone in colour [H, W, 3], linear from ``low`` to ``high``."""
    place = (values - low) / max(high - low, 1e-12) * (len(_RAMP) - 1)
    steps = np.arange(len(_RAMP))
    return np.stack([np.interp(place, steps, _RAMP[:, channel]) for channel in range(3)], axis=2).astype(np.uint8)


def load_input(raw: Raw, index: int, longest: int = THUMBNAIL) -> Bytes | None:
    """The part of an image that the model saw, at most ``longest`` pixels a side; None if the image is gone."""
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


def load_mask(raw: Raw, index: int) -> Bools | None:
    """The mask of an image; None for a good image, or where it cannot be read."""
    try:
        return raw.mask(index)
    except ImageError:
        return None


def paint_map(raw: Raw, index: int, scale: PeakScale, part: Bytes | None) -> Bytes:
    """The map of an image over ``part``, or over grey where the image is gone."""
    heatmap = raw.pixel_map(index)
    if part is None:
        part = shrink(np.full((*heatmap.shape, 3), _GREY, np.uint8), THUMBNAIL)
    return paint(part, shrink_map(np.ascontiguousarray(heatmap, np.float32), part.shape[:2]), scale)


def grow(mask: Bools, steps: int) -> Bools:
    """A mask [H, W] with ``steps`` pixels more on every side, so that its outline does not cover a small defect."""
    return np.asarray(ndimage.binary_dilation(mask, iterations=steps), np.bool_)
