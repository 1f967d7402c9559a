"""Pictures for people: a heat map over the part, on one colour scale for all images of a model."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from procon.model.verdict import Predictor
from procon.prediction import Prediction
from procon.results.regions import region_mask
from procon.vision.pictures import shrink_map

# Colour and opacity by level: 0 is a typical good patch, 1 the pixel threshold of the model. Below the first stop the
# part is left as it is, so that good parts do not glow.
_STOPS = np.array([0.55, 0.8, 1.0, 1.4, 2.0])
_COLORS = np.array([[255, 236, 130], [255, 205, 60], [250, 120, 30], [224, 30, 60], [150, 0, 110]], np.float32)
_OPACITY = np.array([0.0, 0.2, 0.38, 0.5, 0.58])

_OUTLINE = np.array([255, 255, 255], np.float32)


@dataclass(frozen=True)
class ColorScale:
    """What heat-map values mean in colour, fixed per model."""

    typical: float
    """Median patch score of good images: colourless."""
    threshold: float
    """Pixel threshold: from here on a region is outlined."""

    def level(self, heatmap: NDArray[np.float32]) -> NDArray[np.float32]:
        """0 at ``typical``, 1 at ``threshold``."""
        span = max(self.threshold - self.typical, 1e-12)
        return np.asarray((heatmap - self.typical) / span, np.float32)


def color_scale(model: Predictor) -> ColorScale:
    """The colours of a model; without calibration, those of unit vectors at a typical residual."""
    good = model.calibration
    return ColorScale(good.typical, good.pixel_threshold) if good else ColorScale(0.4, 0.8)


def painted(pixels: NDArray[np.uint8], prediction: Prediction, scale: ColorScale) -> NDArray[np.uint8]:
    """The part at any size, with the heat map and the outlines of the regions of its prediction."""
    height, width = pixels.shape[:2]
    heatmap = shrink_map(prediction.heatmap, (height, width))
    limit, regions = prediction.pixel_threshold, prediction.regions
    if limit is None or not regions or regions[0].level >= limit:
        return overlay(pixels, heatmap, scale)
    around_peak = Image.fromarray(region_mask(prediction.heatmap, regions[0]))
    return overlay(pixels, heatmap, scale, np.asarray(around_peak.resize((width, height), Image.Resampling.NEAREST)))


def overlay(
    pixels: NDArray[np.uint8],
    heatmap: NDArray[np.float32],
    scale: ColorScale,
    above: NDArray[np.bool_] | None = None,
) -> NDArray[np.uint8]:
    """The part [H, W, 3] with its heat map [H, W] painted over it and regions above the threshold outlined in white.

    ``above`` [H, W] outlines another area instead.
    """
    painted = paint(pixels, heatmap, scale)
    above = scale.level(heatmap) > 1 if above is None else above
    if above.any():
        width = max(1, round(max(above.shape) / 400))
        edge = above & ~erode(above, width)
        painted[edge] = _OUTLINE
    return painted


def paint(pixels: NDArray[np.uint8], heatmap: NDArray[np.float32], scale: ColorScale) -> NDArray[np.uint8]:
    """The part [H, W, 3] with its heat map [H, W] painted over it."""
    level = scale.level(heatmap)
    opacity = np.interp(level, _STOPS, _OPACITY).astype(np.float32)[:, :, None]
    color = np.stack([np.interp(level, _STOPS, _COLORS[:, channel]) for channel in range(3)], axis=2)
    return np.asarray((pixels * (1 - opacity) + color * opacity).clip(0, 255), np.uint8)


def erode(mask: NDArray[np.bool_], steps: int) -> NDArray[np.bool_]:
    """A mask [H, W] without its outermost pixels, so many steps deep; the border of the picture does not count."""
    for _ in range(steps):
        padded = np.pad(mask, 1, constant_values=True)
        mask = mask & padded[:-2, 1:-1] & padded[2:, 1:-1] & padded[1:-1, :-2] & padded[1:-1, 2:]
    return mask
