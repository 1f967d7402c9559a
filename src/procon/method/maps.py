"""From patch scores to a pixel map."""

import math

import torch
from torch import Tensor
from torch.nn import functional


def pixel_map(scores: Tensor, size: tuple[int, int], sigma: float) -> Tensor:
    """Patch scores [N, rows, columns] to pixels [N, height, width]: bilinear, then a blur of ``sigma`` pixels."""
    return gaussian_blur(resize_maps(scores, size), sigma)


def resize_maps(maps: Tensor, size: tuple[int, int]) -> Tensor:
    """Bilinear, pixel centres aligned: [N, h, w] -> [N, height, width]."""
    if tuple(maps.shape[-2:]) == size:
        return maps
    return functional.interpolate(maps.unsqueeze(1), size=size, mode="bilinear", align_corners=False).squeeze(1)


def gaussian_blur(maps: Tensor, sigma: float) -> Tensor:
    """Separable Gaussian with edges reflected, cut at 4 sigma, as ``scipy.ndimage.gaussian_filter`` does it."""
    if sigma == 0:
        return maps
    radius = math.floor(4 * sigma + 0.5)
    offsets = torch.arange(-radius, radius + 1, dtype=torch.float64)
    weights = torch.exp(-0.5 * (offsets / sigma) ** 2)
    weights = (weights / weights.sum()).float()
    for dim in (-2, -1):
        index = reflect_index(maps.shape[dim], radius, maps.device)
        padded = maps.index_select(maps.ndim + dim, index)
        size = maps.shape[dim]
        blurred = torch.zeros_like(maps)
        # A sum of shifted copies, always in this order: the same bits for any number of maps and threads.
        for position, weight in enumerate(weights.tolist()):
            blurred.add_(padded.narrow(dim, position, size), alpha=weight)
        maps = blurred
    return maps


def reflect_index(size: int, radius: int, device: torch.device) -> Tensor:
    """Indices that extend ``size`` cells by ``radius`` on both sides as d c b a | a b c d | d c b a, any radius."""
    positions = torch.arange(-radius, size + radius, device=device) % (2 * size)
    return torch.where(positions < size, positions, 2 * size - 1 - positions)
