"""Verdicts on test images and regions at the threshold of the model: defects found, defects missed, false alarms.

The threshold comes from training images alone. The best F1 that labels could choose is a metric: it says how well
scores separate, not how many mistakes to expect in production.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy import ndimage

from procon.arrays import AnyFloats, Bools, Floats
from procon.errors import ImageError
from procon.evaluation.data.datasets import Sample
from procon.evaluation.metrics import MetricValues
from procon.evaluation.metrics.pixels import TOUCHING
from procon.evaluation.runs.raw import Raw
from procon.evaluation.runs.run import Run
from procon.model.calibration import Calibration

BEST_F1 = "best F1 that labels could choose"


class KindTally(NamedTuple):
    """The test images of one kind, and how many of them the threshold flags."""

    kind: str
    images: int
    flagged: int

    @property
    def missed(self) -> int:
        """Images of a defective kind that the threshold does not flag."""
        return self.images - self.flagged


class PixelTally(NamedTuple):
    """The pixels of the heat maps above the pixel threshold, compared with the masks."""

    regions: int  # 8-connected regions of all masks
    hit: int  # regions of which at least one pixel lies above the pixel threshold
    f1: float  # of pixels


@dataclass(frozen=True)
class ImageVerdicts:
    """The verdicts at the threshold of the model on the test images of one category."""

    calibration: Calibration
    flagged: Bools  # [N] images whose score exceeds the threshold
    defects: tuple[KindTally, ...]  # of each kind of defect, in the order of the test images
    good: KindTally  # flagged good images are false alarms
    pixels: PixelTally | None  # None where no mask can be read

    @property
    def found(self) -> int:
        """Defective images above the threshold."""
        return sum(tally.flagged for tally in self.defects)

    @property
    def defective(self) -> int:
        """Defective images."""
        return sum(tally.images for tally in self.defects)

    @property
    def f1(self) -> float:
        """F1 of the images at the threshold; NaN where none is defective."""
        selected = self.found + self.good.flagged + self.defective
        return 2 * self.found / selected if self.defective else float("nan")


def judge_images(
    calibration: Calibration | None,
    scores: AnyFloats,
    samples: Sequence[Sample],
    maps: Iterable[Floats] = (),
    masks: Iterable[Bools | None] = (),
) -> ImageVerdicts | None:
    """Verdicts on images with ``scores`` [N]; None where the threshold is unknown.

    ``maps`` and ``masks`` are those of the images whose defective pixels are known.
    """
    if calibration is None:
        return None
    flagged = scores.astype(np.float64) > calibration.threshold
    defective = np.array([sample.defective for sample in samples])
    kinds = np.array([sample.kind for sample in samples])

    def tally(kind: str, chosen: Bools) -> KindTally:
        return KindTally(kind, int(chosen.sum()), int(flagged[chosen].sum()))

    names = dict.fromkeys(sample.kind for sample in samples if sample.defective)
    defects = tuple(tally(name, defective & (kinds == name)) for name in names)
    pixels = tally_pixels(maps, masks, calibration.pixel_threshold)
    return ImageVerdicts(calibration, flagged, defects, tally("good", ~defective), pixels)


def tally_pixels(maps: Iterable[Floats], masks: Iterable[Bools | None], threshold: float) -> PixelTally | None:
    """Regions hit and F1 of pixels at a ``threshold``; None where no mask marks a pixel."""
    regions = hit = marked = above = both = 0
    for values, mask in zip(maps, masks, strict=True):
        over = values > threshold
        above += int(over.sum())
        if mask is not None:
            labels, count = ndimage.label(mask, TOUCHING)
            regions += count
            hit += len(np.unique(labels[over & mask]))
            marked += int(mask.sum())
            both += int((over & mask).sum())
    return PixelTally(regions, hit, 2 * both / (above + marked)) if marked else None


def explain_unknown(run: Run, raw: Raw) -> str:
    """Why the threshold of a variant is unknown, and how to get it."""
    if raw.good is not None:
        return (
            "threshold unknown: each training image is scored without its own anchors, and a bank then has fewer than "
            "num_neighbors; use more training images or a higher coreset_ratio"
        )
    if raw.about.get("system", "procon") != "procon":
        return f"threshold unknown: {raw.about['system']} stored no scores of its training images"
    return (
        "threshold unknown: the scores of the training images are not stored; repeat the command of this run with "
        f"--verdicts and -o {run.folder.name} (procon eval always stores them)"
    )


def describe_verdicts(run: Run, category: str, variant: str) -> list[str]:
    """The threshold in force, a line for each kind of defect, the false alarms, and the regions, for a terminal."""
    raw = run.load(category, variant)
    scored = raw.calibrate(run.base), raw.scores, raw.samples
    try:
        verdicts = judge_images(*scored, *raw.load_pixels()[1:])
    except ImageError:  # a mask cannot be read
        verdicts = judge_images(*scored)
    if verdicts is None:
        return [f"{category}: {explain_unknown(run, raw)}"]
    lines = describe_tallies(verdicts, run.measure(category, variant), raw.about.get("training", ()))
    return [f"{category}: {lines[0]}", *(f"  {line}" for line in lines[1:])]


def describe_tallies(verdicts: ImageVerdicts, metrics: MetricValues, names: Sequence[str] = ()) -> list[str]:
    """The threshold, a line for each kind of defect, the false alarms, and the regions.

    ``names`` are those of the training images.
    """
    about = verdicts.calibration.describe(names)
    width = max(len(tally.kind) for tally in (*verdicts.defects, verdicts.good, KindTally("regions", 0, 0)))
    good = f"{verdicts.good.flagged} of {verdicts.good.images} flagged (false alarms)"
    lines = [
        *(
            f"{tally.kind:<{width}}  {tally.flagged} of {tally.images} found, {tally.missed} missed"
            for tally in verdicts.defects
        ),
        f"{'good':<{width}}  {good if verdicts.good.images else 'no test images, so false alarms are unknown'}",
        f"{'images':<{width}}  F1 {show_f1(verdicts.f1, metrics, 'i_f1')}",
    ]
    if verdicts.pixels is not None:
        lines += [
            f"{'regions':<{width}}  {verdicts.pixels.hit} of {verdicts.pixels.regions} hit above the pixel threshold "
            f"{verdicts.calibration.pixel_threshold:.4f}",
            f"{'pixels':<{width}}  F1 {show_f1(verdicts.pixels.f1, metrics, 'p_f1')}",
        ]
    return [*about, *lines]


def show_f1(f1: float, metrics: MetricValues, name: str) -> str:
    """An F1 at the threshold of the model in percent, with the best F1, which is the metric ``name``."""
    best = metrics[name]
    if np.isnan(best) or np.isnan(f1):
        return f"undefined: {metrics.reasons.get(name, 'no image is defective')}"
    return f"{100 * f1:.2f} ({BEST_F1}: {100 * best:.2f})"
