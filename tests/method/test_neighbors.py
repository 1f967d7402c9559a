"""Neighbours are exact, with ties by index, however the work was cut."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from procon.method.neighbors import Banks, nearest_in_banks
from tests import reference
from tests.method.layers import nearest

KINDS = ("gaussian", "lattice", "duplicated", "tiny", "huge", "offset")
DISTANCE_RTOL = 3e-6  # a sum of 16 squared fp32 differences: (16 + 3) * 2^-24, doubled and rounded up


def make_sets(kind: str, seed: int, queries: int, anchors: int, dim: int) -> tuple[Tensor, Tensor]:
    random = np.random.default_rng(seed)
    points = random.normal(size=(queries + anchors, dim))
    if kind in ("lattice", "duplicated"):
        points = random.integers(-2, 3, points.shape).astype(np.float64)
    if kind == "duplicated":  # also queries that are anchors
        points = points[random.integers(0, 1 + len(points) // 3, len(points))]
    points = {"tiny": 1e-4 * points, "huge": 1e4 * points, "offset": 100 + 1e-2 * points}.get(kind, points)
    both = torch.from_numpy(points.astype(np.float32))
    return both[:queries], both[queries:]


def assert_nearest(kind: str, queries: Tensor, anchors: Tensor, k: int, found: tuple[Tensor, Tensor]) -> None:
    """``found`` is right up to the rounding of one distance; where distances are exact, ties go by index."""
    distances, indices = found[0].numpy(), found[1].numpy()
    expected, by_index = reference.nearest(queries.numpy(), anchors.numpy(), k)
    np.testing.assert_allclose(distances, expected, rtol=DISTANCE_RTOL, atol=0)
    assert (np.diff(distances, axis=1) >= 0).all()
    assert all(len(set(row)) == k for row in indices.tolist())
    # The anchors named must be as near as the right ones; fp32 differences may swap those equally near.
    differences = queries.double().numpy()[:, None] - anchors.double().numpy()[indices]
    np.testing.assert_allclose((differences**2).sum(axis=2), expected, rtol=DISTANCE_RTOL, atol=0)
    if kind in ("lattice", "duplicated"):
        assert np.array_equal(indices, by_index)


def assert_same(one: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor]) -> None:
    assert torch.equal(one[0], other[0])
    assert torch.equal(one[1], other[1])


@pytest.fixture
def restored() -> Iterator[None]:
    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    yield
    torch.set_num_threads(threads)
    torch.set_float32_matmul_precision(precision)


@settings(deadline=None, max_examples=100)
@given(st.data(), st.sampled_from(KINDS), st.integers(0, 2**32 - 1))
def test_equals_the_reference(data: st.DataObject, kind: str, seed: int) -> None:
    count, dim = data.draw(st.integers(1, 40)), data.draw(st.integers(1, 16))
    queries, anchors = make_sets(kind, seed, data.draw(st.integers(1, 12)), count, dim)
    k = data.draw(st.integers(1, count))
    block = data.draw(st.sampled_from([1, 3, 256]))
    assert_nearest(kind, queries, anchors, k, nearest(queries, anchors, k, block=block))


@settings(deadline=None, max_examples=60)
@given(st.data(), st.sampled_from(KINDS), st.integers(0, 2**32 - 1), st.integers(1, 40))
def test_excluding_anchors_is_searching_the_others(data: st.DataObject, kind: str, seed: int, count: int) -> None:
    queries, anchors = make_sets(kind, seed, 5, count, 6)
    hidden = data.draw(st.lists(st.booleans(), min_size=count, max_size=count).filter(lambda mask: not all(mask)))
    exclude = torch.tensor(hidden)
    kept = (~exclude).nonzero().flatten()
    k = data.draw(st.integers(1, len(kept)))
    distances, indices = nearest(queries, anchors[kept], k)
    assert_same(nearest(queries, anchors, k, exclude=exclude), (distances, kept[indices]))


@pytest.mark.parametrize("kind", KINDS)
def test_any_cut_of_the_queries_gives_the_same_bits(kind: str) -> None:
    queries, anchors = make_sets(kind, 3, 60, 150, 24)
    whole = nearest(queries, anchors, 5)
    for block in (1, 7, 59, 1000):
        assert_same(nearest(queries, anchors, 5, block=block), whole)
    order = torch.randperm(60, generator=torch.Generator().manual_seed(0))
    shuffled = nearest(queries[order], anchors, 5)
    assert_same(shuffled, (whole[0][order], whole[1][order]))
    for row in (0, 17, 59):
        assert_same(nearest(queries[row : row + 1], anchors, 5), (whole[0][row : row + 1], whole[1][row : row + 1]))
    assert_same(nearest(queries[10:35], anchors, 5), (whole[0][10:35], whole[1][10:35]))


@pytest.mark.parametrize("kind", ["gaussian", "lattice", "offset"])
def test_threads_do_not_matter(kind: str, restored: None) -> None:
    queries, anchors = make_sets(kind, 4, 100, 1000, 64)
    torch.set_num_threads(1)
    alone = nearest(queries, anchors, 5)
    torch.set_num_threads(2)
    assert_same(nearest(queries, anchors, 5), alone)


@pytest.mark.parametrize("precision", ["high", "medium"])
@pytest.mark.parametrize("kind", ["gaussian", "lattice", "offset"])
def test_a_coarser_matrix_product_changes_nothing(kind: str, precision: str, restored: None) -> None:
    queries, anchors = make_sets(kind, 5, 40, 150, 16)
    torch.set_float32_matmul_precision("highest")
    exact = nearest(queries, anchors, 5)
    torch.set_float32_matmul_precision(precision)
    assert_same(nearest(queries, anchors, 5), exact)


def test_all_anchors_can_be_asked_for() -> None:
    queries, anchors = make_sets("lattice", 6, 4, 30, 3)
    assert_nearest("lattice", queries, anchors, 30, nearest(queries, anchors, 30))


def test_half_precision_is_searched_as_given() -> None:
    queries, anchors = make_sets("gaussian", 9, 10, 50, 8)
    assert_same(nearest(queries.half(), anchors.half(), 4), nearest(queries.half().float(), anchors.half().float(), 4))


@pytest.mark.parametrize("kind", KINDS)
def test_an_anchor_is_at_distance_zero_from_itself(kind: str) -> None:
    _, anchors = make_sets(kind, 7, 1, 200, 12)
    distances, indices = nearest(anchors, anchors, 2)
    assert (distances[:, 0] == 0).all()
    assert torch.equal(anchors[indices[:, 0]], anchors)


def test_no_queries_give_no_neighbours() -> None:
    distances, indices = nearest(torch.empty(0, 4), torch.ones(6, 4), 3)
    assert distances.shape == indices.shape == (0, 3)


@pytest.mark.parametrize("k", [0, -2, 7])
def test_k_out_of_range_is_refused(k: int) -> None:
    with pytest.raises(ValueError, match=f"k must be from 1 to the number of anchors 6, got {k}"):
        nearest(torch.ones(2, 4), torch.ones(6, 4), k)


def test_k_beyond_what_is_left_is_refused() -> None:
    with pytest.raises(ValueError, match="k must be from 1 to the number of anchors 2, got 3"):
        nearest(torch.ones(2, 4), torch.ones(6, 4), 3, exclude=torch.tensor([True, False, True, True, False, True]))


@pytest.mark.parametrize(("queries", "anchors"), [((4,), (6, 4)), ((2, 4), (6, 5)), ((2, 4), (6, 4, 1))])
def test_shapes_that_do_not_match_are_refused(queries: tuple[int, ...], anchors: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"queries and anchors must be .* got"):
        nearest(torch.ones(queries), torch.ones(anchors), 1)


def test_anchors_that_no_bank_holds_are_never_found() -> None:
    """A pool may be larger than its banks; the spare rows must neither be returned nor crowd out candidates."""
    anchors = torch.randn(500, 6, generator=torch.Generator().manual_seed(0))
    rows = torch.tensor([[3, 9, 40, 77, 400, 499], [0, 3, 5, 8, 13, 21]])
    queries = torch.randn(50, 6, generator=torch.Generator().manual_seed(1))
    distances, indices = nearest_in_banks(queries, Banks(anchors, rows), 4)
    for bank in range(2):
        expected, positions = nearest(queries, anchors[rows[bank].sort().values], 4)
        assert torch.equal(distances[bank], expected)
        assert torch.equal(indices[bank], rows[bank].sort().values[positions])


@pytest.mark.parametrize("width", [100, 1000, 5000, 5007])
def test_rows_long_enough_for_groups_give_the_same_neighbours(width: int) -> None:
    """Long rows are searched in groups of columns; ties and a remainder of columns must not matter."""
    anchors = torch.randint(-2, 3, (width, 5), generator=torch.Generator().manual_seed(width)).float()
    queries = torch.randint(-2, 3, (40, 5), generator=torch.Generator().manual_seed(1)).float()
    distances, indices = nearest(queries, anchors, 4)
    expected, positions = reference.nearest(queries.numpy(), anchors.numpy(), 4)
    assert np.array_equal(distances.numpy(), expected)
    assert np.array_equal(indices.numpy(), positions)
