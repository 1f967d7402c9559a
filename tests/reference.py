"""Slow, obvious numpy versions of every kernel, to be checked by eye."""

import itertools
import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from procon import Region

Floats = NDArray[np.floating]


def byte_distances(queries: NDArray[np.int8], anchors: NDArray[np.int8]) -> NDArray[np.int64]:
    """Squared distances of points on the grid of bytes: [Q, E] and [U, E] -> [Q, U]."""
    return np.array([[((q.astype(np.int64) - m.astype(np.int64)) ** 2).sum() for m in anchors] for q in queries])


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
        weights = np.exp(-(row - row[0]) / tau)  # the softmax does not change, and far patches do not underflow
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


def k_center_from(points: Floats, centers: Floats, size: int) -> NDArray[np.int64]:
    """The textbook loop, continued from centres that are not among the points."""
    points = points.astype(np.float64)
    picks: list[int] = []
    closest = np.min([((points - center) ** 2).sum(axis=1) for center in centers.astype(np.float64)], axis=0)
    while len(picks) < size:
        picks.append(int(np.argmax(closest)))
        closest = np.minimum(closest, ((points - points[picks[-1]]) ** 2).sum(axis=1))
        closest[picks] = -1
    return np.array(picks, np.int64)


def covering_radius(points: Floats, centers: NDArray[np.int64]) -> float:
    points = points.astype(np.float64)
    return max(min(float(np.linalg.norm(p - points[c])) for c in centers) for p in points)


def optimal_radius(points: Floats, size: int) -> float:
    return min(
        covering_radius(points, np.array(centers)) for centers in itertools.combinations(range(len(points)), size)
    )


