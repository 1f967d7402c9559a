"""Maps and masks for the metrics: checked, and read image by image in every pass."""

import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import zip_longest
from typing import IO, Any, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import ndimage

from procon.arrays import AnyFloats, Bools

Ints = NDArray[np.int64]
Maps = Iterable[ArrayLike]
Masks = Iterable[ArrayLike | None]
Sides = tuple[int, ...]

TOUCHING = np.ones((3, 3), int)  # diagonal neighbours belong to one region
MASK_BYTES_IN_RAM = 64 << 20  # of packed masks; more go to a temporary file
END = object()


class Spool:
    """Arrays in a file, written once and read in order as often as needed."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._length = 0

    def append(self, array: NDArray[Any]) -> None:
        """Write one more array; not after reading has begun."""
        np.lib.format.write_array(self._file, array, allow_pickle=False)
        self._length += 1

    def __iter__(self) -> Iterator[NDArray[Any]]:
        self._file.seek(0)
        for _ in range(self._length):
            yield np.lib.format.read_array(self._file, allow_pickle=False)


class Pixels:
    """Maps and masks, image by image: masks are read once and stored as bits, maps are read in every pass."""

    def __init__(self, maps: Maps, masks: Masks, mask_file: IO[bytes]) -> None:
        self._maps = maps
        self._bits = Spool(mask_file)  # of the box of each mask that marks any pixel
        self._masks: list[tuple[Sides | None, tuple[slice, slice] | None]] = []
        self.positives = self.regions = 0  # marked pixels, and their 8-connected regions
        for index, item in enumerate(masks):
            mask = None if item is None else check_mask(item, index)
            box = None
            if mask is not None and mask.any():
                box = marked_box(mask)
                self.positives += int(np.count_nonzero(mask[box]))
                self.regions += ndimage.label(mask[box], TOUCHING)[1]
                self._bits.append(np.packbits(mask[box]))
            self._masks.append((None if mask is None else mask.shape, box))

    def __len__(self) -> int:
        return len(self._masks)

    def __iter__(self) -> Iterator[tuple[AnyFloats, Bools | None]]:
        """Map [H, W], float32 or float64, and mask [H, W], None if nothing is marked."""
        bits = iter(self._bits)
        for index, (item, stored) in enumerate(zip_longest(self._maps, self._masks, fillvalue=END)):
            if item is END or stored is END:
                got = f"{index} maps" if item is END else f"at least {index + 1} maps"
                raise ValueError(f"maps and masks must be of one length, got {got} and {len(self)} masks")
            values = check_map(item, index)
            shape, box = cast(tuple[Sides | None, tuple[slice, slice] | None], stored)
            if shape is not None and shape != values.shape:
                raise ValueError(
                    f"mask {index} must have the size of its map, got {shape} for a map of {values.shape}: resize the "
                    "mask with nearest neighbour, or the map to the size of the mask"
                )
            mask = None
            if box is not None:
                mask = np.zeros(values.shape, bool)
                part = mask[box]
                part[:] = np.unpackbits(next(bits), count=part.size).reshape(part.shape)
            yield values, mask


@contextmanager
def open_pixels(maps: Maps, masks: Masks) -> Iterator[Pixels]:
    """Pixels that can be passed over again; their temporary files are deleted at the end."""
    with ExitStack() as stack:
        if iter(maps) is maps:  # an iterator gives its maps only once
            spool = Spool(stack.enter_context(tempfile.TemporaryFile()))
            for index, values in enumerate(maps):
                spool.append(check_map(values, index))
            maps = spool
        yield Pixels(maps, masks, stack.enter_context(tempfile.SpooledTemporaryFile(MASK_BYTES_IN_RAM)))


def check_map(values: Any, index: int) -> AnyFloats:
    """[H, W] as float32 where that is exact, else as float64."""
    array = np.asarray(values)
    if array.ndim != 2 or array.size == 0:
        raise ValueError(f"map {index} must be [H, W] with at least one pixel, got shape {array.shape}")
    if array.dtype.kind not in "biuf":
        raise ValueError(f"map {index} must hold real numbers, got {array.dtype}")
    array = array.astype(np.float32 if np.can_cast(array.dtype, np.float32) else np.float64, copy=False)
    if not (np.isfinite(array.min()) and np.isfinite(array.max())):
        row, column = (int(place) for place in np.argwhere(~np.isfinite(array))[0])
        raise ValueError(f"map {index} must be finite, got {array[row, column]} in row {row}, column {column}")
    return array


def check_mask(mask: Any, index: int) -> Bools:
    """[H, W], True where the mask is not 0; refused if it holds several other values."""
    array = np.asarray(mask)
    if array.ndim != 2:
        raise ValueError(f"mask {index} must be [H, W], got shape {array.shape}")
    marked = array.astype(bool, copy=False)
    if array.dtype != bool and marked.any() and not (array[marked] == array.max()).all():
        values = np.unique(array)
        some = ", ".join(str(value) for value in values[:4]) + (", ..." if len(values) > 4 else "")
        raise ValueError(
            f"mask {index} must hold 0 and one other value (True, 1 or 255), got {some}: resize masks with nearest "
            "neighbour, or say which values are defects with a comparison such as mask > 127"
        )
    return marked


def check_scores(scores: ArrayLike, labels: ArrayLike) -> tuple[AnyFloats, Bools]:
    """Scores [N] and labels [N] as arrays."""
    values, truth = np.asarray(scores), np.asarray(labels)
    if values.ndim != 1 or values.shape != truth.shape or len(values) == 0:
        raise ValueError(f"scores and labels must be [N] with N at least 1, got {values.shape} and {truth.shape}")
    if values.dtype.kind not in "biuf":
        raise ValueError(f"scores must be real numbers, got {values.dtype}")
    bad = np.flatnonzero(~np.isfinite(values))
    if len(bad):
        raise ValueError(f"scores must be finite, got {values[bad[0]]} for image {bad[0]}")
    bad = np.flatnonzero((truth != 0) & (truth != 1))
    if len(bad):
        raise ValueError(f"labels must be 0 (good) or 1 (defective), got {truth[bad[0]]} for image {bad[0]}")
    return values, truth.astype(bool)


def marked_box(mask: Bools) -> tuple[slice, slice]:
    """The rows and columns from the first marked pixel to the last."""
    rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    return slice(int(rows[0]), int(rows[-1]) + 1), slice(int(columns[0]), int(columns[-1]) + 1)


def region_sizes(mask: Bools) -> Ints:
    """For each marked pixel, in reading order, how many pixels its 8-connected region has [P]."""
    box = mask[marked_box(mask)]
    labels = ndimage.label(box, TOUCHING)[0][box]
    return np.bincount(labels)[labels]
