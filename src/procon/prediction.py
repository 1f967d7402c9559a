"""What a detector says about one image, and why: plain data. Sizes and boxes are in pixels of the input image.

A prediction can show itself: :meth:`Prediction.plot` and its kin open the image again and leave the drawing to
:mod:`procon.showing.cards`, which is imported when one of them is called.
"""

from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from procon.arrays import Box, Bytes, Floats
from procon.method.heatmap import HeatMap
from procon.method.regions import Region
from procon.names import show_name

if TYPE_CHECKING:
    from PIL.Image import Image


@dataclass(frozen=True)
class GoodScale:
    """What a model measured on good images: the scale on which its predictions are shown."""

    typical: float  # median patch score: colourless on heat maps
    usual_peak: float  # heat-map value that few good images reach: strongly coloured
    scores: tuple[float, ...]  # image scores


@dataclass(frozen=True)
class Prediction:
    """Score, verdict and evidence for one image.

    In a notebook it is shown as a picture with its verdict. The decoded image is not kept: ``plot``, ``overlay`` and
    ``save`` read it again from its path. Of an image without a path, ``Detector.predict`` keeps a reference to the
    object that was passed, and ``predict_each`` keeps nothing; pass the image to the method then.
    """

    score: float  # mean residual of the most anomalous patches; comparable between images of one model
    heat: HeatMap | Floats = field(repr=False, compare=False)  # what :attr:`heatmap` is made from
    is_anomalous: bool | None  # score > threshold; None where the model has no threshold
    threshold: float | None  # of the score; None where the model was fitted on too few images to calibrate
    p_value: float | None  # conformal: share of good images, this one included, that score at least as high
    regions: tuple[Region, ...] = ()  # highest peak first
    source: str | None = None  # path of the image, where it had one
    pixel_threshold: float | None = None  # heat-map value above which a pixel belongs to a region
    median_patch_score: float | None = None  # of this image: moved by light and camera, hardly by a defect
    calibration: GoodScale | None = field(default=None, repr=False, compare=False)  # of the model, if it has one
    origin: Any = field(default=None, repr=False, compare=False)  # the object that was scored, where it has no path

    @cached_property
    def heatmap(self) -> Floats:
        """Float32 [height, width] of the input image, in the units of the patch residual; computed when asked for."""
        return self.heat.whole() if isinstance(self.heat, HeatMap) else self.heat

    @property
    def relative_score(self) -> float | None:
        """The score in units of its threshold, so that scores of different parts compare: above 1 is anomalous."""
        return self.score / self.threshold if self.threshold else None

    def to_dict(self) -> dict[str, Any]:
        """Everything but the heat map, JSON-ready; names are as ``procon.names.show_name`` gives them."""
        names = ("source", "score", "relative_score", "is_anomalous", "threshold", "p_value")
        return {
            **{name: getattr(self, name) for name in (*names, "pixel_threshold", "median_patch_score")},
            "source": self.source and show_name(self.source),
            "regions": [region.to_dict() for region in self.regions],
        }

    @property
    def image(self) -> Bytes:
        """The image that was scored, uint8 [height, width, 3]; decoded again at each access."""
        from procon.showing.cards import open_scored

        return open_scored(self)

    def overlay(self, image: Any = None) -> "Image":
        """The part under its heat map, regions outlined, as a PIL image of the size of the part.

        ``image`` is the image that was scored, where it cannot be opened again.
        """
        from procon.showing.cards import overlay_image

        return overlay_image(self, image)

    def plot(self, image: Any = None) -> Any:
        """The part, its heat map and its score among those of good images, as a matplotlib figure."""
        from procon.showing.cards import plot_prediction

        return plot_prediction(self, image)

    def save(self, path: str | Path, image: Any = None) -> Path:
        """Write one file, atomically: the overlay as a picture, all numbers as .json, or the heat map as .npy."""
        from procon.showing.cards import save_prediction

        return save_prediction(self, Path(path), image)

    def _repr_html_(self) -> str:
        from procon.showing.cards import prediction_html

        return prediction_html(self)


