"""Shares of rendered defects that a threshold finds: intervals, a monotone fit over sizes, places where it is blind.

Needs numpy only, so that ``procon threshold`` can use it without torch.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from procon.arrays import Reals
from procon.model.renderings import Rendering, Renderings

CONFIDENCE_Z = 1.959963984540054  # of a normal distribution: 95 % two-sided
ZONES = 3  # rows and columns of the part
MAP_CELLS = 16  # rows and columns of the map
_FEWEST_IN_ZONE = 8
_BLIND_Z = -3.0
_BLIND_SHARE = 0.5  # of the defects expected to be found there
_MAP_WIDTH = 1.2  # cells: deviation of the smoothing of the map
_MAP_LEAST = 2.0  # defects around a cell, below which the map says nothing

Judged = tuple[Rendering, bool]
"""A rendered defect, and whether it is found."""


class Count(NamedTuple):
    """How many rendered defects are found."""

    found: int
    total: int

    @property
    def share(self) -> float:
        """The share found; NaN of none."""
        return self.found / self.total if self.total else math.nan

    @property
    def interval(self) -> tuple[float, float]:
        """The Wilson interval of the share at 95 % confidence."""
        return wilson(self.found, self.total)


class Visibility(NamedTuple):
    """What a threshold finds of the rendered defects."""

    counted: Count
    half_from: float | None  # size in pixels from which half are found; None: not in the sizes tried
    most_from: float | None  # from which nine of ten are found


def wilson(found: int, total: int) -> tuple[float, float]:
    """The Wilson score interval of a share at 95 % confidence; from 0 to 1 where nothing was tried."""
    if not total:
        return 0.0, 1.0
    z2, share = CONFIDENCE_Z**2, found / total
    middle = (share + z2 / (2 * total)) / (1 + z2 / total)
    half = CONFIDENCE_Z * math.sqrt(share * (1 - share) / total + z2 / (4 * total**2)) / (1 + z2 / total)
    return (0.0 if found == 0 else middle - half), (1.0 if found == total else middle + half)


def count_found(judged: Iterable[Judged]) -> Count:
    """How many of some rendered defects are found."""
    flags = [found for _, found in judged]
    return Count(sum(flags), len(flags))


def rising_fit(counts: Sequence[Count]) -> list[float]:
    """The shares found, by ascending size, as the nearest sequence that never falls: pooled adjacent violators.

    A size at which nothing was tried takes the share of the next smaller one.
    """
    blocks: list[list[float]] = []  # found, total, sizes
    for count in counts:
        blocks.append([count.found, count.total, 1])
        while len(blocks) > 1 and _share(blocks[-2]) >= _share(blocks[-1]):
            found, total, sizes = blocks.pop()
            blocks[-1] = [blocks[-1][0] + found, blocks[-1][1] + total, blocks[-1][2] + sizes]
    return [_share(block) for block in blocks for _ in range(int(block[2]))]


def _share(block: Sequence[float]) -> float:
    return block[0] / block[1] if block[1] else 0.0


def size_reaching(share: float, sizes: Sequence[int], fit: Sequence[float]) -> float | None:
    """The size at which a rising ``fit`` reaches a share, between sizes on a logarithmic scale; None: beyond them."""
    for place, (size, value) in enumerate(zip(sizes, fit, strict=True)):
        if value >= share:
            if place == 0:
                return float(size)
            low, below = sizes[place - 1], fit[place - 1]
            return float(low * (size / low) ** ((share - below) / (value - below)))
    return None


def by_size(judged: Sequence[Judged], sizes: Sequence[int]) -> list[Count]:
    """The counts of some rendered defects at each size."""
    return [count_found(pair for pair in judged if pair[0].size == size) for size in sizes]


def judge_visibility(
    renderings: Renderings, threshold: float, kind: str | None = None, contrast: int | None = None
) -> Visibility:
    """What a threshold finds of all rendered defects, of one kind, or at one contrast."""
    judged = [
        pair
        for pair in renderings.judged(threshold)
        if kind in (None, pair[0].kind) and contrast in (None, pair[0].contrast)
    ]
    sizes = renderings.plan.sizes
    fit = rising_fit(by_size(judged, sizes))
    return Visibility(count_found(judged), size_reaching(0.5, sizes, fit), size_reaching(0.9, sizes, fit))


def expected_shares(renderings: Renderings, judged: Sequence[Judged]) -> list[float]:
    """For each defect the fitted share of its kind and contrast at its size: what its place does not explain."""
    sizes = renderings.plan.sizes
    fits: dict[tuple[str, int], list[float]] = {}
    for kind in renderings.plan.kinds:
        for contrast in renderings.plan.contrasts:
            own = [pair for pair in judged if (pair[0].kind, pair[0].contrast) == (kind, contrast)]
            fits[kind, contrast] = rising_fit(by_size(own, sizes))
    return [fits[row.kind, row.contrast][sizes.index(row.size)] for row, _ in judged]


def place_of(renderings: Renderings, row: Rendering) -> tuple[float, float]:
    """Where a defect lies in its image: (x, y) as shares of width and height."""
    height, width = renderings.hosts[row.host].size
    return (row.center[0] + 0.5) / width, (row.center[1] + 0.5) / height


def find_blind_zones(renderings: Renderings, judged: Sequence[Judged], kind: str | None = None) -> list[str]:
    """Names of the ninths of the part in which far fewer defects are found than their sizes let expect.

    Far fewer: less than half, by three standard deviations, of at least eight defects.
    """
    if not judged:
        return []
    expected = expected_shares(renderings, judged)
    places = np.array([place_of(renderings, row) for row, _ in judged])
    low, high = places.min(axis=0), places.max(axis=0)
    cells = np.minimum((ZONES * (places - low) / np.maximum(high - low, 1e-9)).astype(int), ZONES - 1)
    blind = []
    for row in range(ZONES):
        for column in range(ZONES):
            inside = [
                n
                for n, (x, y) in enumerate(cells.tolist())
                if (x, y) == (column, row) and kind in (None, judged[n][0].kind)
            ]
            if is_blind([judged[n][1] for n in inside], [expected[n] for n in inside]):
                blind.append(_zone_name(row, column))
    return blind


def is_blind(found: Sequence[bool], expected: Sequence[float]) -> bool:
    """Whether far fewer defects are found than ``expected``, share by share."""
    total, mean = len(found), sum(expected)
    spread = math.sqrt(sum(share * (1 - share) for share in expected))
    if total < _FEWEST_IN_ZONE or spread == 0:
        return False
    return sum(found) < _BLIND_SHARE * mean and (sum(found) - mean) / spread <= _BLIND_Z


def _zone_name(row: int, column: int) -> str:
    vertical, horizontal = ("top", "", "bottom")[row], ("left", "", "right")[column]
    if vertical and horizontal:
        return f"{vertical} {horizontal} corner"
    return f"{vertical or horizontal} edge" if vertical or horizontal else "centre"


def map_found(renderings: Renderings, judged: Sequence[Judged]) -> Reals:
    """Defects found by place, relative to what their sizes let expect: [MAP_CELLS, MAP_CELLS], NaN where few lie.

    1 is as expected and 0 is blind. Each cell counts the defects around it, with Gaussian weights.
    """
    ratio = np.full((MAP_CELLS, MAP_CELLS), math.nan)
    if not judged:
        return ratio
    places = MAP_CELLS * np.array([place_of(renderings, row) for row, _ in judged])
    found = np.array([float(is_found) for _, is_found in judged])
    expected = np.array(expected_shares(renderings, judged))
    for row in range(MAP_CELLS):
        for column in range(MAP_CELLS):
            squared = (places[:, 0] - column - 0.5) ** 2 + (places[:, 1] - row - 0.5) ** 2
            weights = np.exp(-squared / (2 * _MAP_WIDTH**2))
            total = float(weights @ expected)
            if weights.sum() >= _MAP_LEAST and total > 0:
                ratio[row, column] = float(weights @ found) / total
    return ratio


def choose_example(
    renderings: Renderings, judged: Sequence[tuple[int, bool]], found: bool, order: Callable[[Rendering], float]
) -> int | None:
    """Of defects (number, found) the first in an ``order`` that is found, or missed; None if there is none."""
    numbers = [number for number, is_found in judged if is_found == found]
    return min(numbers, key=lambda number: (order(renderings.rows[number]), number), default=None)
