"""The input of the backbone, and where an image lies in it: stretched over it, cut from its centre, or padded around.

Needs numpy and Pillow only.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from procon.arrays import Box, Floats
from procon.config import PATCH, Config
from procon.errors import ConfigError
from procon.vision.images import Picture

MEAN = np.array([0.485, 0.456, 0.406], np.float32)  # ImageNet, as DINOv2 was trained
STD = np.array([0.229, 0.224, 0.225], np.float32)
BYTE_VALUES = np.ascontiguousarray(((np.arange(256, dtype=np.float32)[:, None] / 255 - MEAN) / STD).T)
"""[3, 256]: what a byte of each channel is to the backbone."""

# Bilinear and antialiased, as anomaly detectors usually resize, so that published figures can be compared.
FILTER = Image.Resampling.BILINEAR


@dataclass(frozen=True)
class Frame:
    """The image is resized to ``scaled``; the input begins at ``origin`` of that."""

    origin: tuple[int, int]  # (top, left) of the input in the resized image; negative where there is padding
    scaled: tuple[int, int]  # (height, width) of the resized image


def frame_of(config: Config, size: tuple[int, int]) -> Frame:
    """The frame of an image of ``size`` (height, width)."""
    height, width = config.input_size
    if config.resize is not None:
        return Frame(crop_origin(config.input_size, config.resize), (config.resize, config.resize))
    if config.aspect == "stretch":
        return Frame((0, 0), (height, width))
    scale = min(height / size[0], width / size[1])
    scaled = max(1, min(height, round(size[0] * scale))), max(1, min(width, round(size[1] * scale)))
    return Frame((-((height - scaled[0]) // 2), -((width - scaled[1]) // 2)), scaled)


def crop_origin(size: tuple[int, int], resize: int) -> tuple[int, int]:
    """(top, left) of the centre crop of ``size`` in a square of side ``resize``."""
    return (resize - size[0]) // 2, (resize - size[1]) // 2


def to_input(picture: Picture, config: Config) -> Floats:
    """The picture as the backbone sees it: float32 [3, height, width], ImageNet mean and standard deviation.

    Where the input reaches beyond the image, its edge is repeated: a border of another colour would be an edge to see.
    """
    frame, size = frame_of(config, picture.size), config.input_size
    pixels = resample(picture.pixels, frame.scaled)
    if size != frame.scaled:
        rows, columns = (
            np.clip(np.arange(start, start + side), 0, length - 1)
            for start, side, length in zip(frame.origin, size, frame.scaled, strict=True)
        )
        pixels = pixels[rows][:, columns]
    if pixels.dtype != np.uint8:
        return np.ascontiguousarray(((pixels - MEAN) / STD).transpose(2, 0, 1), np.float32)
    planes = np.empty((3, *pixels.shape[:2]), np.float32)
    for channel in range(3):  # a byte has 256 values: looking them up is four times as fast, and the same to the bit
        np.take(BYTE_VALUES[channel], pixels[:, :, channel], out=planes[channel], mode="clip")
    return planes


def resample(pixels: NDArray[Any], size: tuple[int, int]) -> NDArray[Any]:
    """[H, W, 3] to [height, width, 3], antialiased; uint8 stays uint8, float32 stays float32 in 0..1."""
    height, width = size
    if pixels.shape[:2] == (height, width):
        return pixels
    if pixels.dtype == np.uint8:
        return np.asarray(Image.fromarray(pixels).resize((width, height), FILTER))
    planes = [
        np.asarray(Image.fromarray(np.ascontiguousarray(pixels[:, :, channel])).resize((width, height), FILTER))
        for channel in range(3)
    ]
    return np.stack(planes, axis=2).clip(0, 1)


def patch_box(config: Config, patch: int, size: tuple[int, int]) -> Box:
    """(left, top, right, bottom) of patch number ``patch`` in pixels of an image of ``size`` (height, width)."""
    row, column = divmod(patch, config.grid[1])
    frame = frame_of(config, size)
    top, bottom = _span(frame.origin[0], row, size[0], frame.scaled[0])
    left, right = _span(frame.origin[1], column, size[1], frame.scaled[1])
    return left, top, right, bottom


def _span(origin: int, cell: int, length: int, scaled: int) -> tuple[int, int]:
    """The pixels of one side of an image that a cell covers: at least one, and none outside."""
    start, end = ((origin + PATCH * edge) * length / scaled for edge in (cell, cell + 1))
    first = min(max(round(start), 0), length - 1)
    return first, min(max(round(end), first + 1), length)


def patch_size(config: Config, size: tuple[int, int]) -> tuple[float, float]:
    """(width, height) of a patch in pixels of an image of ``size`` (height, width), before rounding."""
    height, width = frame_of(config, size).scaled
    return PATCH * size[1] / width, PATCH * size[0] / height


def patch_at(config: Config, xy: tuple[float, float], size: tuple[int, int]) -> int:
    """Number of the patch that covers pixel ``xy`` of an image of ``size`` (height, width)."""
    x, y = xy
    if not (0 <= x < size[1] and 0 <= y < size[0]):
        raise ConfigError(f"xy must be a pixel of the image, from 0,0 to {size[1] - 1},{size[0] - 1}, got {x},{y}")
    frame = frame_of(config, size)
    column = _cell(x, size[1], frame.scaled[1], frame.origin[1])
    row = _cell(y, size[0], frame.scaled[0], frame.origin[0])
    if not (0 <= row < config.grid[0] and 0 <= column < config.grid[1]):
        raise ConfigError(f"xy must lie in the centre crop that the model uses, got {x},{y} outside it")
    return row * config.grid[1] + column


def _cell(pixel: float, length: int, scaled: int, origin: int) -> int:
    """The cell in which the centre of a pixel lies."""
    return int(((int(pixel) + 0.5) * scaled / length - origin) // PATCH)