@dataclass(frozen=True)
class Anchor:
    """A normal patch that a patch was compared with: one of the nearest in one bank of one layer."""

    image: str  # name of the training image it came from
    number: int  # position of that image in the memory
    box: Box  # in pixels of that image
    bank: int  # 1 to B
    weight: float  # its share in the projection; the weights of a bank sum to 1
    distance: float  # from the patch, in the space of the layer


@dataclass(frozen=True)
class LayerEvidence:
    """The residual of a patch in one layer, and the anchors it comes from."""

    blocks: tuple[int, ...]  # as Config.layers names them: one, or all of them where they are joined
    residual: float  # S_l: the median over the banks
    residuals: tuple[float, ...]  # of each bank
    contribution: float  # its part in the score of the patch; the contributions of all layers sum to it
    anchors: tuple[Anchor, ...]  # by bank, nearest first


@dataclass(frozen=True)
class NormalPatch:
    """A patch of a training image with its weight over all layers and banks."""

    image: str
    number: int
    box: Box  # in pixels of that image
    weight: float  # mean over all layers and banks; 0 where the patch was not among the nearest
    distance: float  # mean over the layers and banks where the patch was among the nearest


@dataclass(frozen=True)
class LessonEvidence:
    """The defect anchor that raised the score of a patch: a patch that a person marked as a defect."""

    lesson: str  # name of the lesson
    image: str  # name of the image that it was marked in
    box: Box  # of the marked patch, in pixels of that image
    distance: float  # from the patch to the marked one
    normal_distance: float  # from the patch to the nearest normal anchors
    gain: float  # what the score of the patch was multiplied by

    def describe(self) -> str:
        """What decided, in a sentence for people."""
        return (
            f"{self.lesson} raised this score {self.gain:.2f} times: a marked defect of {show_name(self.image)} at "
            f"{self.box[0]}, {self.box[1]} is nearer (distance {self.distance:.4f}) than any normal patch "
            f"({self.normal_distance:.4f})"
        )


@dataclass(frozen=True)
class Explanation:
    """Why a patch has the score it has: the normal patches that it was compared with."""

    source: str | None  # path of the image, where it had one
    xy: tuple[int, int]  # the pixel to explain
    patch: tuple[int, int]  # (row, column) of the patch around that pixel
    box: Box  # of the patch
    score: float  # S_map of the patch, before a lesson raised it and before the heat map is blurred
    layers: tuple[LayerEvidence, ...]
    prediction: Prediction | None = field(default=None, repr=False, compare=False)  # of the whole image
    lesson: LessonEvidence | None = None  # what raised the score, where a marked defect explains the patch better

    def normal_patches(self, count: int = 5) -> tuple[NormalPatch, ...]:
        """The training patches with the most weight, averaged over all layers and banks, heaviest first."""
        banks = sum(len(layer.residuals) for layer in self.layers)
        anchors_at: dict[tuple[int, Box], list[Anchor]] = {}
        for anchor in (anchor for layer in self.layers for anchor in layer.anchors):
            anchors_at.setdefault((anchor.number, anchor.box), []).append(anchor)
        patches = []
        for (number, box), anchors in anchors_at.items():
            weight = sum(anchor.weight for anchor in anchors) / banks
            distance = sum(anchor.distance for anchor in anchors) / len(anchors)
            patches.append(NormalPatch(anchors[0].image, number, box, weight, distance))
        patches.sort(key=lambda patch: (-patch.weight, patch.distance, patch.number, patch.box))
        return tuple(patches[:count])

    def to_dict(self) -> dict[str, Any]:
        """Everything but the prediction, JSON-ready; names are as ``procon.names.show_name`` gives them."""
        plain = asdict(replace(self, prediction=None))
        del plain["prediction"]
        plain["normal_patches"] = [asdict(patch) for patch in self.normal_patches()]
        for entry in [*plain["normal_patches"], *(anchor for layer in plain["layers"] for anchor in layer["anchors"])]:
            entry["image"] = show_name(entry["image"])
        if self.lesson is not None:
            plain["lesson"]["image"] = show_name(self.lesson.image)
        return {**plain, "source": self.source and show_name(self.source)}
