"""Curves to draw, from the same counts as the metrics: exact points, at most 512 of them, that keep the shape."""

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from procon.evaluation.metrics.counts import UNIT, Counts, Steps
from procon.evaluation.metrics.pixels import Maps, Masks, checked_scores, opened

Points = NDArray[np.float64]
Curve = tuple[Points, Points]

POINTS = 512


def curves(maps: Maps, masks: Masks, *, memory: int = 1 << 30) -> dict[str, Curve]:
    """The pixel curves "roc", "pr" and "pro" as (x, y); maps, masks and memory as for ``evaluate``.

    "roc" and "pro" go from (0, 0) to (1, 1) over the false positive rate and are straight between points. "pr" goes
    over recall, rising; the precision of a point holds from the recall of the point before it up to its own
    (``steps-pre`` in matplotlib), as in average precision. A curve that is undefined has no points.
    """
    with opened(maps, masks) as pixels:
        return _curves(Counts(pixels, memory), ("roc", "pr", "pro"))


def image_curves(scores: ArrayLike, labels: ArrayLike) -> dict[str, Curve]:
    """The curves "roc" and "pr" of image scores [N] against labels [N], as from :func:`curves`."""
    values, truth = checked_scores(scores, labels)
    with opened([values[np.newaxis]], [truth[np.newaxis]]) as pixels:
        return _curves(Counts(pixels, 1 << 30), ("roc", "pr"))


def _curves(counts: Counts, names: tuple[str, ...]) -> dict[str, Curve]:
    nothing = np.zeros(0)
    if not counts.positives:
        return dict.fromkeys(names, (nothing, nothing))
    makers: dict[str, Callable[[Steps, Counts], Curve]] = {"roc": roc_points, "pr": pr_points, "pro": pro_points}
    wanted = [name for name in names if counts.negatives or name == "pr"]
    parts: dict[str, list[Curve]] = {name: [] for name in wanted}
    for part in counts.slices():
        for block in part.steps.blocks():
            for name in wanted:
                parts[name].append(makers[name](block, counts))
    made: dict[str, Curve] = dict.fromkeys(names, (nothing, nothing))
    for name in wanted:
        x, y = (np.concatenate(values) for values in zip(*parts[name], strict=True))
        if name == "pr":
            x, y = _thinned_steps(x, y)
            x, y = np.append(0, x), np.append(y[0], y)
        else:
            x, y = _thinned(x, y)
            x, y = np.concatenate(([0], x, [1])), np.concatenate(([0], y, [1]))
        moved = np.append(True, (np.diff(x) != 0) | (np.diff(y) != 0))
        made[name] = x[moved], y[moved]
    return made


def roc_points(steps: Steps, counts: Counts) -> Curve:
    """False positive rate and recall where each value of ``steps`` begins and ends, thinned."""
    false = np.stack([steps.above, steps.above + steps.equal], axis=1).ravel()
    true = np.stack([steps.reached - steps.at, steps.reached], axis=1).ravel()
    return _thinned(false / counts.negatives, true / counts.positives)


def pro_points(steps: Steps, counts: Counts) -> Curve:
    """False positive rate and mean share of the regions where each value of ``steps`` begins and ends, thinned."""
    false = np.stack([steps.above, steps.above + steps.equal], axis=1).ravel()
    covered = np.stack([steps.covered - steps.share, steps.covered], axis=1).ravel()
    return _thinned(false / counts.negatives, covered / UNIT)


def pr_points(steps: Steps, counts: Counts) -> Curve:
    """Recall and precision at each value of ``steps``, thinned."""
    precision = steps.reached / (steps.reached + steps.above + steps.equal)
    return _thinned_steps(steps.reached / counts.positives, precision)


def _thinned(x: Points, y: Points) -> Curve:
    """For x and y that both rise in 0..1: the last point in each of 510 equal cells of their sum."""
    cell = np.minimum((x + y) * ((POINTS - 2) / 2), POINTS - 3).astype(int)
    kept = np.flatnonzero(np.append(cell[1:] != cell[:-1], True))
    return x[kept], y[kept]


def _thinned_steps(x: Points, y: Points) -> Curve:
    """For x that rises in 0..1: the lowest and the highest point in each of 255 equal cells of x, and the last one."""
    half = (POINTS - 2) // 2
    cell = np.minimum(x * half, half - 1).astype(int)
    order = np.lexsort((y, cell))
    edge = np.flatnonzero(cell[1:] != cell[:-1])  # the cells rise, so their places do not change with the order
    extremes = order[np.concatenate(([0], edge, edge + 1, [len(x) - 1]))]
    kept = np.unique(np.append(extremes, len(x) - 1))
    return x[kept], y[kept]
