"""Patches against a memory: residuals of every bank, their consensus, and the layers made one map."""

import math
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from procon.config import Config
from procon.errors import ConfigError
from procon.method.consensus import bank_consensus, layer_consensus, lower_quartile, robust_normalize
from procon.method.levels import anchor_levels, relative_residuals, residual_sums
from procon.method.neighbors import nearest_in_banks
from procon.method.residual import (
    bank_distances,
    image_residuals,
    neighbor_residuals,
    soft_weights,
    temperature,
)
from procon.model.memory import LayerMemory, Memory
from procon.vision.scope import Scope


def score_patches(
    features: list[Tensor],
    memory: Memory,
    config: Config,
    without: int | Collection[int] | None = None,
    scope: Scope | None = None,
) -> Tensor:
    """S_map: embedded patches [N, P, D] per memory to patch scores [N, P], or of the K in ``scope`` only [N, K].

    ``without`` hides the anchors that came from that training image, or from any of several.
    """
    features = in_scope(features, scope)
    return fuse_layers(layer_maps(features, memory, config, without), [layer.scale for layer in memory.layers], config)


class PatchReading(NamedTuple):
    """What was read from the patches of images, [N, P] each. All three are S_map unless the configuration differs."""

    scores: Tensor
    """S_map."""
    map: Tensor
    """What the heat map shows."""
    image: Tensor
    """What the image score is the mean of, where it is highest."""


def read_patches(
    features: list[Tensor], memory: Memory, config: Config, without: int | None = None, scope: Scope | None = None
) -> PatchReading:
    """Embedded patches [N, P, D] per memory against it; with ``scope`` only the K patches in it, [N, K].

    ``without`` takes the images for that training image: its anchors are hidden, and so is what it left on others.
    """
    if config.score_relative_to == "nothing":
        scores = score_patches(features, memory, config, without, scope)
        return PatchReading(scores, shifted(scores, memory.quartile, config), scores)
    read = zip(memory.layers, in_scope(features, scope), strict=True)
    parts = [relative_layer(p, layer, config, memory.own(layer, without)) for layer, p in read]
    scales = [layer.scale for layer in memory.layers]
    scores, relative = (
        fuse_layers(torch.stack([bank_consensus(part) for part in side], dim=1), scales, config)
        for side in zip(*parts, strict=True)
    )
    return PatchReading(scores, shifted(scores, memory.quartile, config), relative)


def read_good(
    features: list[Tensor], memory: Memory, config: Config, number: int, scope: Scope | None = None
) -> tuple[Tensor, list[Tensor]]:
    """S_map [1, P] of training image ``number``, [1, P, D] per memory, and what it leaves on the anchors of others.

    The latter are the sums [3, B, U] of each memory with ``score_relative_to="anchors"``, else none.
    """
    if config.score_relative_to == "nothing":
        return score_patches(features, memory, config, number, scope), []
    maps, sums = [], []
    for layer, patches in zip(memory.layers, in_scope(features, scope), strict=True):
        residuals, weights, rows = read_weighted(patches[0], layer, config, memory.own(layer, number))
        maps.append(bank_consensus(residuals.unsqueeze(0)))
        sums.append(residual_sums(residuals, weights, rows, len(layer.anchors)))
    return fuse_layers(torch.stack(maps, dim=1), [layer.scale for layer in memory.layers], config), sums


def shifted(patch_scores: Tensor, quartile: float | None, config: Config) -> Tensor:
    """Patch scores [N, P], each image shifted so that its lower quartile is ``quartile``, if the configuration says so.

    Light or focus that lifts all patches of a part no longer lifts it above another, and the scale stays that of S_map.
    """
    if config.map_offset == "none":
        return patch_scores
    if quartile is None:
        raise ConfigError(
            "map_offset='quartile' needs the maps of good images, and this memory was made without them; fit again "
            "with Detector.fit"
        )
    return patch_scores + (quartile - lower_quartile(patch_scores)).unsqueeze(1)


def in_scope(features: list[Tensor], scope: Scope | None) -> list[Tensor]:
    """Of embedded patches [N, P, D] per memory those that count [N, K, D]: others do not set the temperature either."""
    return features if scope is None else [layer[:, scope.rows] for layer in features]


