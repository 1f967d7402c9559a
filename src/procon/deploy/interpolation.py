"""Bilinear interpolation and blur of a map as the matrices of an exported graph."""

import math

import numpy as np

from procon.arrays import Floats
from procon.method.heatmap import neighbor_cells


def spread_matrix(cells: int, size: int, sigma: float) -> Floats:
    """[size, cells]: bilinear from ``cells`` to ``size`` pixels, then the blur. Both are linear and separable.

    The same as ``procon.method.maps.pixel_map`` along one axis; edges are reflected as d c b a | a b c d | d c b a.
    """
    low, high, share = neighbor_cells(cells, size)
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
