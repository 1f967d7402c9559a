"""Regions against a flood fill."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from procon.regions import find_regions
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
