"""Short ways to ask the method about a single memory, for tests."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from procon import Config
from procon.method.coreset import k_center_from_grid, to_grid
from procon.method.neighbors import Banks, nearest_in_banks
from procon.method.score import read_layer


@dataclass
class PlainLayer:
    """The banks of one layer, and nothing else."""

    index: Banks
    scale: tuple[float, float] = (0.0, 1.0)
    sums: Tensor | None = None

    @property
    def levels(self) -> Tensor:
        raise AssertionError("not measured")


def one_bank(anchors: Tensor) -> PlainLayer:
    return PlainLayer(Banks(anchors.float(), torch.arange(len(anchors)).unsqueeze(0)))


def nearest(queries: Tensor, anchors: Tensor, k: int, **options: Any) -> tuple[Tensor, Tensor]:
    """The k nearest of a single memory [M, D]: squared distances and indices, both [Q, k]."""
    banks = Banks(anchors.float(), torch.arange(len(anchors), device=anchors.device).unsqueeze(0))
    distances, indices = nearest_in_banks(queries, banks, k, **options)
    return distances[0], indices[0]


def k_center_from(points: Tensor, centers: Tensor, size: int, *, block: int = 2048) -> Tensor:
    """Picks [size] among points [N, d] that continue from ``centers`` [C, d], both rounded to one grid."""
    grid = to_grid(torch.cat([centers, points]))
    return k_center_from_grid(grid[len(centers) :], grid[: len(centers)], size, block=block)


def soft_residual(
    queries: Tensor, anchors: Tensor, k: int, tau: Any = None, *, exclude: Tensor | None = None, **settings: Any
) -> Tensor:
    """Residuals [Q] of one image [Q, D] in a single memory [M, D]."""
    if tau is not None and float(tau) == float("inf"):
        settings, tau = {**settings, "readout": "uniform"}, None
    config = Config(num_neighbors=k, tau=None if tau is None else float(tau), **settings)
    return read_layer(queries.unsqueeze(0), one_bank(anchors), config, exclude).residuals[0, 0]


def hard_residual(queries: Tensor, anchors: Tensor, *, exclude: Tensor | None = None) -> Tensor:
    """Distances [Q] to the nearest of a single memory [M, D]."""
    return read_layer(queries.unsqueeze(0), one_bank(anchors), Config(readout="hard"), exclude).residuals[0, 0]
