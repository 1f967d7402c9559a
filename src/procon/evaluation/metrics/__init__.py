"""Nine metrics of how well scores and heat maps separate good from defective; exact for any number of pixels.

| key | meaning |
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

Every metric but F1 and ``pro200`` is a mean over the positives: AUROC of the share of negatives below each, AP of the
precision at each, ``pauroc30`` and ``aupro`` of the area that each adds under the curve. Positives have equal weights;
only in ``aupro`` each region has the same weight, whatever its size.
"""

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike

from procon.arrays import Reals
from procon.evaluation.metrics.counts import UNIT, Counts, Steps
from procon.evaluation.metrics.curves import Curve, trace_curves, trace_image_curves
from procon.evaluation.metrics.pixels import Maps, Masks, check_scores, open_pixels

__all__ = [
    "FPR_LIMIT",
    "IMAGE_KEYS",
    "PIXEL_KEYS",
    "Curve",
    "MetricValues",
    "evaluate",
    "trace_curves",
    "trace_image_curves",
]

IMAGE_KEYS = ("i_auroc", "i_ap", "i_f1")
PIXEL_KEYS = ("p_auroc", "p_ap", "p_f1", "aupro", "pauroc30", "pro200")
FPR_LIMIT = 0.3  # false positive rate at which aupro, pauroc30 and pro200 end
THRESHOLDS = 200  # of pro200


class MetricValues(dict[str, float]):
    """Metrics by name, fractions in 0..1; NaN if undefined, with the reason under the same name in ``reasons``."""

    def __init__(self, values: Mapping[str, float], reasons: Mapping[str, str]) -> None:
        super().__init__(values)
        self.reasons = dict(reasons)


def evaluate(
    scores: ArrayLike,
    labels: ArrayLike,
    maps: Maps | None = None,
    masks: Masks | None = None,
    *,
    memory: int = 1 << 30,
) -> MetricValues:
    """All nine metrics of one test set.

    ``scores`` [N] are finite numbers, higher is worse; ``labels`` [N] are 0 (good) or 1. ``maps`` [N, H, W], or any
    iterable of [H, W] arrays whose sizes may differ, hold the pixel scores; float32 and float64 are compared as they
    are. ``masks`` are as many, each the size of its map: True, 1 or 255 marks a defect, and None stands for an image
    without any. Labels say what is true of an image and masks what is true of its pixels: neither is derived from the
    other or checked against it, so a defect that no mask shows is still a defect of its image.

    Maps are read twice and masks once, image by image; a one-shot iterator of maps is spooled to a temporary file.
    About ``memory`` bytes are used at most; with less there are more passes and the same numbers, to the last bit.
    """
    values, truth = check_scores(scores, labels)
    with open_pixels([values[np.newaxis]], [truth[np.newaxis]]) as pixels:  # scores are a map one pixel high
        image = _measure(Counts(pixels, memory), "every image is labelled 0", "every image is labelled 1")
    results = {key: image[key.removeprefix("i_")] for key in IMAGE_KEYS}
    if maps is None or masks is None:
        results |= dict.fromkeys(PIXEL_KEYS, f"no {'maps' if maps is None else 'masks'} were given")
    else:
        with open_pixels(maps, masks) as pixels:
            if len(pixels) != len(values):
                raise ValueError(f"scores and masks must be of one length, got {len(values)} and {len(pixels)}")
            pixel = _measure(Counts(pixels, memory), "no mask marks a pixel", "the masks mark every pixel")
        results |= {key: pixel[key.removeprefix("p_")] for key in PIXEL_KEYS}
    reasons = {key: result for key, result in results.items() if isinstance(result, str)}
    return MetricValues({key: math.nan if isinstance(r, str) else r for key, r in results.items()}, reasons)


class Mean:
    """A weighted mean of numbers in 0..1, summed in integers of 2**-62: the same in any order and any grouping."""

    def __init__(self) -> None:
        self._sum = self._weight = 0

    def add(self, weights: Reals, values: Reals) -> None:
        """Add values with their weights, which sum to 1 over all calls."""
        self._sum += int(np.rint(UNIT * weights * values).astype(np.int64).sum())
        self._weight += int(np.rint(UNIT * weights).astype(np.int64).sum())

    def value(self) -> float:
        return self._sum / self._weight


def _measure(counts: Counts, no_positive: str, no_negative: str) -> dict[str, float | str]:
    """Each metric without its prefix, or why it is undefined."""
    names = ("auroc", "ap", "f1", "aupro", "pauroc30", "pro200")
    if not counts.positives:
        return dict.fromkeys(names, no_positive)
    auroc, ap, pauroc30, aupro, f1 = Mean(), Mean(), Mean(), Mean(), 0.0
    thresholds = _thresholds(counts)
    false, covered = np.zeros(len(thresholds)), np.zeros(len(thresholds))
    for part in counts.slices(thresholds):
        for block in part.steps.blocks():
            weights, selected = block.at / counts.positives, block.reached + block.above + block.equal
            ap.add(weights, block.reached / selected)
            f1 = max(f1, float((2 * block.reached / (selected + counts.positives)).max()))
            if counts.negatives:
                auroc.add(weights, _area(block, counts.negatives, 1.0))
                limited = _area(block, counts.negatives, FPR_LIMIT)
                pauroc30.add(weights, limited)
                aupro.add(block.share / UNIT, limited)
        false[part.thresholds], covered[part.thresholds] = part.above, part.covered / UNIT
    results: dict[str, float | str] = {"ap": ap.value(), "f1": f1}
    if not counts.negatives:
        return dict.fromkeys(names, no_negative) | results
    results |= {"auroc": auroc.value(), "pauroc30": pauroc30.value(), "aupro": aupro.value()}
    return results | {"pro200": pro200_area(false / counts.negatives, covered)}


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
    first point, at the highest threshold, so the area before that point is lost.
    """
    if not len(rates):
        return "the map values span too wide a range for evenly spaced thresholds"
    inside = rates < FPR_LIMIT
    if inside.sum() < 2:
        return f"fewer than two of {len(rates)} thresholds have a false positive rate below {FPR_LIMIT}"
    x, y = rates[inside][::-1], covered[inside][::-1]
    if x[-1] == 0:
        return f"no threshold has a false positive rate between 0 and {FPR_LIMIT}"
    return float((np.diff(x / x[-1]) * (y[1:] + y[:-1])).sum() / 2)
