"""Large images in overlapping tiles: each passes the backbone alone, and their tokens are blended into one grid."""

from collections.abc import Callable

import torch
from torch import Tensor

OVERLAP = 0.25  # share of a tile's side that its neighbour sees too, at least
TOGETHER = 8  # tiles that pass the backbone in one call: bounds the memory, whatever the size of the image


def tile_starts(length: int, tile: int) -> list[int]:
    """Where tiles of ``tile`` cells begin so that they cover ``length``: evenly spread, overlapping by a quarter."""
    overlap = max(1, int(OVERLAP * tile))
    count = max(1, -(-(length - overlap) // (tile - overlap)))
    return [round(index * (length - tile) / max(1, count - 1)) for index in range(count)]


def tile_weights(starts: list[int], tile: int, length: int) -> Tensor:
    """How much each tile counts at each cell: float64 [tiles, length], columns sum to 1.

    A tile counts most in its middle and fades towards its edges, where its view of the surroundings ends.
    """
    weights = torch.zeros(len(starts), length, dtype=torch.float64)
    ramp = torch.minimum(torch.arange(1, tile + 1), torch.arange(tile, 0, -1)).double()
    for row, start in zip(weights, starts, strict=True):
        row[start : start + tile] = ramp
    return weights / weights.sum(dim=0)


def tiled_tokens(pixels: Tensor, patch: int, tile: int, tokens: Callable[[Tensor], list[Tensor]]) -> list[Tensor]:
    """Tokens [N, P, C] per layer of images [N, 3, H, W] that ``tokens`` sees in squares of ``tile`` cells of ``patch``.

    A cell that several tiles see gets the weighted mean of its tokens. The order of the sum is fixed.
    """
    rows, columns = pixels.shape[2] // patch, pixels.shape[3] // patch
    tops, lefts = tile_starts(rows, tile), tile_starts(columns, tile)
    down, across = tile_weights(tops, tile, rows), tile_weights(lefts, tile, columns)
    sums: list[Tensor] = []
    tiles = [(i, j) for i in range(len(tops)) for j in range(len(lefts))]
    for begin in range(0, len(tiles), TOGETHER):
        places = tiles[begin : begin + TOGETHER]
        windows = [
            pixels[:, :, patch * tops[i] : patch * (tops[i] + tile), patch * lefts[j] : patch * (lefts[j] + tile)]
            for i, j in places
        ]
        seen = tokens(torch.cat(windows))  # [tiles * N, tile², C] per layer
        if not sums:
            sums = [layer.new_zeros(len(pixels), rows, columns, layer.shape[2]) for layer in seen]
        for total, layer in zip(sums, seen, strict=True):
            for (i, j), view in zip(places, layer.split(len(pixels)), strict=True):
                here = slice(tops[i], tops[i] + tile), slice(lefts[j], lefts[j] + tile)
                weight = (down[i, here[0]].unsqueeze(1) * across[j, here[1]]).float().to(layer.device)
                total[:, here[0], here[1]] += view.view(len(pixels), tile, tile, -1) * weight.unsqueeze(2)
    return [total.flatten(1, 2) for total in sums]
