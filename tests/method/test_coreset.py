"""The fast k-center makes, pick for pick, the choices of the textbook loop."""

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from procon.method import coreset
from procon.method.coreset import densest, k_center, to_grid
from procon.method.rounded import RoundedAnchors
from tests import reference
from tests.method.layers import k_center_from

Points = NDArray[np.float32]
KINDS = ("gaussian", "lattice", "duplicated", "clustered")
BLOCKS = (1, 2, 7, 64, 1000)


def make_points(kind: str, seed: int, count: int, dim: int) -> Points:
    """Coordinates are multiples of 2^-12: squared distances are exact in fp64, so there is one right answer."""
    random = np.random.default_rng(seed)
    points = random.normal(size=(count, dim))
    if kind == "lattice":  # full of exact ties between different points
        points = random.integers(-2, 3, (count, dim)).astype(np.float64)
    elif kind == "duplicated":
        points = points[random.integers(0, 1 + count // 3, count)]
    elif kind == "clustered":
        points = 8 * points[random.integers(0, min(4, count), count)] + 0.01 * points
    return np.asarray(np.round(points * 4096) / 4096, np.float32)


def picks_of(points: Points, size: int, starts: list[int], block: int = 1024) -> NDArray[np.int64]:
    return np.asarray(k_center(torch.from_numpy(points), size, starts, block=block).numpy())


@settings(deadline=None, max_examples=100)
@given(st.data(), st.sampled_from(KINDS), st.sampled_from(BLOCKS), st.integers(0, 2**32 - 1))
def test_picks_equal_the_textbook_loop(data: st.DataObject, kind: str, block: int, seed: int) -> None:
    count, dim = data.draw(st.integers(1, 80)), data.draw(st.integers(1, 10))
    size = data.draw(st.integers(1, count))
    starts = data.draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=3))
    points = make_points(kind, seed, count, dim)
    picks = picks_of(points, size, starts, block)
    assert picks.shape == (len(starts), size)
    for row, start in zip(picks, starts, strict=True):
        assert row.tolist() == reference.k_center(points, size, start).tolist()
        assert len(set(row.tolist())) == size


@settings(deadline=None, max_examples=80)
@given(st.data(), st.sampled_from(KINDS), st.sampled_from(BLOCKS), st.integers(0, 2**32 - 1))
def test_picks_that_continue_equal_the_textbook_loop(data: st.DataObject, kind: str, block: int, seed: int) -> None:
    count, dim = data.draw(st.integers(2, 80)), data.draw(st.integers(1, 10))
    before = data.draw(st.integers(1, count - 1))
    size = data.draw(st.integers(0, count - before))
    points = make_points(kind, seed, count, dim)
    centers, rest = torch.from_numpy(points[:before]), torch.from_numpy(points[before:])
    picks = k_center_from(rest, centers, size, block=block)
    assert picks.tolist() == reference.k_center_from(points[before:], points[:before], size).tolist()


def test_continuing_a_traversal_over_all_points_is_the_traversal() -> None:
    points = torch.from_numpy(make_points("gaussian", 8, 90, 5))
    whole = k_center(points, 40, [7])[0]
    more = k_center_from(points, points[whole[:15]], 25, block=16)
    assert more.tolist() == whole[15:].tolist()


@pytest.mark.parametrize(
    ("shapes", "size", "complaint"),
    [
        (((5, 2), (3, 2)), 6, "size must be from 0 to the number of points 5, got 6"),
        (((5, 2), (3, 2)), -1, "got -1"),
    ],
)
def test_continuing_with_what_does_not_fit_is_refused(
    shapes: tuple[tuple[int, int], tuple[int, int]], size: int, complaint: str
) -> None:
    with pytest.raises(ValueError, match=complaint):
        k_center_from(torch.ones(shapes[0]), torch.ones(shapes[1]), size)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dim", [1, 16])
