"""From images to predictions, for every kind of model: one implementation of predict and of the verdict.

A :class:`Scorer` measures prepared images; everything before and after that is written here, in numpy, so that an
exported model predicts in the same way on a machine without torch.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from procon.arrays import Floats
from procon.config import Config
from procon.errors import BatchError, ImageError
from procon.method.heatmap import HeatMap
from procon.prediction import GoodScale, Prediction
from procon.progress import Progress, no_progress
from procon.vision.folders import as_list, inspection_images, is_batch
from procon.vision.framing import frame_of
from procon.vision.images import AHEAD, ImageLike, ImageLikes, Picture, in_order, try_open


class CalibrationLike(Protocol):
    """The statistics of good images that a verdict needs."""

    @property
    def threshold(self) -> float:
        """Image score above which a part is called anomalous."""

    @property
    def pixel_threshold(self) -> float:
        """Heat-map value above which a pixel belongs to a region."""

    @property
    def scores(self) -> tuple[float, ...]:
        """The image scores of good images."""

    @property
    def typical(self) -> float:
        """Median patch score of good images: colourless on heat maps."""

    @property
    def usual_peak(self) -> float:
        """Heat-map value that few good images exceed: from here on heat maps are strongly coloured."""

    def p_value(self, score: float) -> float:
        """Share of good images that score at least as high."""

    def describe(self) -> list[str]:
        """What the threshold promises."""


class Measurement(NamedTuple):
    """What a model measured on one image."""

    score: float  # S_img
    input_map: Floats  # [H, W] of the backbone's input
    median: float  # median patch score


class Judging(Protocol):
    """What has settings and, where it is calibrated, a threshold."""

    @property
    def config(self) -> Config:
        """The settings."""

    @property
    def calibration(self) -> CalibrationLike | None:
        """The threshold, if there is one."""


class Scorer(Judging, Protocol):
    """What measures images: a fitted model with its backbone, or an exported one."""

    @property
    def group_size(self) -> int:
        """How many images are measured together."""

    @property
    def workers(self) -> int:
        """Threads that open, prepare and judge images."""

    def prepare(self, picture: Picture) -> Any:
        """The picture as the model's input [3, H, W]."""

    def measure(self, inputs: Sequence[Any], size: tuple[int, int]) -> list[Measurement]:
        """Measure prepared images that had one ``size`` (height, width); it matters with ``aspect="pad"`` only."""


class Predictor(Judging, Protocol):
    """What a user predicts with: a ``procon.Detector``, or a ``procon.deploy.Runtime``."""

    @property
    def scorer(self) -> Scorer:
        """What measures its images."""

    def describe(self) -> list[str]:
        """The model in a few lines for people."""

    def predict(self, images: ImageLikes) -> Any:
        """One image in, one prediction out; several in, a list out."""

    def predict_each(self, images: Iterable[ImageLike]) -> Iterator[Prediction | ImageError]:
        """Predictions one by one."""


def predict_images(scorer: Scorer, images: ImageLikes, on_progress: Progress = no_progress) -> Any:
    """Score one image (gives a :class:`Prediction`), or several (gives a list of them)."""
    several = is_batch(images)
    if several and isinstance(images, str | Path):
        items: list[ImageLike] = list(inspection_images(Path(images)))
    else:
        items = as_list(images)
    results: list[Prediction | ImageError] = []
    for item, result in zip(items, predict_each(scorer, items), strict=True):
        if isinstance(result, Prediction) and not isinstance(item, str | Path):
            results.append(replace(result, origin=item))
        else:
            results.append(result)
        on_progress("scoring", len(results), len(items))
    errors = {index: result for index, result in enumerate(results) if isinstance(result, ImageError)}
    if errors and several:
        raise BatchError(errors, [None if index in errors else result for index, result in enumerate(results)])
    if errors:
        raise errors[0]
    return results if several else results[0]


def predict_each(scorer: Scorer, images: Iterable[ImageLike]) -> Iterator[Prediction | ImageError]:
    """Predictions one by one, in order; an image that cannot be used yields its error and the rest goes on."""

    def measure(group: OpenedGroup) -> tuple[OpenedGroup, list[Measurement]]:
        pictures = [picture for picture, _ in group if isinstance(picture, Picture)]
        inputs = [pixels for _, pixels in group if pixels is not None]
        return group, scorer.measure(inputs, pictures[0].size) if pictures else []

    groups = opened_groups(images, scorer.prepare, scorer.group_size, scorer.workers)
    # Large groups are measured while the one before is judged and consumed.
    measured_groups = map(measure, groups) if scorer.group_size == 1 else in_order(measure, groups, workers=1, ahead=1)
    for group, measured in measured_groups:
        left = iter(measured)
        for picture, _ in group:
            yield picture if isinstance(picture, ImageError) else make_prediction(scorer, picture, next(left))


OpenedGroup = list[tuple[Picture | ImageError, Any]]
"""Images that are measured together, and what the scorer prepared of each; an error has nothing."""


def opened_groups(
    images: Iterable[ImageLike], prepare: Callable[[Picture], Any], size: int, workers: int
) -> Iterator[OpenedGroup]:
    """Images in groups of ``size``, opened and prepared by threads, in order; an error has no input."""

    def open_one(image: ImageLike) -> tuple[Picture | ImageError, Any]:
        picture = try_open(image)
        return picture, None if isinstance(picture, ImageError) else prepare(picture)

    if isinstance(images, Sequence) and len(images) == 1:  # threads cost more than they save
        yield [open_one(images[0])]
        return
    opened = in_order(open_one, images, workers, ahead=max(AHEAD, 2 * size if size > 1 else 0))
    while group := list(islice(opened, size)):
        yield group


def make_prediction(scorer: Scorer, picture: Picture, measured: Measurement) -> Prediction:
    """What was measured on one picture as a prediction: heat map at its size, verdict and regions."""
    heat = place_map(scorer.config, measured.input_map, picture.size)
    score, good = measured.score, scorer.calibration
    if good is None:
        return Prediction(score, heat, None, None, None, (), picture.source, None, measured.median)
    anomalous, scale = score > good.threshold, GoodScale(good.typical, good.usual_peak, good.scores)
    regions = heat.regions(good.pixel_threshold)
    if anomalous and not regions:
        regions = heat.peak_region(good.typical)
    verdict = anomalous, good.threshold, good.p_value(score)
    return Prediction(score, heat, *verdict, regions, picture.source, good.pixel_threshold, measured.median, scale)


def place_map(config: Config, input_map: Floats, size: tuple[int, int]) -> HeatMap:
    """The map of the backbone's input as the heat map of the user's image of ``size`` (height, width).

    What a centre crop cut off is 0; padding is removed.
    """
    frame = frame_of(config, size)
    (top, left), (height, width) = frame.origin, input_map.shape
    if min(top, left) < 0 or (height, width) != frame.scaled:
        canvas = np.zeros(frame.scaled, np.float32)
        visible = canvas[max(top, 0) : top + height, max(left, 0) : left + width]
        visible[:] = input_map[max(-top, 0) :, max(-left, 0) :][: visible.shape[0], : visible.shape[1]]
        input_map = canvas
    return HeatMap(input_map, size)
