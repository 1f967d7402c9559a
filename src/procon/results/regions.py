"""Regions of a heat map as masks that a program can read."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from procon.method.regions import label_areas
from procon.prediction import Region


def region_mask(heatmap: NDArray[np.float32], region: Region) -> NDArray[np.bool_]:
    """The pixels of a region that was found on ``heatmap``: [H, W] of its image."""
    left, top, right, bottom = region.box
    inside = heatmap[top:bottom, left:right]
    for area in label_areas(inside > region.level):  # a box may hold other areas too; this one has the peak and size
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
