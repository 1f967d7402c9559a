"""One variant on one category as reports and figures show it: metrics, curves, the scale of its maps."""

from dataclasses import dataclass

import numpy as np

from procon.arrays import Bools
from procon.errors import ImageError
from procon.evaluation.metrics import FPR_LIMIT, Curve, MetricValues, trace_curves, trace_image_curves
from procon.evaluation.report import charts
from procon.evaluation.report.cases import Survey, best_threshold, survey
from procon.evaluation.report.lineup import measured
from procon.evaluation.runs.raw import Raw, Run

_RATE = "false positive rate"


@dataclass(frozen=True)
class View:
    """All that one pass over the maps of a variant gives."""

    raw: Raw
    metrics: MetricValues
    threshold: float | None
    """The image threshold with the best F1."""
    survey: Survey
    masks: dict[int, Bools]
    """By image; empty if any of them cannot be read."""
    image: dict[str, Curve]
    pixel: dict[str, Curve]
    """Empty if a mask cannot be read."""

    def wrong(self) -> tuple[int, int]:
        """Defective images below the best threshold, good ones at or above it."""
        if self.threshold is None:
            return 0, 0
        labels, called = np.array(self.raw.labels), self.raw.scores.astype(np.float64) >= self.threshold
        return int((labels & ~called).sum()), int((called & ~labels).sum())

    def draw(self) -> dict[str, str]:
        """The charts ``histogram``, ``roc``, ``pr`` and ``pro`` as SVG."""
        labels = np.array(self.raw.labels)
        scores = self.raw.scores
        roc = self._lines("roc", {"images": "i_auroc", "pixels": "p_auroc"})
        pr = self._lines("pr", {"images": "i_ap", "pixels": "p_ap"})
        pro = self._lines("pro", {"regions": "aupro"})
        return {
            "histogram": charts.histogram("Image scores", scores[~labels], scores[labels], self.threshold),
            "roc": charts.curve_chart("ROC, area under it", roc, _RATE, "true positive rate"),
            "pr": charts.curve_chart("Precision over recall, AP", pr, "recall", "precision"),
            "pro": charts.curve_chart(
                f"PRO to {FPR_LIMIT}, AUPRO", pro, f"{_RATE}, pixels", "share of regions", FPR_LIMIT
            ),
        }

    def _lines(self, name: str, areas: dict[str, str]) -> list[charts.ChartLine]:
        lines = []
        for what, key in areas.items():
            x, y = (self.image if what == "images" else self.pixel).get(name, (np.zeros(0), np.zeros(0)))
            if len(x):
                lines.append(charts.ChartLine(f"{what} {self.metrics[key]:.4f}", x, y, steps=name == "pr"))
        return lines


def look(run: Run, category: str, variant: str) -> View:
    """Read the raw results of a variant and pass over its maps."""
    raw = run.load(category, variant)
    metrics = measured(run, category, variant)
    try:
        known, maps, lazy_masks = raw.load_pixels()
        masks = list(lazy_masks)
    except ImageError:
        known, maps, masks = [], [], []
    pixel = trace_curves(maps, masks) if known else {}
    marked = {index: mask for index, mask in zip(known, masks, strict=True) if mask is not None}
    image = trace_image_curves(raw.scores, np.array(raw.labels))
    threshold = best_threshold(raw.scores, raw.labels)
    return View(raw, metrics, threshold, survey(raw, known, maps, masks), marked, image, pixel)
