"""Exact nearest neighbours at matrix-multiply speed, in one memory or in several that share anchors."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from procon.method.rounded import Candidates, RoundedAnchors

# Relative rounding error of one fp32 product under each setting of torch.set_float32_matmul_precision.
_UNIT_ROUNDOFF = {"highest": 2.0**-24, "high": 2.0**-11, "medium": 2.0**-8}

_SPARE = 3  # candidates beyond k that the product proposes; more means fewer second looks
_GROUP = 16  # columns whose minimum is looked at first
_CELLS = 2**18  # floats of differences held at a time: 1 MiB, so that they stay in cache
_CELLS_ON_DEVICE = 2**28  # on a GPU: 1 GiB


@dataclass(frozen=True, eq=False)
class Banks:
    """Memories that share anchors, with what a search needs to know about them, computed once."""

    anchors: Tensor  # [U, D] float32: the anchors of all banks, each once
    rows: Tensor  # [B, M] int64: the rows of ``anchors`` that each bank holds
    propose: Callable[[Tensor, int], Tensor] | None = None
    """An approximate search: queries [Q, D] and a count to candidate rows [Q, count], -1 where it found fewer."""

    @cached_property
    def members(self) -> Tensor:
        """[B, U] bool: which bank holds which anchor."""
        members = torch.zeros(len(self.rows), len(self.anchors), dtype=torch.bool, device=self.anchors.device)
        return members.scatter_(1, self.rows, True)

    @cached_property
    def squares(self) -> Tensor:
        """[U]: ‖m‖², infinite where no bank holds the anchor."""
        return self.anchors.square().sum(dim=1).masked_fill(~self.members.any(dim=0), torch.inf)

    @cached_property
    def rounded(self) -> RoundedAnchors | None:
        """The anchors as bytes, where this processor multiplies bytes fast."""
        if not RoundedAnchors.is_fast(self.anchors):
            return None
        return RoundedAnchors.of(self.anchors, self.members.any(dim=0))

    @cached_property
    def packed(self) -> Any:
        """The same banks as the CUDA kernels want them."""
        from procon.method.cuda.neighbors import PackedBanks

        return PackedBanks(self.anchors, self.rows)


def nearest_in_banks(
    queries: Tensor, banks: Banks, k: int, *, exclude: Tensor | None = None, block: int = 392
) -> tuple[Tensor, Tensor]:
    """The k nearest anchors of queries [Q, D] in every bank: (squared distances [B, Q, k], rows of anchors [B, Q, k]).

    Distances ascend, ties go to the lower row; ``exclude`` [U] hides anchors. One matrix product for all banks proposes
    a few candidates per query, whose distances are then computed from differences, coordinate by coordinate. Rounding
    in the product cannot change the answer: a query whose runner-up is within the error bound of the product, or with
    too few candidates in some bank, is looked at again with more. So the result does not depend on ``block`` (queries
    at a time), on the batch or on threads.
    """
    anchors, members, squares = banks.anchors, banks.members, banks.squares
    if queries.ndim != 2 or anchors.ndim != 2 or queries.shape[1] != anchors.shape[1]:
        raise ValueError(
            f"queries and anchors must be [Q, D] and [M, D], got {list(queries.shape)} and {list(anchors.shape)}"
        )
    if block < 1:
        raise ValueError(f"block must be at least 1, got {block}")
    if exclude is not None:
        members = members & ~exclude
        squares = squares.masked_fill(exclude, torch.inf)
    available, fewest = int(members.any(dim=0).sum()), int(members.sum(dim=1).min())
    if not 1 <= k <= fewest:
        raise ValueError(f"k must be from 1 to the number of anchors {fewest}, got {k}")
    queries = queries.float()
    # One bank needs its k and a few to spare. Of several, each holds fewest / available of the anchors: with nearly
    # twice as many candidates as that asks for on average, few queries find too few of some bank.
    enough = k + _SPARE if len(banks.rows) == 1 else math.ceil(1.75 * (k + 2) * available / fewest)
    distances = queries.new_empty(len(banks.rows), len(queries), k)
    indices = torch.empty(len(banks.rows), len(queries), k, dtype=torch.int64, device=queries.device)
    if banks.propose is not None:
        proposed = banks.propose(queries, min(2 * enough, available)).sort(dim=1).values
        real = (proposed >= 0) & ~squares[proposed].isinf()
        distances, indices, full = _choose(queries, anchors, members, k, proposed, real)
        short = (~full).nonzero().flatten()  # a bank without k candidates: these queries are searched exactly
        if len(short):
            exact = Banks(anchors, banks.rows)
            searched = nearest_in_banks(queries[short], exact, k, exclude=exclude, block=block)
            distances[:, short], indices[:, short] = searched
        return distances, indices
    unsure = torch.arange(len(queries), device=queries.device)
    for count, rounded in _looks(banks, k, enough, available, fewest):
        again = []
        for part in unsure.split(block):
            if rounded is not None:
                candidates = rounded.candidates(queries[part], count, exclude)
                near, index, sure = _search_rounded(queries[part], anchors, members, k, candidates)
            else:
                near, index, sure = _search(queries[part], anchors, squares, members, k, count)
            distances[:, part], indices[:, part] = near, index
            again.append(part[~sure])
        # With all anchors for candidates there is nothing left to be unsure of.
        unsure = torch.cat(again) if again and count < available else unsure[:0]
        if not len(unsure):
            break
    return distances, indices


def _looks(
    banks: Banks, k: int, enough: int, available: int, fewest: int
) -> Iterator[tuple[int, RoundedAnchors | None]]:
    """How many candidates each look takes, and the bytes that propose them; None: a product in fp32.

    A rounded distance is off by more, so twice as many candidates are needed, and a second look takes four times that.
    """
    wider = math.ceil(3.5 * k * available / fewest)
    rounded = banks.rounded if wider < available else None
    if rounded is not None:
        yield wider, rounded
        if 4 * wider < available:
            yield 4 * wider, rounded
    while True:
        yield min(enough, available), None
        enough *= 2


def _search_rounded(
    queries: Tensor, anchors: Tensor, members: Tensor, k: int, candidates: Candidates
) -> tuple[Tensor, Tensor, Tensor]:
    """The k nearest of the ``candidates`` in each bank: distances and indices [B, Q, k], and where they are certain."""
    columns, near, errors = candidates
    held = members[:, columns] & near.isfinite()
    ranks = held.cumsum(dim=2, dtype=torch.int32)
    # The k-th of a bank by rounded distance is an upper bound for the true one: what lies beyond it needs no look.
    farthest = near.masked_fill(~held | (ranks != k), 0.0).amax(dim=2, keepdim=True) + 2 * errors.unsqueeze(1)
    needed = (held & (near <= farthest)).any(dim=0)
    columns, order = columns.masked_fill(~needed, len(anchors)).sort(dim=1)  # what is not needed comes last
    needed = needed.gather(1, order)[:, : max(k, int(needed.sum(dim=1).max()))]
    distances, indices, full = _choose(queries, anchors, members, k, columns[:, : needed.shape[1]], needed)
    # Every anchor that was not a candidate is at least so far away.
    floor = near[:, -1] - errors
    return distances, indices, full & (distances[:, :, -1].sqrt() < floor).all(dim=0)


def _search(
    queries: Tensor, anchors: Tensor, squares: Tensor, members: Tensor, k: int, count: int
) -> tuple[Tensor, Tensor, Tensor]:
    """One look with ``count`` candidates a query: distances and indices [B, Q, k], and where they are certain [Q]."""
    length = queries.square().sum(dim=1).sqrt()
    longest = squares.masked_fill(squares.isinf(), 0).max().sqrt()
    roundoff = _UNIT_ROUNDOFF[torch.get_float32_matmul_precision()]
    error = 2 * roundoff * (queries.shape[1] + 8) * (length + longest).square()
    # ‖m‖² - 2 z·m is the squared distance short of ‖z‖².
    bounds, candidates = _smallest(torch.addmm(squares, queries, anchors.T, alpha=-2), count)
    candidates = candidates.sort(dim=1).values
    distances, indices, full = _choose(queries, anchors, members, k, candidates, ~squares[candidates].isinf())
    # Every anchor that was not a candidate has a true squared distance of at least `floor`.
    floor = bounds[:, -1] + queries.square().sum(dim=1) - error
    return distances, indices, full & (distances[:, :, -1] < floor).all(dim=0)


def _smallest(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The ``count`` smallest of each row [Q, U], ascending, and their columns: ``topk``, faster on long rows.

    Columns are put in groups of 16. Each of the smallest lies in one of the ``count`` groups with the smallest minima:
    a group whose minimum is larger than theirs cannot hold it. So only those groups are sorted.
    """
    groups = values.shape[1] // _GROUP
    if groups < 4 * count:
        smallest = values.topk(count, dim=1, largest=False)
        return smallest.values, smallest.indices
    whole = groups * _GROUP
    minima = values[:, :whole].unflatten(1, (_GROUP, groups)).amin(dim=1)
    best = minima.topk(count, dim=1, largest=False, sorted=False).indices
    offsets = groups * torch.arange(_GROUP, device=values.device)
    columns = (best.unsqueeze(1) + offsets[:, None]).flatten(1)
    rest = torch.arange(whole, values.shape[1], device=values.device).expand(len(values), -1)
    columns = torch.cat([columns, rest], dim=1)
    smallest = values.gather(1, columns).topk(count, dim=1, largest=False)
    return smallest.values, columns.gather(1, smallest.indices)


