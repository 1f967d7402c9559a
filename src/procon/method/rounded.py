"""Candidates for nearest neighbours from a product of bytes, with a proven bound.

Anchors and queries are rounded to a grid of 255 steps per coordinate. Distances between rounded points are integers and
exact, whatever the order of the sum. Rounding moves a point by a length that is measured. So, by the triangle
inequality, the distance of a query and an anchor differs from the distance of their rounded points by at most the sum
of the two lengths. Processors with VNNI multiply bytes four times as fast as fp32.

The step has to cover the coordinate that varies most. Tokens have a few that vary several times as much as the others.
Each of these becomes n equal coordinates of 1/sqrt(n) its size, which changes no distance and needs a smaller step.
"""

from dataclasses import dataclass, replace
from functools import cache
from typing import NamedTuple, Self

import torch
from torch import Tensor
from torch.nn import functional

_MOST = 127  # steps from the centre in each direction
_HIDDEN = 2**30  # squared length, in steps, of what may not be found
_MOST_DIMS = _HIDDEN // 2 // (3 * _MOST**2)  # a squared length less twice a product then stays below half of it
_FAN = 4  # columns per group, and groups per group of the next level
_WIDTH = 256  # anchors are padded to a multiple of it, so that levels of groups come out even
_DEPTH = 16  # and columns of coordinates to a multiple of this, as products of bytes want it
_EXTRA = 8  # one column more for so many coordinates
_CELLS = 6 * 2**20  # int32 distances held at a time: 24 MiB
_SLACK = 1e-5  # relative, for the fp32 rounding of lengths


class Candidates(NamedTuple):
    """The nearest rounded anchors of Q queries, ascending by distance."""

    columns: Tensor  # [Q, C] int64: rows of the anchors
    distances: Tensor  # [Q, C] float32: between the rounded points; infinite where an anchor may not be found
    errors: Tensor  # [Q] float32: how far a true distance may be from that of the rounded points


