"""From good images to a model: embed, select anchors, score every image as if the memory had been built without it."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from procon.config import Config
from procon.errors import ConfigError
from procon.method.consensus import lower_quartile, median
from procon.method.score import (
    LayerReading,
    Neighbors,
    Reading,
    fuse,
    layer_scales,
    levels_without_own,
    read_layers,
    search_layers,
)
from procon.method.stand_ins import StandIns, replace_own
from procon.model.calibration import Calibration, GoodScore
from procon.model.memory import LayerMemory, Memory
from procon.model.model import Model
from procon.model.reader import EmbeddedImage, Reader
from procon.model.selection import FeatureStore, build_layer, coreset_size
from procon.progress import Progress
from procon.vision.images import ImageLike, open_image
from procon.vision.scope import RoiLike, Scope, roi_mask

MIRROR_MARGIN = 1.12  # of one image, with memories of the default size; see docs/use/threshold.md
KEPT_BYTES = 2**30  # readings of training images up to this size are kept; beyond it the images are searched twice

Readings = list[tuple[Neighbors, ...] | None]
"""What each training image is near to without its own anchors; None where an image is not available.

They are whole readings where these were measured.
"""
EmbeddedImages = Callable[[], Iterable[EmbeddedImage | None]]
"""Goes through the embedded training images, in order; None where an image is not available."""


def needs_measuring(config: Config) -> list[str]:
    """The settings for which scores depend on how the memory reads good images."""
    needed = {
        "score_relative_to": config.score_relative_to == "anchors",
        "map_offset": config.map_offset > 0,
        "normalization": config.normalization == "train",
    }
    return [f"{name}={getattr(config, name)!r}" for name, is_needed in needed.items() if is_needed]


def fit_model(
    reader: Reader,
    items: Sequence[ImageLike],
    on_progress: Progress,
    *,
    skip_bad: bool = False,
    thumbnails: bool = False,
    roi: RoiLike | None = None,
) -> tuple[Model, list[ImageLike]]:
    """A model of good images, and which of ``items`` it was fitted on; ``roi`` is the region that counts in each."""
    config = reader.config
    with reader.opened(items, on_progress, skip_bad=skip_bad, thumbnails=thumbnails) as (store, good, images):
        mask = None if roi is None else roi_mask(roi, (image.size for image in images), config.input_size)
        store.counted = reader.selectable_rows(images, mask)
        if store.selectable < config.num_neighbors:
            raise ConfigError(
                f"num_neighbors must be at most the {store.selectable} patches of the training images, "
                f"got {config.num_neighbors}"
            )
        memory = Memory(tuple(_select_layers(reader, store, on_progress)), images, store.patches, mask)
        embedded = reader.stream(store, [image.size for image in images])
        memory, calibration = calibrate_memory(reader, memory, embedded, good, on_progress)
    return Model(config, memory, None, (), reader.extractor.backbone.identity()).calibrated(calibration), good


def calibrate_memory(
    reader: Reader, memory: Memory, images: EmbeddedImages, items: Sequence[ImageLike], on_progress: Progress
) -> tuple[Memory, Calibration | None]:
    """The memory measured on its own images, and the threshold that follows; None where the images are too few.

    ``items`` are the same images, not embedded: a single one is scored by its mirror image.
    """
    config = reader.config
    memory, scores = leave_one_out(reader, memory, images, on_progress)
    if scores:
        return memory, Calibration.of(scores, config.false_alarm_rate, config.threshold_rule)
    if len(items) > 1:
        return memory, None
    score = _score_mirrored(reader, memory, items[0])
    mirrored = Calibration.of([score], config.false_alarm_rate, config.threshold_rule)
    return memory, replace(mirrored, kind="mirrored")


def _score_mirrored(reader: Reader, memory: Memory, item: ImageLike) -> GoodScore:
    """A stand-in for the score of a good part where there is one image: that of its mirror image, and a margin."""
    picture = open_image(item)
    mirrored = replace(picture, pixels=np.ascontiguousarray(picture.pixels[:, ::-1]))
    features = reader.extractor.features(reader.extractor.prepare(mirrored).unsqueeze(0))
    scope = reader.scope(picture.size, memory.roi)
    (score,) = reader.good_scores(reader.score_features(features, picture.size, memory), scope)
    return GoodScore(MIRROR_MARGIN * score.score, MIRROR_MARGIN * score.peak, score.median)


def _select_layers(reader: Reader, store: FeatureStore, on_progress: Progress) -> Iterator[LayerMemory]:
    """B seed-perturbed k-center banks per layer."""
    config, seeds = reader.config, reader.config.bank_seeds
    size = coreset_size(store.selectable, config.coreset_ratio, config.num_neighbors, config.max_anchors)
    for index, selection in enumerate(reader.extractor.selections):

        def on_pick(done: int, before: int = index * config.banks * size) -> None:
            on_progress("selecting anchors", before + done, len(store) * config.banks * size)

        layer = build_layer(store, index, selection, size, seeds, reader.device, on_pick, coreset=config.coreset)
        yield layer.compressed(config.compression).to(reader.device)


def leave_one_out(
    reader: Reader,
    memory: Memory,
    images: EmbeddedImages,
    on_progress: Progress,
    *,
    previous: Sequence[GoodScore | None] = (),
) -> tuple[Memory, list[GoodScore] | None]:
    """Score every training image as if the memory had been built without it: two passes over the images.

    Returns the memory with what scoring needs to know about good images, and the scores; None where a bank without the
    anchors of one image has too few. ``previous`` holds the scores of images that are not available.
    """
    if not check_measurable(reader.config, memory):
        return memory, None
    memory, stand_ins, readings = measure_images(reader, memory, images, on_progress)
    return memory, score_images(reader, memory, images, on_progress, stand_ins, readings=readings, previous=previous)


def check_measurable(config: Config, memory: Memory) -> bool:
    """Whether every bank has enough anchors without those of one image; refused where the settings need that."""
    if all(memory.fewest_without(number) >= config.num_neighbors for number in range(len(memory.images))):
        return True
    measured = needs_measuring(config)
    if measured:
        raise ConfigError(
            f"{' and '.join(measured)} needs more training images, got {len(memory.images)}: each is scored "
            "without its own anchors. Add good images, raise coreset_ratio, or use the settings of Config()"
        )
    return False


@torch.inference_mode()
def score_images(
    reader: Reader,
    memory: Memory,
    images: EmbeddedImages,
    on_progress: Progress,
    stand_ins: Sequence[StandIns],
    *,
    readings: Readings | None = None,
    previous: Sequence[GoodScore | None] = (),
    begin: int = 0,
) -> list[GoodScore]:
    """The scores of training images from number ``begin`` on, with ``stand_ins`` in place of their own anchors.

    ``readings`` are those of :func:`measure_images`; without them the images are searched again.
    """
    config, scores = reader.config, list[GoodScore]()
    for group in _groups(reader, memory, images(), begin):
        numbers = group.numbers
        if group.features is None:
            for number in numbers:
                score = previous[number]
                assert score is not None
                scores.append(score)
        else:
            layers = _joined([readings[number - begin] for number in numbers]) if readings else None
            reading = read_as_new(memory, config, stand_ins, numbers, group.features, layers)
            scores += reader.good_scores(reading, group.scope)
        on_progress("calibrating", begin + len(scores), len(memory.images))
    return scores


def read_as_new(
    memory: Memory,
    config: Config,
    stand_ins: Sequence[StandIns],
    numbers: Sequence[int],
    features: Sequence[Tensor],
    layers: Sequence[Neighbors] | None = None,
    levels: Sequence[Tensor] | None = None,
) -> Reading:
    """The reading of training images ``numbers`` [N, P, D] per layer with ``stand_ins`` in place of their own anchors.

    ``layers`` is what the memory says of them without their own anchors, if that is known. ``levels`` are those without
    what each image added to them; they follow from ``layers``, unless ``features`` are of a changed copy of an image.
    """
    own = memory.own_of_each(numbers)
    if levels is None and config.score_relative_to == "anchors":
        readings = [layer for layer in layers or () if isinstance(layer, LayerReading)]
        layers = readings or read_layers(features, memory, config, hidden=own)
        levels = levels_without_own(layers, memory)
    elif layers is None:
        layers = search_layers(features, memory, config, hidden=own)
    return fuse(replace_own(stand_ins, features, layers, memory, own, config), memory, config, levels=levels)


@dataclass(frozen=True)
class _Group:
    """Training images that are searched together."""

    numbers: list[int]
    features: list[Tensor] | None  # [N, P, D] per layer of the patches that count; None: the images are not available
    scope: Scope | None


def _groups(reader: Reader, memory: Memory, images: Iterable[EmbeddedImage | None], begin: int) -> Iterator[_Group]:
    """Training images from number ``begin`` on, as many at a time as the device searches together."""
    most, waiting = reader.extractor.group_size, list[tuple[list[Tensor], Scope | None]]()

    def group(before: int) -> _Group:
        features = [torch.cat(layer) for layer in zip(*(layers for layers, _ in waiting), strict=True)]
        return _Group(list(range(before - len(waiting), before)), features, waiting[0][1])

    number = begin - 1
    for number, image in enumerate(images, begin):
        if waiting and (image is None or len(waiting) == most):
            yield group(number)
            waiting.clear()
        if image is None:
            yield _Group([number], None, None)
        else:
            waiting.append(reader.counted(image, memory.roi))
    if waiting:
        yield group(number + 1)


def _joined(readings: Sequence[tuple[Neighbors, ...] | None]) -> list[Neighbors]:
    present = [reading for reading in readings if reading is not None]
    return [Neighbors.join(layer) for layer in zip(*present, strict=True)]


@torch.inference_mode()
def measure_images(
    reader: Reader, memory: Memory, images: EmbeddedImages, on_progress: Progress, begin: int = 0
) -> tuple[Memory, list[StandIns], Readings | None]:
    """The memory with scales, quartile and level sums of good images, the stand-ins of its anchors, and the readings.

    Every image, from number ``begin`` on, is read without its own anchors. The readings are None where they are larger
    than :data:`KEPT_BYTES`. Where scores do not depend on how good images are read, neighbours are all that is read.
    """
    config, count = reader.config, len(memory.images)
    measured = _Measured(config) if needs_measuring(config) else None
    stand_ins = [StandIns.none(layer.anchors) for layer in memory.layers]
    readings: Readings | None = []
    for group in _groups(reader, memory, images(), begin):
        split: Readings = [None] * len(group.numbers)
        if group.features is not None:
            hidden, layers = memory.own_of_each(group.numbers), tuple[Neighbors, ...]()
            if measured is None:
                layers = search_layers(group.features, memory, config, hidden=hidden)
            else:
                layers = measured.note(group.features, memory, hidden)
            for spare, patches, layer in zip(stand_ins, group.features, layers, strict=True):
                spare.update(patches, layer)
            if readings is not None and sum(layer.bytes for layer in layers) / len(group.numbers) * count > KEPT_BYTES:
                readings = None
            if readings is not None:
                split = list(zip(*(layer.split() for layer in layers), strict=True))
        if readings is not None:
            readings += split
        on_progress("measuring good images", group.numbers[-1] + 1, count)
    return memory if measured is None else measured.apply(memory), stand_ins, readings


class _Measured:
    """What the memory needs to know about how good images are read."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._maps: list[Tensor] = []
        self._quartiles: list[Tensor] = []
        self._sums: list[Tensor] = []

    def note(self, features: Sequence[Tensor], memory: Memory, hidden: Sequence[Tensor]) -> tuple[LayerReading, ...]:
        """Read images [N, P, D] per layer without their ``hidden`` anchors, and take note of the readings."""
        layers = read_layers(features, memory, self._config, hidden=hidden)
        plain = replace(self._config, score_relative_to="nothing", map_offset=0.0, normalization="none")
        reading = fuse(layers, memory, plain)
        if self._config.normalization == "train":
            self._maps.append(reading.maps)
        self._quartiles.append(lower_quartile(reading.scores))
        if self._config.score_relative_to == "anchors":
            of_layers = [part.sums(len(layer.anchors)) for part, layer in zip(layers, memory.layers, strict=True)]
            for own in zip(*of_layers, strict=True):  # image by image, whatever the groups are
                self._sums = [a + b for a, b in zip(self._sums, own, strict=True)] if self._sums else list(own)
        return layers

    def apply(self, memory: Memory) -> Memory:
        """The memory with what was measured."""
        layers, quartile = memory.layers, memory.quartile
        if self._maps:
            scales = layer_scales(self._maps)
            layers = tuple(replace(layer, scale=scale) for layer, scale in zip(layers, scales, strict=True))
        if self._sums:
            layers = tuple(replace(layer, sums=total) for layer, total in zip(layers, self._sums, strict=True))
        if self._config.map_offset:
            quartile = float(median(torch.cat(self._quartiles), dim=0))
        return replace(memory, layers=layers, quartile=quartile)
