"""Evaluate a fitted detector on a folder of labelled images: verdicts at its threshold, then the metrics."""

import html
import math
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from procon.arrays import Bools, Floats, Reals
from procon.detector import Detector
from procon.errors import BatchError, ImageError
from procon.evaluation.data.datasets import Sample, open_category, read_mask
from procon.evaluation.data.layouts import with_pixels
from procon.evaluation.metrics import MetricValues
from procon.evaluation.runs.raw import LazyMaps, measure_masked
from procon.evaluation.runs.verdicts import ImageVerdicts, describe_tallies, judge_images
from procon.progress import ShowProgress, reporting
from procon.vision.pictures import shrink_map

LONGEST = 1024  # pixels: larger heat maps and masks are compared at this size


@dataclass(frozen=True, repr=False)
class Evaluation:
    """The verdicts and metrics of a detector on labelled images."""

    name: str  # of the part
    verdicts: ImageVerdicts | None  # at the threshold of the model, by kind of defect; None where it has none
    metrics: MetricValues  # fractions in 0..1; NaN where undefined, with the reason in metrics.reasons

    @property
    def false_alarms(self) -> int | None:
        """Good images that the threshold flags."""
        return self.verdicts.good.flagged if self.verdicts else None

    @property
    def found(self) -> int | None:
        """Defective images that the threshold flags."""
        return self.verdicts.found if self.verdicts else None

    @property
    def missed(self) -> int | None:
        """Defective images that the threshold does not flag."""
        return self.verdicts.defective - self.verdicts.found if self.verdicts else None

    def describe(self) -> list[str]:
        """Lines for people: counts by kind of defect, false alarms, regions, then the metrics."""
        lines = ["no threshold: fit on more images to get verdicts"]
        if self.verdicts is not None:
            lines = describe_tallies(self.verdicts, self.metrics)
        numbers = [f"{name} {100 * value:.2f}" for name, value in self.metrics.items() if not math.isnan(value)]
        return [*lines, f"metrics, in percent: {', '.join(numbers) or 'none'}"]

    def __repr__(self) -> str:
        counts = "no threshold"
        if self.verdicts is not None:
            good = self.verdicts.good
            counts = (
                f"{self.found} of {self.verdicts.defective} defects found, {good.flagged} of {good.images} good flagged"
            )
        return f"Evaluation({self.name}: {counts})"

    def __str__(self) -> str:
        return "\n".join([f"{self.name}:", *(f"  {line}" for line in self.describe())])

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"


def evaluate_detector(detector: Detector, folder: str | Path, *, progress: ShowProgress = None) -> Evaluation:
    """Score the test images of one part and compare with their labels and masks.

    ``folder`` is a category with ``train/good`` and ``test/``, or ``good/ bad/ mask/``; the detector is not fitted
    again. Pixels are compared at the size of the images, and at most 1024 on the longer side, so the pixel metrics are
    close to those of ``procon eval``, which compares at the size of the backbone's input.
    """
    category = open_category(Path(folder))
    with tempfile.TemporaryDirectory() as store, reporting(progress) as on_progress:
        scores: list[float] = []
        errors: dict[int, ImageError] = {}
        results = detector.predict_each(sample.path for sample in category.test)
        for number, result in enumerate(results):
            if isinstance(result, ImageError):
                errors[number] = result
            else:
                scores.append(result.score)
                np.save(Path(store) / f"{number}.npy", shrink_map(result.heatmap, _limited(result.heatmap.shape)))
            on_progress("scoring", number + 1, len(category.test))
        if errors:
            raise BatchError(errors)
        return _evaluate_stored(detector, category.name, category.test, np.array(scores), Path(store))


def _evaluate_stored(
    detector: Detector, name: str, samples: Sequence[Sample], scores: Reals, folder: Path
) -> Evaluation:
    """Evaluate images whose heat maps are in ``folder``."""
    masked = with_pixels(samples)
    maps = LazyMaps(lambda number: np.load(folder / f"{number}.npy", allow_pickle=False), masked)
    masks = [_mask(samples[number], values) for number, values in zip(masked, maps, strict=True)]
    metrics = measure_masked(scores, np.array([sample.defective for sample in samples]), masked, maps, masks)
    return Evaluation(name, judge_images(detector.calibration, scores, samples, maps, masks), metrics)


def _limited(size: tuple[int, ...]) -> tuple[int, int]:
    factor = min(1.0, LONGEST / max(size))
    return max(1, round(size[0] * factor)), max(1, round(size[1] * factor))


def _mask(sample: Sample, values: Floats) -> Bools | None:
    return None if sample.mask is None else read_mask(sample.mask, (values.shape[0], values.shape[1]))