@dataclass(frozen=True, eq=False)
class RoundedAnchors:
    """Anchors [U, D] on a grid of bytes."""

    center: Tensor  # [D]: is subtracted first, because distances do not change and numbers get smaller
    spread: Tensor  # [E] int64: the coordinate behind each column of the points; E is a multiple of 16
    factors: Tensor  # [E]: 1 / sqrt(n), and 0 for padding
    step: float  # of the grid
    points: Tensor  # [W, E] int8; W is U, padded
    squares: Tensor  # [W] int32: squared lengths in steps, ``_HIDDEN`` for the padding and where no bank has the anchor
    error: float  # the largest distance of an anchor from its rounded point

    @classmethod
    def of(cls, anchors: Tensor, held: Tensor) -> Self:
        """Round ``anchors`` [U, D]; those that are not ``held`` [U] are never found."""
        center = anchors.mean(dim=0)
        copies = _copies((anchors - center).abs().amax(dim=0))
        spread = torch.arange(len(center)).repeat_interleave(copies)
        padding = -len(spread) % _DEPTH
        factors = functional.pad(copies.float().rsqrt()[spread], (0, padding))
        spread = functional.pad(spread, (0, padding))
        reach = float(((anchors - center).abs().amax(dim=0)[spread] * factors).max())
        step = max(reach / _MOST, torch.finfo(torch.float32).tiny)
        width = -(-len(anchors) // _WIDTH) * _WIDTH
        points = torch.zeros(width, len(spread), dtype=torch.int8)
        squares = torch.full((width,), _HIDDEN, dtype=torch.int32)
        empty = cls(center, spread, factors, step, points, squares, 0.0)
        rounded, errors = empty.round(anchors)
        points[: len(anchors)] = rounded
        squares[: len(anchors)] = _square_lengths(rounded).masked_fill(~held, _HIDDEN)
        return replace(empty, error=float(errors.max()))

    def round(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """Points [N, D] on the grid, int8 [N, E], and how far each was moved [N]: at most so far, with the slack."""
        offsets = (points - self.center).index_select(1, self.spread).mul_(self.factors)
        rounded = (offsets / self.step).round_().clamp_(-_MOST, _MOST)
        moved = (offsets - self.step * rounded).square_().sum(dim=1).sqrt_()
        return rounded.to(torch.int8), moved + _SLACK * offsets.square_().sum(dim=1).sqrt_()

    @staticmethod
    def is_fast(anchors: Tensor) -> bool:
        """Whether this processor multiplies bytes fast, and integers can hold the distances of ``anchors``."""
        return anchors.device.type == "cpu" and 1.2 * anchors.shape[1] <= _MOST_DIMS and _multiplies_bytes()

    def candidates(self, queries: Tensor, count: int, exclude: Tensor | None = None) -> Candidates:
        """The ``count`` nearest rounded anchors of queries [Q, D]; ``exclude`` [U] hides anchors."""
        squares = self.squares
        if exclude is not None:
            squares = squares.clone()
            squares[: len(exclude)].masked_fill_(exclude, _HIDDEN)
        rounded, errors = self.round(queries)
        lengths = _square_lengths(rounded).unsqueeze(1)
        parts = []
        block = max(1, _CELLS // len(squares))
        buffer = torch.empty(min(block, len(queries)), len(squares), dtype=torch.int32)
        for rows in rounded.split(block):
            product = torch._int_mm(rows, self.points.T, out=buffer[: len(rows)])
            parts.append(_smallest(torch.add(squares, product, alpha=-2, out=product), count))
        values, columns = (torch.cat(part) for part in zip(*parts, strict=True))
        hidden = values > _HIDDEN // 2
        distances = (values + lengths).float().sqrt_().mul_(self.step).masked_fill_(hidden, torch.inf)
        return Candidates(columns.masked_fill_(hidden, 0), distances, errors + self.error)


@cache
def _multiplies_bytes() -> bool:
    """Whether this processor has VNNI, and this release of torch multiplies bytes with it and loses nothing."""
    supported = getattr(torch.cpu, "_is_vnni_supported", None)
    if supported is None or not supported() or not hasattr(torch, "_int_mm"):
        return False
    extremes = torch.tensor([_MOST, -_MOST, _MOST, 1], dtype=torch.int8).repeat(_WIDTH, 2 * _DEPTH)
    extremes[::2] *= -1
    expected = extremes.float() @ extremes.float().T
    return torch.equal(torch._int_mm(extremes, extremes.T).float(), expected)


def _copies(reach: Tensor) -> Tensor:
    """How many columns each coordinate gets [D] so that its ``reach`` [D] fits: an eighth more columns in all."""
    room = len(reach) + len(reach) // _EXTRA
    low, high = 0.0, float(reach.max())  # of the reach of a column
    for _ in range(20):
        middle = (low + high) / 2
        fits = middle > 0 and int((reach / middle).square().ceil().clamp_min(1).sum()) <= room
        low, high = (low, middle) if fits else (middle, high)
    return (reach / max(high, torch.finfo(torch.float32).tiny)).square().ceil().clamp_min(1).long()


def _square_lengths(rounded: Tensor) -> Tensor:
    """Squared lengths of int8 points [N, D]: int32 [N]."""
    return rounded.int().square_().sum(dim=1, dtype=torch.int32)


def _smallest(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The ``count`` smallest of each row of int32 [Q, W], ascending, and their columns: ``topk``, faster on long rows.

    Columns are put in groups of four, groups in groups of four, and so on; each level holds the minima of its groups.
    From the top level down, only the ``count`` groups with the smallest minima are opened: a group whose minimum is
    larger than theirs cannot hold one of the smallest.
    """
    levels = [values]
    while levels[-1].shape[1] % _FAN == 0 and levels[-1].shape[1] // _FAN >= 2 * count:
        groups = levels[-1].shape[1] // _FAN
        levels.append(levels[-1].unflatten(1, (_FAN, groups)).amin(dim=1))
    smallest = levels[-1].topk(count, dim=1, largest=False, sorted=len(levels) == 1)
    best, columns = smallest.values, smallest.indices
    for depth in range(len(levels) - 2, -1, -1):
        groups = levels[depth + 1].shape[1]
        columns = (columns.unsqueeze(1) + groups * torch.arange(_FAN).unsqueeze(1)).flatten(1)
        smallest = levels[depth].gather(1, columns).topk(count, dim=1, largest=False, sorted=depth == 0)
        best, columns = smallest.values, columns.gather(1, smallest.indices)
    return best, columns
