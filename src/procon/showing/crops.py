"""A patch of an image, enlarged, with enough of its surroundings to recognise it."""

from dataclasses import dataclass

from PIL import Image

from procon.arrays import Box, Bytes
from procon.config import Config
from procon.vision.framing import patch_size

_AROUND = 2  # patches of surroundings on each side: alone, a patch of 14 pixels says little

RealBox = tuple[float, float, float, float]
"""Left, top, right, bottom."""


@dataclass(frozen=True)
class Crop:
    """A window of an image, enlarged."""

    picture: Image.Image
    window: RealBox  # in pixels of the image

    def place(self, box: Box) -> RealBox:
        """Where ``box``, given in pixels of the image, lies in the picture: shares of its width and height."""
        left, top, right, bottom = self.window
        width, height = right - left, bottom - top
        return (box[0] - left) / width, (box[1] - top) / height, (box[2] - left) / width, (box[3] - top) / height


def crop_window(pixels: Bytes, size: tuple[int, int], window: RealBox, longest: int) -> Crop:
    """A window of an image of ``size`` (height, width), of which ``pixels`` may be a smaller copy."""
    left, top, right, bottom = window
    zoom = longest / max(right - left, bottom - top)
    shape = max(1, round((right - left) * zoom)), max(1, round((bottom - top) * zoom))
    x_scale, y_scale = pixels.shape[1] / size[1], pixels.shape[0] / size[0]
    ends = min(right * x_scale, pixels.shape[1]), min(bottom * y_scale, pixels.shape[0])
    source = Image.fromarray(pixels)
    return Crop(source.resize(shape, Image.Resampling.BICUBIC, box=(left * x_scale, top * y_scale, *ends)), window)


def crop_patch(config: Config, pixels: Bytes, size: tuple[int, int], box: Box, longest: int) -> Crop:
    """The patch at ``box`` and its surroundings, moved into the image; other arguments as for :func:`crop_window`."""
    edges = []
    patch = patch_size(config, size)
    for start, end, side, length in ((box[0], box[2], patch[0], size[1]), (box[1], box[3], patch[1], size[0])):
        span = min(side * (2 * _AROUND + 1), length)
        begin = min(max((start + end - span) / 2, 0), length - span)
        edges.append((begin, begin + span))
    return crop_window(pixels, size, (edges[0][0], edges[1][0], edges[0][1], edges[1][1]), longest)
