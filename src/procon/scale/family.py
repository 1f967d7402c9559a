"""Fit one model on more patches than fit into RAM: the images are split into shards, a unit each.

A shard's patches exist only while its unit runs. The unit returns the centres it picked. In the second round, each
shard gets the memory made of all centres and scores its images against it for the threshold.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from procon.config import Config, refuse
from procon.detector import Detector
from procon.errors import ConfigError
from procon.method.stand_ins import StandIns
from procon.model.calibration import Calibration, GoodScore
from procon.model.fitting import measure_images, score_images
from procon.model.memory import LayerMemory, Memory
from procon.model.model import Model
from procon.model.reader import EmbeddedImage, Reader
from procon.model.selection import coreset_size, gather_layer, selection_points
from procon.model.training_image import TrainingImage
from procon.progress import Progress
from procon.scale.cluster import Unit, WorkerProgress, Workers, collect_values, split_items
from procon.scale.sharded import pick_centers
from procon.vision.shape import resolve_shape


@dataclass(frozen=True)
class Shard:
    """The centres of one shard, by layer, and what the model file stores about its images."""

    images: tuple[TrainingImage, ...]
    origin: tuple[Tensor, ...]  # [n] int64 by layer: image of the shard x patches per image + patch
    anchors: tuple[Tensor, ...]  # [n, D] float32 by layer
    radius: tuple[float, ...]  # distance of the farthest patch from the centres, by layer, where anchors are selected


@dataclass(frozen=True)
class Coverage:
    """How well the worst bank of a layer covers all patches: distances in the space where anchors are selected."""

    shards: float  # largest distance of a patch from the centres of its shard
    centers: float  # largest distance of a shard's centre from the bank

    @property
    def radius(self) -> float:
        """No patch is farther from the bank than this."""
        return self.shards + self.centers

    @property
    def factor(self) -> float:
        """No patch is farther from the bank than this many times the best radius of any bank of this size.

        A bank and the centre farthest from it are points at least ``centers`` from each other, one more than a bank
        has, so no bank has a radius below half of that; likewise in a shard. So the factor is 4 at most.
        """
        return 2 * self.radius / max(self.shards, self.centers) if self.radius else 1.0


def fit_family(
    workers: Workers,
    config: Config,
    images: Sequence[Path],
    on_progress: WorkerProgress,
    *,
    shards: int,
    skip_bad: bool = False,
) -> tuple[Detector, list[Coverage]]:
    """A detector for ``images``, split into ``shards``, and how well its banks cover their patches, by layer."""
    if not 1 <= shards <= len(images):
        raise ConfigError(f"shards must be from 1 to the number of images {len(images)}, got {shards}")
    refuse(config, "shards")
    config = resolve_shape(config, images)
    patches = config.grid[0] * config.grid[1]
    size = coreset_size(len(images) * patches, config.coreset_ratio, config.num_neighbors, config.max_anchors)
    groups = split_items(images, -(-len(images) // shards))
    if len(groups) * size >= len(images) * patches:
        raise ConfigError(
            f"{size} centres from each of {len(groups)} shards are no fewer than all {len(images) * patches} patches; "
            f"use fewer shards, a coreset_ratio below {1 / len(groups):.2g}, or max_anchors"
        )

    def run(function: Callable[..., Any], arguments: Iterable[tuple[Any, ...]]) -> list[Any]:
        units = [Unit(f"shard {number}", function, values) for number, values in enumerate(arguments)]
        results = {unit.name: value for unit, value in collect_values(workers.run(units, on_progress))}
        return [results[unit.name] for unit in units]

    selected = run(_select_centers, ((config, group, size, workers.device, skip_bad) for group in groups))
    detector = Detector(config, device="cpu")
    layers, coverage = _select_banks(detector, selected, size, patches)
    memory = Memory(layers, tuple(image for shard in selected for image in shard.images), patches)
    shared = workers.share(memory)
    ends = list(accumulate(len(shard.images) for shard in selected))
    limits = list(pairwise([0, *ends]))
    calibration = None
    if all(memory.fewest_without(number) >= config.num_neighbors for number in range(len(memory.images))):
        parts = run(_find_stand_ins, ((config, shared, *limit, workers.device) for limit in limits))
        joined = [reduce(StandIns.joined, layer) for layer in zip(*parts, strict=True)]
        spare = workers.share(joined)
        scores = run(_score_shard, ((config, shared, spare, *limit, workers.device) for limit in limits))
        every = [score for shard in scores for score in shard]
        calibration = Calibration.of(every, config.false_alarm_rate, config.threshold_rule)
    identity = detector.reader.extractor.backbone.identity()
    detector.model = Model(config, memory, None, (), identity).calibrated(calibration)
    return detector, coverage


def _select_banks(
    detector: Detector, shards: Sequence[Shard], size: int, patches: int
) -> tuple[tuple[LayerMemory, ...], list[Coverage]]:
    """The banks of each layer, selected from the centres of all shards, and how well they cover the patches."""
    config, extractor, layers, coverage = detector.config, detector.reader.extractor, [], []
    before = torch.tensor([0, *(len(shard.images) for shard in shards)]).cumsum(0)
    for layer, selection in enumerate(extractor.selections):
        anchors = torch.cat([shard.anchors[layer] for shard in shards])
        origin = torch.cat([shard.origin[layer] + n * patches for n, shard in zip(before, shards, strict=False)])
        points = anchors if selection is None else anchors @ selection
        picks, radius = pick_centers(points, size, config.bank_seeds)
        coverage.append(Coverage(max(shard.radius[layer] for shard in shards), radius))
        rows, banks = picks.unique(return_inverse=True)  # rows of the centres, which ascend by origin
        layers.append(LayerMemory(anchors[rows], origin[rows], banks).compressed(config.compression))
    return tuple(layers), coverage


# ---------------------------------------------------------------------------------------------------------- on a worker


@lru_cache(maxsize=1)
def _make_detector(config: Config, device: str) -> Detector:
    """A detector, cached with its backbone for the next shard."""
    return Detector(config, device=device)


def _select_centers(
    config: Config, images: Sequence[Path], size: int, device: str, skip_bad: bool, on_progress: Progress
) -> Shard:
    """The centres of one shard, by layer. All banks share them: banks differ by where they start among the centres."""
    detector = _make_detector(config, device)
    layers, radii = [], []
    opened = detector.reader.opened(list(images), on_progress, skip_bad=skip_bad)
    with opened as (store, _, training), torch.inference_mode():
        store.counted = detector.reader.selectable_rows(training, None)
        for layer, selection in enumerate(detector.reader.extractor.selections):
            points = selection_points(store, layer, selection, detector.device)
            rows, radius = pick_centers(points, size, config.bank_seeds[:1])
            picks = rows.cpu() if store.counted is None else store.counted[rows.cpu()]
            layers.append(gather_layer(store, layer, picks))
            radii.append(radius)
            on_progress("selecting anchors", layer + 1, len(store))
    return Shard(training, tuple(c.origin for c in layers), tuple(c.anchors for c in layers), tuple(radii))


def _find_stand_ins(
    config: Config, memory: Memory, first: int, end: int, device: str, on_progress: Progress
) -> list[StandIns]:
    """The stand-ins of all anchors among the images of one shard."""
    reader = _make_detector(config, device).reader
    images = _embed_shard(reader, memory, first, end)
    _, stand_ins, _ = measure_images(reader, memory.to(reader.device), images, on_progress, first)
    return [layer.to(torch.device("cpu")) for layer in stand_ins]


def _score_shard(
    config: Config,
    memory: Memory,
    stand_ins: Sequence[StandIns],
    first: int,
    end: int,
    device: str,
    on_progress: Progress,
) -> list[GoodScore]:
    """Score the images of one shard with stand-ins in place of their own anchors."""
    reader = _make_detector(config, device).reader
    images = _embed_shard(reader, memory, first, end)
    spare = [layer.to(reader.device) for layer in stand_ins]
    return score_images(reader, memory.to(reader.device), images, on_progress, spare, begin=first)


def _embed_shard(reader: Reader, memory: Memory, first: int, end: int) -> Callable[[], Iterable[EmbeddedImage]]:
    sources = [Path(image.name) for image in memory.images[first:end]]
    return lambda: reader.embed_each(sources)
