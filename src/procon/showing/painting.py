"""Paint heat maps over parts, on one colour scale for all images of a model."""

import base64
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from PIL import Image

from procon.arrays import Bools, Bytes, Floats, Reals
from procon.method.regions import Region, label_areas
from procon.prediction import Prediction
from procon.vision.pictures import shrink_map

# Colour and opacity by level: 0 is a typical good patch, 1 a value that few good images reach. Below the first stop
# nothing is painted, so that good parts stay as they are.
_STOPS = np.array([0.55, 0.8, 1.0, 1.4, 2.0])
_COLORS = np.array([[255, 236, 130], [255, 205, 60], [250, 120, 30], [224, 30, 60], [150, 0, 110]], np.float32)
_OPACITY = np.array([0.0, 0.2, 0.38, 0.5, 0.58])

_WEAK_STOPS = np.array([0.05, 0.25, 0.5, 0.9, 1.4])
_WEAK_OPACITY = np.array([0.0, 0.35, 0.55, 0.65, 0.7])

_OUTLINE = np.array([255, 255, 255], np.float32)


@dataclass(frozen=True)
class ColorScale:
    """The colours of heat-map values, fixed per model."""

    typical: float  # median patch score of good images: not painted
    threshold: float  # a value that few good images reach: painted strongly

    def level(self, heatmap: Floats) -> Floats:
        """0 at ``typical``, 1 at ``threshold``."""
        return np.asarray((heatmap - self.typical) / max(self.threshold - self.typical, 1e-12), np.float32)


class GoodLevels(Protocol):
    """The heat-map values of good images that set a colour scale."""

    @property
    def typical(self) -> float:
        """Median patch score."""

    @property
    def usual_peak(self) -> float:
        """Value that few good images reach."""


class Calibrated(Protocol):
    """A detector, an exported model or a prediction."""

    @property
    def calibration(self) -> GoodLevels | None:
        """Its values on good images; None without calibration."""


def color_scale(model: Calibrated) -> ColorScale:
    """The colours of a model; without calibration, those of unit vectors at a typical residual."""
    good = model.calibration
    return ColorScale(good.typical, good.usual_peak) if good else ColorScale(0.4, 0.8)


def paint_prediction(pixels: Bytes, prediction: Prediction, scale: ColorScale) -> Bytes:
    """The part [H, W, 3] at any size, under its heat map, with its regions outlined in white."""
    height, width = pixels.shape[:2]
    outlined = outline_mask(prediction, (height, width), scale)
    picture = paint(pixels, shrink_map(prediction.heatmap, (height, width)), scale)
    if outlined.any():
        picture[outlined & ~erode(outlined, max(1, round(max(height, width) / 400)))] = _OUTLINE
    return picture


def outline_mask(prediction: Prediction, size: tuple[int, int], scale: ColorScale) -> Bools:
    """The pixels of all regions as a mask of ``size`` (height, width)."""
    limit, regions = prediction.pixel_threshold, prediction.regions
    if limit is None or not regions or regions[0].level >= limit:
        return shrink_map(prediction.heatmap, size) > (scale.threshold if limit is None else limit)
    # Nothing exceeds the threshold: the one region is the area around the peak.
    mask = Image.fromarray(region_mask(prediction.heatmap, regions[0]))
    return np.asarray(mask.resize((size[1], size[0]), Image.Resampling.NEAREST))


def color_tables(highest: float, steps: int, *, weak: bool = False) -> tuple[Reals, Reals, Reals, Reals]:
    """Red, green, blue and opacity in 0..1 of ``steps`` + 1 levels from 0 to ``highest``, as :func:`paint` paints them.

    With ``weak`` the colours begin just above a typical good patch, so that evidence below the threshold is visible.
    """
    levels = np.linspace(0, highest, steps + 1)
    stops, opacity = (_WEAK_STOPS, _WEAK_OPACITY) if weak else (_STOPS, _OPACITY)
    red, green, blue = (np.interp(levels, stops, _COLORS[:, channel]) / 255 for channel in range(3))
    return red, green, blue, np.interp(levels, stops, opacity)


def paint(pixels: Bytes, heatmap: Floats, scale: ColorScale) -> Bytes:
    """The part [H, W, 3] under its heat map [H, W]."""
    level = scale.level(heatmap)
    painted = level > _STOPS[0]  # the rest is transparent, and most of a picture is
    level = level[painted]
    opacity = np.interp(level, _STOPS, _OPACITY).astype(np.float32)[:, None]
    color = np.stack([np.interp(level, _STOPS, _COLORS[:, channel]) for channel in range(3)], axis=1)
    picture = np.array(pixels)
    picture[painted] = (pixels[painted] * (1 - opacity) + color * opacity).clip(0, 255)
    return picture


def data_uri(image: bytes, kind: str = "jpeg") -> str:
    """The file of a picture as an address that pages can hold."""
    return f"data:image/{kind};base64," + base64.b64encode(image).decode()


def erode(mask: Bools, steps: int) -> Bools:
    """A mask [H, W] without its ``steps`` outermost pixels; the border of the picture is not an edge of the mask."""
    for _ in range(steps):
        padded = np.pad(mask, 1, constant_values=True)
        mask = mask & padded[:-2, 1:-1] & padded[2:, 1:-1] & padded[1:-1, :-2] & padded[1:-1, 2:]
    return mask


def region_mask(heatmap: Floats, region: Region) -> Bools:
    """The pixels of a region of ``heatmap`` as a mask [H, W]."""
    left, top, right, bottom = region.box
    inside = heatmap[top:bottom, left:right]
    for area in label_areas(inside > region.level):  # a box may hold other areas too; this one has the peak and size
        if np.count_nonzero(area) == region.area and float(inside[area].max()) == region.peak:
            mask = np.zeros(heatmap.shape, np.bool_)
            mask[top:bottom, left:right] = area
            return mask
    raise ValueError(f"region must be one of this heat map, got {region.box}")
