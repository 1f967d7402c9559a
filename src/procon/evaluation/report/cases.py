"""Which test images a person should look at: the worst misses, the worst false alarms, the regions a map hides."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from procon.arrays import Bools, Floats
from procon.evaluation.data.layouts import GOOD
from procon.evaluation.report.pictures import Scale
from procon.evaluation.runs.raw import Raw

_BINS = 1 << 14
_QUANTILE = 0.999
SMALLEST = 12
"""Bytes of a region that is shown: smaller ones are mostly crumbs of a mask that was resized."""
_TOUCHING = np.ones((3, 3), int)  # diagonal neighbours belong to one region


@dataclass(frozen=True)
class Case:
    """One test image and why it is shown."""

    index: int
    rank: int
    """By score, 1 is the most anomalous of all test images."""
    wrong: bool
    """Whether the best threshold calls it wrongly."""
    note: str
    region: Bools | None = None
    """The region of its mask that is meant, [H, W]; None for the whole image."""


@dataclass(frozen=True)
class MaskRegion:
    """A connected region of a mask, 8-connected."""

    index: int
    """Of the image."""
    number: int
    """Among the regions of the image, from 1."""
    median: float
    """Of the map inside it: at this threshold half of it is covered."""
    area: int
    """Bytes of the map."""


@dataclass(frozen=True)
class Survey:
    """What one pass over the maps of a variant tells."""

    scale: Scale
    regions: list[MaskRegion]
    """The least visible first."""
    edges: NDArray[np.float64]
    above: NDArray[np.float64]
    """Share of the unmarked pixels at or above each of ``edges``."""

    def rate(self, value: float) -> float:
        """The false positive rate that covers ``value``: to about a ten-thousandth of the range of values."""
        return float(np.interp(value, self.edges, self.above))


def survey(raw: Raw, known: Sequence[int], maps: Iterable[Floats], masks: Sequence[Bools | None]) -> Survey:
    """The scale of the maps, the false positive rate of every value and the visibility of every region.

    ``maps`` [n] and ``masks`` [n] are those of the images ``known`` [n]; without any the scale comes from the patches.
    """
    low, high = float(raw.maps.min()), float(raw.maps.max())
    edges = np.linspace(low, high if high > low else low + 1, _BINS + 1)
    unmarked, good = np.zeros(_BINS, np.int64), np.zeros(_BINS, np.int64)
    regions, peak = [], -np.inf
    for index, values, mask in zip(known, maps, masks, strict=True):
        counts = np.histogram((values if mask is None else values[~mask]).clip(edges[0], edges[-1]), edges)[0]
        unmarked += counts
        good += 0 if raw.samples[index].defective else counts
        peak = max(peak, float(values.max()))
        regions += _regions(index, values, mask)
    above = np.append(unmarked[::-1].cumsum()[::-1], 0) / max(1, unmarked.sum())
    typical, limit = _normal(raw, good, edges)
    scale = Scale(typical, limit, peak if np.isfinite(peak) else high)
    return Survey(scale, sorted(regions, key=lambda region: (region.median, region.index)), edges, above)


def _normal(raw: Raw, good: NDArray[np.int64], edges: NDArray[np.float64]) -> tuple[float, float]:
    """The typical and the limiting value of good images; of all images where none is good."""
    labels = np.array(raw.labels)
    patches = raw.maps[~labels] if not labels.all() else raw.maps
    typical = float(np.median(patches))
    if not good.sum():
        return typical, float(np.quantile(patches, _QUANTILE))
    below = good.cumsum() / good.sum()
    return typical, float(edges[1 + int(np.argmax(below >= _QUANTILE))])


def _regions(index: int, values: Floats, mask: Bools | None) -> list[MaskRegion]:
    if mask is None:
        return []
    labels, count = ndimage.label(mask, _TOUCHING)
    numbers = np.arange(1, count + 1)
    medians = ndimage.median(values, labels, numbers)
    areas = np.bincount(labels.ravel())[1:]
    return [MaskRegion(index, int(n), float(m), int(a)) for n, m, a in zip(numbers, medians, areas, strict=True)]


def region_of(mask: Bools, number: int) -> Bools:
    """The pixels of one region of a mask."""
    return np.asarray(ndimage.label(mask, _TOUCHING)[0] == number, np.bool_)


def best_threshold(scores: Floats, labels: Sequence[bool]) -> float | None:
    """The image threshold with the highest F1, halfway to the next score below; None without both kinds of images.

    It is a float64: compare scores as such, because between two neighbours no float32 may lie.
    """
    truth = np.array(labels)
    if truth.all() or not truth.any():
        return None
    order = np.argsort(-scores, kind="stable")
    values, found = scores[order], truth[order].cumsum()
    last = np.append(values[1:] != values[:-1], True)  # of equal scores all or none are called
    f1 = np.where(last, 2 * found / (np.arange(1, len(values) + 1) + truth.sum()), -1)
    place = int(np.argmax(f1))
    below = values[place + 1] if place + 1 < len(values) else values[place]
    return float((float(values[place]) + float(below)) / 2)


def misses(raw: Raw, most: int) -> list[Case]:
    """Defective images with the lowest scores, lowest first."""
    return _extremes(raw, most, defective=True)


def false_alarms(raw: Raw, most: int) -> list[Case]:
    """Good images with the highest scores, highest first."""
    return _extremes(raw, most, defective=False)


def _extremes(raw: Raw, most: int, defective: bool) -> list[Case]:
    labels, scores = np.array(raw.labels), raw.scores.astype(np.float64)
    threshold = best_threshold(raw.scores, raw.labels)
    sign = 1 if defective else -1
    candidates = np.flatnonzero(labels == defective)
    order = candidates[np.argsort(sign * scores[candidates], kind="stable")]
    others = scores[labels != defective]
    cases = []
    for index in order[:most]:
        score = scores[index]
        beyond = int(np.count_nonzero(sign * others > sign * score))
        kind, way = ("good", "higher") if defective else ("defective", "lower")
        note = f"{beyond} of {len(others)} {kind} images score {way}" if len(others) else f"no {kind} images to compare"
        called = threshold is not None and bool(score >= threshold)
        wrong = threshold is not None and called != defective
        cases.append(Case(int(index), int(1 + np.count_nonzero(scores > score)), wrong, note))
    return cases


def hidden(raw: Raw, found: Survey, masks: dict[int, Bools], most: int) -> list[Case]:
    """Regions that the map covers last, the least visible first; ``masks`` by image. See :data:`SMALLEST`."""
    threshold = best_threshold(raw.scores, raw.labels)
    cases = []
    for region in [region for region in found.regions if region.area >= SMALLEST][:most]:
        score = float(raw.scores[region.index])
        rank = int(1 + np.count_nonzero(raw.scores > score))
        note = (
            f"half of this region ({region.area} pixels) is covered from {region.median:.3f} down, "
            f"together with {found.rate(region.median):.2%} of all unmarked pixels"
        )
        wrong = threshold is not None and score < threshold
        cases.append(Case(region.index, rank, wrong, note, region_of(masks[region.index], region.number)))
    return cases


def examples(raw: Raw, most: int) -> list[int]:
    """At most ``most`` images for a figure: of each kind evenly spaced by score, then the good one in the middle."""
    kinds = list(dict.fromkeys(sample.kind for sample in raw.samples if sample.defective))
    good = any(not sample.defective for sample in raw.samples)
    kinds = kinds[: max(1, most - good)]
    each = (most - good) // len(kinds) if kinds else 0
    chosen = [index for kind in kinds for index in _spaced(raw, kind, max(1, each))]
    return [*chosen, *_spaced(raw, GOOD, 1)] if good else chosen


def _spaced(raw: Raw, kind: str, count: int) -> list[int]:
    """``count`` images of a kind at the middles of as many equal parts of its scores, the highest first."""
    places = [i for i, sample in enumerate(raw.samples) if sample.kind == kind]
    ordered = sorted(places, key=lambda i: (-float(raw.scores[i]), i))
    return list(dict.fromkeys(ordered[(2 * part + 1) * len(ordered) // (2 * count)] for part in range(count)))
