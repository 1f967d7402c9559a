"""Slow, obvious versions of the metrics, to be checked by eye: one loop over every threshold, nothing clever."""

import itertools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.floating]
Mask = NDArray[np.bool_]


def auroc(values: Values, truth: Mask) -> float:
    """How often a positive beats a negative; a tie is half a win."""
    wins = [float(p > n) + 0.5 * float(p == n) for p in values[truth] for n in values[~truth]]
    return sum(wins) / len(wins)


def average_precision(values: Values, truth: Mask) -> float:
    total, recall = 0.0, 0.0
    for threshold in sorted(set(values.tolist()), reverse=True):
        selected = values >= threshold
        before, recall = recall, (selected & truth).sum() / truth.sum()
        total += (recall - before) * (selected & truth).sum() / selected.sum()
    return float(total)


def best_f1(values: Values, truth: Mask) -> float:
    best = 0.0
    for threshold in set(values.tolist()):
        selected = values >= threshold
        precision, recall = (selected & truth).sum() / selected.sum(), (selected & truth).sum() / truth.sum()
        if precision + recall > 0:
            best = max(best, float(2 * precision * recall / (precision + recall)))
    return best


def area_to(limit: float, curve: Sequence[tuple[float, float]]) -> float:
    """Trapezoids under a curve that starts at x = 0, up to ``limit``, interpolated there, divided by it."""
    total = 0.0
    for (x0, y0), (x1, y1) in itertools.pairwise(curve):
        if x1 <= limit:
            total += (x1 - x0) * (y0 + y1) / 2
        elif x0 < limit:
            at_limit = y0 + (y1 - y0) * (limit - x0) / (x1 - x0)
            total += (limit - x0) * (y0 + at_limit) / 2
    return total / limit


def roc_curve(values: Values, truth: Mask) -> list[tuple[float, float]]:
    points = [(0.0, 0.0)]
    for threshold in sorted(set(values.tolist()), reverse=True):
        selected = values >= threshold
        points.append((float(selected[~truth].mean()), float(selected[truth].mean())))
    return points


def regions(mask: Mask) -> list[list[tuple[int, int]]]:
    """8-connected regions as lists of (row, column), by walking from pixel to pixel."""
    left = {(int(row), int(column)) for row, column in np.argwhere(mask)}
    found = []
    while left:
        border = [left.pop()]
        region = list(border)
        while border:
            row, column = border.pop()
            for near in [(row + i, column + j) for i in (-1, 0, 1) for j in (-1, 0, 1)]:
                if near in left:
                    left.remove(near)
                    border.append(near)
                    region.append(near)
        found.append(region)
    return found


def overlaps(maps: Sequence[Values], masks: Sequence[Mask]) -> list[Values]:
    """The map values of every region of every image."""
    return [
        np.array([values[place] for place in region])
        for values, mask in zip(maps, masks, strict=True)
        for region in regions(mask)
    ]


def negatives(maps: Sequence[Values], masks: Sequence[Mask]) -> Values:
    return np.concatenate([values[~mask] for values, mask in zip(maps, masks, strict=True)])


def pro_curve(maps: Sequence[Values], masks: Sequence[Mask]) -> list[tuple[float, float]]:
    """Mean over regions of the share at or above each threshold, against the share of negatives there."""
    covered, normal = overlaps(maps, masks), negatives(maps, masks)
    points = [(0.0, 0.0)]
    for threshold in sorted({float(value) for values in maps for value in values.ravel()}, reverse=True):
        shares = [float((region >= threshold).mean()) for region in covered]
        points.append((float((normal >= threshold).mean()), sum(shares) / len(shares)))
    return points


def aupro(maps: Sequence[Values], masks: Sequence[Mask]) -> float:
    return area_to(0.3, pro_curve(maps, masks))


def pro200(maps: Sequence[Values], masks: Sequence[Mask]) -> float:
    """NaN where fewer than two points are left or they have no width."""
    lowest, highest = (float(f([f(values) for values in maps])) for f in (np.min, np.max))
    covered, normal = overlaps(maps, masks), negatives(maps, masks).astype(np.float64)
    points = []
    for i in range(200):
        threshold = lowest + i * (highest - lowest) / 200
        shares = [float((region.astype(np.float64) > threshold).mean()) for region in covered]
        points.append((float((normal > threshold).mean()), sum(shares) / len(shares)))
    points = [point for point in reversed(points) if point[0] < 0.3]
    if len(points) < 2 or points[-1][0] == 0:
        return float("nan")
    return area_to(1.0, [(x / points[-1][0], y) for x, y in points])


def pixel_metrics(maps: Sequence[Values], masks: Sequence[Mask]) -> dict[str, float]:
    values = np.concatenate([array.ravel() for array in maps])
    truth = np.concatenate([mask.ravel() for mask in masks])
    return {
        "p_auroc": auroc(values, truth),
        "p_ap": average_precision(values, truth),
        "p_f1": best_f1(values, truth),
        "aupro": aupro(maps, masks),
        "pauroc30": area_to(0.3, roc_curve(values, truth)),
        "pro200": pro200(maps, masks),
    }
