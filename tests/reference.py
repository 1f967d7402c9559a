"""Slow, obvious numpy versions of every kernel, to be checked by eye."""

import itertools

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating]


def nearest(queries: Floats, anchors: Floats, k: int) -> tuple[Floats, NDArray[np.int64]]:
    distances, indices = [], []
    for query in queries.astype(np.float64):
        squared = [float(((query - anchor) ** 2).sum()) for anchor in anchors.astype(np.float64)]
        order = sorted(range(len(anchors)), key=lambda j: (squared[j], j))[:k]
        distances.append([squared[j] for j in order])
        indices.append(order)
    return np.array(distances), np.array(indices)


def soft_residual(queries: Floats, anchors: Floats, k: int, tau: float | None = None) -> Floats:
    distances, indices = nearest(queries, anchors, k)
    if tau is None:
        tau = float(np.median(distances))
    residuals = []
    for query, row, neighbors in zip(queries.astype(np.float64), distances, indices, strict=True):
        weights = np.exp(-row / tau)
        weights = weights / weights.sum()
        projection = sum(w * anchors[j].astype(np.float64) for w, j in zip(weights, neighbors, strict=True))
        residuals.append(np.sqrt(((query - projection) ** 2).sum()))
    return np.array(residuals)


def hard_residual(queries: Floats, anchors: Floats) -> Floats:
    return np.sqrt(nearest(queries, anchors, 1)[0][:, 0])


def k_center(points: Floats, size: int, start: int) -> NDArray[np.int64]:
    """The textbook loop in float64 on the points as they are."""
    points = points.astype(np.float64)
    picks = [start]
    closest = ((points - points[start]) ** 2).sum(axis=1)
    closest[start] = -1
    while len(picks) < size:
        pick = int(np.argmax(closest))  # the first maximum: ties to the lowest index
        picks.append(pick)
        closest = np.minimum(closest, ((points - points[pick]) ** 2).sum(axis=1))
        closest[pick] = -1
    return np.array(picks)


def covering_radius(points: Floats, centers: NDArray[np.int64]) -> float:
    points = points.astype(np.float64)
    return max(min(float(np.linalg.norm(p - points[c])) for c in centers) for p in points)


def optimal_radius(points: Floats, size: int) -> float:
    return min(
        covering_radius(points, np.array(centers)) for centers in itertools.combinations(range(len(points)), size)
    )


def top_mean(scores: Floats, ratio: float) -> float:
    count = max(1, round(ratio * scores.size))
    return float(np.sort(scores.ravel())[-count:].mean())


def bilinear(scores: Floats, height: int, width: int) -> Floats:
    """Pixel centres aligned, edges clamped."""
    rows, columns = scores.shape
    result = np.empty((height, width))
    for y in range(height):
        for x in range(width):
            v = min(max((y + 0.5) * rows / height - 0.5, 0), rows - 1)
            u = min(max((x + 0.5) * columns / width - 0.5, 0), columns - 1)
            top, left = int(v), int(u)
            bottom, right = min(top + 1, rows - 1), min(left + 1, columns - 1)
            b, a = v - top, u - left
            result[y, x] = (1 - b) * ((1 - a) * scores[top, left] + a * scores[top, right]) + b * (
                (1 - a) * scores[bottom, left] + a * scores[bottom, right]
            )
    return result