def median(values: Sequence[float]) -> float:
    ordered, count = sorted(values), len(values)
    return (ordered[(count - 1) // 2] + ordered[count // 2]) / 2


def bank_consensus(residuals: Floats) -> Floats:
    """[B, P] -> [P]."""
    return np.array([median(patch.tolist()) for patch in residuals.T.astype(np.float64)])


def layer_consensus(maps: Floats, fusion: str) -> Floats:
    """[L, P] -> [P]."""
    patches = [patch.tolist() for patch in maps.T.astype(np.float64)]
    if fusion == "mean":
        return np.array([sum(values) / len(values) for values in patches])
    return np.array([median(values) if fusion == "median" else max(values) for values in patches])


def robust_normalize(scores: Floats) -> Floats:
    """[P] -> [P] in units of the median absolute deviation."""
    centre = median(scores.tolist())
    return (scores - centre) / median(np.abs(scores - centre).tolist())


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


def gaussian_blur(pixels: Floats, sigma: float) -> Floats:
    """Columns, then rows, each continued by its mirror image d c b a | a b c d | d c b a."""
    radius = int(4 * sigma + 0.5)
    weights = np.array([np.exp(-(offset**2) / (2 * sigma**2)) for offset in range(-radius, radius + 1)])
    weights = weights / weights.sum()

    def blur_line(line: Floats) -> Floats:
        return np.convolve(np.pad(line, radius, mode="symmetric"), weights, mode="valid")

    columns = np.apply_along_axis(blur_line, 0, pixels.astype(np.float64))
    return np.apply_along_axis(blur_line, 1, columns)


def project(tokens: Floats, matrix: Floats | None) -> Floats:
    rows = [token / np.sqrt((token**2).sum()) for token in tokens.astype(np.float64)]
    return np.array([row if matrix is None else row @ matrix.astype(np.float64) for row in rows])


def conformal_quantile(scores: Sequence[float], rate: Fraction) -> float:
    """The smallest score that at most a share ``rate`` of the n + 1 exchangeable ranks lie above."""
    count = len(scores)
    return min(v for v in scores if Fraction(count + 1 - sum(s <= v for s in scores), count + 1) <= rate)


def regions(heatmap: Floats, threshold: float) -> list[tuple[tuple[int, int, int, int], int, float, float]]:
    """(box, area, peak, mean) of the 8-connected areas above ``threshold``, by flood fill, highest peak first."""
    height, width = heatmap.shape
    left_over = {(y, x) for y in range(height) for x in range(width) if heatmap[y, x] > threshold}
    found = []
    while left_over:
        area, edge = [], [left_over.pop()]
        while edge:
            y, x = edge.pop()
            area.append((y, x))
            around = {(y + dy, x + dx) for dy in (-1, 0, 1) for dx in (-1, 0, 1)} & left_over
            left_over -= around
            edge.extend(around)
        rows, columns = [y for y, _ in area], [x for _, x in area]
        values = [float(heatmap[y, x]) for y, x in area]
        box = (min(columns), min(rows), max(columns) + 1, max(rows) + 1)
        found.append((box, len(area), max(values), sum(values) / len(values)))
    return sorted(found, key=lambda region: (-region[2], region[0]))


def procon_scores(
    tokens: Sequence[Floats],
    memories: Sequence[Sequence[Floats]],
    projections: Sequence[Floats | None],
    *,
    k: int,
    top_ratio: float,
    grid: tuple[int, int],
    input_size: tuple[int, int],
    sigma: float,
    image_size: tuple[int, int],
) -> tuple[float, Floats, Floats]:
    """Image score, map at the backbone's input, map at the image: the method of the paper from tokens [P, C] per layer.

    ``memories`` holds the banks [M, D] of each layer, ``projections`` its matrix [C, D] or None.
    """
    layer_maps = []
    for layer_tokens, banks, matrix in zip(tokens, memories, projections, strict=True):
        patches = project(layer_tokens, matrix)
        layer_maps.append(bank_consensus(np.array([soft_residual(patches, anchors, k) for anchors in banks])))
    patch_map = layer_consensus(np.array(layer_maps), "mean")
    input_map = gaussian_blur(bilinear(patch_map.reshape(grid), *input_size), sigma)
    return top_mean(patch_map, top_ratio), input_map, bilinear(input_map, *image_size)


def blended_tiles(tokens: dict[tuple[int, int], Floats], tile: int, grid: tuple[int, int]) -> Floats:
    """Tokens [tile, tile, C] of tiles by their (top, left) cell as one grid [rows, columns, C].

    A cell's token is the mean of those that tiles give it, weighted by the distance of the cell from the tile's edges.
    """
    rows, columns = grid
    dims = next(iter(tokens.values())).shape[2]
    blended = np.zeros((rows, columns, dims))
    for row in range(rows):
        for column in range(columns):
            total = 0.0
            for (top, left), values in tokens.items():
                y, x = row - top, column - left
                if 0 <= y < tile and 0 <= x < tile:
                    weight = min(y + 1, tile - y) * min(x + 1, tile - x)
                    blended[row, column] += weight * values[y, x]
                    total += weight
            blended[row, column] /= total
    return blended


def neighborhood_residual(differences: Floats, kind: str) -> tuple[float, list[float]]:
    """Residual of one patch from z - m of its neighbours [k, D], nearest first, and the weights of these.

    ``kind`` is ``nearest``, ``mean-distance`` or ``uniform``; the soft one is :func:`soft_residual`.
    """
    count = len(differences)
    if kind == "nearest":
        return float(np.linalg.norm(differences[0])), [1.0] + [0.0] * (count - 1)
    if kind == "mean-distance":
        return sum(float(np.linalg.norm(one)) for one in differences) / count, [1 / count] * count
    return float(np.linalg.norm(sum(one / count for one in differences))), [1 / count] * count


def normal_level(values: Sequence[float], weights: Sequence[float], others: tuple[float, float], prior: float) -> float:
    """Mean plus two standard deviations of weighted values, beside ``prior`` ones of known mean and mean square."""
    mass = sum(weights) + prior
    mean = (sum(w * v for w, v in zip(weights, values, strict=True)) + prior * others[0]) / mass
    square = (sum(w * v * v for w, v in zip(weights, values, strict=True)) + prior * others[1]) / mass
    return mean + 2 * float(np.sqrt(max(square - mean * mean, 0.0)))


def lower_quartile(values: Sequence[float]) -> float:
    """The value a quarter of the way from the smallest to the largest, interpolated."""
    ordered, place = sorted(values), (len(values) - 1) / 4
    low = int(place)
    high = min(low + 1, len(values) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def find_regions(heatmap: NDArray[np.float32], threshold: float) -> tuple[Region, ...]:
    """Connected areas of ``heatmap`` [H, W] above ``threshold``, highest peak first."""
    if not heatmap.max() > threshold:
        return ()
    labels, count = ndimage.label(heatmap > threshold, np.ones((3, 3), int))
    regions = []
    for number, (rows, columns) in enumerate(ndimage.find_objects(labels), start=1):
        values = heatmap[rows, columns][labels[rows, columns] == number]
        box = (int(columns.start), int(rows.start), int(columns.stop), int(rows.stop))
        mean = float(values.mean(dtype=np.float64))
        regions.append(Region(box, values.size, float(values.max()), mean, float(threshold)))
    assert len(regions) == count
    return tuple(sorted(regions, key=lambda region: (-region.peak, region.box)))


def peak_region(heatmap: NDArray[np.float32], typical: float) -> tuple[Region, ...]:
    """The one area around the largest value of ``heatmap``, above half its height over ``typical``.

    For a part that its score calls anomalous while no pixel reaches the threshold: the blur has spread a small defect.
    """
    peak = float(heatmap.max())
    level = typical + (peak - typical) / 2
    return find_regions(heatmap, level)[:1] if peak > level else ()


def robust_threshold(scores: Sequence[float], rate: float) -> tuple[float, list[int]]:
    """Mean + t standard deviations of the scores up to six robust deviations above the median; who is set aside."""
    from scipy.stats import t as student

    middle = float(np.median(scores))
    robust = 1.4826 * float(np.median([abs(score - middle) for score in scores]))
    robust = max(robust, 0.005 * abs(middle))
    counted, aside = [], []
    for place, score in enumerate(scores):
        if score <= middle + 6 * robust:
            counted.append(score)
        else:
            aside.append(place)
    total = 0.0
    for score in counted:
        total += float(score - np.mean(counted)) ** 2
    deviation = math.sqrt(total / (len(counted) - 1)) if len(counted) > 1 else 0.0
    return float(np.mean(counted)) + float(student(5).ppf(1 - rate)) * deviation, aside


def stand_ins(
    features: Floats, anchors: Floats, origin: Sequence[int], banks: Sequence[Sequence[int]], k: int
) -> list[Floats | None]:
    """For each anchor [U, D] the nearest patch of another image [N, P, D] that has it among its k nearest in a bank."""
    patches = features.shape[1]
    best: list[tuple[float, Floats] | None] = [None] * len(anchors)
    for image in range(len(features)):
        for bank in banks:
            others = [row for row in bank if origin[row] // patches != image]
            for patch in features[image]:
                squared = sorted((float(((patch - anchors[row]) ** 2).sum()), row) for row in others)
                for distance, row in squared[:k]:
                    known = best[row]
                    if known is None or distance < known[0]:
                        best[row] = (distance, patch)
    return [None if known is None else known[1] for known in best]
