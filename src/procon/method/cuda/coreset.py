"""k-center on CUDA: the same picks as :func:`procon.method.coreset.k_center`, with the greedy loop inside one kernel.

Per pass and start: the ``block`` points with the largest distances, all distances among them from one product, the
greedy loop on those in a single thread block (a pick costs microseconds, not a launch), then all N points updated
against the new picks with one product. Distances are exact integers in fp64, as on the CPU, so picks agree bit for bit.
"""

from collections.abc import Callable, Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

_PICKS = 512  # at most this many per pass and start
_CELLS = 2**27  # fp64 distances held at a time: 1 GiB


@triton.jit  # type: ignore[untyped-decorator]
def _greedy_loop(  # type: ignore[no-untyped-def]
    distances, values, cuts, limits, order, counts, T: tl.constexpr, P: tl.constexpr
):
    start = tl.program_id(0)
    offsets = tl.arange(0, T)
    value = tl.load(values + start * T + offsets)
    cut = tl.load(cuts + start)
    limit = tl.load(limits + start)
    count = 0
    best, index = tl.max(value, axis=0, return_indices=True, return_indices_tie_break_left=True)
    while (best > cut) & (count < limit):
        tl.store(order + start * P + count, index)
        row = tl.load(distances + (start * T + index) * T + offsets)
        value = tl.where(offsets == index, -1.0, tl.minimum(value, row))
        count += 1
        best, index = tl.max(value, axis=0, return_indices=True, return_indices_tie_break_left=True)
    tl.store(counts + start, count)


def greedy_cuda(
    grid: Tensor, size: int, starts: Sequence[int], block: int, report: Callable[[int], None] | None
) -> Tensor:
    """Picks [len(starts), size] on integer points ``grid`` [N, d] (see :func:`procon.method.coreset.to_grid`)."""
    block = min(1 << (block - 1).bit_length(), 1 << max(4, len(grid).bit_length() - 1))  # a power of two below N
    points = grid.double()
    norms = points.square().sum(dim=1)
    first = torch.tensor(list(starts), device=grid.device)
    picks = first.unsqueeze(1).repeat(1, size)
    done = [1] * len(starts)
    bounds = torch.full((len(starts), len(grid)), torch.inf, dtype=torch.float64, device=grid.device)
    _update(points, norms, bounds, first.unsqueeze(1))
    while min(done) < size:
        new, counts = _pass(points, norms, bounds, block, [size - count for count in done])
        most = max(counts)
        for row, count in enumerate(counts):
            picks[row, done[row] : done[row] + count] = new[row, :count]
            done[row] += count
        # Rows that picked less repeat a pick of their own: that changes no minimum.
        column = torch.arange(most, device=grid.device)
        last = torch.tensor(counts, device=grid.device).sub(1).clamp_min(0).unsqueeze(1)
        fresh = new.gather(1, torch.minimum(column.unsqueeze(0), last))
        fresh = torch.where(torch.tensor(counts, device=grid.device).unsqueeze(1) > 0, fresh, first.unsqueeze(1))
        _update(points, norms, bounds, fresh)
        if report is not None:
            report(sum(done))
    return picks


def _pass(points: Tensor, norms: Tensor, bounds: Tensor, block: int, limits: list[int]) -> tuple[Tensor, list[int]]:
    """The next picks of every start, [S, P] and how many of each row count."""
    starts = len(bounds)
    top = bounds.topk(min(block + 1, bounds.shape[1]), dim=1)
    # All of the front can be picked only if nothing lies behind it.
    cuts = top.values[:, block].contiguous() if top.values.shape[1] > block else bounds.new_full((starts,), -0.5)
    front = top.indices[:, :block].sort(dim=1).values  # ascending, so that the first maximum has the lowest index
    values = bounds.gather(1, front).contiguous()
    rows, sizes = points[front], norms[front]
    distances = torch.baddbmm(sizes.unsqueeze(1), rows, rows.transpose(1, 2), alpha=-2).add_(sizes.unsqueeze(2))
    order = torch.zeros(starts, _PICKS, dtype=torch.int64, device=points.device)
    counts = torch.zeros(starts, dtype=torch.int32, device=points.device)
    capped = torch.tensor([min(limit, _PICKS) for limit in limits], dtype=torch.int32, device=points.device)
    _greedy_loop[(starts,)](distances, values, cuts, capped, order, counts, T=front.shape[1], P=_PICKS, num_warps=16)
    picked = counts.tolist()
    new = front.gather(1, order)
    for row, (count, limit) in enumerate(zip(picked, limits, strict=True)):
        if count == 0 and limit > 0:  # more points than the front holds share the largest distance: the lowest index
            new[row, 0] = (bounds[row] == bounds[row].max()).nonzero()[0, 0]
            picked[row] = 1
    return new, picked


def _update(points: Tensor, norms: Tensor, bounds: Tensor, picks: Tensor) -> None:
    """``bounds`` [S, N] to the minimum with the distances to ``picks`` [S, P], in place; picked points become -1."""
    starts, count = picks.shape
    centers, sizes = points[picks.flatten()], norms[picks.flatten()]
    step = max(1, _CELLS // (starts * count))
    for begin in range(0, len(points), step):
        rows = slice(begin, begin + step)
        partial = torch.addmm(sizes, points[rows], centers.T, alpha=-2)
        nearest = partial.view(-1, starts, count).amin(dim=2) + norms[rows].unsqueeze(1)
        torch.minimum(bounds[:, rows], nearest.T, out=bounds[:, rows])
    bounds.scatter_(1, picks, -1.0)
