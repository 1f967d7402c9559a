"""Raw results of one variant on one category: scores and maps, and the metrics that follow from them."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from procon.arrays import AnyFloats, Bools, Floats, Reals
from procon.config import Config
from procon.evaluation.data.datasets import Sample, read_mask
from procon.evaluation.data.layouts import with_pixels
from procon.evaluation.metrics import IMAGE_KEYS, PIXEL_KEYS, MetricValues, evaluate
from procon.method.maps import pixel_map
from procon.model.calibration import Calibration, GoodScore
from procon.vision.framing import crop_origin

_MAPS_IN_RAM = 2**29  # bytes of pixel maps; more are computed again each time they are read


@dataclass(frozen=True)
class Raw:
    """Scores and maps of one variant on one category, as stored."""

    scores: AnyFloats  # [N]
    maps: Floats  # [N, rows, columns]: patch scores, or pixel scores of a system without patches
    samples: tuple[Sample, ...]
    size: tuple[int, int]  # (height, width) of the pixel maps
    blur_sigma: float
    resize: int | None
    about: dict[str, Any]  # everything else that was recorded: the Config, times, the system's name
    good: Reals | None = None  # [T, 3]: GoodScore of each training image; [0, 3]: too few; None: not computed

    @property
    def labels(self) -> list[bool]:
        """Whether each image is defective."""
        return [sample.defective for sample in self.samples]

    def calibrate(self, config: Config) -> Calibration | None:
        """The threshold of the model at the rate and by the rule of ``config``; None where it is unknown."""
        if self.good is None or not len(self.good):
            return None
        scores = [GoodScore(*row) for row in self.good.tolist()]
        calibration = Calibration.of(scores, config.false_alarm_rate, config.threshold_rule)
        return calibration if len(scores) > 1 else replace(calibration, kind="mirrored")

    def pixel_map(self, index: int) -> Floats:
        """The map of one image in pixels of the input, [height, width]."""
        stored: Floats = self.maps[index]
        if stored.shape == self.size:
            return stored
        pixels: Floats = pixel_map(torch.from_numpy(stored).unsqueeze(0), self.size, self.blur_sigma)[0].numpy()
        return pixels

    def mask(self, index: int) -> Bools | None:
        """Ground truth of one image at the size of its map; None for a good image."""
        path = self.samples[index].mask
        if path is None:
            return None
        if self.resize is None:
            return read_mask(path, self.size)
        top, left = crop_origin(self.size, self.resize)
        whole = read_mask(path, (self.resize, self.resize))
        return whole[top : top + self.size[0], left : left + self.size[1]]

    def load_pixels(self) -> tuple[list[int], Iterable[Floats], Iterator[Bools | None]]:
        """The images with ground truth per pixel, their maps, and their masks, which can be read once (None: good)."""
        images = with_pixels(self.samples)
        maps: Iterable[Floats] = LazyMaps(self.pixel_map, images)
        if 4 * len(images) * self.size[0] * self.size[1] <= _MAPS_IN_RAM:
            maps = list(maps)
        return images, maps, map(self.mask, images)


@dataclass(frozen=True)
class LazyMaps:
    """The pixel maps of some images, made again in every pass over them."""

    make_map: Callable[[int], Floats]
    images: Sequence[int]

    def __iter__(self) -> Iterator[Floats]:
        return map(self.make_map, self.images)


def measure_raw(raw: Raw) -> MetricValues:
    """All metrics of raw results; images whose defect has no mask count for the image metrics alone."""
    return measure_masked(raw.scores, np.array(raw.labels), *raw.load_pixels())


def measure_masked(
    scores: AnyFloats, labels: Bools, images: Sequence[int], maps: Iterable[Floats], masks: Iterable[Bools | None]
) -> MetricValues:
    """All metrics of ``scores`` [N] and ``labels`` [N], of which only some ``images`` have ``maps`` and ``masks``."""
    image = evaluate(scores, labels)
    pixel = evaluate(scores[images], labels[images], maps, masks)
    sources = dict.fromkeys(IMAGE_KEYS, image) | dict.fromkeys(PIXEL_KEYS, pixel)
    reasons = {key: source.reasons[key] for key, source in sources.items() if key in source.reasons}
    return MetricValues({key: source[key] for key, source in sources.items()}, reasons)
