"""How a memory reads good images, where scoring depends on it: levels of anchors, quartiles, scales of layers."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from procon.config import Config
from procon.errors import ConfigError
from procon.method.consensus import lower_quartile, median
from procon.method.score import in_scope, layer_maps, layer_scales, read_good
from procon.model.memory import Memory
from procon.vision.scope import Scope

ReadImage = Callable[[int], tuple[list[Tensor], Scope | None]]
"""A training image by its number: embedded patches [1, P, D] per memory, and which of them count."""


_ASK = {"score_relative_to": "anchors", "map_offset": "quartile", "normalization": "train"}


def needs_measuring(config: Config) -> list[str]:
    """The settings for which scoring needs to know how the memory reads good images; none: it does not."""
    return [f"{name}={value!r}" for name, value in _ASK.items() if getattr(config, name) == value]


@torch.inference_mode()
def measured(memory: Memory, read: ReadImage, config: Config, heard: Callable[[int], None]) -> Memory:
    """The memory with what scoring needs to know, from its training images, each without its own anchors.

    ``heard`` is told how many images are done.
    """
    if any(memory.fewest_without(image) < config.num_neighbors for image in range(len(memory.images))):
        asked = " and ".join(needs_measuring(config))
        raise ConfigError(f"{asked} needs more training images: each is scored without its own anchors")
    if config.normalization == "train":
        return _scaled(memory, read, config)
    quartiles: list[Tensor] = []
    sums: list[Tensor] = []
    for number in range(len(memory.images)):
        patches, scope = read(number)
        scores, found = read_good(patches, memory, config, number, scope)
        quartiles.append(lower_quartile(scores)[0])
        sums = [total + more for total, more in zip(sums, found, strict=True)] if sums else found
        heard(number + 1)
    if config.map_offset == "quartile":
        memory = replace(memory, quartile=float(median(torch.stack(quartiles), dim=0)))
    if not sums:
        return memory
    layers = zip(memory.layers, sums, strict=True)
    return replace(memory, layers=tuple(replace(layer, sums=total) for layer, total in layers))


def _scaled(memory: Memory, read: ReadImage, config: Config) -> Memory:
    """The memory with the mean and deviation of each layer's map."""
    maps = (layer_maps(in_scope(*read(number)), memory, config, number) for number in range(len(memory.images)))
    scaled = zip(memory.layers, layer_scales(maps), strict=True)
    return replace(memory, layers=tuple(replace(layer, scale=scale) for layer, scale in scaled))