def layer_maps(
    features: list[Tensor], memory: Memory, config: Config, without: int | Collection[int] | None = None
) -> Tensor:
    """S_l of every layer: embedded patches [N, P, D] per memory to [N, L, P]."""
    read = zip(memory.layers, features, strict=True)
    maps = [bank_consensus(read_layer(p, layer, config, memory.own(layer, without))) for layer, p in read]
    return torch.stack(maps, dim=1)


def read_layer(patches: Tensor, layer: LayerMemory, config: Config, hidden: Tensor | None = None) -> Tensor:
    """r_{l,b,p} of every bank: embedded patches [N, P, D] to residuals [N, B, P]; ``hidden`` [U] masks anchors."""
    if config.readout == "hard":
        return torch.stack([bank_distances(image, layer.index, exclude=hidden) for image in patches])
    tau = math.inf if config.readout == "uniform" else config.tau
    return image_residuals(
        patches, layer.index, config.num_neighbors, tau, tau_patches=config.tau_patches, exclude=hidden
    )


def relative_layer(
    patches: Tensor, layer: LayerMemory, config: Config, hidden: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """:func:`read_layer`, and the same divided by what the same anchors leave on good patches: both [N, B, P].

    With ``hidden`` [U] the images are training images, one at a time, without these anchors: what they left on the
    others is taken out of the levels.
    """
    plain, relative = [], []
    for image in patches:
        residuals, weights, rows = read_weighted(image, layer, config, hidden)
        levels = layer.levels
        if hidden is not None and layer.sums is not None:
            levels = anchor_levels(layer.sums - residual_sums(residuals, weights, rows, len(layer.anchors)))
        plain.append(residuals)
        relative.append(relative_residuals(residuals, weights, rows, levels))
    return torch.stack(plain), torch.stack(relative)


def read_weighted(
    patches: Tensor, layer: LayerMemory, config: Config, hidden: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Residuals [B, P] of one image [P, D], with the weights and rows of the anchors behind them, both [B, P, k]."""
    distances, rows = nearest_in_banks(patches, layer.index, config.num_neighbors, exclude=hidden)
    tau = temperature(distances, config.tau_patches)
    if config.tau is not None:
        tau = torch.full_like(tau, config.tau)
    residuals = neighbor_residuals(patches, layer.index, distances, rows, tau)
    return residuals, soft_weights(distances, tau), rows


def read_neighbors(patches: Tensor, layer: LayerMemory, distances: Tensor, indices: Tensor, config: Config) -> Tensor:
    """:func:`read_layer` of one image [P, D] whose neighbours in every bank are known: at least k, both [B, P, k]."""
    if config.readout == "hard":
        return distances[:, :, 0].sqrt()
    tau, k = math.inf if config.readout == "uniform" else config.tau, config.num_neighbors
    near, rows = distances[:, :, :k], indices[:, :, :k]
    return neighbor_residuals(patches, layer.index, near, rows, tau, tau_patches=config.tau_patches)


def fuse_layers(maps: Tensor, scales: Sequence[tuple[float, float]], config: Config) -> Tensor:
    """S_map from the maps of the layers [N, L, P] -> [N, P]; ``scales`` are the mean and deviation on good images."""
    if config.normalization == "robust":
        maps = robust_normalize(maps)
    elif config.normalization == "train":
        centre, spread = torch.tensor(scales, dtype=maps.dtype, device=maps.device).unsqueeze(-1).unbind(1)
        maps = (maps - centre) / spread
    return layer_consensus(maps, "mean" if config.layer_fusion == "concat" else config.layer_fusion)


def layer_scales(maps: Iterable[Tensor]) -> list[tuple[float, float]]:
    """Mean and standard deviation of each layer over the maps [1, L, P] of good images; a constant layer keeps 1."""
    spread, centre = torch.std_mean(torch.cat(list(maps)).double(), dim=(0, 2), correction=0)
    return [(float(c), float(s) or 1.0) for c, s in zip(centre, spread, strict=True)]
