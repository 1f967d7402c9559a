"""Greedy k-center, exact and at matrix-multiply speed.

The textbook loop reads all N points for every pick. Here a point's distance to the picks is only brought up to date
when it could matter: a stale distance is an upper bound, because picks are only ever added. So take the points with
the largest bounds, update those, run the greedy loop among them, and stop as soon as a bound outside could beat the
best inside. Every pick is the pick the textbook loop makes.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import Tensor

from procon.method.rounded import RoundedAnchors

_COLUMNS = 256  # picks per product: with 2,048 points, 4 MiB of distances that stay in cache
_GRID_BITS = 24  # a coordinate fits fp32, and a squared distance of 2 * 24 + 2 bits fits fp64
_SCREENED = 1024  # picks per product of bytes
_WORTHWHILE = 4096  # points from which on rounding them pays
_SLACK = 1e-6  # relative, for the rounding of limits
_ROWS = 65_536  # rows converted to fp64 at a time

OnPick = Callable[[int], None] | None
"""Called with the number of picks made so far, of all starts."""


def to_grid(points: Tensor) -> Tensor:
    """Points [N, d] on an integer grid of at most 2^24 steps to the largest norm, as fp32.

    On the grid a squared distance is an integer below 2^53: fp64 holds it exactly, whatever the order of the sum, the
    block size, the device or the thread. That is what makes picks reproducible and ties real ties. The step is of the
    size of fp32 rounding, and a power of two, so that equal distances stay equal.
    """
    return to_grid_(points.to(torch.float64 if points.dtype == torch.float64 else torch.float32, copy=True)).float()


def to_grid_(points: Tensor) -> Tensor:
    """:func:`to_grid` in place of ``points``."""
    largest = float(torch.stack([rows.double().square().sum(dim=1).max() for rows in points.split(_ROWS)]).max().sqrt())
    if not math.isfinite(largest):
        raise ValueError("points must be finite, got NaN or infinity")
    scale = 2.0 ** (_GRID_BITS - math.frexp(largest)[1]) if largest > 0 else 1.0
    for rows in points.split(_ROWS):
        rows.copy_((rows.double() * scale).round())
    return points


def k_center(points: Tensor, size: int, starts: Sequence[int], *, block: int = 2048, on_pick: OnPick = None) -> Tensor:
    """Farthest-point picks from each start: points [N, d] -> indices [len(starts), size], int64, in order of picking.

    Pick t is the point farthest from picks 0..t-1 (ties to the lowest index). ``block`` is how many points the greedy
    loop runs on at a time: it changes the time, never the picks.
    """
    if points.ndim != 2 or not len(points):
        raise ValueError(f"points must be [N, d] with N of at least 1, got {list(points.shape)}")
    return k_center_on_grid(to_grid(points), size, starts, block=block, on_pick=on_pick)


def k_center_on_grid(
    grid: Tensor, size: int, starts: Sequence[int], *, block: int = 2048, on_pick: OnPick = None
) -> Tensor:
    """:func:`k_center` of points that :func:`to_grid` already rounded."""
    if not 1 <= size <= len(grid):
        raise ValueError(f"size must be from 1 to the number of points {len(grid)}, got {size}")
    if not all(0 <= start < len(grid) for start in starts):
        raise ValueError(f"starts must be indices from 0 to {len(grid) - 1}, got {list(starts)}")
    if block < 1:
        raise ValueError(f"block must be at least 1, got {block}")
    if grid.is_cuda and find_spec("triton") is not None:
        from procon.method.cuda.coreset import greedy_cuda

        return greedy_cuda(grid, size, starts, block, on_pick)
    picks = torch.empty(len(starts), size, dtype=torch.int64, device=grid.device)
    norms, bounds = _first_pass(grid, starts)
    screen = Screen.of(grid)
    for row, start in enumerate(starts):

        def report(count: int, done: int = row * size) -> None:
            if on_pick is not None:
                on_pick(done + count)

        picks[row] = _greedy(grid, norms, bounds[row], size, start, block, report, screen)
    return picks


def k_center_from_grid(grid: Tensor, centers: Tensor, size: int, *, block: int = 2048) -> Tensor:
    """Farthest-point picks that continue from ``centers`` [C, d]: points [N, d] -> indices [size], int64, in order.

    Pick t is the point farthest from all centres and from picks 0..t-1 (ties to the lowest index). :func:`to_grid`
    must have rounded points and centres together, to one scale.
    """
    if not 0 <= size <= len(grid):
        raise ValueError(f"size must be from 0 to the number of points {len(grid)}, got {size}")
    if block < 1:
        raise ValueError(f"block must be at least 1, got {block}")
    norms = torch.empty(len(grid), dtype=torch.float64, device=grid.device)
    bounds = torch.empty_like(norms)
    placed = centers.double()
    sizes = placed.square().sum(dim=1)
    for begin in range(0, len(grid), block):
        rows = slice(begin, begin + block)
        points = grid[rows].double()
        norms[rows] = points.square().sum(dim=1)
        bounds[rows] = torch.addmm(sizes, points, placed.T, alpha=-2).amin(dim=1) + norms[rows]
    return _greedy(grid, norms, bounds, size, None, block, lambda _count: None, Screen.of(grid))


def densest(grid: Tensor, picks: Tensor, size: int) -> Tensor:
    """Of ``picks`` [C] the ``size`` that are nearest to the most points of ``grid`` [N, d], in order of picking.

    Ties go to the earlier pick. Pruning a coreset by density is the paper's negative result: what is rare is lost.
    """
    centers = grid[picks].double()
    sizes = centers.square().sum(dim=1)
    nearest = [torch.addmm(sizes, rows.double(), centers.T, alpha=-2).argmin(dim=1) for rows in grid.split(2048)]
    population = torch.bincount(torch.cat(nearest), minlength=len(picks))
    fullest = population.sort(descending=True, stable=True).indices[:size]
    return picks[fullest.sort().values]


def _first_pass(grid: Tensor, starts: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Squared norms [N] and squared distances to every start [B, N]: all points are read this once, for all banks."""
    firsts = grid[list(starts)].double()
    sizes = firsts.square().sum(dim=1)
    norms = torch.empty(len(grid), dtype=torch.float64, device=grid.device)
    bounds = torch.empty(len(starts), len(grid), dtype=torch.float64, device=grid.device)
    for begin in range(0, len(grid), _ROWS):
        piece = slice(begin, begin + _ROWS)
        points = grid[piece].double()
        norms[piece] = points.square().sum(dim=1)
        bounds[:, piece] = torch.addmm(norms[piece], firsts, points.T, alpha=-2).add_(sizes.unsqueeze(1))
    return norms, bounds


