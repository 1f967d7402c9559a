"""The counts behind every metric: exact, streamed over images, in bounded memory.

A ROC, precision-recall or PRO curve rises only at the values of positive pixels. So a curve is determined by the number
of positives and negatives at and above each distinct positive value. One pass over the maps collects the positive
values, a second one sorts the negatives chunk by chunk and counts them against these values. Where the distinct
positive values do not fit, the range of values is cut into slices from the top down, with one pair of passes each. All
sums are of integers: no result depends on chunk, slice or order.
"""

import os
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from procon.arrays import AnyFloats, Bools
from procon.evaluation.metrics.pixels import Ints, Pixels, region_sizes

UNIT = 1 << 62  # a share of 1 as an integer
THREADS = min(4, os.cpu_count() or 1)
MIN_CHUNK, MAX_CHUNK = 1 << 20, 1 << 24  # negatives sorted at a time, as memory allows
VALUE_BYTES, CHUNK_BYTES = 192, 64  # of memory for each distinct value, and for each negative of a chunk


@dataclass(frozen=True)
class Steps:
    """Distinct positive values, highest first, and the counts at and above each: int64 [V]."""

    at: Ints  # positives with this value
    reached: Ints  # positives with this value or a higher one
    share: Ints  # of those at this value, each weighing UNIT / (regions * pixels of its region)
    covered: Ints  # of those with this value or a higher one
    above: Ints  # negatives with a higher value
    equal: Ints  # negatives with this value

    def blocks(self, size: int = 1 << 17) -> Iterator["Steps"]:
        """The same, ``size`` values at a time, so that temporary arrays stay small."""
        for start in range(0, len(self.at), size):
            yield Steps(*(array[start : start + size] for array in vars(self).values()))


class Slice(NamedTuple):
    """One range of values: its steps, and which of the extra thresholds [T] fall into it."""

    steps: Steps
    thresholds: slice
    above: Ints  # negatives strictly above each of these thresholds
    covered: Ints  # share of the positives strictly above each


class HighestValues:
    """The ``budget`` highest distinct values below ``high`` of all that are added, with the count and share of each.

    Exact in one pass: a value is dropped only after ``budget`` higher ones have been added.
    """

    def __init__(self, budget: int, high: Any = np.inf) -> None:
        self._budget, self._high = budget, high
        self._parts: list[tuple[AnyFloats, Ints, Ints]] = []
        self._pending = 0
        self.low: Any = -np.inf  # the lowest value held; -inf while none was dropped

    def add(self, values: AnyFloats, share: Ints) -> None:
        """Values [P] and the share of each [P]."""
        wanted = (values >= self.low) & (values < self._high)
        if not wanted.all():
            values, share = values[wanted], share[wanted]
        if len(values):
            self._parts.append((values, np.ones(len(values), np.int64), share))
            self._pending += len(values)
            if self._pending > 2 * self._budget:
                self._merge()

    def _merge(self) -> None:
        values, at, share = (np.concatenate(arrays) for arrays in zip(*self._parts, strict=True))
        self._parts.clear()
        order = np.argsort(values)
        values = values[order]
        distinct = np.flatnonzero(np.concatenate(([True], values[1:] != values[:-1])))
        first = distinct[-self._budget :]
        if len(first) < len(distinct):
            self.low = values[first[0]]
            order, values, first = order[first[0] :], values[first[0] :], first - first[0]
        self._parts.append((values[first], np.add.reduceat(at[order], first), np.add.reduceat(share[order], first)))
        self._pending = len(first)

    def result(self) -> tuple[AnyFloats, Ints, Ints]:
        """Values ascending [V], positives at each [V], share at each [V]."""
        if not self._parts:
            return np.zeros(0, np.float32), np.zeros(0, np.int64), np.zeros(0, np.int64)
        self._merge()
        return self._parts[0]