def test_any_block_gives_the_same_picks(kind: str, dim: int) -> None:
    points = make_points(kind, 5, 50, dim)
    expected = picks_of(points, 50, [3, 49])
    for block in BLOCKS:
        assert np.array_equal(picks_of(points, 50, [3, 49], block), expected)


def test_a_medium_set_equals_the_textbook_loop() -> None:
    points = make_points("clustered", 11, 20_000, 32)
    assert picks_of(points, 400, [17])[0].tolist() == reference.k_center(points, 400, 17).tolist()


@pytest.mark.parametrize("seed", range(3))
def test_unrounded_fp32_points(seed: int) -> None:
    # Fixed seeds: distances that differ by less than the rounding of fp32 are the kernel's to order.
    points = np.random.default_rng(seed).normal(size=(500, 24)).astype(np.float32)
    assert picks_of(points, 200, [seed], 32)[0].tolist() == reference.k_center(points, 200, seed).tolist()


@settings(deadline=None, max_examples=40)
@given(st.sampled_from(KINDS), st.integers(0, 2**32 - 1), st.integers(2, 60))
def test_fewer_picks_are_a_prefix_and_the_radius_never_grows(kind: str, seed: int, count: int) -> None:
    points = make_points(kind, seed, count, 3)
    most = picks_of(points, count, [0], 7)[0]
    for size in {1, 2, count // 2 or 1, count}:
        assert picks_of(points, size, [0], 7)[0].tolist() == most[:size].tolist()
    radii = [reference.covering_radius(points, most[: size + 1]) for size in range(count)]
    assert all(later <= earlier for earlier, later in itertools.pairwise(radii))
    assert radii[-1] == 0


@settings(deadline=None, max_examples=60)
@given(st.data(), st.sampled_from(KINDS), st.integers(0, 2**32 - 1), st.integers(1, 9), st.integers(1, 4))
def test_covers_within_twice_the_optimum(data: st.DataObject, kind: str, seed: int, count: int, size: int) -> None:
    size = min(size, count)
    points = make_points(kind, seed, count, 2)
    picks = picks_of(points, size, [data.draw(st.integers(0, count - 1))])[0]
    assert reference.covering_radius(points, picks) <= 2 * reference.optimal_radius(points, size) + 1e-12


def test_identical_points_are_picked_by_index() -> None:
    assert picks_of(np.full((6, 3), 0.7, np.float32), 6, [2], 2)[0].tolist() == [2, 0, 1, 3, 4, 5]
    assert picks_of(np.zeros((4, 2), np.float32), 3, [0])[0].tolist() == [0, 1, 2]


@pytest.mark.parametrize("exponent", [-60, -7, 9, 50])
def test_scaling_by_a_power_of_two_changes_nothing(exponent: int) -> None:
    points = np.random.default_rng(2).normal(size=(300, 8)).astype(np.float32)
    expected = picks_of(points, 100, [4, 5], 16)
    assert np.array_equal(picks_of(np.ldexp(points, exponent).astype(np.float32), 100, [4, 5], 16), expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_float_types(dtype: torch.dtype) -> None:
    points = torch.from_numpy(make_points("gaussian", 6, 200, 8)).to(dtype)
    picks = k_center(points, 60, [9])
    assert picks.dtype == torch.int64
    assert picks[0].tolist() == reference.k_center(points.double().numpy(), 60, 9).tolist()


def test_threads_do_not_matter() -> None:
    points = torch.randn(20_000, 16, generator=torch.Generator().manual_seed(0))
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = k_center(points, 60, [0, 7])
        torch.set_num_threads(2)
        assert torch.equal(k_center(points, 60, [0, 7]), alone)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize(("size", "starts"), [(50, [0, 3, 9]), (1, [4]), (1, [4, 5])])
def test_progress_never_goes_back_and_ends_at_the_number_of_picks(size: int, starts: list[int]) -> None:
    heard: list[int] = []
    k_center(torch.from_numpy(make_points("gaussian", 1, 200, 4)), size, starts, block=8, on_pick=heard.append)
    assert heard == sorted(heard)
    assert heard[-1] == size * len(starts)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_points_that_are_not_finite_are_refused(value: float) -> None:
    points = torch.ones(5, 3)
    points[2, 1] = value
    with pytest.raises(ValueError, match="points must be finite, got"):
        k_center(points, 2, [0])


@pytest.mark.parametrize("shape", [(5,), (0, 3), (2, 3, 4)])
def test_points_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"points must be \[N, d\].* got"):
        k_center(torch.ones(shape), 1, [0])


@pytest.mark.parametrize("size", [0, -1, 6])
def test_sizes_out_of_range_are_refused(size: int) -> None:
    with pytest.raises(ValueError, match=f"size must be .* got {size}"):
        k_center(torch.ones(5, 2), size, [0])


@pytest.mark.parametrize("start", [-1, 5])
def test_starts_out_of_range_are_refused(start: int) -> None:
    with pytest.raises(ValueError, match=r"starts must be .* got"):
        k_center(torch.ones(5, 2), 2, [0, start])


def test_a_block_that_can_make_no_pick_is_refused() -> None:
    with pytest.raises(ValueError, match=r"block must be .* got 0"):
        k_center(torch.ones(5, 2), 2, [0], block=0)


@settings(deadline=None, max_examples=40)
@given(st.sampled_from(KINDS), st.integers(0, 2**32 - 1))
def test_the_densest_centres_stand_for_the_most_points(kind: str, seed: int) -> None:
    points = make_points(kind, seed, 60, 4)
    picks = picks_of(points, 12, [5])[0]
    population = [0] * len(picks)
    for point in points.astype(np.float64):
        population[int(np.argmin([((point - points[pick]) ** 2).sum() for pick in picks]))] += 1
    kept = sorted(sorted(range(len(picks)), key=lambda place: -population[place])[:5])
    found = densest(to_grid(torch.from_numpy(points)), torch.from_numpy(picks), 5)
    assert found.tolist() == picks[kept].tolist()


@pytest.mark.skipif(not RoundedAnchors.is_fast(torch.zeros(1, 8)), reason="this processor has no fast product of bytes")
@pytest.mark.parametrize(
    "points",
    [
        torch.randn(700, 24, generator=torch.Generator().manual_seed(0)),
        torch.randint(0, 4, (900, 3), generator=torch.Generator().manual_seed(0)).float(),  # ties everywhere
        torch.randn(50, 8, generator=torch.Generator().manual_seed(0)).repeat(20, 1),  # fewer points than picks
        torch.randn(600, 16, generator=torch.Generator().manual_seed(2)) * torch.logspace(-3, 2, 16),
        1e-6 * torch.randn(400, 5, generator=torch.Generator().manual_seed(3)) + 3,
        torch.zeros(300, 4),
    ],
    ids=["gauss", "lattice", "duplicates", "uneven", "far from zero", "equal"],
)
@pytest.mark.parametrize("block", [16, 100])
def test_rounded_points_change_no_pick(points: torch.Tensor, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    starts = [0, 7]
    plain = k_center(points, 200, starts, block=block)
    screened: list[int] = []
    monkeypatch.setattr(coreset, "_WORTHWHILE", 1)
    monkeypatch.setattr(coreset, "_COLUMNS", 4)
    monkeypatch.setattr(coreset, "_SCREENED", 32)
    pairs = coreset.Screen.pairs

    def counted(self: coreset.Screen, rows: torch.Tensor, bounds: torch.Tensor, picks: torch.Tensor) -> Any:
        places, columns = pairs(self, rows, bounds, picks)
        screened.append(len(places))
        return places, columns

    monkeypatch.setattr(coreset.Screen, "pairs", counted)
    assert torch.equal(k_center(points, 200, starts, block=block), plain)
    assert screened
