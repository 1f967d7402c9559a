"""One model over more patches than one machine's memory holds: the images are cut into shards, a unit each.

A shard's patches exist only while its unit runs. What comes back are the centres it picked, and what goes out in the
second round is the memory made of them, against which each shard scores its images for the threshold.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from procon.config import Config, refuse
from procon.detector import Detector
from procon.errors import ConfigError
from procon.model.calibration import Calibration, GoodScore
from procon.model.fitting import leave_one_out
from procon.model.memory import LayerMemory, Memory
from procon.model.model import Model
from procon.model.selection import coreset_size, gather_layer, selection_points
from procon.model.training import TrainingImage
from procon.progress import Progress
from procon.scale.cluster import Unit, WorkerProgress, Workers, cut, values
from procon.scale.sharded import centers_of


@dataclass(frozen=True)
class Shard:
    """What the images of one shard leave: centres by layer, and what is remembered of each image."""

    images: tuple[TrainingImage, ...]
    origin: tuple[Tensor, ...]
    """[n] int64 by layer: image of the shard x patches per image + patch."""
    anchors: tuple[Tensor, ...]
    """[n, D] float32 by layer."""
    radius: tuple[float, ...]
    """How far the farthest patch of the shard is from its centres, by layer, where anchors are selected."""


@dataclass(frozen=True)
class Coverage:
    """How well the banks of a layer cover all patches, worst bank, where anchors are selected."""

    shards: float
    """Distance of a patch from the centres of its shard, at most."""
    centers: float
    """Distance of a shard's centre from the bank, at most."""

    @property
    def radius(self) -> float:
        """No patch is farther from the bank than this."""
        return self.shards + self.centers

    @property
    def factor(self) -> float:
        """No patch is farther from the bank than so many times the best radius of any bank of this size.

        A bank and the centre farthest from it are points that lie at least ``centers`` from each other, one more than
        a bank has, so no bank does better than half of that; likewise in a shard. So it is 4 at most.
        """
        return 2 * self.radius / max(self.shards, self.centers) if self.radius else 1.0


def fit_family(
    workers: Workers,
    config: Config,
    images: Sequence[Path],
    progress: WorkerProgress,
    *,
    shards: int,
    skip_bad: bool = False,
) -> tuple[Detector, list[Coverage]]:
    """A detector over ``images`` cut into ``shards`` runs, and how well its banks cover their patches, by layer."""
    _refuse(config, len(images), shards)
    patches = config.grid[0] * config.grid[1]
    size = coreset_size(len(images) * patches, config.coreset_ratio, config.num_neighbors, config.max_anchors)
    parts = cut(images, -(-len(images) // shards))
    if len(parts) * size >= len(images) * patches:
        raise ConfigError(
            f"{size} centres from each of {len(parts)} shards are no fewer than all {len(images) * patches} patches; "
            f"use fewer shards, a coreset_ratio below {1 / len(parts):.2g}, or max_anchors"
        )
    first = [
        Unit(f"shard {n}", _select, (config, part, size, workers.device, skip_bad)) for n, part in enumerate(parts)
    ]
    found = {unit.name: shard for unit, shard in values(workers.run(first, progress))}
    picked: list[Shard] = [found[unit.name] for unit in first]
    detector = Detector(config, device="cpu")
    layers, coverage = _join(detector, picked, size, patches)
    memory = Memory(layers, tuple(image for shard in picked for image in shard.images), patches)
    shared, begin, second = workers.share(memory), 0, []
    for number, shard in enumerate(picked):
        second.append(Unit(f"shard {number}", _gauge, (config, shared, begin, len(shard.images), workers.device)))
        begin += len(shard.images)
    measured = {unit.name: gauges for unit, gauges in values(workers.run(second, progress))}
    gauges = [gauge for unit in second for gauge in measured[unit.name] or [None]]
    identity = detector.reader.extractor.backbone.identity()
    calibration = Calibration.of(gauges, config.false_alarm_rate) if None not in gauges else None
    detector.model = Model(config, memory, None, (), identity).calibrated(calibration)
    return detector, coverage


def _refuse(config: Config, images: int, shards: int) -> None:
    if not 1 <= shards <= images:
        raise ConfigError(f"shards must be from 1 to the number of images {images}, got {shards}")
    refuse(config, "shards")


def _join(
    detector: Detector, shards: Sequence[Shard], size: int, patches: int
) -> tuple[tuple[LayerMemory, ...], list[Coverage]]:
    """The banks of each layer, picked among the centres of all shards."""
    config, extractor, layers, coverage = detector.config, detector.reader.extractor, [], []
    before = torch.tensor([0, *(len(shard.images) for shard in shards)]).cumsum(0)
    for layer, selection in enumerate(extractor.selections):
        anchors = torch.cat([shard.anchors[layer] for shard in shards])
        origin = torch.cat([shard.origin[layer] + n * patches for n, shard in zip(before, shards, strict=False)])
        points = anchors if selection is None else anchors @ selection
        picks, rest = centers_of(points, size, config.bank_seeds)
        coverage.append(Coverage(max(shard.radius[layer] for shard in shards), rest))
        kept, banks = picks.unique(return_inverse=True)  # rows of the centres, which ascend by origin
        layers.append(LayerMemory(anchors[kept], origin[kept], banks).compressed(config.compression))
    return tuple(layers), coverage


# ---------------------------------------------------------------------------------------------------------- on a worker


@lru_cache(maxsize=1)
def _detector(config: Config, device: str) -> Detector:
    """Kept with its backbone for the next shard."""
    return Detector(config, device=device)


def _select(config: Config, images: Sequence[Path], size: int, device: str, skip_bad: bool, report: Progress) -> Shard:
    """The centres of one shard, by layer. All banks share them: they differ by where they start among the centres."""
    detector = _detector(config, device)
    origins, anchors, radii = [], [], []
    opened = detector.reader.opened(list(images), report, skip_bad=skip_bad)
    with opened as (store, _, training), torch.inference_mode():
        store.counted = detector.reader.selectable_rows(training, None)
        for layer, selection in enumerate(detector.reader.extractor.selections):
            points = selection_points(store, layer, selection, detector.device)
            rows, radius = centers_of(points, size, config.bank_seeds[:1])
            picks = rows.cpu() if store.counted is None else store.counted[rows.cpu()]
            kept = gather_layer(store, layer, picks)
            origins.append(kept.origin)
            anchors.append(kept.anchors)
            radii.append(radius)
            report("selecting anchors", layer + 1, len(store))
    return Shard(training, tuple(origins), tuple(anchors), tuple(radii))


def _gauge(
    config: Config, memory: Memory, begin: int, count: int, device: str, report: Progress
) -> list[GoodScore] | None:
    """Score the images of one shard against the memory without their own anchors."""
    reader = _detector(config, device).reader
    sources = [Path(image.name) for image in memory.images[begin : begin + count]]
    _, scores = leave_one_out(reader, memory.to(reader.device), lambda: reader.embed_each(sources), report, begin=begin)
    return scores
