"""Decoded images to inputs of the backbone on a GPU, with the bits of :func:`procon.vision.framing.to_input`.

Resizing a camera image costs a processor more than decoding it. Pillow resizes bytes with integer weights, so a GPU can
give the same bytes.
"""

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import PIL
import torch
from torch import Tensor

from procon.errors import ConfigError
from procon.vision.framing import BYTE_VALUES, Frame, resample

_BITS = 22  # of Pillow's integer weights
_CELLS = 2**28  # bytes resized at a time


def device_inputs(
    images: Sequence[Tensor], frames: Sequence[Frame], size: tuple[int, int], device: torch.device
) -> Tensor:
    """Images [H, W, 3] uint8, each with its frame, as inputs of ``size``: float32 [N, 3, height, width]."""
    alike: dict[tuple[tuple[int, ...], Frame], list[int]] = {}
    for number, (image, frame) in enumerate(zip(images, frames, strict=True)):
        alike.setdefault((tuple(image.shape), frame), []).append(number)
    inputs = torch.empty(len(images), 3, *size, device=device)
    for (shape, frame), numbers in alike.items():
        step = max(1, _CELLS // math.prod(shape))
        for start in range(0, len(numbers), step):
            part = numbers[start : start + step]
            pixels = torch.stack([images[number].to(device, non_blocking=True) for number in part])
            inputs[part] = _framed(pixels.permute(0, 3, 1, 2), frame, size)
    return inputs


def _framed(pixels: Tensor, frame: Frame, size: tuple[int, int]) -> Tensor:
    """Pixels [N, 3, H, W] uint8 resized, cut or continued at the edges, and normalised."""
    pixels = resample_bytes(pixels, frame.scaled)
    if size != frame.scaled:
        for axis in (0, 1):
            places = torch.arange(frame.origin[axis], frame.origin[axis] + size[axis], device=pixels.device)
            pixels = pixels.index_select(2 + axis, places.clamp(0, frame.scaled[axis] - 1))
    values = torch.from_numpy(BYTE_VALUES).to(pixels.device)
    return torch.stack([values[channel][pixels[:, channel].int()] for channel in range(3)], dim=1)


def resample_bytes(pixels: Tensor, size: tuple[int, int]) -> Tensor:
    """Pixels [N, C, H, W] uint8 at ``size`` (height, width), bilinear and antialiased: the bytes that Pillow gives."""
    return _resample(pixels, size, rows_first=_rows_first((pixels.shape[2], pixels.shape[3]), size))


def _resample(pixels: Tensor, size: tuple[int, int], *, rows_first: bool) -> Tensor:
    height, width = size
    if rows_first and pixels.shape[3] != width:
        pixels = _resample_rows(pixels, width)
    if pixels.shape[2] != height:
        pixels = _resample_rows(pixels.transpose(2, 3), height).transpose(2, 3)
    if pixels.shape[3] != width:
        pixels = _resample_rows(pixels, width)
    return pixels


@lru_cache(maxsize=64)
def _rows_first(shape: tuple[int, int], size: tuple[int, int]) -> bool:
    """Whether Pillow resizes rows before columns, which depends on its release and on the sizes; noise tells.

    Bytes are rounded after each pass, so the order matters.
    """
    count = max(1, 2**14 // math.prod(shape))  # enough bytes to tell
    noise = np.random.default_rng(0).integers(0, 256, (count, *shape, 3), dtype=np.uint8)
    pixels, expected = torch.from_numpy(noise).permute(0, 3, 1, 2), np.stack([resample(image, size) for image in noise])
    for rows_first in (True, False):
        if np.array_equal(_resample(pixels, size, rows_first=rows_first).permute(0, 2, 3, 1).numpy(), expected):
            return rows_first
    raise ConfigError(
        f"Pillow {PIL.__version__} resizes {shape[1]} x {shape[0]} to {size[1]} x {size[0]} pixels as the GPU "
        "cannot; install another release of Pillow, or use --device cpu"
    )


def _resample_rows(pixels: Tensor, size: int) -> Tensor:
    """The last dimension [..., W] at ``size``, with sums of whole numbers: the order of the terms does not matter."""
    length = pixels.shape[-1]
    starts, weights = (part.to(pixels.device) for part in _weights(length, size))
    total = torch.full((*pixels.shape[:-1], size), 1 << (_BITS - 1), dtype=torch.int32, device=pixels.device)
    for tap, weight in enumerate(weights):
        total.addcmul_(pixels.index_select(-1, (starts + tap).clamp_max(length - 1)).int(), weight)
    return (total >> _BITS).clamp_(0, 255).to(torch.uint8)


@lru_cache(maxsize=64)
def _weights(length: int, size: int) -> tuple[Tensor, Tensor]:
    """For each of ``size`` pixels the first of ``length`` it is made from [size], and int32 weights [taps, size]."""
    scale = length / size
    support = max(scale, 1.0)
    centers = (np.arange(size) + 0.5) * scale
    starts = np.maximum((centers - support + 0.5).astype(np.int64), 0)
    stops = np.minimum((centers + support + 0.5).astype(np.int64), length)
    taps = np.arange(int((stops - starts).max()))[:, None]
    weights = np.maximum(1 - np.abs((taps + starts - centers + 0.5) * (1 / support)), 0)
    weights[taps >= stops - starts] = 0
    total = np.zeros(size)
    for row in weights:  # in order, as rounding depends on it
        total += row
    whole = (0.5 + weights / total * (1 << _BITS)).astype(np.int32)
    return torch.from_numpy(starts), torch.from_numpy(whole)
