"""Connected areas of a heat map, as boxes a person can act on."""

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
        regions.append(Region(box, values.size, float(values.max()), float(values.mean(dtype=np.float64))))
    assert len(regions) == count
    return tuple(sorted(regions, key=lambda region: (-region.peak, region.box)))
