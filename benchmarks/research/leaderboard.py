"""Which reading is best, judged on parts it was not chosen on.

Rows are what ``benchmarks/results/research.csv`` holds: one for each part, seed and reading, with the pixel metrics of
its map and the image metrics of its scores, in percent; empty where one of the two was not measured.
"""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from procon.evaluation.data.datasets import Category, Sample, read_mask
from procon.evaluation.metrics import evaluate
from procon.method.maps import pixel_map

IMAGE = ("i_auroc", "i_ap", "i_f1")
PIXEL = ("p_auroc", "p_ap", "p_f1", "aupro")
SIDE = 392  # pixels: all maps are compared at one size, whatever the input was


def map_metrics(samples: tuple[Sample, ...], values: Tensor, blur_sigma: float, side: int = SIDE) -> dict[str, float]:
    """Pixel metrics, in percent, of patch values [T, rows, columns] as maps of ``side`` pixels.

    ``blur_sigma`` is in pixels of a map of side 392.
    """
    maps = [pixel_map(one.unsqueeze(0), (side, side), blur_sigma * side / SIDE)[0].numpy() for one in values]
    labels = [sample.defective for sample in samples]
    found = evaluate(np.zeros(len(samples)), np.array(labels), maps, _masks(samples, side))
    return {name: 100 * found[name] for name in PIXEL}


def score_metrics(samples: tuple[Sample, ...], scores: Tensor) -> dict[str, float]:
    """Image metrics, in percent, of scores [T]."""
    found = evaluate(scores.numpy(), np.array([sample.defective for sample in samples]))
    return {name: 100 * found[name] for name in IMAGE}


@lru_cache(maxsize=16)
def _masks(samples: tuple[Sample, ...], side: int) -> list[NDArray[np.bool_] | None]:
    return [None if sample.mask is None else read_mask(sample.mask, (side, side)) for sample in samples]


def samples_of(category: Category) -> tuple[Sample, ...]:
    """The test images of a part; a defect without a mask cannot be judged here."""
    for sample in category.test:
        if sample.defective and sample.mask is None:
            raise ValueError(f"every defect needs a mask, {sample.path} has none")
    return tuple(category.test)


# ---------------------------------------------------------------------------------------------------- tables


class Board:
    """Results of readings: pixel metrics of their maps (``PIXEL``), or image metrics of their scores (``IMAGE``)."""

    def __init__(self, rows: Iterable[Mapping[str, str]], metrics: Sequence[str]) -> None:
        self.metrics = tuple(metrics)
        self.values: dict[str, dict[str, dict[str, dict[str, float]]]] = {}
        """Reading, part, seed, metric."""
        for row in rows:
            if row[self.metrics[0]]:
                parts = self.values.setdefault(row["reading"], {})
                parts.setdefault(row["part"], {})[row["seed"]] = {name: float(row[name]) for name in self.metrics}

    def part(self, reading: str, part: str, metric: str | None = None) -> float:
        """A metric of a reading on a part, or the mean of all, averaged over the seeds."""
        names = self.metrics if metric is None else (metric,)
        seeds = self.values[reading][part].values()
        return statistics.fmean(values[name] for values in seeds for name in names)

    def mean(self, reading: str, parts: Sequence[str], metric: str | None = None) -> float:
        """The same, averaged over parts."""
        return statistics.fmean(self.part(reading, part, metric) for part in parts)

    def interval(self, reading: str, parts: Sequence[str], metric: str | None = None) -> tuple[float, float]:
        """Lowest and highest mean over parts that any one seed gives."""
        names = self.metrics if metric is None else (metric,)
        seeds = sorted({seed for part in parts for seed in self.values[reading][part]})
        means = [
            statistics.fmean(self.values[reading][part][seed][name] for part in parts for name in names)
            for seed in seeds
        ]
        return min(means), max(means)

    def complete(self, parts: Sequence[str]) -> list[str]:
        """Readings that were measured on all ``parts``."""
        return [name for name, found in self.values.items() if set(parts) <= set(found)]

    def gains(self, reading: str, baseline: str, parts: Sequence[str]) -> dict[str, float]:
        """By part, the mean of the metrics less that of the baseline."""
        return {part: self.part(reading, part) - self.part(baseline, part) for part in parts}

    def best(self, baseline: str, parts: Sequence[str], most_lost: float = 1.0) -> str:
        """The reading with the best mean over ``parts`` among those that lose at most ``most_lost`` points on any."""
        allowed = [
            name for name in self.complete(parts) if min(self.gains(name, baseline, parts).values()) >= -most_lost
        ]
        return max(allowed, key=lambda name: self.mean(name, parts))


@dataclass(frozen=True)
class HeldOut:
    """What would have been chosen without a part, and what it does on that part."""

    part: str
    reading: str
    value: float
    baseline: float


def leave_one_part_out(board: Board, baseline: str, parts: Sequence[str], most_lost: float = 1.0) -> list[HeldOut]:
    """For each part: the best reading on the others, judged on the part that had no say."""
    results = []
    for part in parts:
        chosen = board.best(baseline, [other for other in parts if other != part], most_lost)
        results.append(HeldOut(part, chosen, board.part(chosen, part), board.part(baseline, part)))
    return results
