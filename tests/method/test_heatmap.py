"""Heat maps that are interpolated where pixels are asked for."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from procon.method.heatmap import HeatMap
from procon.method.regions import find_regions, peak_region

SIDES = st.integers(1, 40)


def random_map(shape: tuple[int, int], size: tuple[int, int], seed: int) -> HeatMap:
    return HeatMap(np.random.default_rng(seed).random(shape).astype(np.float32) ** 4, size)


@given(st.tuples(SIDES, SIDES), st.tuples(SIDES, SIDES), st.integers(0, 99))
@settings(max_examples=150, deadline=None)
def test_pixels_are_bilinear(shape: tuple[int, int], size: tuple[int, int], seed: int) -> None:
    heat = random_map(shape, size, seed)
    whole = heat.whole()
    assert whole.dtype == np.float32 and whole.shape == size
    y, x = seed % size[0], seed % size[1]
    row, column = (
        min(max((at + 0.5) * cells / side - 0.5, 0), cells - 1)
        for at, cells, side in zip((y, x), shape, size, strict=True)
    )
    top, left = int(row), int(column)
    bottom, right = min(top + 1, shape[0] - 1), min(left + 1, shape[1] - 1)
    down, along = row - top, column - left
    expected = (1 - down) * ((1 - along) * heat.values[top, left] + along * heat.values[top, right]) + down * (
        (1 - along) * heat.values[bottom, left] + along * heat.values[bottom, right]
    )
    assert whole[y, x] == pytest.approx(expected, abs=1e-6)


@given(st.tuples(SIDES, SIDES), st.tuples(SIDES, SIDES), st.integers(0, 99), st.floats(0, 1))
@settings(max_examples=200, deadline=None)
def test_regions_are_those_of_the_whole_map(
    shape: tuple[int, int], size: tuple[int, int], seed: int, threshold: float
) -> None:
    heat = random_map(shape, size, seed)
    assert heat.regions(threshold) == find_regions(heat.whole(), threshold)
    assert heat.peak_region(0.1) == peak_region(heat.whole(), 0.1)


def test_a_window_has_the_bits_of_the_whole_map() -> None:
    heat = random_map((28, 31), (230, 640), 3)
    rows, columns = slice(37, 91), slice(400, 639)
    assert np.array_equal(heat.window(rows, columns), heat.whole()[rows, columns])


def test_a_good_map_is_not_interpolated(monkeypatch: pytest.MonkeyPatch) -> None:
    heat = random_map((28, 28), (1000, 1000), 1)
    monkeypatch.setattr(HeatMap, "window", lambda *_: pytest.fail("interpolated"))
    assert heat.regions(1.0) == ()
