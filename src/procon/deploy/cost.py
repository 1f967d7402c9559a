"""What an export costs in the metrics, on labelled images."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from procon.deploy.parity import Score
from procon.detector import Detector
from procon.errors import ConfigError, ImageError
from procon.evaluation.data.datasets import Sample, open_dataset, read_mask
from procon.evaluation.metrics import evaluate
from procon.progress import Progress
from procon.vision.images import open_each, to_input

KEYS = ("i_auroc", "i_ap", "p_auroc", "p_ap", "aupro")


@dataclass(frozen=True)
class Cost:
    """Metrics of the detector and of its export on the same test images."""

    images: int
    original: dict[str, float]
    """Fractions by name; NaN where a metric is undefined."""
    exported: dict[str, float]
    verdicts: int | None
    """How many images change sides of the threshold; None without one."""

    def table(self) -> str:
        """For people."""
        lines = [f"{f'{self.images} test images':<18}  {'original':>8}  {'exported':>8}  {'change':>7}"]
        for key in self.original:
            before, after = 100 * self.original[key], 100 * self.exported[key]
            lines.append(f"{key:<18}  {before:8.2f}  {after:8.2f}  {after - before:+7.2f}")
        if self.verdicts is not None:
            lines.append(f"{self.verdicts} of {self.images} verdicts changed")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready: None where a metric is undefined."""

        def known(values: dict[str, float]) -> dict[str, float | None]:
            return {key: None if np.isnan(value) else value for key, value in values.items()}

        return {
            "images": self.images,
            "original": known(self.original),
            "exported": known(self.exported),
            "verdicts": self.verdicts,
        }


def labelled_samples(folder: Path) -> tuple[Sample, ...]:
    """The test images of a labelled folder, which must be one category."""
    dataset = open_dataset(folder)
    if len(dataset.categories) != 1:
        raise ConfigError(f"--evaluate must be the folder of one category, got {folder} with {len(dataset.categories)}")
    samples = dataset.category(dataset.categories[0]).test
    if not samples:
        raise ImageError(f"{folder}: has no test images; a model is evaluated on test/<kind> or bad/")
    return samples


def measure_cost(
    detector: Detector, exported: Score, samples: Sequence[Sample], progress: Progress | None = None
) -> Cost:
    """Score ``samples`` with both models and evaluate both."""
    import torch

    config, known = detector.config, detector.calibration
    scores: list[tuple[float, float]] = []
    maps: list[tuple[Any, Any]] = []
    masks = []
    for index, picture in enumerate(open_each([sample.path for sample in samples])):
        if isinstance(picture, ImageError):
            raise picture
        pixels = to_input(picture, config.input_size, config.resize)[None]
        here, here_map, _ = detector.scorer.measure_pixels(torch.from_numpy(pixels))
        there, there_map = exported(pixels)
        scores.append((float(here[0]), float(there[0])))
        maps.append((here_map[0].numpy(), there_map[0]))
        mask = samples[index].mask
        masks.append(None if mask is None else read_mask(mask, config.input_size))
        if progress is not None:
            progress("evaluating", index + 1, len(samples))
    labels = [sample.defective for sample in samples]
    # With a crop, masks of the whole image do not lie on the map; a defect without a mask has no pixels to count.
    pixelwise = config.resize is None and all(m is not None or not bad for m, bad in zip(masks, labels, strict=True))
    results = []
    for side in (0, 1):
        own = [pair[side] for pair in maps] if pixelwise else None
        found = evaluate([pair[side] for pair in scores], labels, own, masks if pixelwise else None)
        results.append({key: float(found[key]) for key in KEYS if key in found})
    changed = None
    if known is not None:
        changed = sum((a > known.threshold) != (b > known.threshold) for a, b in scores)
    return Cost(len(samples), results[0], results[1], changed)