@dataclass(frozen=True, eq=False)
class Screen:
    """Points rounded to bytes, whose products tell which distances can matter.

    The distance of two points differs from that of their rounded points by at most ``error``. Most picks are so far
    from most points that this decides; only the rest is computed in fp64.
    """

    rounded: RoundedAnchors
    error: float

    @classmethod
    def of(cls, grid: Tensor) -> "Screen | None":
        """The screen of points [N, d]; None where this processor has no fast product of bytes."""
        if len(grid) < _WORTHWHILE or not RoundedAnchors.is_fast(grid):
            return None
        rounded = RoundedAnchors.of(grid, torch.ones(len(grid), dtype=torch.bool))
        return cls(rounded, 2 * rounded.error)

    def pairs(self, rows: Tensor, bounds: Tensor, picks: Tensor) -> tuple[Tensor, Tensor]:
        """Places in ``rows`` [R] and ``picks`` [C] of the pairs that may lower ``bounds`` [R], squared distances."""
        points, squares, step = self.rounded.points, self.rounded.squares, self.rounded.step
        products = torch._int_mm(points[rows], points[picks].T)
        values = torch.add(squares[picks], products, alpha=-2, out=products)  # squared distances less ``own``
        own = squares[rows]
        # No true distance is above that of the nearest rounded pick and the error: what is farther cannot be nearest.
        nearest = (values.amin(dim=1) + own).double().sqrt() * step + self.error
        farthest = torch.minimum(bounds.clamp_min(0).sqrt(), nearest) + self.error
        limits = (farthest / step).square() * (1 + _SLACK) + 1
        near = values < (limits.clamp_max(2.0**30).int() - own).unsqueeze(1)
        places, columns = near.nonzero(as_tuple=True)
        return places, columns


def _greedy(
    grid: Tensor,
    norms: Tensor,
    bounds: Tensor,
    size: int,
    start: int | None,
    block: int,
    report: Callable[[int], None],
    screen: Screen | None,
) -> Tensor:
    """The picks [size] of one start, or from ``bounds`` to earlier centres where ``start`` is None.

    ``bounds`` [N] is each point's squared distance to the first ``seen`` picks, hence an upper bound on its distance to
    all of them; a picked point has -1 and is never picked again. After the first pass only points that could be picked
    next are read again: a handful of thousands at a time, which differ from bank to bank.
    """
    picks = torch.empty(size, dtype=torch.int64, device=grid.device)
    centers = torch.empty(size, grid.shape[1], dtype=torch.float64, device=grid.device)  # the picked points
    count = 0
    if start is not None:
        picks[0], centers[0] = start, grid[start]
        bounds[start] = -1.0
        count = 1
        report(count)
    seen = torch.full((len(grid),), count, dtype=torch.int64, device=grid.device)
    while count < size:
        candidates, rival = _front(bounds, block)
        if screen is None or count < _COLUMNS:
            _refresh(grid, norms, bounds, seen, centers[:count], norms[picks[:count]], candidates)
        else:
            _refresh_near(grid, bounds, seen, picks[:count], candidates, screen)
        # Only a candidate ahead of every bound outside can be picked before the next look at all points.
        ahead = candidates[_precedes(bounds[candidates], candidates, *rival)]
        chosen = _pick_among(grid, norms, bounds, ahead, size - count, rival)
        picks[count : count + len(chosen)] = chosen
        centers[count : count + len(chosen)] = grid[chosen].double()
        count += len(chosen)
        seen[ahead] = count
        report(count)
    return picks


