"""Drift: whether new images still look like the good ones that a model was calibrated on. Cameras and lamps age.

The test compares the median patch scores of images, not the image scores. A new lamp changes every patch; a defect
changes a few, and hardly moves the median. Parts called anomalous are left out, because a defect that covers the whole
part would move it. So real defects in a folder do not look like drift. The Mann-Whitney test assumes no distribution.
With many images it also detects shifts too small to matter, so drift is reported only where the shift is large as well.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from procon.arrays import AnyFloats

LEAST = 20  # images on either side; fewer would show only obvious shifts
LEVEL = 0.01  # p-value below which a shift is significant
SIZE = 0.15  # how far the probability that a new image exceeds a calibration image must be from one half


@dataclass(frozen=True)
class Drift:
    """Median patch scores of new parts called good, compared with those of the calibration."""

    images: int  # new images compared
    left_out: int  # new images called anomalous
    calibration: int  # images of the calibration
    p_value: float | None = None  # of the two-sided Mann-Whitney U test; None where there are too few images
    exceeding: float | None = None  # probability that a new image exceeds one of the calibration; 0.5 without drift
    shift: float | None = None  # difference of the medians, in robust standard deviations of the calibration

    @property
    def drifted(self) -> bool | None:
        """Whether new images differ from the calibration; None where there are too few to say."""
        if self.p_value is None or self.exceeding is None:
            return None
        return self.p_value < LEVEL and abs(self.exceeding - 0.5) > SIZE

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {"drifted": self.drifted, "test": "Mann-Whitney U, two-sided", **asdict(self)}

    def describe(self) -> str:
        """The result in one sentence."""
        if self.p_value is None or self.exceeding is None or self.shift is None:
            total, hint = self.images + self.left_out, ""
            few = f"{self.images} new parts called good"
            if self.images >= LEAST:
                few = f"{self.calibration} calibration images"
            elif total >= LEAST:
                hint = f"; {self.left_out} of {total} were called anomalous: if they are not, the line has changed"
            return f"drift: too few to tell, {few} where {LEAST} are needed{hint}"
        numbers = (
            f"a new part called good exceeds a calibration image with probability {self.exceeding:.2f}, "
            f"shift {self.shift:+.1f} spreads, Mann-Whitney p = {self.p_value:.2g}, {self.images} parts"
        )
        if not self.drifted:
            return f"drift: none found ({numbers})"
        return (
            f"DRIFT: new images have left the calibration ({numbers}). Has the light, the camera or the part changed? "
            "Look at the highest scores first. If these parts are good, scores and threshold no longer mean the same: "
            "add new good parts (procon add) or calibrate on them (procon threshold --calibrate)"
        )


def measure_drift(medians: Sequence[float], calibration: Sequence[float], left_out: int = 0) -> Drift:
    """Compare the median patch scores of new parts called good with those of the calibration."""
    counts = len(medians), left_out, len(calibration)
    if min(len(medians), len(calibration)) < LEAST:
        return Drift(*counts)
    new, old = np.asarray(medians), np.asarray(calibration)
    statistic, p_value = mann_whitney(new, old)
    middle = float(np.median(old))
    # Identical images have no spread; the shift is then in units of the score itself.
    spread = 1.4826 * float(np.median(np.abs(old - middle))) or float(old.std()) or 1.0
    return Drift(*counts, p_value, statistic / (len(new) * len(old)), (float(np.median(new)) - middle) / spread)


def mann_whitney(new: AnyFloats, old: AnyFloats) -> tuple[float, float]:
    """U of ``new`` against ``old`` and the two-sided p-value: the normal approximation, corrected for ties."""
    values, inverse, counts = np.unique(np.concatenate([new, old]), return_inverse=True, return_counts=True)
    ranks = (counts.cumsum() - (counts - 1) / 2)[inverse]
    n, m, total = len(new), len(old), len(new) + len(old)
    statistic = float(ranks[:n].sum() - n * (n + 1) / 2)
    ties = float((counts**3 - counts).sum()) / (total * (total - 1))
    deviation = math.sqrt(n * m / 12 * (total + 1 - ties))
    if len(values) == 1:
        return statistic, 1.0
    distance = max(abs(statistic - n * m / 2) - 0.5, 0.0) / deviation  # 0.5: continuity
    return statistic, min(1.0, math.erfc(distance / math.sqrt(2)))
