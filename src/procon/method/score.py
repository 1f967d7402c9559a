"""The method from embedded patches to scores: the one place where the pipeline is written.

    neighbours -> weights -> residuals of every bank -> median over banks -> mean over layers -> scores of patches

Where a person has marked defects, the scores of patches that look like these are raised at the end.
:func:`score_patches` returns all intermediate results. Prediction, explanation, calibration, the levels of anchors,
suspects and sweeps over configurations use them. The CUDA kernels (``method.cuda``) and the exported graph
(``deploy.scoring``) are the only other forms of the method, and tests compare both with this one.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Protocol, Self

import torch
from torch import Tensor

from procon.config import Config
from procon.errors import ConfigError
from procon.method.consensus import bank_consensus, layer_consensus, lower_quartile, robust_normalize
from procon.method.lessons import LessonReading, read_lessons
from procon.method.levels import anchor_levels, relative_residuals, residual_sums
from procon.method.neighbors import Banks, nearest_in_banks
from procon.method.residual import residual_norms, soft_weights, temperature


class LayerBanks(Protocol):
    """What the method needs to know about the memory of one layer."""

    @property
    def index(self) -> Banks:
        """The banks, ready for the neighbour search."""

    @property
    def levels(self) -> Tensor:
        """[B, U]: the level of each anchor on good patches."""

    @property
    def sums(self) -> Tensor | None:
        """[3, B, U]: the sums behind the levels."""

    @property
    def scale(self) -> tuple[float, float]:
        """Mean and standard deviation of the layer's map on good images."""


class Banked(Protocol):
    """What the method needs to know about a memory."""

    @property
    def layers(self) -> Sequence[LayerBanks]:
        """The banks of each layer."""

    @property
    def quartile(self) -> float | None:
        """The usual lower quartile of a good map, with ``map_offset`` only."""


@dataclass(frozen=True)
class Neighbors:
    """The nearest anchors, in the banks of one layer, of the P patches of N images."""

    distances: Tensor  # [N, B, P, k]: squared
    rows: Tensor  # [N, B, P, k]: which anchors these are

    @property
    def bytes(self) -> int:
        """Size of the tensors."""
        return sum(part.numel() * part.element_size() for part in vars(self).values())

    def split(self) -> list[Self]:
        """Image by image."""
        return [type(self)(*image) for image in zip(*(part.split(1) for part in vars(self).values()), strict=True)]

    @classmethod
    def join(cls, images: "Sequence[Neighbors]") -> "Neighbors":
        """The inverse of :meth:`split`."""
        if len(images) == 1:
            return images[0]
        return type(images[0])(
            *(torch.cat(parts) for parts in zip(*(vars(image).values() for image in images), strict=True))
        )


@dataclass(frozen=True)
class LayerReading(Neighbors):
    """What the banks of one layer say about the P patches of N images."""

    residuals: Tensor  # r_{l,b,p}: [N, B, P]
    weights: Tensor  # [N, B, P, k]: of the neighbours in the soft projection

    def sums(self, anchors: int) -> Tensor:
        """What each image says about the levels of so many ``anchors``: [N, 3, B, anchors]."""
        return residual_sums(self.residuals, self.weights, self.rows, anchors)

    def relative_to(self, levels: Tensor) -> Tensor:
        """Residuals [N, B, P] relative to the ``levels`` [B, U], or [N, B, U], of the anchors behind them."""
        return relative_residuals(self.residuals, self.weights, self.rows, levels)


@dataclass(frozen=True)
class Reading:
    """What a memory says about the patches of N images."""

    layers: tuple[LayerReading, ...]
    maps: Tensor  # S_l of every layer: [N, L, P]
    scores: Tensor  # S_map: [N, P]
    heat: Tensor  # [N, P], shown by the heat map: S_map, or S_map shifted with `map_offset`
    ranked: Tensor  # [N, P], whose highest values make the image score: S_map, or relative to the levels of anchors
    lessons: LessonReading | None = None  # what raised the scores, where defects were marked


def score_patches(
    features: Sequence[Tensor], memory: Banked, config: Config, *, marked: Sequence[Tensor] | None = None
) -> Reading:
    """Compare embedded patches [N, P, D] per layer with a memory, and with ``marked`` defects [A, D] per layer."""
    reading = fuse(read_layers(features, memory, config), memory, config)
    return reading if marked is None else raise_scores(reading, features, marked)


def raise_scores(reading: Reading, features: Sequence[Tensor], marked: Sequence[Tensor]) -> Reading:
    """The reading of embedded patches [N, P, D] per layer, its scores raised where ``marked`` defects explain them.

    See :mod:`procon.method.lessons`.
    """
    nearest = [layer.distances[:, :, :, 0] for layer in reading.layers]
    lessons = read_lessons(features, nearest, marked)
    scores, heat, ranked = (values * lessons.gain for values in (reading.scores, reading.heat, reading.ranked))
    return replace(reading, scores=scores, heat=heat, ranked=ranked, lessons=lessons)


