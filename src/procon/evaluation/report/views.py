"""What reports and figures show of one variant on one category: metrics, curves, colour scale and regions."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from procon.arrays import Bools, Floats
from procon.errors import ImageError
from procon.evaluation.metrics import FPR_LIMIT, Curve, MetricValues, trace_curves, trace_image_curves
from procon.evaluation.metrics.pixels import TOUCHING
from procon.evaluation.report import charts
from procon.evaluation.report.lineup import load_metrics
from procon.evaluation.report.pictures import PeakScale
from procon.evaluation.runs.raw import Raw
from procon.evaluation.runs.run import Run
from procon.evaluation.runs.verdicts import ImageVerdicts, explain_unknown, judge_images

_BINS = 1 << 14
_QUANTILE = 0.999
_RATE = "false positive rate"


@dataclass(frozen=True)
class MaskRegion:
    """An 8-connected region of a mask."""

    index: int  # of the image
    number: int  # among the regions of the image, from 1
    median: float  # of the map inside it: at this threshold half of the region is covered
    area: int  # pixels of the map


@dataclass(frozen=True)
class View:
    """A variant on a category, after one pass over its maps."""

    raw: Raw
    metrics: MetricValues
    label_threshold: float | None  # the image threshold with the best F1 that labels could choose
    verdicts: ImageVerdicts | None  # at the threshold of the model; None where that is unknown
    unknown: str  # why it is unknown; empty where it is known
    scale: PeakScale
    masks: dict[int, Bools]  # by image; empty if any of them cannot be read
    regions: list[MaskRegion]  # the least visible first
    edges: NDArray[np.float64]  # map values
    rates: NDArray[np.float64]  # share of the unmarked pixels at or above each of ``edges``
    image_curves: dict[str, Curve]
    pixel_curves: dict[str, Curve]  # empty if a mask cannot be read

    def false_positive_rate(self, value: float) -> float:
        """The pixel rate at the threshold ``value``, to about a ten-thousandth of the range of values."""
        return float(np.interp(value, self.edges, self.rates))

    def wrong(self, index: int) -> bool:
        """Whether the threshold that labels could choose judges an image incorrectly."""
        if self.label_threshold is None:
            return False
        return (float(self.raw.scores[index]) >= self.label_threshold) != self.raw.labels[index]

    @property
    def masks_unreadable(self) -> bool:
        """Whether the images have masks of which one cannot be read."""
        return not self.pixel_curves and any(sample.mask is not None for sample in self.raw.samples)

    def count_wrong(self, defective: bool) -> int:
        """Missed defective images, or false alarms, at the best F1 that labels could choose."""
        return sum(self.wrong(index) for index, label in enumerate(self.raw.labels) if label == defective)

    def draw_charts(self) -> dict[str, str]:
        """The charts ``histogram``, ``roc``, ``pr`` and ``pro`` as SVG."""
        labels, scores = np.array(self.raw.labels), self.raw.scores
        cuts = {"best F1": self.label_threshold}
        if self.verdicts is not None:
            cuts = {"threshold": self.verdicts.calibration.threshold, **cuts}
        roc = self._lines("roc", {"images": "i_auroc", "pixels": "p_auroc"})
        pr = self._lines("pr", {"images": "i_ap", "pixels": "p_ap"})
        pro = self._lines("pro", {"regions": "aupro"})
        return {
            "histogram": charts.draw_histogram("Image scores", scores[~labels], scores[labels], cuts),
            "roc": charts.draw_curves("ROC, area under it", roc, _RATE, "true positive rate"),
            "pr": charts.draw_curves("Precision over recall, AP", pr, "recall", "precision"),
            "pro": charts.draw_curves(
                f"PRO to {FPR_LIMIT}, AUPRO", pro, f"{_RATE}, pixels", "share of regions", FPR_LIMIT
            ),
        }

    def _lines(self, curve: str, metrics: dict[str, str]) -> list[charts.ChartLine]:
        lines = []
        for unit, metric in metrics.items():
            x, y = (self.image_curves if unit == "images" else self.pixel_curves).get(curve, (np.zeros(0),) * 2)
            if len(x):
                lines.append(charts.ChartLine(f"{unit} {self.metrics[metric]:.4f}", x, y, steps=curve == "pr"))
        return lines


def open_view(run: Run, category: str, variant: str) -> View:
    """Load the raw results of a variant and pass over its maps."""
    raw = run.load(category, variant)
    try:
        indices, maps, lazy_masks = raw.load_pixels()
        masks = list(lazy_masks)
    except ImageError:
        indices, maps, masks = [], [], []
    low, high = float(raw.maps.min()), float(raw.maps.max())
    edges = np.linspace(low, high if high > low else low + 1, _BINS + 1)
    unmarked, good = np.zeros(_BINS, np.int64), np.zeros(_BINS, np.int64)
    regions: list[MaskRegion] = []
    peak = high if not indices else -np.inf
    for index, values, mask in zip(indices, maps, masks, strict=True):
        counts = np.histogram((values if mask is None else values[~mask]).clip(edges[0], edges[-1]), edges)[0]
        unmarked += counts
        good += 0 if raw.samples[index].defective else counts
        regions += [] if mask is None else _regions(index, values, mask)
        peak = max(peak, float(values.max()))
    verdicts = judge_images(raw.calibrate(run.base), raw.scores, raw.samples, maps, masks)
    return View(
        raw,
        load_metrics(run, category, variant),
        best_threshold(raw.scores, raw.labels),
        verdicts,
        explain_unknown(run, raw) if verdicts is None else "",
        PeakScale(*_normal_values(raw, good, edges), peak),
        {index: mask for index, mask in zip(indices, masks, strict=True) if mask is not None},
        sorted(regions, key=lambda region: (region.median, region.index)),
        edges,
        np.append(unmarked[::-1].cumsum()[::-1], 0) / max(1, unmarked.sum()),
        trace_image_curves(raw.scores, np.array(raw.labels)),
        trace_curves(maps, masks) if indices else {},
    )


def good_patch_scores(raw: Raw) -> Floats:
    """The patch scores of good images; of all images where none is good."""
    labels = np.array(raw.labels)
    return raw.maps if labels.all() else raw.maps[~labels]


def _normal_values(raw: Raw, good: NDArray[np.int64], edges: NDArray[np.float64]) -> tuple[float, float]:
    """The median and the limit of normal values; ``good`` counts the pixels of good images between ``edges``."""
    patches = good_patch_scores(raw)
    typical = float(np.median(patches))
    if not good.sum():
        return typical, float(np.quantile(patches, _QUANTILE))
    return typical, float(edges[1 + int(np.argmax(good.cumsum() / good.sum() >= _QUANTILE))])


def _regions(index: int, values: Floats, mask: Bools) -> list[MaskRegion]:
    labels, count = ndimage.label(mask, TOUCHING)
    numbers = np.arange(1, count + 1)
    medians = ndimage.median(values, labels, numbers)
    areas = np.bincount(labels.ravel())[1:]
    return [MaskRegion(index, int(n), float(m), int(a)) for n, m, a in zip(numbers, medians, areas, strict=True)]


def select_region(mask: Bools, number: int) -> Bools:
    """The pixels of one region of a mask."""
    return np.asarray(ndimage.label(mask, TOUCHING)[0] == number, np.bool_)


def best_threshold(scores: Floats, labels: Sequence[bool]) -> float | None:
    """The image threshold with the highest F1, halfway to the next score below; None without both kinds of images.

    It is a float64: compare scores as such, because between two neighbours no float32 may lie.
    """
    truth = np.array(labels)
    if truth.all() or not truth.any():
        return None
    order = np.argsort(-scores, kind="stable")
    values, hits = scores[order].astype(np.float64), truth[order].cumsum()
    last = np.append(values[1:] != values[:-1], True)  # equal scores are all called defective, or none
    f1 = np.where(last, 2 * hits / (np.arange(1, len(values) + 1) + truth.sum()), -1)
    place = int(np.argmax(f1))
    return float(values[place : place + 2].mean())