def _choose(
    queries: Tensor, anchors: Tensor, members: Tensor, k: int, candidates: Tensor, real: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The k nearest of the ``real`` candidates [Q, C] in each bank: distances, indices [B, Q, k]; where all had k [Q].

    Candidates ascend, so that the stable sort breaks ties by index.
    """
    rows = real.nonzero()[:, 0]
    exact = torch.full(candidates.shape, torch.inf, device=queries.device)
    exact[real] = _exact(queries, anchors, rows, candidates[real])
    exact, order = exact.sort(dim=1, stable=True)
    candidates, real = candidates.masked_fill(~real, 0).gather(1, order), real.gather(1, order)
    # The first k of each bank: members get falling numbers along the row, others 0.
    falling = torch.arange(candidates.shape[1], 0, -1, dtype=torch.int32, device=queries.device)
    ranks, position = ((members[:, candidates] & real) * falling).topk(k, dim=2)
    distances = exact.expand(len(members), -1, -1).gather(2, position)
    indices = candidates.expand(len(members), -1, -1).gather(2, position)
    return distances, indices, (ranks[:, :, -1] > 0).all(dim=0)


def _exact(queries: Tensor, anchors: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """‖z - m‖² of pairs from differences: queries [Q, D], anchors [U, D], rows and columns [n] -> [n].

    Each is summed in the same order, whatever the other pairs are.
    """
    step = pairs_in_cache(queries)
    parts = [
        anchors.index_select(0, column).sub_(queries.index_select(0, row)).square_().sum(dim=1)
        for row, column in zip(rows.split(step), columns.split(step), strict=True)
    ]
    return torch.cat(parts)


def pairs_in_cache(queries: Tensor) -> int:
    """How many differences of ``queries`` [Q, D] to hold at a time: a cacheful on a CPU, else as many as fit well."""
    return max(1, (_CELLS if queries.device.type == "cpu" else _CELLS_ON_DEVICE) // queries.shape[1])
