"""Whether an exported model says what the detector says: both score the same images."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from procon.arrays import Floats
from procon.demo.parts import KINDS, render_part
from procon.detector import Detector
from procon.errors import ImageError
from procon.vision.images import ImageLike, Picture, open_each, open_image, to_input

Score = Callable[[Floats], tuple[Floats, Floats]]
"""Preprocessed images [N, 3, H, W] to image scores [N] and maps [N, H, W]."""

MOST = 4  # training images that are compared unless a folder is given
RANGES = 16  # training images that the ranges of int8 are taken from

# Largest difference of a score and of a map pixel, as shares of the median score of the images.
# Scores of fp32 agree to six digits; in its maps a patch here and there takes another of two neighbours equally far.
TOLERANCE = {"fp32": (0.001, 0.01), "fp16": (0.01, 0.05), "int8": (0.05, 0.4)}


@dataclass(frozen=True)
class Images:
    """What both models look at."""

    pictures: tuple[Picture, ...]
    origin: str
    """Where they come from, in words."""
    real: bool
    """Whether they are photographs of the parts, not rendered."""


@dataclass(frozen=True)
class Difference:
    """How far two models are apart on the same images."""

    images: int
    score: float
    """Largest difference of an image score."""
    map: float
    """Largest difference of a pixel of the maps, at the size of the backbone's input."""
    score_shift: float
    """Mean of score exported minus score original: what the threshold does not know of."""
    scale: float
    """Median score of the images: what differences are compared with."""
    verdicts: int | None
    """How many images change sides of the threshold; None without one."""

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


def check_images(detector: Detector, given: Sequence[ImageLike] | None) -> Images:
    """The images ``given``; else training images that are still there; else rendered parts.

    Training images score low, so each is also shown with a square of it turned negative.
    """
    if given is not None:
        pictures = []
        for picture in open_each(given):
            if isinstance(picture, ImageError):
                raise picture
            pictures.append(picture)
        if not pictures:
            raise ImageError("at least one image is needed to compare the models, got none")
        return Images(tuple(pictures), f"{len(pictures)} given images", True)
    found = training_pictures(detector, MOST)
    if found:
        origin = f"{len(found)} training images, and the same with a square turned negative"
        return Images((*found, *map(disturbed, found)), origin, True)
    rendered = [render_part(kind, 0, 224).image for kind in KINDS]
    origin = f"{len(rendered)} rendered parts, because the training images are no longer there"
    return Images(tuple(open_image(pixels) for pixels in rendered), origin, False)


def training_pictures(detector: Detector, most: int) -> list[Picture]:
    """Training images that are still there: up to ``most``, spread over all of them."""
    assert detector.memory is not None
    images = detector.memory.images
    chosen = [images[round(place)] for place in np.linspace(0, len(images) - 1, min(most, len(images)))]
    places = detector.sources.find(chosen)
    pictures = open_each(place for place in places if not isinstance(place, ImageError))
    return [picture for picture in pictures if isinstance(picture, Picture)]


def disturbed(picture: Picture) -> Picture:
    """The picture with the middle of its upper left quarter turned negative: a defect no one can miss."""
    height, width = picture.size
    pixels = picture.pixels.copy()
    area = (slice(height // 4, height * 3 // 8), slice(width // 4, width * 3 // 8))
    pixels[area] = (255 if pixels.dtype == np.uint8 else 1) - pixels[area]
    return Picture(pixels, picture.source)


def inputs(detector: Detector, pictures: Sequence[Picture]) -> Floats:
    """Pictures as the backbone sees them: [N, 3, H, W]."""
    config = detector.config
    return np.stack([to_input(picture, config.input_size, config.resize) for picture in pictures])


def compare(detector: Detector, exported: Score, pixels: Floats) -> Difference:
    """Score ``pixels`` with both; one image at a time, and once all together, which must not matter."""
    import torch

    reference = [detector.scorer.measure_pixels(torch.from_numpy(image[None]))[:2] for image in pixels]
    scores = np.array([float(score) for score, _ in reference])
    found = [exported(image[None]) for image in pixels]
    exported_scores = np.array([float(score[0]) for score, _ in found])
    map_difference = max(
        float(np.abs(there[0] - here[0].numpy()).max()) for (_, here), (_, there) in zip(reference, found, strict=True)
    )
    together = pixels[:2]
    batch_scores, batch_maps = exported(together)
    score_difference = float(np.abs(exported_scores - scores).max())
    for index in range(len(together)):
        score_difference = max(score_difference, abs(float(batch_scores[index]) - scores[index]))
        batched = float(np.abs(batch_maps[index] - reference[index][1][0].numpy()).max())
        map_difference = max(map_difference, batched)
    known = detector.calibration
    changed = None if known is None else int(((scores > known.threshold) != (exported_scores > known.threshold)).sum())
    return Difference(
        len(pixels),
        score_difference,
        map_difference,
        float((exported_scores - scores).mean()),
        float(np.median(scores)),
        changed,
    )
