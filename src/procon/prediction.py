"""What a detector says about one image, and why: plain data."""

from dataclasses import asdict, dataclass, field, replace
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
    level: float = 0.0
    """Heat-map value that all its pixels exceed: the pixel threshold, or less where a part was called anomalous by its
    score while no pixel reached the threshold. That part has one region, around the peak of its map."""

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "box": list(self.box),
            "area": self.area,
            "peak": self.peak,
            "mean": self.mean,
            "level": self.level,
        }


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
    pixel_threshold: float | None = None
    """Heat-map value above which a pixel belongs to a region."""
    median_patch_score: float | None = None
    """Median patch score of this image: defects hardly move it, light and camera do."""

    def to_dict(self) -> dict[str, Any]:
        """Everything but the heat map, JSON-ready."""
        return {
            "source": self.source,
            "score": self.score,
            "is_anomalous": self.is_anomalous,
            "threshold": self.threshold,
            "p_value": self.p_value,
            "pixel_threshold": self.pixel_threshold,
            "median_patch_score": self.median_patch_score,
            "regions": [region.to_dict() for region in self.regions],
        }


@dataclass(frozen=True)
class Anchor:
    """A normal patch that a patch was compared with: one of the nearest in one bank of one layer."""

    image: str
    """Name of the training image it came from."""
    number: int
    """Position of that image in the memory."""
    box: tuple[int, int, int, int]
    """(left, top, right, bottom) in pixels of that image; right and bottom are exclusive."""
    bank: int
    """1 to B."""
    weight: float
    """Its share in the projection; the weights of a bank sum to 1."""
    distance: float
    """From the patch, in the space of the layer."""


@dataclass(frozen=True)
class LayerEvidence:
    """What one layer has to say about a patch."""

    blocks: tuple[int, ...]
    """The blocks it reads, as ``Config.layers`` names them: one, or all of them where they are joined."""
    residual: float
    """S_l: the median over the banks of what their anchors leave unexplained."""
    residuals: tuple[float, ...]
    """The same for each bank."""
    contribution: float
    """Its part in the score of the patch; the contributions of all layers sum to it."""
    anchors: tuple[Anchor, ...]
    """The nearest anchors of every bank, by bank, nearest first."""


@dataclass(frozen=True)
class NormalPatch:
    """A patch of a training image with its weight over all layers and banks."""

    image: str
    number: int
    box: tuple[int, int, int, int]
    weight: float
    """Mean over all layers and banks of its weight in each (0 where it was not among the nearest)."""
    distance: float
    """Mean distance in the layers and banks where it was."""


@dataclass(frozen=True)
class Explanation:
    """Why a patch has the score it has: the normal patches that it was compared with."""

    source: str | None
    """Path of the image, where it had one."""
    xy: tuple[int, int]
    """The pixel that was asked about."""
    patch: tuple[int, int]
    """(row, column) of the patch around it."""
    box: tuple[int, int, int, int]
    """(left, top, right, bottom) of the patch in pixels of the image; right and bottom are exclusive."""
    score: float
    """S_map of the patch, before the heat map is blurred."""
    layers: tuple[LayerEvidence, ...]
    prediction: Prediction | None = field(default=None, repr=False, compare=False)
    """Score, verdict and heat map of the whole image, from the same reading."""

    def normal_patches(self, count: int = 5) -> tuple[NormalPatch, ...]:
        """The training patches with the most weight, averaged over all layers and banks, heaviest first."""
        readings = sum(len(layer.residuals) for layer in self.layers)
        found: dict[tuple[int, tuple[int, int, int, int]], list[Anchor]] = {}
        for anchor in (anchor for layer in self.layers for anchor in layer.anchors):
            found.setdefault((anchor.number, anchor.box), []).append(anchor)
        patches = [
            NormalPatch(
                same[0].image,
                number,
                box,
                sum(anchor.weight for anchor in same) / readings,
                sum(anchor.distance for anchor in same) / len(same),
            )
            for (number, box), same in found.items()
        ]
        return tuple(
            sorted(patches, key=lambda patch: (-patch.weight, patch.distance, patch.number, patch.box))[:count]
        )

    def to_dict(self) -> dict[str, Any]:
        """Everything, JSON-ready."""
        plain = asdict(replace(self, prediction=None))
        del plain["prediction"]
        return {**plain, "normal_patches": [asdict(patch) for patch in self.normal_patches()]}
