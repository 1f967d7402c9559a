"""Connected areas of a heat map, as boxes a person can act on and masks a program can read."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from procon.prediction import Region

_TOUCHING = np.ones((3, 3), int)  # diagonal neighbours belong together


def find_regions(heatmap: NDArray[np.float32], threshold: float) -> tuple[Region, ...]:
    """Connected areas of ``heatmap`` [H, W] above ``threshold``, highest peak first."""
    if not heatmap.max() > threshold:
        return ()
    labels, count = ndimage.label(heatmap > threshold, _TOUCHING)
    regions = []
    for number, (rows, columns) in enumerate(ndimage.find_objects(labels), start=1):
        values = heatmap[rows, columns][labels[rows, columns] == number]
        box = (int(columns.start), int(rows.start), int(columns.stop), int(rows.stop))
        mean = float(values.mean(dtype=np.float64))
        regions.append(Region(box, values.size, float(values.max()), mean, float(threshold)))
    assert len(regions) == count
    return tuple(sorted(regions, key=lambda region: (-region.peak, region.box)))


def peak_region(heatmap: NDArray[np.float32], typical: float) -> tuple[Region, ...]:
    """The one area around the largest value of ``heatmap``, above half its height over ``typical``.

    For a part that its score calls anomalous while no pixel reaches the threshold: the blur has spread a small defect.
    """
    peak = float(heatmap.max())
    level = typical + (peak - typical) / 2
    return find_regions(heatmap, level)[:1] if peak > level else ()


def region_mask(heatmap: NDArray[np.float32], region: Region) -> NDArray[np.bool_]:
    """The pixels of a region that was found on ``heatmap``: [H, W] of its image."""
    left, top, right, bottom = region.box
    inside = heatmap[top:bottom, left:right]
    labels, count = ndimage.label(inside > region.level, _TOUCHING)
    for number in range(1, count + 1):  # a box may hold other areas too; this one has the peak and the size
        area = labels == number
        if np.count_nonzero(area) == region.area and float(inside[area].max()) == region.peak:
            mask = np.zeros(heatmap.shape, np.bool_)
            mask[top:bottom, left:right] = area
            return mask
    raise ValueError(f"region {region.box} was not found on this heat map")


def encode_rle(mask: NDArray[np.bool_]) -> dict[str, Any]:
    """A mask [H, W] as COCO's uncompressed run lengths: column by column, starting with the zeros."""
    flat = mask.flatten(order="F")
    ends = np.flatnonzero(flat[1:] != flat[:-1]) + 1
    runs = np.diff(np.concatenate([[0], ends, [flat.size]])).tolist()
    return {"size": list(mask.shape), "counts": [0, *runs] if flat[0] else runs}
