"""What a detector says about one image: plain data."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Region:
    """A connected area of the heat map above the pixel threshold, in pixels of the input image."""

    box: tuple[int, int, int, int]
    """(left, top, right, bottom); right and bottom are exclusive."""
    area: int
    peak: float
    mean: float


@dataclass(frozen=True)
class Prediction:
    """Score, verdict and evidence for one image."""

    score: float
    """Mean residual of the most anomalous patches: raw scale, comparable between images of one model."""
    heatmap: NDArray[np.float32] = field(repr=False)
    """[height, width] of the input image, in the units of the patch residual."""
    is_anomalous: bool | None
    """``score > threshold``; None where the model has none (fitted on too few images to calibrate)."""
    threshold: float | None
    """Image score above which a part is called anomalous."""
    p_value: float | None
    """Conformal p-value: share of good images at least as strange as this one, counting it among them."""
    regions: tuple[Region, ...] = ()
    """Areas above the pixel threshold, strongest first."""
    source: str | None = None
    """Path of the image, where it had one."""

    def to_dict(self) -> dict[str, Any]:
        """Everything but the heat map, JSON-ready."""
        return {
            "source": self.source,
            "score": self.score,
            "is_anomalous": self.is_anomalous,
            "threshold": self.threshold,
            "p_value": self.p_value,
            "regions": [
                {"box": list(region.box), "area": region.area, "peak": region.peak, "mean": region.mean}
                for region in self.regions
            ],
        }
