"""Patches against a memory: residuals of every bank, their consensus, and the layers made one map."""

import math
from collections.abc import Collection, Iterable, Sequence

import torch
from torch import Tensor

from procon.config import Config
from procon.kernels.consensus import bank_consensus, layer_consensus, robust_normalize
from procon.kernels.scoring import bank_distances, image_residuals, neighbor_residuals
from procon.memory import LayerMemory, Memory
from procon.scope import Scope


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


def in_scope(features: list[Tensor], scope: Scope | None) -> list[Tensor]:
    """Of embedded patches [N, P, D] per memory those that count, [N, K, D]: others do not set the temperature either."""
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
