"""Exact nearest neighbours at matrix-multiply speed."""

import torch
from torch import Tensor

# Relative rounding error of one fp32 product under each setting of torch.set_float32_matmul_precision.
_UNIT_ROUNDOFF = {"highest": 2.0**-24, "high": 2.0**-11, "medium": 2.0**-8}

_SPARE = 3  # candidates beyond k that the product proposes; more means fewer second looks


def nearest(
    queries: Tensor, anchors: Tensor, k: int, *, exclude: Tensor | None = None, block: int = 256
) -> tuple[Tensor, Tensor]:
    """The k nearest anchors of each query: (squared distances [Q, k] ascending, indices [Q, k]), ties by index.

    A matrix product proposes a few candidates per query ([Q, D] x [M, D]), whose distances are then computed from
    differences, coordinate by coordinate. Rounding in the product cannot change the answer: a row whose runner-up is
    within the error bound of the product is looked at again with twice the candidates. So neighbours and distances
    do not depend on ``block`` (queries at a time), on the batch or on threads. ``exclude`` [M] hides anchors.
    """
    if queries.ndim != 2 or anchors.ndim != 2 or queries.shape[1] != anchors.shape[1]:
        raise ValueError(
            f"queries and anchors must be [Q, D] and [M, D], got {list(queries.shape)} and {list(anchors.shape)}"
        )
    available = len(anchors) if exclude is None else int((~exclude).sum())
    if not 1 <= k <= available:
        raise ValueError(f"k must be from 1 to the number of anchors {available}, got {k}")
    queries, anchors = queries.float(), anchors.float()
    squares = anchors.square().sum(dim=1)
    if exclude is not None:
        squares = squares.masked_fill(exclude, torch.inf)
    distances = queries.new_empty(len(queries), k)
    indices = torch.empty(len(queries), k, dtype=torch.int64, device=queries.device)
    for start in range(0, len(queries), block):
        rows = torch.arange(start, min(start + block, len(queries)), device=queries.device)
        count = k + _SPARE
        while len(rows):
            found, index, sure = _search(queries[rows], anchors, squares, k, min(count, available))
            distances[rows], indices[rows] = found, index
            # With all anchors for candidates there is nothing left to be unsure of.
            rows, count = rows[~sure & (count < available)], 2 * count
    return distances, indices


def _search(queries: Tensor, anchors: Tensor, squares: Tensor, k: int, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """One look with ``count`` candidates a query: distances [Q, k], indices [Q, k], and where they are certain [Q]."""
    proposal = torch.addmm(squares, queries, anchors.T, alpha=-2)  # ‖m‖² - 2 z·m, short of ‖z‖²
    bounds, candidates = proposal.topk(count, dim=1, largest=False)
    candidates = candidates.sort(dim=1).values  # by index, so that the stable sort below breaks ties by index
    exact = squared_distances(queries, anchors[candidates])
    exact.masked_fill_(squares[candidates].isinf(), torch.inf)
    exact, order = exact.sort(dim=1, stable=True)
    found, index = exact[:, :k], candidates.gather(1, order[:, :k])
    # Every anchor left out has a true squared distance of at least `floor`.
    sizes = queries.square().sum(dim=1)
    reach = sizes.sqrt() + squares.masked_fill(squares.isinf(), 0).max().sqrt()
    roundoff = _UNIT_ROUNDOFF[torch.get_float32_matmul_precision()]
    floor = bounds[:, -1] + sizes - 2 * roundoff * (queries.shape[1] + 8) * reach.square()
    return found, index, found[:, -1] < floor


def squared_distances(queries: Tensor, neighbors: Tensor) -> Tensor:
    """‖z - m‖² from differences: queries [Q, D], neighbors [Q, k, D] -> [Q, k], summed in an order fixed per row."""
    return (queries.unsqueeze(1) - neighbors).square().sum(dim=2)
