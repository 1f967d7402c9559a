"""Which normal patches a patch was compared with."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from procon.config import Config
from procon.errors import ConfigError
from procon.method.consensus import median
from procon.method.neighbors import nearest_in_banks
from procon.method.residual import soft_weights, temperature
from procon.model.memory import LayerMemory, Memory
from procon.prediction import Anchor, LayerEvidence
from procon.vision.framing import Box, patch_box


def layer_evidence(
    patches: Tensor,
    patch: int,
    layer: LayerMemory,
    memory: Memory,
    config: Config,
    blocks: tuple[int, ...],
    contribution: float,
) -> LayerEvidence:
    """The anchors of every bank that explain patch number ``patch`` of an image's ``patches`` [P, D]."""
    banks, k = layer.index, 1 if config.readout == "hard" else config.num_neighbors
    if config.readout == "soft" and config.tau is None:  # the temperature is that of the whole image
        distances, rows = nearest_in_banks(patches, banks, k)
        tau = temperature(distances, config.tau_patches)
        distances, rows = distances[:, patch : patch + 1], rows[:, patch : patch + 1]
    else:
        distances, rows = nearest_in_banks(patches[patch : patch + 1], banks, k)
        tau = distances.new_full((len(distances),), math.inf if config.readout == "uniform" else config.tau or 1.0)
    weights = soft_weights(distances, tau)[:, 0]  # [B, k]
    rows, distances = rows[:, 0], distances[:, 0]
    differences = patches[patch].float() - layer.anchors[rows]
    residuals = (weights.unsqueeze(2) * differences).sum(dim=1).square().sum(dim=1).sqrt()
    found = []
    for bank in range(len(rows)):
        for row, weight, distance in zip(rows[bank], weights[bank], distances[bank].sqrt(), strict=True):
            number, place = divmod(int(layer.origin[row]), memory.patches)
            image = memory.images[number]
            box = patch_box(config, place, image.size)
            found.append(Anchor(image.name, number, box, bank + 1, float(weight), float(distance)))
    middle = float(median(residuals, dim=0))
    return LayerEvidence(blocks, middle, tuple(residuals.tolist()), contribution, tuple(found))


def contributions(values: Sequence[float], fusion: str) -> list[float]:
    """What each layer's value adds to the fused one; the parts sum to it."""
    count = len(values)
    if fusion not in ("median", "max"):
        return [value / count for value in values]
    order = sorted(range(count), key=lambda index: values[index])
    chosen = {order[-1]} if fusion == "max" else {order[(count - 1) // 2], order[count // 2]}
    return [values[index] / len(chosen) if index in chosen else 0.0 for index in range(count)]


def peak_of(heatmap: Tensor, box: Box | None = None) -> tuple[int, int]:
    """(x, y) of the largest value of a heat map [H, W], in ``box`` if one is given."""
    left, top, right, bottom = box or (0, 0, heatmap.shape[1], heatmap.shape[0])
    inside = heatmap[max(top, 0) : bottom, max(left, 0) : right]
    if not inside.numel():
        raise ConfigError(f"region must overlap the image of {heatmap.shape[1]} x {heatmap.shape[0]} pixels, got {box}")
    row, column = divmod(int(torch.argmax(inside)), inside.shape[1])
    return max(left, 0) + column, max(top, 0) + row
