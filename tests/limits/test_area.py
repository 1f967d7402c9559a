"""Where the part is: told from the background by what lies along the border."""

import numpy as np

from procon.arrays import Bools, Floats
from procon.limits.area import border_of, find_part

GRID = (10, 12)
EVERY = np.ones(120, np.bool_)


def make_features(parts: list[Bools], seed: int = 0, apart: float = 6.0) -> list[Floats]:
    """Patches of background around one centre and of the part around another."""
    random = np.random.default_rng(seed)
    centers = random.normal(0, 1, (2, 16))
    centers *= apart / np.linalg.norm(centers[0] - centers[1])
    return [
        np.asarray(centers[part.ravel().astype(int)] + random.normal(0, 0.5, (120, 16)), np.float32) for part in parts
    ]


def box(top: int, left: int) -> Bools:
    part = np.zeros(GRID, np.bool_)
    part[top : top + 4, left : left + 5] = True
    return part


def test_a_part_that_moves_is_found_in_each_image() -> None:
    parts = [box(2, 2), box(3, 5), box(4, 3), box(2, 6)] * 3
    found = find_part(make_features(parts), GRID, [EVERY] * 12)
    assert found is not None
    for area, part in zip(found, parts, strict=True):
        np.testing.assert_array_equal(area, part.ravel())


def test_a_part_that_fills_the_image_has_no_background() -> None:
    noise = make_features([np.zeros(GRID, np.bool_)] * 4)
    assert find_part(noise, GRID, [EVERY] * 4) is None


def test_a_part_that_reaches_the_border_in_many_places_has_no_background() -> None:
    half = np.zeros(GRID, np.bool_)
    half[:, :6] = True
    assert find_part(make_features([half] * 4), GRID, [EVERY] * 4) is None


def test_patches_that_do_not_count_are_never_part() -> None:
    counted = np.ones(GRID, np.bool_)
    counted[:, :2] = counted[:, -2:] = False  # padding
    parts = [box(3, 4)] * 3
    features = make_features(parts)
    for image in features:
        image[~counted.ravel()] = 100
    found = find_part(features, GRID, [counted.ravel()] * 3)
    assert found is not None
    np.testing.assert_array_equal(found[0], box(3, 4).ravel())


def test_the_border_is_that_of_the_patches_that_count() -> None:
    counted = np.zeros(GRID, np.bool_)
    counted[2:7, 3:9] = True
    expected = counted.copy()
    expected[3:6, 4:8] = False
    np.testing.assert_array_equal(border_of(counted.ravel(), GRID), expected.ravel())
    assert border_of(EVERY, GRID).sum() == 2 * 10 + 2 * 12 - 4


def test_a_grid_of_border_alone_has_no_background() -> None:
    assert find_part([np.zeros((4, 3), np.float32)], (2, 2), [np.ones(4, np.bool_)]) is None
