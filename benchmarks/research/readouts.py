"""Readouts: what a patch is worth, given its neighbours in a bank and what those leave on normal patches.

A readout is one pure function, :func:`read_patches`: it takes the neighbours of patches and their distances, the normal
statistics of anchors and positions, and a :class:`PatchReadout`. Nothing here knows images or files.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from procon.method.residual import soft_weights, temperature

_TINY = 1e-12  # keeps a division by what identical training images leave, which is nothing, finite


@dataclass(frozen=True)
class Neighborhood:
    """The k nearest anchors, in one bank, of the P patches of N images."""

    distances: Tensor
    """[N, P, k]: squared, ascending."""
    rows: Tensor
    """[N, P, k]: places of the anchors in the bank."""
    products: Tensor
    """[N, P, k, k]: (z - m_i) · (z - m_j), enough to combine the neighbours with any weights."""

    def nearest(self, k: int) -> "Neighborhood":
        """The same with fewer neighbours."""
        return Neighborhood(self.distances[..., :k], self.rows[..., :k], self.products[..., :k, :k])


@dataclass(frozen=True)
class Normal:
    """What a residual is on normal patches, of images that the memory did not know."""

    anchors: Tensor
    """[M]: the level that each anchor leaves."""
    positions: Tensor
    """[P]: the level at each position of the grid."""


@dataclass(frozen=True)
class PatchReadout:
    """What is read from a neighbourhood."""

    residual: Literal["soft", "uniform", "mean-distance", "nearest"] = "soft"
    """Distance to the soft projection, to the plain mean of the neighbours, the mean of the distances to them, or the
    distance to the nearest."""
    neighbors: int = 5
    relative_to: Literal["nothing", "anchors", "positions"] = "nothing"
    """What the residual is compared with: the normal level of the same anchors, or of the same position."""
    statistic: Literal["mean", "high", "largest"] = "mean"
    """Normal level: the mean, the mean plus two standard deviations, or the largest."""
    power: float = 1.0
    """The residual is divided by the level to this power; 0.5 is the milder square root."""
    shrinkage: float = 5.0
    """Patches of the layer's mean level that are added to each anchor's or position's own."""


def residuals(near: Neighborhood, kind: str) -> tuple[Tensor, Tensor]:
    """Residuals [N, P] of patches, and the weights [N, P, k] that their neighbours have in them."""
    if kind == "nearest":
        weights = torch.zeros_like(near.distances)
        weights[..., 0] = 1.0
        return near.distances[..., 0].sqrt(), weights
    if kind == "soft":
        weights = soft_weights(near.distances, temperature(near.distances))
    else:
        weights = torch.full_like(near.distances, 1 / near.distances.shape[-1])
    if kind == "mean-distance":
        return near.distances.sqrt().mean(dim=-1), weights
    squares = (weights.unsqueeze(-1) * near.products * weights.unsqueeze(-2)).sum(dim=(-2, -1))
    return squares.clamp_min(0).sqrt(), weights


def normal_levels(values: Tensor, weights: Tensor, places: Tensor, count: int, readout: PatchReadout) -> Tensor:
    """The normal level of ``count`` places [count] from values, their weights and the places they belong to, all [n].

    A place that few patches know is drawn to the level of all.
    """
    mass = torch.zeros(count, dtype=torch.float64, device=values.device)
    first, second = mass.clone(), mass.clone()
    values, weights = values.double(), weights.double()
    mass.index_add_(0, places, weights)
    first.index_add_(0, places, weights * values)
    second.index_add_(0, places, weights * values.square())
    mean, mean_square = first.sum() / mass.sum(), second.sum() / mass.sum()
    prior = readout.shrinkage
    centre = (first + prior * mean) / (mass + prior)
    if readout.statistic == "mean":
        return centre.to(torch.float32)
    spread = ((second + prior * mean_square) / (mass + prior) - centre.square()).clamp_min(0).sqrt()
    high = centre + 2 * spread
    if readout.statistic == "high":
        return high.to(torch.float32)
    largest = torch.zeros_like(mass).scatter_reduce_(0, places, values, "amax")
    overall = mean + 2 * (mean_square - mean.square()).clamp_min(0).sqrt()
    return ((mass * torch.maximum(largest, centre) + prior * overall) / (mass + prior)).to(torch.float32)


def normal_statistics(near: Neighborhood, readout: PatchReadout, anchors: int) -> Normal:
    """Levels of a bank of ``anchors`` anchors, from normal patches that were read without their own image."""
    near = near.nearest(readout.neighbors)
    values, weights = residuals(near, readout.residual)
    spread = values.unsqueeze(-1).expand_as(weights)
    by_anchor = normal_levels(spread.flatten(), weights.flatten(), near.rows.flatten(), anchors, readout)
    places = torch.arange(values.shape[1], device=values.device).expand_as(values)
    by_position = normal_levels(
        values.flatten(), torch.ones_like(values).flatten(), places.flatten(), values.shape[1], readout
    )
    return Normal(by_anchor, by_position)


def read_patches(near: Neighborhood, readout: PatchReadout, normal: Normal | None = None) -> Tensor:
    """What ``readout`` makes of patches: [N, P]. ``normal`` is needed where it is relative to something."""
    near = near.nearest(readout.neighbors)
    values, weights = residuals(near, readout.residual)
    if readout.relative_to == "nothing":
        return values
    if normal is None:
        raise ValueError(f"a readout relative to {readout.relative_to} needs normal statistics, got None")
    level = (weights * normal.anchors[near.rows]).sum(dim=-1) if readout.relative_to == "anchors" else normal.positions
    return values / level.clamp_min(_TINY) ** readout.power
