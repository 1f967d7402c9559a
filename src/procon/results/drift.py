"""Whether new images still look like the good ones a model was calibrated on: cameras and lamps age.

What is compared is the median patch score of an image, not its score. A new lamp changes every patch; a defect changes
a few, and the median of a part hardly moves. Parts called anomalous are left out, because a defect that covers the
whole part would move it. So real defects in a folder do not look like drift. The test is that of Mann and Whitney,
which asks for no distribution. With many images it also finds differences too small to matter, so drift is reported
only where the shift is of some size as well.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

LEAST = 20  # images on either side; fewer show only shifts that anybody sees
LEVEL = 0.01  # p-value below which a shift is no accident
SIZE = 0.15  # how far the probability that a new image exceeds a calibration image must be from one half


@dataclass(frozen=True)
class Drift:
    """Median patch scores of new parts called good, beside those of the calibration."""

    images: int
    """New images compared."""
    left_out: int
    """New images called anomalous."""
    calibration: int
    """Images of the calibration."""
    p_value: float | None = None
    """Of the two-sided Mann-Whitney U test; None where there are too few images."""
    exceeding: float | None = None
    """Probability that a new image exceeds one of the calibration; one half where nothing has changed."""
    shift: float | None = None
    """Difference of the medians, in robust standard deviations (1.4826 MAD) of the calibration."""

    @property
    def drifted(self) -> bool | None:
        """Whether new images have left the calibration; None where there are too few to say."""
        if self.p_value is None or self.exceeding is None:
            return None
        return self.p_value < LEVEL and abs(self.exceeding - 0.5) > SIZE

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {"drifted": self.drifted, "test": "Mann-Whitney U, two-sided", **asdict(self)}

    def describe(self) -> str:
        """What was found, in a sentence for people."""
        if self.p_value is None or self.exceeding is None or self.shift is None:
            total, hint = self.images + self.left_out, ""
            few = f"{self.images} new parts called good"
            if self.images >= LEAST:
                few = f"{self.calibration} calibration images"
            elif total >= LEAST:
                hint = f"; {self.left_out} of {total} were called anomalous: if they are not, the line has changed"
            return f"drift: too few to tell, {few} where {LEAST} are needed{hint}"
        found = (
            f"a new part called good exceeds a calibration image with probability {self.exceeding:.2f}, "
            f"shift {self.shift:+.1f} spreads, Mann-Whitney p = {self.p_value:.2g}, {self.images} parts"
        )
        if not self.drifted:
            return f"drift: none found ({found})"
        return (
            f"DRIFT: new images have left the calibration ({found}). Has the light, the camera or the part changed? "
            "Scores and threshold no longer mean the same: add new good parts (procon add) or calibrate on them "
            "(procon threshold --calibrate)"
        )


def measure_drift(medians: Sequence[float], calibration: Sequence[float], left_out: int = 0) -> Drift:
    """Compare the median patch scores of new parts called good with those of the calibration."""
    counts = len(medians), left_out, len(calibration)
    if min(len(medians), len(calibration)) < LEAST:
        return Drift(*counts)
    new, known = np.asarray(medians), np.asarray(calibration)
    statistic, p_value = mann_whitney(new, known)
    middle = float(np.median(known))
    # Identical images have no spread; the shift is then in units of the score itself.
    spread = 1.4826 * float(np.median(np.abs(known - middle))) or float(known.std()) or 1.0
    shift = (float(np.median(new)) - middle) / spread
    return Drift(*counts, p_value, statistic / (len(new) * len(known)), shift)


def mann_whitney(new: Floats, old: Floats) -> tuple[float, float]:
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
