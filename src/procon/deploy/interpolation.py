"""Bilinear interpolation with pixel centres aligned, in numpy: of one map, and as the matrices of an exported graph."""

import math

import numpy as np
from numpy.typing import NDArray

from procon.arrays import Floats


def resize_heatmap(heatmap: Floats, size: tuple[int, int]) -> Floats:
    """[h, w] to [height, width], as ``procon.method.maps.resize_maps`` does it."""
    if heatmap.shape == size:
        return heatmap
    (top, bottom, down), (left, right, along) = map(_neighbor_cells, heatmap.shape, size)
    columns, rows = along.astype(np.float32), down.astype(np.float32)[:, None]
    wide = heatmap[:, left] * (1 - columns) + heatmap[:, right] * columns
    return np.asarray(wide[top] * (1 - rows) + wide[bottom] * rows, np.float32)


def spread_matrix(cells: int, size: int, sigma: float) -> Floats:
    """[size, cells]: bilinear from ``cells`` to ``size`` pixels, then the blur. Both are linear and separable.

    The same as ``procon.method.maps.pixel_map`` along one axis; edges are reflected as d c b a | a b c d | d c b a.
    """
    low, high, share = _neighbor_cells(cells, size)
    matrix = np.zeros((size, cells))
    matrix[np.arange(size), low] = 1 - share
    matrix[np.arange(size), high] += share
    if sigma == 0:
        return matrix.astype(np.float32)
    radius = math.floor(4 * sigma + 0.5)
    weights = np.exp(-0.5 * (np.arange(-radius, radius + 1) / sigma) ** 2)
    weights /= weights.sum()
    positions = np.arange(-radius, size + radius) % (2 * size)
    padded = matrix[np.where(positions < size, positions, 2 * size - 1 - positions)]
    blurred = np.zeros_like(matrix)
    for offset, weight in enumerate(weights):
        blurred += weight * padded[offset : offset + size]
    return blurred.astype(np.float32)


def _neighbor_cells(cells: int, size: int) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.float64]]:
    """For each of ``size`` pixels the two of ``cells`` it lies between, and the share of the second."""
    position = np.clip((np.arange(size) + 0.5) * cells / size - 0.5, 0, None)
    low = np.minimum(position.astype(np.intp), cells - 1)
    return low, np.minimum(low + 1, cells - 1), position - low