def read_layers(
    features: Sequence[Tensor], memory: Banked, config: Config, *, hidden: Sequence[Tensor] | None = None
) -> tuple[LayerReading, ...]:
    """Neighbours, weights and residuals of embedded patches [N, P, D] per layer.

    ``hidden`` per layer, [U] or one row for each image [N, U], masks anchors.
    """
    masks = [None] * len(memory.layers) if hidden is None else hidden
    parts = zip(features, memory.layers, masks, strict=True)
    return tuple(read_layer(patches, layer, config, mask) for patches, layer, mask in parts)


def read_layer(patches: Tensor, layer: LayerBanks, config: Config, hidden: Tensor | None = None) -> LayerReading:
    """Embedded patches [N, P, D] against the banks of one layer; ``hidden`` [U] or [N, U] masks anchors."""
    neighbors = find_neighbors(patches, layer.index, neighbors_of(config), hidden)
    return read_neighbors(patches, layer.index.anchors, neighbors, config)


def search_layers(
    features: Sequence[Tensor], memory: Banked, config: Config, *, hidden: Sequence[Tensor]
) -> tuple[Neighbors, ...]:
    """The neighbours alone of :func:`read_layers`, where nobody asks for residuals."""
    parts = zip(features, memory.layers, hidden, strict=True)
    return tuple(find_neighbors(patches, layer.index, neighbors_of(config), mask) for patches, layer, mask in parts)


def find_neighbors(patches: Tensor, banks: Banks, k: int, hidden: Tensor | None = None) -> Neighbors:
    """The k nearest anchors of patches [N, P, D] in every bank; ``hidden`` [U] or [N, U] masks anchors."""
    if hidden is not None:
        hidden = hidden.expand(len(patches), -1)
    if patches.is_cuda and banks.propose is None and is_fused(patches.shape[2], k):
        from procon.method.cuda.neighbors import nearest_packed

        return Neighbors(*nearest_packed(patches, banks.packed, k, hidden))
    masks = [None] * len(patches) if hidden is None else hidden
    images = [nearest_in_banks(image, banks, k, exclude=mask) for image, mask in zip(patches, masks, strict=True)]
    distances, rows = zip(*images, strict=True)
    return Neighbors(torch.stack(distances), torch.stack(rows))


def read_neighbors(patches: Tensor, anchors: Tensor, neighbors: Neighbors, config: Config) -> LayerReading:
    """Patches [N, P, D] whose ``neighbors`` in every bank are known, at least k of them."""
    k = neighbors_of(config)
    distances, rows = neighbors.distances[..., :k], neighbors.rows[..., :k]
    if config.readout == "hard":  # s_NN(z) = min_m ‖z - m‖, the PatchCore score
        return LayerReading(distances, rows, distances[..., 0].sqrt(), torch.ones_like(distances))
    fixed = math.inf if config.readout == "uniform" else config.tau
    tau = temperature(distances, config.tau_patches) if fixed is None else distances.new_full(rows.shape[:2], fixed)
    weights = soft_weights(distances, tau)
    return LayerReading(distances, rows, residual_norms(patches, anchors, rows, weights), weights)


def fuse(
    layers: Sequence[LayerReading], memory: Banked, config: Config, *, levels: Sequence[Tensor] | None = None
) -> Reading:
    """Consensus over banks, then over layers, with the map and the image's ranking that the configuration asks for.

    ``levels`` per layer, [B, U] or one for each image [N, B, U], replaces those of the memory.
    """
    maps = torch.stack([bank_consensus(layer.residuals) for layer in layers], dim=1)
    scales = [layer.scale for layer in memory.layers]
    scores = fuse_layers(maps, scales, config)
    ranked = scores
    if config.score_relative_to == "anchors":
        levels = [layer.levels for layer in memory.layers] if levels is None else levels
        relative = [bank_consensus(layer.relative_to(own)) for layer, own in zip(layers, levels, strict=True)]
        ranked = fuse_layers(torch.stack(relative, dim=1), scales, config)
    return Reading(tuple(layers), maps, scores, shift_maps(scores, memory.quartile, config), ranked)


def levels_without_own(layers: Sequence[LayerReading], memory: Banked) -> list[Tensor]:
    """The levels [N, B, U] per layer without what each training image, read with its anchors hidden, added to them."""
    levels = []
    for reading, layer in zip(layers, memory.layers, strict=True):
        if layer.sums is None:
            levels.append(layer.levels)  # raises: the memory was never measured
        else:
            levels.append(anchor_levels(layer.sums - reading.sums(layer.sums.shape[2])))
    return levels


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


def shift_maps(scores: Tensor, quartile: float | None, config: Config) -> Tensor:
    """Patch scores [N, P], each image shifted so that its lower quartile is nearer to ``quartile``.

    Light or focus that raises all patches of a part raises its map less, and the scale stays that of S_map.
    """
    if not config.map_offset:
        return scores
    if quartile is None:
        raise ConfigError(
            f"map_offset={config.map_offset!r} needs the maps of good images, and this memory was made without them; "
            "fit again with Detector.fit"
        )
    return scores + config.map_offset * (quartile - lower_quartile(scores)).unsqueeze(1)


def neighbors_of(config: Config) -> int:
    """k: how many anchors a patch is compared with."""
    return 1 if config.readout == "hard" else config.num_neighbors


def is_fused(dims: int, k: int) -> bool:
    """Whether the CUDA kernels search k neighbours of patches of so many dimensions."""
    return dims % 64 == 0 and k <= 8 and find_spec("triton") is not None
