"""Small pictures of patches with their surroundings, for the page."""

import base64

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from procon.detector import Detector
from procon.errors import ImageError
from procon.prediction import NormalPatch
from procon.server.schemas import BoxShares, PixelBox
from procon.vision.framing import patch_size
from procon.vision.pictures import jpeg

AROUND = 2.0  # patches on each side
SIDE = 168  # pixels


def crop_around(
    pixels: NDArray[np.uint8], size: tuple[int, int], box: PixelBox, patch: tuple[float, float]
) -> tuple[str, BoxShares]:
    """A patch of an image of ``size`` (height, width) with its surroundings, as a data: URL, and its place in it.

    ``pixels`` may be a smaller copy of the image; ``patch`` is the (width, height) of a patch in the image.
    """
    left, right = _span(box[0], box[2], patch[0], size[1])
    top, bottom = _span(box[1], box[3], patch[1], size[0])
    width, height = right - left, bottom - top
    x_scale, y_scale = pixels.shape[1] / size[1], pixels.shape[0] / size[0]
    zoom = SIDE / max(width, height)
    shape = max(1, round(width * zoom)), max(1, round(height * zoom))
    ends = min(right * x_scale, pixels.shape[1]), min(bottom * y_scale, pixels.shape[0])
    window = (left * x_scale, top * y_scale, *ends)
    crop = Image.fromarray(pixels).resize(shape, Image.Resampling.BICUBIC, box=window)
    inner = (box[0] - left) / width, (box[1] - top) / height, (box[2] - left) / width, (box[3] - top) / height
    return "data:image/jpeg;base64," + base64.b64encode(jpeg(np.asarray(crop), 85)).decode(), inner


def crop_normal(detector: Detector, patch: NormalPatch) -> tuple[str, BoxShares] | None:
    """The same for a patch of a training image, or None if that can no longer be read."""
    assert detector.memory is not None
    image = detector.memory.images[patch.number]
    picture, size = detector.sources.picture(image), image.size
    if isinstance(picture, ImageError):
        return None
    return crop_around(picture.rgb8(), size, patch.box, patch_size(detector.config, size))


def _span(start: int, end: int, side: float, length: int) -> tuple[float, float]:
    """``AROUND`` patches on both sides, moved into the image."""
    span = min(side * (2 * AROUND + 1), length)
    begin = min(max((start + end - span) / 2, 0), length - span)
    return begin, begin + span
