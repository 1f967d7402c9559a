"""Which normal patches a patch was compared with, from the reading of its image."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from procon.arrays import Box
from procon.config import Config
from procon.errors import ConfigError
from procon.method.consensus import median
from procon.method.score import LayerReading, Reading, fuse_layers
from procon.model.memory import LayerMemory, Memory
from procon.prediction import Anchor, LayerEvidence
from procon.vision.framing import patch_box


def layer_evidence(reading: Reading, place: int, memory: Memory, config: Config) -> list[LayerEvidence]:
    """What every layer says about the patch at ``place`` of the one image that was read."""
    scales = [layer.scale for layer in memory.layers]
    count = len(memory.layers)
    values = [float(fuse_layers(reading.maps[:, i : i + 1], scales[i : i + 1], config)[0, place]) for i in range(count)]
    parts = contributions(values, config.layer_fusion)
    blocks = [config.layers] if config.layer_fusion == "concat" else [(block,) for block in config.layers]
    evidence = []
    for layer, stored, block, part in zip(reading.layers, memory.layers, blocks, parts, strict=True):
        residuals = layer.residuals[0, :, place]
        anchors = _anchors(layer, place, stored, memory, config)
        evidence.append(
            LayerEvidence(block, float(median(residuals, dim=0)), tuple(residuals.tolist()), part, tuple(anchors))
        )
    return evidence


def _anchors(layer: LayerReading, place: int, stored: LayerMemory, memory: Memory, config: Config) -> list[Anchor]:
    """The nearest anchors of every bank, by bank, nearest first."""
    assert layer.rows is not None and layer.weights is not None and layer.distances is not None
    rows, weights, distances = (part[0, :, place] for part in (layer.rows, layer.weights, layer.distances.sqrt()))
    anchors = []
    for bank in range(len(rows)):
        for row, weight, distance in zip(rows[bank], weights[bank], distances[bank], strict=True):
            number, patch = divmod(int(stored.origin[row]), memory.patches)
            image = memory.images[number]
            box = patch_box(config, patch, image.size)
            anchors.append(Anchor(image.name, number, box, bank + 1, float(weight), float(distance)))
    return anchors


def contributions(values: Sequence[float], fusion: str) -> list[float]:
    """What each layer's value adds to the fused one; the parts sum to it."""
    count = len(values)
    if fusion not in ("median", "max"):
        return [value / count for value in values]
    order = sorted(range(count), key=lambda index: values[index])
    chosen = {order[-1]} if fusion == "max" else {order[(count - 1) // 2], order[count // 2]}
    return [values[index] / len(chosen) if index in chosen else 0.0 for index in range(count)]


def peak_of(heatmap: NDArray[np.float32], box: Box | None = None) -> tuple[int, int]:
    """(x, y) of the largest value of a heat map [H, W], in ``box`` if one is given."""
    left, top, right, bottom = box or (0, 0, heatmap.shape[1], heatmap.shape[0])
    inside = heatmap[max(top, 0) : bottom, max(left, 0) : right]
    if not inside.size:
        raise ConfigError(f"region must overlap the image of {heatmap.shape[1]} x {heatmap.shape[0]} pixels, got {box}")
    row, column = divmod(int(inside.argmax()), inside.shape[1])
    return max(left, 0) + column, max(top, 0) + row
