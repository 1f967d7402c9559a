"""Exact nearest neighbours at matrix-multiply speed, in one memory or in several that share anchors."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

# Relative rounding error of one fp32 product under each setting of torch.set_float32_matmul_precision.
_UNIT_ROUNDOFF = {"highest": 2.0**-24, "high": 2.0**-11, "medium": 2.0**-8}

_SPARE = 3  # candidates beyond k that the product proposes; more means fewer second looks
_GROUP = 16  # columns whose minimum is looked at first
_CELLS = 2**19  # floats of differences held at a time: 2 MiB, so that they stay in cache


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
    def coarse(self) -> tuple[Tensor, float] | None:
        """Rows (-2 m, ‖m‖²) in bf16 and the length of the largest rounding error of m, where bf16 is fast on this CPU.

        ‖m‖² takes two columns, its rounded value and the rest, so that one product gives ‖m‖² - 2 z·m: [U, D + 2].
        """
        has_bf16 = getattr(torch.cpu, "_is_avx512_bf16_supported", None)
        if self.anchors.device.type != "cpu" or has_bf16 is None or not has_bf16():
            return None
        rounded = self.anchors.bfloat16()
        error = float((self.anchors - rounded.float()).square().sum(dim=1).max().sqrt())
        high = self.squares.bfloat16().unsqueeze(1)
        low = (self.squares.unsqueeze(1) - high.float()).nan_to_num(0.0).bfloat16()  # inf - inf where nobody holds it
        return torch.cat([-2 * rounded, high, low], dim=1), error

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
    too few candidates in some bank, is looked at again with twice as many. So the result does not depend on ``block``
    (queries at a time), on the batch or on threads.
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
        distances, indices, full = _choose(queries, anchors, squares, members, k, proposed)
        short = (~full).nonzero().flatten()  # a bank without k candidates: these queries are searched exactly
        if len(short):
            exact = Banks(anchors, banks.rows)
            searched = nearest_in_banks(queries[short], exact, k, exclude=exclude, block=block)
            distances[:, short], indices[:, short] = searched
        return distances, indices
    unsure = torch.arange(len(queries), device=queries.device)
    # Hidden anchors are not in the rounded copy, so a search without some of them starts with the fp32 product.
    count, coarse = enough, banks.coarse if enough < available and exclude is None else None
    while len(unsure):
        again = []
        for rows in unsure.split(block):
            near, index, sure = _search(queries[rows], anchors, squares, members, k, min(count, available), coarse)
            distances[:, rows], indices[:, rows] = near, index
            again.append(rows[~sure])
        # With all anchors for candidates there is nothing left to be unsure of.
        unsure = torch.cat(again) if count < available else unsure[:0]
        count, coarse = 2 * count, None
    return distances, indices


def _search(
    queries: Tensor,
    anchors: Tensor,
    squares: Tensor,
    members: Tensor,
    k: int,
    count: int,
    coarse: tuple[Tensor, float] | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """One look with ``count`` candidates a query: distances and indices [B, Q, k], and where they are certain [Q].

    ``coarse`` lets the product run in bf16, with the wider error bound that goes with it.
    """
    proposal, error = _propose(queries, anchors, squares, coarse)
    bounds, candidates = _smallest(proposal, count)
    distances, indices, full = _choose(queries, anchors, squares, members, k, candidates.sort(dim=1).values)
    # Every anchor that was not a candidate has a true squared distance of at least `floor`.
    floor = bounds[:, -1].float() + queries.square().sum(dim=1) - error
    return distances, indices, full & (distances[:, :, -1] < floor).all(dim=0)


def _propose(
    queries: Tensor, anchors: Tensor, squares: Tensor, coarse: tuple[Tensor, float] | None
) -> tuple[Tensor, Tensor]:
    """‖m‖² - 2 z·m (the squared distance short of ‖z‖²) as [Q, U], and how far off it may be for each query [Q]."""
    length = queries.square().sum(dim=1).sqrt()
    longest = squares.masked_fill(squares.isinf(), 0).max().sqrt()
    roundoff = _UNIT_ROUNDOFF[torch.get_float32_matmul_precision()]
    error = 2 * roundoff * (queries.shape[1] + 8) * (length + longest).square()
    if coarse is None:
        return torch.addmm(squares, queries, anchors.T, alpha=-2), error
    rounded_anchors, anchor_error = coarse
    rounded = queries.bfloat16()
    # Both factors were rounded by known amounts, ‖m‖² to 16 bits; the sum is kept in fp32 and rounded to bf16 once.
    query_error = (queries - rounded.float()).square().sum(dim=1).sqrt()
    error = error + 2 * (query_error * longest + (length + query_error) * anchor_error)
    error = error + (2.0**-9 + 2.0**-16) * (longest.square() + 2 * (length + query_error) * (longest + anchor_error))
    proposal = functional.pad(rounded, (0, 2), value=1.0) @ rounded_anchors.T
    return proposal, error


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
    queries: Tensor, anchors: Tensor, squares: Tensor, members: Tensor, k: int, candidates: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The k nearest of the candidates [Q, C] in each bank: distances and indices [B, Q, k], and where all had k [Q].

    Candidates ascend, so that the stable sort breaks ties by index; -1 is none.
    """
    real, candidates = candidates >= 0, candidates.clamp_min(0)
    exact = _exact(queries, anchors, candidates)
    exact, order = exact.masked_fill_(~real | squares[candidates].isinf(), torch.inf).sort(dim=1, stable=True)
    candidates, real = candidates.gather(1, order), real.gather(1, order)
    # The first k of each bank: members get falling numbers along the row, others 0.
    falling = torch.arange(candidates.shape[1], 0, -1, dtype=torch.int32, device=queries.device)
    ranks, position = ((members[:, candidates] & real) * falling).topk(k, dim=2)
    distances = exact.expand(len(members), -1, -1).gather(2, position)
    indices = candidates.expand(len(members), -1, -1).gather(2, position)
    return distances, indices, (ranks[:, :, -1] > 0).all(dim=0)


def _exact(queries: Tensor, anchors: Tensor, candidates: Tensor) -> Tensor:
    """‖z - m‖² from differences: queries [Q, D], candidates [Q, C] -> [Q, C], summed in an order fixed per row."""
    step = rows_in_cache(queries, candidates.shape[1])
    parts = [
        (anchors[columns] - rows.unsqueeze(1)).square_().sum(dim=2)
        for rows, columns in zip(queries.split(step), candidates.split(step), strict=True)
    ]
    return torch.cat(parts)


def rows_in_cache(queries: Tensor, neighbors: int) -> int:
    """How many queries [Q, D] to compare with ``neighbors`` anchors each at a time: a cacheful on a CPU, else all."""
    return max(1, _CELLS // (neighbors * queries.shape[1])) if queries.device.type == "cpu" else max(1, len(queries))
