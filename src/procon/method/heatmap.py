"""The heat map of an image, interpolated from the map of the backbone's input where pixels are asked for.

Numpy alone: a machine that runs an exported model has no torch.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from procon.arrays import Floats
from procon.method.regions import Region, find_regions, peak_region


@dataclass(frozen=True, eq=False)
class HeatMap:
    """A map [h, w] that covers an image of another size. Pixels are bilinear, their centres aligned."""

    values: Floats  # [h, w] float32
    size: tuple[int, int]  # (height, width) of the image

    def whole(self) -> Floats:
        """All pixels: float32 [height, width]."""
        return self.window(slice(0, self.size[0]), slice(0, self.size[1]))

    def window(self, rows: slice, columns: slice) -> Floats:
        """Some rows and columns of :meth:`whole`, the same to the last bit."""
        if self.values.shape == self.size:
            return self.values[rows, columns]
        (top, bottom, down), (left, right, along) = (
            [part[span] for part in neighbor_cells(cells, size)]
            for cells, size, span in zip(self.values.shape, self.size, (rows, columns), strict=True)
        )
        first, last = int(top[0]), int(bottom[-1]) + 1
        lower_share, right_share = down.astype(np.float32)[:, None], along.astype(np.float32)
        used = self.values[first:last]
        wide = used[:, left] * (1 - right_share) + used[:, right] * right_share
        return np.asarray(wide[top - first] * (1 - lower_share) + wide[bottom - first] * lower_share, np.float32)

    def regions(self, threshold: float) -> tuple[Region, ...]:
        """:func:`find_regions` of :meth:`whole`. Only pixels near cells above the threshold are interpolated."""
        above = self.values > threshold
        if not above.any():
            return ()
        rows, columns = (_span(np.any(above, axis=1 - axis), self.size[axis]) for axis in (0, 1))
        return find_regions(self.window(rows, columns), threshold, origin=(columns.start, rows.start))

    def peak_region(self, typical: float) -> tuple[Region, ...]:
        """:func:`peak_region` of :meth:`whole`."""
        return peak_region(self.whole(), typical)


def _span(used: Any, size: int) -> slice:
    """The pixels of ``size`` that lie next to one of the ``used`` cells."""
    low, high, _ = neighbor_cells(len(used), size)
    (near,) = np.nonzero(used[low] | used[high])
    # Enlarged maps have a pixel next to each cell; of a map that is made smaller some cells may be seen by none.
    return slice(int(near[0]), int(near[-1]) + 1) if len(near) else slice(0, 1)


def neighbor_cells(cells: int, size: int) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.float64]]:
    """For each of ``size`` pixels the two of ``cells`` it lies between, and the share of the second."""
    position = np.clip((np.arange(size) + 0.5) * cells / size - 0.5, 0, None)
    low = np.minimum(position.astype(np.intp), cells - 1)
    return low, np.minimum(low + 1, cells - 1), position - low