def _precedes(values: Any, indices: Any, value: float, index: int) -> Any:
    """Where (values, indices) come before (value, index) in the order of picking: farther first, then lower index."""
    return (values > value) | ((values == value) & (indices < index))


def _front(bounds: Tensor, block: int) -> tuple[Tensor, tuple[float, int]]:
    """The first ``block`` points in the order of picking by ``bounds``, by index, and the first one behind them."""
    if block >= len(bounds):
        return (bounds >= 0).nonzero().flatten(), (-1.0, -1)
    cut = float(bounds.topk(block + 1).values[-1])
    above = (bounds > cut).nonzero().flatten()
    level = (bounds == cut).nonzero().flatten()
    room = block - len(above)
    candidates = torch.cat([above, level[:room]]).sort().values
    return candidates[bounds[candidates] >= 0], (cut, int(level[room]))


def _refresh(
    grid: Tensor, norms: Tensor, bounds: Tensor, seen: Tensor, centers: Tensor, sizes: Tensor, candidates: Tensor
) -> None:
    """Bring ``bounds`` of the candidates up to date with all picks, ``centers`` [C, d] of squared norms ``sizes``."""
    count = len(centers)
    for rows, first in _by_age(seen, candidates, count):
        points, best = grid[rows].double(), bounds[rows] - norms[rows]
        for start in range(first, count, _COLUMNS):
            columns = slice(start, start + _COLUMNS)
            partial = torch.addmm(sizes[columns], points, centers[columns].T, alpha=-2)
            torch.minimum(best, partial.amin(dim=1), out=best)
        bounds[rows] = best + norms[rows]
        seen[rows] = count


def _refresh_near(
    grid: Tensor, bounds: Tensor, seen: Tensor, picks: Tensor, candidates: Tensor, screen: Screen
) -> None:
    """:func:`_refresh` with only those distances in fp64 that the ``screen`` lets through: the same bounds."""
    count = len(picks)
    for rows, first in _by_age(seen, candidates, count):
        best = bounds[rows]
        for start in range(first, count, _SCREENED):
            centers = picks[start : start + _SCREENED]
            places, columns = screen.pairs(rows, best, centers)
            exact = (grid[rows[places]].double() - grid[centers[columns]].double()).square_().sum(dim=1)
            best.scatter_reduce_(0, places, exact, "amin")
        bounds[rows] = best
        seen[rows] = count


def _by_age(seen: Tensor, candidates: Tensor, count: int) -> Iterator[tuple[Tensor, int]]:
    """The candidates whose bounds are not up to date with ``count`` picks, in groups, and the first pick each needs.

    Points are grouped by how stale they are, in powers of two, so that a product wastes less than half its columns.
    """
    stale = candidates[seen[candidates] < count]
    age = torch.frexp((count - seen[stale]).double()).exponent
    for group in age.unique().tolist():
        yield stale[age == group], max(0, count - 2 ** int(group) + 1)


def _pick_among(
    grid: Tensor, norms: Tensor, bounds: Tensor, ahead: Tensor, most: int, rival: tuple[float, int]
) -> Tensor:
    """The greedy loop among up-to-date points ``ahead`` (ascending), until ``rival`` outside could be the next pick.

    Returns at most ``most`` picks and brings ``bounds`` of the points ahead up to date with them.
    """
    if not len(ahead):
        return ahead
    points, sizes = grid[ahead].double(), norms[ahead]
    distances = torch.addmm(sizes, points, points.T, alpha=-2).add_(sizes.unsqueeze(1)).cpu().numpy()
    # numpy: a step of this loop is a few microseconds of work, less than a launch or the start of a thread
    values, indices = bounds[ahead].cpu().numpy(), ahead.cpu().numpy()
    chosen: list[int] = []
    while len(chosen) < most:
        best = int(values.argmax())  # the first maximum: the lowest index, as `ahead` ascends
        value = float(values[best])
        if value < 0 or not _precedes(value, int(indices[best]), *rival):
            break
        chosen.append(best)
        np.minimum(values, distances[best], out=values)
        values[best] = -1.0
    bounds[ahead] = torch.from_numpy(values).to(bounds.device)
    return ahead[chosen]
