"""Regions against a flood fill."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from procon import Region
from procon.method.regions import find_regions, peak_region
from procon.results.coco import encode_rle
from procon.showing.painting import region_mask
from tests import reference


@settings(deadline=None, max_examples=80)
@given(st.integers(0, 2**32 - 1), st.integers(1, 20), st.integers(1, 20), st.floats(0, 1))
def test_regions_equal_a_flood_fill(seed: int, height: int, width: int, threshold: float) -> None:
    heatmap = np.random.default_rng(seed).random((height, width), np.float32)
    found = find_regions(heatmap, threshold)
    expected = reference.regions(heatmap, threshold)
    assert [(region.box, region.area, region.peak) for region in found] == [entry[:3] for entry in expected]
    assert [region.mean for region in found] == pytest.approx([entry[3] for entry in expected])


def test_diagonal_neighbours_belong_together_and_box_ends_are_exclusive() -> None:
    heatmap = np.zeros((6, 8), np.float32)
    heatmap[1, 2], heatmap[2, 3], heatmap[5, 7] = 0.6, 0.8, 0.9
    lone, pair = find_regions(heatmap, 0.5)
    assert (lone.box, lone.area) == ((7, 5, 8, 6), 1)
    assert (pair.box, pair.area) == ((2, 1, 4, 3), 2)
    assert pair.mean == pytest.approx(0.7)


def test_the_highest_peak_comes_first_whatever_the_area() -> None:
    heatmap = np.zeros((5, 20), np.float32)
    heatmap[:, :4], heatmap[0, 8], heatmap[2, 15] = 0.6, 0.7, 0.9
    assert [region.peak for region in find_regions(heatmap, 0.5)] == pytest.approx([0.9, 0.7, 0.6])


def test_a_box_inside_another_counts_its_own_pixels_only() -> None:
    heatmap = np.ones((7, 7), np.float32)
    heatmap[1:6, 1:6] = 0
    heatmap[3, 3] = 5
    assert [(region.area, region.mean) for region in find_regions(heatmap, 0.5)] == [(1, 5.0), (24, 1.0)]


@pytest.mark.parametrize("threshold", [0.25, 1.0])
def test_nothing_above_the_threshold_is_no_region(threshold: float) -> None:
    assert find_regions(np.full((4, 4), 0.25, np.float32), threshold) == ()


def test_everything_above_the_threshold_is_one_region() -> None:
    (region,) = find_regions(np.full((4, 6), 0.3, np.float32), 0.1)
    assert (region.box, region.area) == ((0, 0, 6, 4), 24)


# ------------------------------------------------------------------------------------------------ masks and weak peaks


def decode(encoded: dict[str, Any]) -> NDArray[np.bool_]:
    """Column by column, zeros first: what COCO's own tools do."""
    flat = [bool(run % 2) for run, length in enumerate(encoded["counts"]) for _ in range(length)]
    height, width = encoded["size"]
    return np.array([[flat[x * height + y] for x in range(width)] for y in range(height)])


@settings(deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 12), st.integers(1, 12), st.floats(0, 1))
def test_run_lengths_hold_the_mask(seed: int, height: int, width: int, share: float) -> None:
    mask = np.random.default_rng(seed).random((height, width)) < share
    encoded = encode_rle(mask)
    assert encoded["size"] == [height, width]
    assert sum(encoded["counts"]) == mask.size
    assert all(run > 0 for run in encoded["counts"][1:])
    assert np.array_equal(decode(encoded), mask)


def test_run_lengths_go_down_columns_and_begin_with_zeros() -> None:
    mask = np.array([[0, 1, 1], [0, 1, 0]], bool)
    assert encode_rle(mask) == {"size": [2, 3], "counts": [2, 3, 1]}
    assert encode_rle(~mask) == {"size": [2, 3], "counts": [0, 2, 3, 1]}


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2**32 - 1), st.integers(1, 20), st.integers(1, 20), st.floats(0, 1))
def test_the_masks_of_all_regions_are_the_pixels_above(seed: int, height: int, width: int, level: float) -> None:
    heatmap = np.random.default_rng(seed).random((height, width), np.float32)
    total = np.zeros((height, width), int)
    for region in find_regions(heatmap, level):
        mask = region_mask(heatmap, region)
        rows, columns = np.nonzero(mask)
        assert region.area == mask.sum()
        assert region.box == (columns.min(), rows.min(), columns.max() + 1, rows.max() + 1)
        total += mask
    assert np.array_equal(total, heatmap > level)


def test_the_mask_of_a_foreign_region_is_refused() -> None:
    heatmap = np.zeros((5, 5), np.float32)
    with pytest.raises(ValueError, match=r"region must be one of this heat map, got \(1, 1, 3, 3\)"):
        region_mask(heatmap, Region((1, 1, 3, 3), 4, 1.0, 1.0, 0.5))


def test_the_region_around_a_peak_reaches_down_to_half_its_height() -> None:
    heatmap = np.full((5, 9), 0.2, np.float32)
    heatmap[2, 1:6] = (0.3, 0.5, 0.8, 0.51, 0.49)
    heatmap[4, 8] = 0.7  # another, lower peak is left alone
    (region,) = peak_region(heatmap, 0.2)
    assert region.level == pytest.approx(0.5)
    assert (region.box, region.area) == ((3, 2, 5, 3), 2)
    assert region.peak == pytest.approx(0.8)
    assert peak_region(np.full((3, 3), 0.2, np.float32), 0.2) == ()
