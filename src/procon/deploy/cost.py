"""How much an export changes the metrics, measured on labelled images."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from procon.arrays import Floats
from procon.deploy.parity import ScorePixels
from procon.detector import Detector
from procon.errors import ImageError
from procon.evaluation.data.datasets import Sample
from procon.evaluation.runs.raw import Raw, measure_raw
from procon.progress import Progress, no_progress
from procon.vision.framing import to_input
from procon.vision.images import open_each

_METRICS = ("i_auroc", "i_ap", "p_auroc", "p_ap", "aupro")


@dataclass(frozen=True)
class MetricCost:
    """Metrics of the detector and of its export on the same test images: fractions, NaN where undefined."""

    images: int
    original: dict[str, float]
    exported: dict[str, float]
    verdicts: int | None  # images whose verdict changes; None without a threshold

    def table(self) -> str:
        """A table for people."""
        lines = [f"{f'{self.images} test images':<18}  {'original':>8}  {'exported':>8}  {'change':>7}"]
        for key in self.original:
            before, after = 100 * self.original[key], 100 * self.exported[key]
            lines.append(f"{key:<18}  {before:8.2f}  {after:8.2f}  {after - before:+7.2f}")
        if self.verdicts is not None:
            lines.append(f"{self.verdicts} of {self.images} verdicts changed")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready: None where a metric is undefined."""
        metrics = {
            name: {key: None if np.isnan(value) else value for key, value in getattr(self, name).items()}
            for name in ("original", "exported")
        }
        return {"images": self.images, **metrics, "verdicts": self.verdicts}


def measure_cost(
    detector: Detector, exported: ScorePixels, samples: Sequence[Sample], on_progress: Progress | None = None
) -> MetricCost:
    """Score ``samples`` with both models and evaluate both."""
    config, calibration, on_progress = detector.config, detector.calibration, on_progress or no_progress
    scores = np.zeros((2, len(samples)))
    maps: tuple[list[Floats], list[Floats]] = [], []
    for index, picture in enumerate(open_each([sample.path for sample in samples])):
        if isinstance(picture, ImageError):
            raise picture
        pixels = to_input(picture, config)[None]
        score, heatmap, _ = detector.scorer.measure_pixels(torch.from_numpy(pixels))
        for side, outputs in enumerate(((score.numpy(), heatmap.numpy()), exported(pixels))):
            scores[side, index] = outputs[0][0]
            maps[side].append(outputs[1][0])
        on_progress("evaluating", index + 1, len(samples))
    verdicts = None
    if calibration is not None:
        verdicts = int(np.logical_xor(*(scores > calibration.threshold)).sum())
    original, changed = (
        measure_raw(Raw(scores[side], np.stack(maps[side]), tuple(samples), config.input_size, 0.0, config.resize, {}))
        for side in (0, 1)
    )
    before, after = ({key: metrics[key] for key in _METRICS} for metrics in (original, changed))
    return MetricCost(len(samples), before, after, verdicts)
