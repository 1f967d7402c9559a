"""Connected areas of a heat map, in numpy alone: a machine that runs an exported model has neither torch nor scipy."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from procon.arrays import Box, Floats


@dataclass(frozen=True)
class Region:
    """A connected area of the heat map above the pixel threshold."""

    box: Box
    area: int
    peak: float
    mean: float
    level: float = 0.0
    """Heat-map value that all its pixels exceed: the pixel threshold, or less where a part was called anomalous by its
    score while no pixel reached the threshold. That part has one region, around the peak of its map."""

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {**vars(self), "box": list(self.box)}


def find_regions(heatmap: Floats, threshold: float, origin: tuple[int, int] = (0, 0)) -> tuple[Region, ...]:
    """Connected areas of ``heatmap`` [H, W] above ``threshold``, highest peak first; diagonals connect.

    ``origin`` is the (x, y) at which ``heatmap`` begins, where it is a part of a larger one.
    """
    if not heatmap.max() > threshold:
        return ()
    rows, starts, stops, labels = _labelled_runs(heatmap > threshold)
    order = np.argsort(labels, kind="stable")  # the runs of a region together, still from the top down
    regions = []
    for own in np.split(order, np.flatnonzero(np.diff(labels[order])) + 1):
        values = np.concatenate([heatmap[rows[run], starts[run] : stops[run]] for run in own])
        left, top, right, bottom = starts[own].min(), rows[own[0]], stops[own].max(), rows[own[-1]] + 1
        box = (int(left) + origin[0], int(top) + origin[1], int(right) + origin[0], int(bottom) + origin[1])
        mean = float(values.mean(dtype=np.float64))
        regions.append(Region(box, values.size, float(values.max()), mean, float(threshold)))
    return tuple(sorted(regions, key=lambda region: (-region.peak, region.box)))


def label_areas(mask: NDArray[np.bool_]) -> Iterator[NDArray[np.bool_]]:
    """The connected areas of a mask [H, W], each as a mask of its own; diagonals connect."""
    rows, starts, stops, labels = _labelled_runs(mask)
    for label in np.unique(labels):
        area = np.zeros_like(mask)
        for run in np.flatnonzero(labels == label):
            area[rows[run], starts[run] : stops[run]] = True
        yield area


def peak_region(heatmap: Floats, typical: float) -> tuple[Region, ...]:
    """The one area around the largest value of ``heatmap``, above half its height over ``typical``.

    For a part that its score calls anomalous while no pixel reaches the threshold: the blur has spread a small defect.
    """
    peak = float(heatmap.max())
    level = typical + (peak - typical) / 2
    return find_regions(heatmap, level)[:1] if peak > level else ()


Integers = NDArray[np.intp]


def _labelled_runs(mask: NDArray[np.bool_]) -> tuple[Integers, Integers, Integers, Integers]:
    """Horizontal runs of a mask [H, W] by row: (row, start, stop, label); runs that touch share a label."""
    edges = np.diff(np.pad(mask, ((0, 0), (1, 1))).astype(np.int8), axis=1)
    rows, starts = np.nonzero(edges == 1)
    stops = np.nonzero(edges == -1)[1]
    # Positions in one long row, with a gap between rows: the runs of the row above that touch are neighbours there.
    width = mask.shape[1] + 2
    above = (rows - 1) * width
    first = np.searchsorted(rows * width + stops, above + starts)
    last = np.searchsorted(rows * width + starts, above + stops, side="right")
    counts = np.maximum(last - first, 0)
    lower = np.repeat(np.arange(len(rows)), counts)
    upper = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts) + np.repeat(first, counts)
    labels = np.arange(len(rows))  # the first run of each area, in the end
    while len(lower):
        parents = labels.copy()
        np.minimum.at(parents, labels[lower], labels[upper])
        np.minimum.at(parents, labels[upper], labels[lower])
        while not np.array_equal(parents, jumped := parents[parents]):
            parents = jumped
        if np.array_equal(parents, labels):
            break
        labels = parents
    return rows, starts, stops, labels
