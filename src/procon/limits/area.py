"""Where the part is in a good image: defects are rendered there and nowhere else."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from procon.arrays import Bools, Reals

BORDER_SHARE = 0.1  # of the border that looks like the part, above which the image shows nothing but the part
_LEARNED_FROM = 8  # images
_ROUNDS = 50


def find_part(
    features: Sequence[NDArray[np.float32]], grid: tuple[int, int], counted: Sequence[Bools]
) -> list[Bools] | None:
    """Which patches [P] of good images show the part; None where no background can be told from it.

    Patches [P, D] of the first images are split in two groups (2-means): one starts at the mean of the patches along
    the border, the other at the mean of the tenth that is farthest from it. The group of the border is the background.
    Where a tenth of the border or more falls into the other group, the border shows the part too, as on cloth or sheet
    metal. ``counted`` [P] per image says which patches count at all.
    """
    some = range(min(_LEARNED_FROM, len(features)))
    patches = np.concatenate([features[n][counted[n]] for n in some]).astype(np.float64)
    border = np.concatenate([border_of(counted[n], grid)[counted[n]] for n in some])
    if border.all():
        return None
    center = patches[border].mean(axis=0)
    distance = np.linalg.norm(patches - center, axis=1)
    centers = np.stack([center, patches[distance >= np.quantile(distance, 0.9)].mean(axis=0)])
    for _ in range(_ROUNDS):
        of_part = _nearer_to_second(patches, centers)
        if of_part.all() or not of_part.any():
            return None
        moved = np.stack([patches[~of_part].mean(axis=0), patches[of_part].mean(axis=0)])
        if np.array_equal(moved, centers):
            break
        centers = moved
    if of_part[border].mean() >= BORDER_SHARE:
        return None
    areas = [
        inside & _nearer_to_second(image.astype(np.float64), centers)
        for image, inside in zip(features, counted, strict=True)
    ]
    return areas if all(area.any() for area in areas) else None


def border_of(counted: Bools, grid: tuple[int, int]) -> Bools:
    """Of the patches [P] that count, those at the edge of the image or next to one that does not count."""
    inside = np.pad(counted.reshape(grid), 1)
    surrounded = inside[:-2, 1:-1] & inside[2:, 1:-1] & inside[1:-1, :-2] & inside[1:-1, 2:]
    return counted & ~surrounded.ravel()


def _nearer_to_second(patches: Reals, centers: Reals) -> Bools:
    """Which of the patches [N, D] are nearer to the second of two centres."""
    first, second = (((patches - center) ** 2).sum(axis=1) for center in centers)
    return np.asarray(second < first, np.bool_)