class Counts:
    """Totals of ``pixels`` from a first pass over them, and the counts at every distinct positive value.

    About ``memory`` bytes are used in addition to one map. More memory saves time and does not change the result.
    """

    def __init__(self, pixels: Pixels, memory: int) -> None:
        self._pixels = pixels
        self._budget = max(1, memory // VALUE_BYTES)
        self._chunk = max(1, memory // CHUNK_BYTES)
        self.positives, self.regions = pixels.positives, pixels.regions
        self.lowest, self.highest = np.inf, -np.inf
        self._dtype = np.dtype(np.float32)
        self._first = HighestValues(self._budget)
        total = 0
        for values, mask in pixels:
            self._dtype = np.promote_types(self._dtype, values.dtype)
            self.lowest = min(self.lowest, float(values.min()))
            self.highest = max(self.highest, float(values.max()))
            total += values.size
            self._collect(self._first, values, mask)
        self.negatives = total - self.positives

    def _collect(self, highest: HighestValues, values: AnyFloats, mask: Bools | None) -> None:
        if mask is not None:
            share = np.rint(UNIT / (float(self.regions) * region_sizes(mask)))
            highest.add(values[mask], share.astype(np.int64))

    def slices(self, thresholds: AnyFloats | None = None) -> Iterator[Slice]:
        """From the highest values down. ``thresholds`` ascending [T] are counted too; to be called once."""
        cuts = _round_down(np.zeros(0) if thresholds is None else thresholds, self._dtype)
        highest, high = self._first, self._dtype.type(np.inf)
        del self._first  # the values are needed once, and may be many
        reached = covered = above = 0
        while True:
            values, at, share = highest.result()
            values, low = values.astype(self._dtype, copy=False), self._dtype.type(highest.low)
            cut = slice(int(np.searchsorted(cuts, low)), int(np.searchsorted(cuts, high)))
            below, equal, cut_below, total = self._ranks(values, cuts[cut], low, high)
            share_below = np.concatenate(([0], share.cumsum()))[np.searchsorted(values, cuts[cut], side="right")]
            steps = Steps(
                at=at[::-1],
                reached=reached + at[::-1].cumsum(),
                share=share[::-1],
                covered=covered + share[::-1].cumsum(),
                above=(above + total - below - equal)[::-1],
                equal=equal[::-1],
            )
            yield Slice(steps, cut, above + total - cut_below, covered + share.sum() - share_below)
            reached, covered, above = reached + int(at.sum()), covered + int(share.sum()), above + total
            if np.isneginf(low):
                return
            high, highest = low, HighestValues(self._budget, low)
            for array, mask in self._pixels:
                self._collect(highest, array, mask)

    def _ranks(self, values: AnyFloats, cuts: AnyFloats, low: Any, high: Any) -> tuple[Ints, Ints, Ints, int]:
        """Of the negatives in [low, high): below and equal to each value, not above each cut, and all of them."""
        sums = [np.zeros(count, np.int64) for count in (len(values), len(values), len(cuts))]
        total = 0

        def add_counts(future: Future[tuple[Ints, Ints, Ints]]) -> None:
            for place, counts in enumerate(future.result()):
                sums[place] += counts

        # Searching costs by the chunk and sorting by the pixel: many values are worth a large chunk.
        size = min(self._chunk, max(MIN_CHUNK, min(MAX_CHUNK, 4 * len(values))))
        with ThreadPoolExecutor(THREADS) as pool:
            running: deque[Future[tuple[Ints, Ints, Ints]]] = deque()
            for chunk in self._negatives(low, high, size):
                total += len(chunk)
                running.append(pool.submit(_rank, chunk, values, cuts))
                if len(running) > THREADS:
                    add_counts(running.popleft())
            for future in running:
                add_counts(future)
        return sums[0], sums[1], sums[2], total

    def _negatives(self, low: Any, high: Any, size: int) -> Iterator[AnyFloats]:
        """The negatives in [low, high), ``size`` at a time."""
        buffer, filled = np.empty(size, self._dtype), 0
        for values, mask in self._pixels:
            rest = values.ravel() if mask is None else values[~mask]
            if low > -np.inf or high < np.inf:
                rest = rest[(rest >= low) & (rest < high)]
            while len(rest):
                part = rest[: size - filled]
                buffer[filled : filled + len(part)] = part
                filled, rest = filled + len(part), rest[len(part) :]
                if filled == size:
                    yield buffer
                    buffer, filled = np.empty(size, self._dtype), 0
        if filled:
            yield buffer[:filled]


def _rank(chunk: AnyFloats, values: AnyFloats, cuts: AnyFloats) -> tuple[Ints, Ints, Ints]:
    """Elements of ``chunk``, which is sorted in place, below and equal to each value and not above each cut."""
    chunk.sort()
    below = np.searchsorted(chunk, values)
    equal = np.zeros(len(values), np.int64)
    tied = np.flatnonzero(chunk[np.minimum(below, len(chunk) - 1)] == values)
    equal[tied] = np.searchsorted(chunk, values[tied], side="right") - below[tied]
    return below, equal, np.searchsorted(chunk, cuts, side="right")


def _round_down(thresholds: AnyFloats, dtype: np.dtype[Any]) -> AnyFloats:
    """The largest numbers of ``dtype`` not above ``thresholds``: the same values of ``dtype`` lie strictly above."""
    rounded = thresholds.astype(dtype)
    return np.where(rounded > thresholds, np.nextafter(rounded, dtype.type(-np.inf)), rounded)
