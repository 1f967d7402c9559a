"""Curves to draw, from the same counts as the metrics: at most 512 exact points that keep the shape."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from procon.evaluation.metrics.counts import UNIT, Counts, Steps
from procon.evaluation.metrics.pixels import Maps, Masks, check_scores, open_pixels

Points = NDArray[np.float64]
Curve = tuple[Points, Points]

POINTS = 512


def trace_curves(maps: Maps, masks: Masks, *, memory: int = 1 << 30) -> dict[str, Curve]:
    """The pixel curves "roc", "pr" and "pro" as (x, y); maps, masks and memory as for ``evaluate``.

    "roc" and "pro" go from (0, 0) to (1, 1) over the false positive rate and are straight between points. "pr" goes
    over recall, rising; the precision of a point holds from the recall of the point before it up to its own
    (``steps-pre`` in matplotlib), as in average precision. A curve that is undefined has no points.
    """
    with open_pixels(maps, masks) as pixels:
        return _trace(Counts(pixels, memory), ("roc", "pr", "pro"))


def trace_image_curves(scores: ArrayLike, labels: ArrayLike) -> dict[str, Curve]:
    """The curves "roc" and "pr" of image scores [N] against labels [N], as from :func:`trace_curves`."""
    values, truth = check_scores(scores, labels)
    with open_pixels([values[np.newaxis]], [truth[np.newaxis]]) as pixels:
        return _trace(Counts(pixels, 1 << 30), ("roc", "pr"))


def _trace(counts: Counts, names: tuple[str, ...]) -> dict[str, Curve]:
    curves: dict[str, Curve] = dict.fromkeys(names, (np.zeros(0), np.zeros(0)))
    if not counts.positives:
        return curves
    parts: dict[str, list[Curve]] = {name: [] for name in names if counts.negatives or name == "pr"}
    for part in counts.slices():
        for block in part.steps.blocks():
            for name, points in parts.items():
                points.append(_block_points(name, block, counts))
    for name, blocks in parts.items():
        x, y = (np.concatenate(values) for values in zip(*blocks, strict=True))
        if name == "pr":
            x, y = _thin_steps(x, y)
            x, y = np.append(0, x), np.append(y[0], y)
        else:
            x, y = _thin(x, y)
            x, y = np.concatenate(([0], x, [1])), np.concatenate(([0], y, [1]))
        moved = np.append(True, (np.diff(x) != 0) | (np.diff(y) != 0))
        curves[name] = x[moved], y[moved]
    return curves


def _block_points(name: str, steps: Steps, counts: Counts) -> Curve:
    """The curve at each value of ``steps`` ("pr"), or where each value begins and ends ("roc" and "pro"), thinned."""
    if name == "pr":
        precision = steps.reached / (steps.reached + steps.above + steps.equal)
        return _thin_steps(steps.reached / counts.positives, precision)
    rising, height, unit = (
        (steps.reached, steps.at, counts.positives) if name == "roc" else (steps.covered, steps.share, UNIT)
    )
    false = np.stack([steps.above, steps.above + steps.equal], axis=1).ravel()
    true = np.stack([rising - height, rising], axis=1).ravel()
    return _thin(false / counts.negatives, true / unit)


def _thin(x: Points, y: Points) -> Curve:
    """For x and y that both rise in 0..1: the last point in each of 510 equal cells of their sum."""
    cell = np.minimum((x + y) * ((POINTS - 2) / 2), POINTS - 3).astype(int)
    last = np.flatnonzero(np.append(cell[1:] != cell[:-1], True))
    return x[last], y[last]


def _thin_steps(x: Points, y: Points) -> Curve:
    """For x that rises in 0..1: the lowest and the highest point in each of 255 equal cells of x, and the last one."""
    half = (POINTS - 2) // 2
    cell = np.minimum(x * half, half - 1).astype(int)
    order = np.lexsort((y, cell))
    edge = np.flatnonzero(cell[1:] != cell[:-1])  # the cells rise, so their places do not change with the order
    extremes = order[np.concatenate(([0], edge, edge + 1, [len(x) - 1]))]
    chosen = np.unique(np.append(extremes, len(x) - 1))
    return x[chosen], y[chosen]
