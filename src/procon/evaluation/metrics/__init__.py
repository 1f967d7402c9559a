"""How well scores and maps separate good from defective: nine numbers, exact, whatever the number of pixels.

| key | what it is |
|---|---|
| ``i_auroc`` ``p_auroc`` | area under the ROC curve, ties as diagonals, over images and over pixels |
| ``i_ap`` ``p_ap`` | average precision: sum of (R_n - R_{n-1}) P_n over the distinct thresholds, no interpolation |
| ``i_f1`` ``p_f1`` | the best F1 over all thresholds |
| ``aupro`` | area under the PRO curve to a false positive rate of 0.3, divided by 0.3 |
| ``pauroc30`` | area under the pixel ROC curve to a false positive rate of 0.3, divided by 0.3; no regions enter |
| ``pro200`` | PRO from 200 thresholds, see :func:`pro200_area`: coarse and biased low |

PRO at a threshold is the mean, over the 8-connected regions of all masks, of the share of a region at or above it; the
false positive rate is taken over all unmarked pixels of all images. ``aupro`` takes every threshold and interpolates
linearly at the limit. The ProCon paper prints ``pauroc30`` under "AUPRO" and ``pro200`` under "PRO": compare these two
with its columns, and never ``aupro``.

All but F1 and ``pro200`` are means over the positives, each weighing the same or by its region: of the share of
negatives below it (AUROC), of the part of the area that it adds (``pauroc30``, ``aupro``), of the precision at it (AP).
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike, NDArray

from procon.evaluation.metrics.counts import UNIT, Counts, Steps
from procon.evaluation.metrics.curves import Curve, curves, image_curves, pr_points, pro_points, roc_points
from procon.evaluation.metrics.pixels import Maps, Masks, checked_scores, opened

__all__ = [
    "IMAGE_KEYS",
    "LIMIT",
    "PIXEL_KEYS",
    "Curve",
    "Metrics",
    "curves",
    "evaluate",
    "image_curves",
    "pr_points",
    "pro_points",
    "roc_points",
]

IMAGE_KEYS = ("i_auroc", "i_ap", "i_f1")
PIXEL_KEYS = ("p_auroc", "p_ap", "p_f1", "aupro", "pauroc30", "pro200")
LIMIT = 0.3  # of the false positive rate
THRESHOLDS = 200

Reals = NDArray[np.float64]


class Metrics(dict[str, float]):
    """Metrics by name, fractions in 0..1; NaN where one is undefined, with why in ``reasons`` under the same name."""

    def __init__(self, values: Mapping[str, float] | None = None, reasons: Mapping[str, str] | None = None) -> None:
        super().__init__(values or {})
        self.reasons = dict(reasons or {})

    def put(self, key: str, value: float | str) -> None:
        """Set ``key`` to a number, or to NaN for a reason."""
        self[key] = float("nan") if isinstance(value, str) else value
        if isinstance(value, str):
            self.reasons[key] = value


def evaluate(
    scores: ArrayLike,
    labels: ArrayLike,
    maps: Maps | None = None,
    masks: Masks | None = None,
    *,
    memory: int = 1 << 30,
) -> Metrics:
    """All nine metrics of one test set.

    ``scores`` [N] are finite numbers, higher is worse; ``labels`` [N] are 0 (good) or 1. ``maps`` [N, H, W], or any
    iterable of [H, W] arrays whose sizes may differ, hold the pixel scores; float32 and float64 are compared as they
    are. ``masks`` are as many, each the size of its map: True, 1 or 255 marks a defect, and None stands for an image
    without any. Labels say what is true of an image and masks what is true of its pixels: neither is derived from the
    other or checked against it, so a defect that no mask shows is still a defect of its image.

    Maps are read twice and masks once, image by image; a one-shot iterator of maps is spooled to a temporary file.
    About ``memory`` bytes are used at most; with less there are more passes and the same numbers, to the last bit.
    """
    values, truth = checked_scores(scores, labels)
    metrics = Metrics()
    with opened([values[np.newaxis]], [truth[np.newaxis]]) as pixels:  # scores are a map one pixel high
        found = _measure(Counts(pixels, memory), "every image is labelled 0", "every image is labelled 1")
    for key in IMAGE_KEYS:
        metrics.put(key, found[key.removeprefix("i_")])
    if maps is None or masks is None:
        found = dict.fromkeys(found, f"no {'maps' if maps is None else 'masks'} were given")
    else:
        with opened(maps, masks) as pixels:
            if len(pixels.truth) != len(values):
                raise ValueError(f"scores and masks must be of one length, got {len(values)} and {len(pixels.truth)}")
            found = _measure(Counts(pixels, memory), "no mask marks a pixel", "the masks mark every pixel")
    for key in PIXEL_KEYS:
        metrics.put(key, found[key.removeprefix("p_")])
    return metrics


class Mean:
    """A weighted mean of numbers in 0..1, summed in integers of 2**-62: the same in any order and any grouping."""

    def __init__(self) -> None:
        self._sum = self._weight = 0

    def add(self, weights: Reals, values: Reals) -> None:
        """Weights, which sum to 1 over all calls, and as many values."""
        self._sum += int(np.rint(UNIT * weights * values).astype(np.int64).sum())
        self._weight += int(np.rint(UNIT * weights).astype(np.int64).sum())

    def value(self) -> float:
        return self._sum / self._weight


def _measure(counts: Counts, no_positive: str, no_negative: str) -> dict[str, float | str]:
    """Each metric without its prefix, or why it is undefined."""
    names = ("auroc", "ap", "f1", "aupro", "pauroc30", "pro200")
    if not counts.positives:
        return dict.fromkeys(names, no_positive)
    auroc, ap, pauroc30, aupro = Mean(), Mean(), Mean(), Mean()
    f1 = 0.0
    thresholds = _thresholds(counts)
    false, covered = np.zeros(len(thresholds)), np.zeros(len(thresholds))
    for part in counts.slices(thresholds):
        for block in part.steps.blocks():
            weights, selected = block.at / counts.positives, block.reached + block.above + block.equal
            ap.add(weights, block.reached / selected)
            f1 = max(f1, float((2 * block.reached / (selected + counts.positives)).max()))
            if counts.negatives:
                auroc.add(weights, _area(block, counts.negatives, 1.0))
                limited = _area(block, counts.negatives, LIMIT)
                pauroc30.add(weights, limited)
                aupro.add(block.share / UNIT, limited)
        false[part.thresholds], covered[part.thresholds] = part.above, part.covered / UNIT
    found: dict[str, float | str] = {"ap": ap.value(), "f1": f1}
    if not counts.negatives:
        return dict.fromkeys(names, no_negative) | found
    found |= {"auroc": auroc.value(), "pauroc30": pauroc30.value(), "aupro": aupro.value()}
    return found | {"pro200": pro200_area(false / counts.negatives, covered)}


def _area(block: Steps, negatives: int, limit: float) -> Reals:
    """The area that one unit of height at each value adds to a curve cut at ``limit``, divided by ``limit`` [V].

    The curve rises straight between the rate just above the value and the rate at it. Beyond it the height stays.
    """
    start, stop = block.above / negatives, (block.above + block.equal) / negatives
    first, last = np.minimum(start, limit), np.minimum(stop, limit)
    risen = np.divide(last - first, stop - start, out=np.zeros(len(start)), where=block.equal > 0)
    area: Reals = (last - first) * risen / 2 + (limit - last)
    return area / limit


def _thresholds(counts: Counts) -> Reals:
    """The float64 numbers lowest + i * (highest - lowest) / 200 for i in 0..199; none where these overflow."""
    span = counts.highest - counts.lowest
    if not np.isfinite(THRESHOLDS * span):
        return np.zeros(0)
    return counts.lowest + np.arange(THRESHOLDS) * span / THRESHOLDS


def pro200_area(rates: Reals, covered: Reals) -> float | str:
    """The widespread PRO score from a few thresholds, rising [T], or why it is undefined.

    ``rates`` is the share of negatives strictly above each threshold and ``covered`` the mean over regions of the
    share of a region strictly above it. The points with a rate below 0.3 are kept, their rates divided by the largest
    of them, and the trapezoids between them summed. Nothing is interpolated at 0.3 and nothing is added before the
    first point, at the highest threshold: what lies there is lost.
    """
    if not len(rates):
        return "the map values span too wide a range for evenly spaced thresholds"
    kept = rates < LIMIT
    if kept.sum() < 2:
        return f"fewer than two of {len(rates)} thresholds have a false positive rate below {LIMIT}"
    x, y = rates[kept][::-1], covered[kept][::-1]
    if x[-1] == 0:
        return f"no threshold has a false positive rate between 0 and {LIMIT}"
    return float((np.diff(x / x[-1]) * (y[1:] + y[:-1])).sum() / 2)
