"""Compare an exported model with the detector: both score the same images."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from procon.arrays import Floats
from procon.demo.defects import PART_KINDS
from procon.demo.parts import render_part
from procon.detector import Detector
from procon.errors import ImageError
from procon.model.lessons import lesson_pixels
from procon.vision.framing import to_input
from procon.vision.images import ImageLike, Picture, open_each, open_image

ScorePixels = Callable[[Floats], tuple[Floats, Floats]]
"""Preprocessed images [N, 3, H, W] to image scores [N] and maps [N, H, W]."""

MAX_CHECK_IMAGES = 4  # training images that are compared unless a folder is given

# Largest difference of a score and of a map pixel, as shares of the median score of the images.
# Scores of fp32 agree to six digits; in its maps a patch here and there takes another of two neighbours equally far.
TOLERANCE = {"fp32": (0.001, 0.01), "fp16": (0.01, 0.05), "int8": (0.05, 0.4)}


class CheckImages(NamedTuple):
    """The images that both models score."""

    pictures: tuple[Picture, ...]
    origin: str  # where they come from, in words
    real: bool  # photographs of the parts, not rendered


@dataclass(frozen=True)
class Difference:
    """The differences between two models on the same images."""

    images: int
    score: float  # largest difference of an image score
    map: float  # largest difference of a pixel of the maps, at the size of the backbone's input
    score_shift: float  # mean of exported minus original score, which the threshold does not follow
    scale: float  # median score of the images: what differences are compared with
    verdicts: int | None  # images whose verdict changes; None without a threshold

    @property
    def score_share(self) -> float:
        """The difference of scores as a share of the median score."""
        return self.score / self.scale

    @property
    def map_share(self) -> float:
        """The difference of maps as a share of the median score."""
        return self.map / self.scale

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {**asdict(self), "score_share": self.score_share, "map_share": self.map_share}


def check_images(detector: Detector, images: Sequence[ImageLike] | None) -> CheckImages:
    """These ``images``; else training images that can still be read; else rendered parts.

    Training images score low, so each is also shown with a square of it turned negative.
    """
    if images is not None:
        pictures = []
        for picture in open_each(images):
            if isinstance(picture, ImageError):
                raise picture
            pictures.append(picture)
        if not pictures:
            raise ImageError("at least one image is needed to compare the models, got none")
        return CheckImages(tuple(pictures), f"{len(pictures)} given images", True)
    pictures = training_pictures(detector, MAX_CHECK_IMAGES)
    if pictures:
        origin = f"{len(pictures)} training images, and the same with a square turned negative"
        taught = [Picture(lesson_pixels(lesson)) for lesson in detector.model.lessons]
        if taught:
            origin += f", and {len(taught)} marked defects"
        return CheckImages((*pictures, *map(with_defect, pictures), *taught), origin, True)
    rendered = tuple(open_image(render_part(kind, 0, 224).image) for kind in PART_KINDS)
    return CheckImages(
        rendered, f"{len(rendered)} rendered parts, because the training images are no longer there", False
    )


def training_pictures(detector: Detector, most: int) -> list[Picture]:
    """Training images that can still be read: up to ``most``, spread over all of them."""
    images = detector.model.memory.images
    chosen = [images[round(place)] for place in np.linspace(0, len(images) - 1, min(most, len(images)))]
    sources = detector.sources.find(chosen)
    pictures = open_each(source for source in sources if not isinstance(source, ImageError))
    return [picture for picture in pictures if isinstance(picture, Picture)]


def with_defect(picture: Picture) -> Picture:
    """The picture with the middle of its upper left quarter turned negative: an obvious defect."""
    height, width = picture.size
    pixels = picture.pixels.copy()
    area = (slice(height // 4, height * 3 // 8), slice(width // 4, width * 3 // 8))
    pixels[area] = (255 if pixels.dtype == np.uint8 else 1) - pixels[area]
    return Picture(pixels, picture.source)


def to_inputs(detector: Detector, pictures: Sequence[Picture]) -> Floats:
    """Pictures as the input of the backbone: [N, 3, H, W]."""
    return np.stack([to_input(picture, detector.config) for picture in pictures])


def compare_models(detector: Detector, exported: ScorePixels, pixels: Floats) -> Difference:
    """Score ``pixels`` with both models: one image at a time, and the first two together, which must give the same."""
    originals = [detector.scorer.measure_pixels(torch.from_numpy(image[None])) for image in pixels]
    scores = np.array([float(score) for score, *_ in originals])
    maps = [heatmap[0].numpy() for _, heatmap, _ in originals]
    singles = [exported(image[None]) for image in pixels]
    exported_scores = np.array([float(score[0]) for score, _ in singles])
    batch_scores, batch_maps = exported(pixels[:2])
    score_difference = max(
        np.abs(exported_scores - scores).max(), np.abs(batch_scores - scores[: len(batch_scores)]).max()
    )
    exported_maps = [heatmap[0] for _, heatmap in singles]
    pairs = [*zip(exported_maps, maps, strict=True), *zip(batch_maps, maps, strict=False)]
    calibration, verdicts = detector.calibration, None
    if calibration is not None:
        verdicts = int(((scores > calibration.threshold) != (exported_scores > calibration.threshold)).sum())
    return Difference(
        len(pixels),
        float(score_difference),
        max(float(np.abs(changed - original).max()) for changed, original in pairs),
        float((exported_scores - scores).mean()),
        float(np.median(scores)),
        verdicts,
    )
