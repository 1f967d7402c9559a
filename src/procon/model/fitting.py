"""From good images to a model: embed, select anchors, score every image without its own anchors."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from procon.config import Config
from procon.errors import ConfigError
from procon.method.consensus import lower_quartile, median
from procon.method.score import LayerReading, fuse, layer_scales, levels_without_own, read_layers
from procon.model.calibration import Calibration, GoodScore
from procon.model.memory import LayerMemory, Memory
from procon.model.model import Model
from procon.model.reader import EmbeddedImage, Reader, in_scope
from procon.model.selection import FeatureStore, build_layer, coreset_size
from procon.progress import Progress
from procon.vision.images import ImageLike
from procon.vision.scope import RoiLike, roi_mask

KEPT_BYTES = 2**30  # readings of training images up to this size are kept; beyond it the images are searched twice

_MEASURED = {"score_relative_to": "anchors", "map_offset": "quartile", "normalization": "train"}

EmbeddedImages = Callable[[], Iterable[EmbeddedImage | None]]
"""Goes through the embedded training images, in order; None where an image is not available."""


def needs_measuring(config: Config) -> list[str]:
    """The settings for which scores depend on how the memory reads good images."""
    return [f"{name}={value!r}" for name, value in _MEASURED.items() if getattr(config, name) == value]


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
        memory, scores = leave_one_out(reader, memory, reader.stream(store, images), on_progress)
    calibration = Calibration.of(scores, config.false_alarm_rate) if scores else None
    return Model(config, memory, None, (), reader.extractor.backbone.identity()).calibrated(calibration), good


def _select_layers(reader: Reader, store: FeatureStore, on_progress: Progress) -> Iterator[LayerMemory]:
    """B seed-perturbed k-center banks per layer."""
    config, seeds = reader.config, reader.config.bank_seeds
    size = coreset_size(store.selectable, config.coreset_ratio, config.num_neighbors, config.max_anchors)
    for index, selection in enumerate(reader.extractor.selections):

        def on_pick(done: int, before: int = index * config.banks * size) -> None:
            on_progress("selecting anchors", before + done, len(store) * config.banks * size)

        layer = build_layer(store, index, selection, size, seeds, reader.device, on_pick, coreset=config.coreset)
        yield layer.compressed(config.compression).to(reader.device)


@torch.inference_mode()
def leave_one_out(
    reader: Reader,
    memory: Memory,
    images: EmbeddedImages,
    on_progress: Progress,
    *,
    previous: Sequence[GoodScore | None] = (),
    begin: int = 0,
) -> tuple[Memory, list[GoodScore] | None]:
    """Score every training image against the memory without its own anchors, as if it were new.

    Returns the memory with what scoring needs to know about good images, and the scores; None where a bank without the
    anchors of one image has too few. ``previous`` holds the scores of images that are not available. ``images`` may be
    a shard that begins at image number ``begin``. The neighbours of an image are searched once: readings from the
    measurement are kept for the scores.
    """
    config, count = reader.config, len(memory.images)
    measured = needs_measuring(config)
    if any(memory.fewest_without(number) < config.num_neighbors for number in range(count)):
        if measured:
            raise ConfigError(
                f"{' and '.join(measured)} needs more training images: each is scored without its own anchors"
            )
        return memory, None
    readings: list[tuple[LayerReading, ...]] | None = None
    if measured:
        memory, readings = _measure(reader, memory, images, on_progress)
    scores = []
    for number, image in enumerate(images(), begin):
        if image is None:
            score = previous[number]
            assert score is not None
        else:
            layers = readings[number - begin] if readings else _read_without_own(reader, memory, number, image)
            levels = levels_without_own(layers, memory) if config.score_relative_to == "anchors" else None
            score = reader.good_score(fuse(layers, memory, config, levels=levels), reader.scope(image[1], memory.roi))
        scores.append(score)
        on_progress("calibrating", number + 1, count)
    return memory, scores


def _read_without_own(reader: Reader, memory: Memory, number: int, image: EmbeddedImage) -> tuple[LayerReading, ...]:
    """Training image ``number`` compared with the memory without its own anchors."""
    features = in_scope(image[0], reader.scope(image[1], memory.roi))
    return read_layers(features, memory, reader.config, hidden=memory.own([number]))


def _measure(
    reader: Reader, memory: Memory, images: EmbeddedImages, on_progress: Progress
) -> tuple[Memory, list[tuple[LayerReading, ...]] | None]:
    """The memory with scales, quartile and level sums of good images, and their readings where these are small."""
    config, count = reader.config, len(memory.images)
    relative = config.score_relative_to == "anchors"
    plain = replace(config, score_relative_to="nothing", map_offset="none", normalization="none")
    maps: list[Tensor] = []
    quartiles: list[Tensor] = []
    sums: list[Tensor] = []
    readings: list[tuple[LayerReading, ...]] | None = []
    for number, image in enumerate(images()):
        assert image is not None  # callers refuse missing images where measuring is needed
        layers = _read_without_own(reader, memory, number, image)
        reading = fuse(layers, memory, plain)
        if config.normalization == "train":
            maps.append(reading.maps)
        quartiles.append(lower_quartile(reading.scores)[0])
        if relative:
            own = [part.sums(len(layer.anchors)) for part, layer in zip(layers, memory.layers, strict=True)]
            sums = [total + more for total, more in zip(sums, own, strict=True)] if sums else own
        if readings is not None:
            readings.append(tuple(layer.compact(relative) for layer in layers))
            readings = readings if sum(layer.bytes for layer in readings[0]) * count <= KEPT_BYTES else None
        on_progress("measuring good images", number + 1, count)
    measured = memory.layers
    if config.normalization == "train":
        scales = layer_scales(maps)
        measured = tuple(replace(layer, scale=scale) for layer, scale in zip(measured, scales, strict=True))
    if relative:
        measured = tuple(replace(layer, sums=total) for layer, total in zip(measured, sums, strict=True))
    quartile = memory.quartile
    if config.map_offset == "quartile":
        quartile = float(median(torch.stack(quartiles), dim=0))
    return replace(memory, layers=measured, quartile=quartile), readings
