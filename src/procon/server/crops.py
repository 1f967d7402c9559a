"""Small pictures of patches in their surroundings, for the page."""

import base64

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from procon.detector import Detector
from procon.errors import ImageError
from procon.prediction import NormalPatch
from procon.vision.framing import patch_size
from procon.vision.pictures import jpeg

AROUND = 2.0  # patches on each side
SIDE = 168  # pixels

Box = tuple[int, int, int, int]
Inner = tuple[float, float, float, float]


def around(pixels: NDArray[np.uint8], size: tuple[int, int], box: Box, patch: tuple[float, float]) -> tuple[str, Inner]:
    """A patch of an image of ``size`` (height, width) with what lies around it, as a data: URL, and where it is in it.

    ``pixels`` may be a smaller copy of the image; ``patch`` is the (width, height) of a patch in the image.
    """
    left, right = _span(box[0], box[2], patch[0], size[1])
    top, bottom = _span(box[1], box[3], patch[1], size[0])
    scale = pixels.shape[1] / size[1], pixels.shape[0] / size[0]
    zoom = SIDE / max(right - left, bottom - top)
    shape = max(1, round((right - left) * zoom)), max(1, round((bottom - top) * zoom))
    window = (
        left * scale[0],
        top * scale[1],
        min(right * scale[0], pixels.shape[1]),
        min(bottom * scale[1], pixels.shape[0]),
    )
    cut = Image.fromarray(pixels).resize(shape, Image.Resampling.BICUBIC, box=window)
    width, height = right - left, bottom - top
    inner = (
        (box[0] - left) / width,
        (box[1] - top) / height,
        (box[2] - left) / width,
        (box[3] - top) / height,
    )
    return "data:image/jpeg;base64," + base64.b64encode(jpeg(np.asarray(cut), 85)).decode(), inner


def normal(detector: Detector, patch: NormalPatch) -> tuple[str, Inner] | None:
    """The same for a patch of a training image, or None where that cannot be read any more."""
    assert detector.memory is not None
    image = detector.memory.images[patch.number]
    picture, size = detector.sources.picture(image), image.size
    if isinstance(picture, ImageError):
        return None
    return around(picture.rgb8(), size, patch.box, patch_size(detector.config, size))


def _span(start: int, end: int, side: float, length: int) -> tuple[float, float]:
    """``AROUND`` patches on both sides, moved into the image."""
    span = min(side * (2 * AROUND + 1), length)
    begin = min(max((start + end - span) / 2, 0), length - span)
    return begin, begin + span
