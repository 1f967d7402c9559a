"""The soft projection against its equations, and what it must tend to."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from procon.method.projection import gaussian_matrix, project
from procon.method.residual import soft_weights, temperature
from tests import reference
from tests.method.layers import hard_residual, soft_residual

RTOL = 1e-5


def make_sets(seed: int, queries: int = 20, anchors: int = 60, dim: int = 12) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(queries, dim, generator=generator), torch.randn(anchors, dim, generator=generator)


def assert_close(found: Tensor, expected: reference.Floats) -> None:
    # A patch in the middle of its neighbours leaves a small difference of large numbers: hence the second tolerance.
    np.testing.assert_allclose(found.numpy(), expected, rtol=RTOL, atol=RTOL * float(np.max(expected)))


@settings(deadline=None, max_examples=60)
@given(st.data(), st.integers(0, 2**32 - 1), st.integers(1, 15), st.integers(1, 40), st.integers(4, 16))
def test_residuals_equal_the_reference(data: st.DataObject, seed: int, count: int, anchors: int, dim: int) -> None:
    patches, memory = make_sets(seed, count, anchors, dim)
    k = data.draw(st.integers(1, anchors))
    tau = data.draw(st.none() | st.floats(0.05, 100))
    assert_close(
        soft_residual(patches, memory, k, tau), reference.soft_residual(patches.numpy(), memory.numpy(), k, tau)
    )
    assert_close(hard_residual(patches, memory), reference.hard_residual(patches.numpy(), memory.numpy()))


def test_the_temperature_may_be_a_tensor() -> None:
    patches, memory = make_sets(1)
    assert torch.equal(soft_residual(patches, memory, 5, torch.tensor(3.0)), soft_residual(patches, memory, 5, 3.0))


@pytest.mark.parametrize(("patches", "k"), [(3, 3), (3, 5), (4, 3), (1, 1), (1, 2)])
def test_own_temperature_is_the_median_as_numpy_takes_it(patches: int, k: int) -> None:
    queries, memory = make_sets(patches + k, patches)
    distances, _ = reference.nearest(queries.numpy(), memory.numpy(), k)
    tau = float(np.median(distances))
    assert float(temperature(torch.from_numpy(distances))) == pytest.approx(tau, rel=1e-12)
    assert_close(soft_residual(queries, memory, k), reference.soft_residual(queries.numpy(), memory.numpy(), k, tau))


@pytest.mark.parametrize("tau", [0.0, 1e-30, 1e-3, 1.0, 1e6])
def test_weights_sum_to_one_and_fall_with_distance(tau: float) -> None:
    distances = torch.rand(50, 6, generator=torch.Generator().manual_seed(2)).sort(dim=1).values * 100
    weights = soft_weights(distances, torch.tensor(tau))
    torch.testing.assert_close(weights.sum(dim=1), torch.ones(50))
    assert (weights.diff(dim=1) <= 0).all()


def test_a_cold_projection_is_the_nearest_anchor() -> None:
    patches, memory = make_sets(3)
    torch.testing.assert_close(soft_residual(patches, memory, 5, 1e-9), hard_residual(patches, memory))


def test_a_hot_projection_is_the_centroid_of_the_neighbours() -> None:
    patches, memory = make_sets(4)
    _, indices = reference.nearest(patches.numpy(), memory.numpy(), 5)
    centroids = memory.numpy()[indices].mean(axis=1)
    assert_close(soft_residual(patches, memory, 5, 1e9), np.linalg.norm(patches.numpy() - centroids, axis=1))


def test_the_residual_is_at_most_the_distance_to_the_farthest_neighbour() -> None:
    # The projection lies in the convex hull of the neighbours. It may well be farther than the nearest of them.
    patches, memory = make_sets(5)
    farthest = np.sqrt(reference.nearest(patches.numpy(), memory.numpy(), 5)[0][:, -1])
    for tau in (0.01, 1.0, 100.0):
        assert (soft_residual(patches, memory, 5, tau).numpy() <= farthest * (1 + RTOL)).all()


def test_one_neighbour_is_the_hard_readout() -> None:
    patches, memory = make_sets(6)
    torch.testing.assert_close(soft_residual(patches, memory, 1), hard_residual(patches, memory))


@pytest.mark.parametrize("shift", [0.0, 2.0])
def test_identical_anchors_give_finite_residuals(shift: float) -> None:
    memory = torch.ones(7, 4)
    residuals = soft_residual(memory + shift, memory, 5)
    torch.testing.assert_close(residuals, torch.full((7,), 2 * shift))  # the norm of four equal shifts


def test_mostly_known_patches_have_temperature_zero_and_finite_residuals() -> None:
    known, memory = make_sets(7, 30, 30)
    memory = torch.cat([known] * 5 + [memory])  # five copies of each: every neighbour of most patches is at 0
    patches = torch.cat([known, known[:1] + 1])
    residuals = soft_residual(patches, memory, 5)
    assert residuals.isfinite().all()
    assert (residuals[:-1] == 0).all()
    assert float(residuals[-1]) == pytest.approx(float(hard_residual(patches, memory)[-1]), rel=RTOL)


def test_a_subsampled_temperature_is_fixed_and_leaves_global_random_state_alone() -> None:
    patches, memory = make_sets(8, 200, 60)
    torch.manual_seed(0)
    first = soft_residual(patches, memory, 5, tau_patches=20)
    drawn = torch.rand(3)
    soft_residual(patches[:50], memory, 5, tau_patches=10)
    torch.manual_seed(99)
    assert torch.equal(soft_residual(patches, memory, 5, tau_patches=20), first)
    torch.manual_seed(0)
    assert torch.equal(torch.rand(3), drawn)
    assert not torch.equal(first, soft_residual(patches, memory, 5))


def test_a_subsampled_temperature_is_the_median_of_patches_that_never_change() -> None:
    ranks = torch.arange(101.0).unsqueeze(1)
    for count in (1, 3, 51):
        middle = float(temperature(ranks, count))
        assert middle == int(middle)  # an odd number of patches has one in the middle
        assert float(temperature(ranks**2, count)) == middle**2  # the same ones whatever their distances
    assert float(temperature(ranks, 2)) != 50
    assert float(temperature(ranks, 101)) == float(temperature(ranks, 500)) == float(temperature(ranks)) == 50


def test_the_order_of_patches_only_orders_the_residuals() -> None:
    patches, memory = make_sets(9)
    order = torch.randperm(len(patches), generator=torch.Generator().manual_seed(1))
    assert torch.equal(soft_residual(patches[order], memory, 5), soft_residual(patches, memory, 5)[order])
    assert torch.equal(hard_residual(patches[order], memory), hard_residual(patches, memory)[order])


def test_patches_are_independent_once_the_temperature_is_given() -> None:
    patches, memory = make_sets(10)
    whole = soft_residual(patches, memory, 5, 2.0)
    alone = torch.cat([soft_residual(patch, memory, 5, 2.0) for patch in patches.split(1)])
    assert torch.equal(alone, whole)


def test_hidden_anchors_explain_nothing() -> None:
    patches, memory = make_sets(11)
    exclude = torch.arange(len(memory)) % 3 == 0
    rest = memory[~exclude]
    assert torch.equal(soft_residual(patches, memory, 5, exclude=exclude), soft_residual(patches, rest, 5))
    assert torch.equal(hard_residual(patches, memory, exclude=exclude), hard_residual(patches, rest))
    own = hard_residual(memory[:1], memory, exclude=torch.arange(len(memory)) == 0)
    assert float(own) > 0


def test_projection_equals_the_reference() -> None:
    tokens, _ = make_sets(12, 30, 1, 24)
    matrix = gaussian_matrix(24, 8, 42, 3, 0)
    np.testing.assert_allclose(project(tokens, matrix), reference.project(tokens.numpy(), matrix.numpy()), atol=1e-6)
    np.testing.assert_allclose(project(tokens, None), reference.project(tokens.numpy(), None), atol=1e-6)
    torch.testing.assert_close(project(1000 * tokens, matrix), project(tokens, matrix))


def test_a_projection_is_fixed_by_its_seed_and_key_and_keeps_lengths_on_average() -> None:
    matrix = gaussian_matrix(400, 300, 42, 9, 0)
    np.random.seed(0)  # noqa: NPY002  the legacy global state must not matter
    assert torch.equal(gaussian_matrix(400, 300, 42, 9, 0), matrix)
    for other in (
        gaussian_matrix(400, 300, 43, 9, 0),
        gaussian_matrix(400, 300, 42, 6, 0),
        gaussian_matrix(400, 300, 42, 9, 1),
    ):
        assert abs(float((other * matrix).sum() / matrix.square().sum())) < 0.02  # unrelated; a sum of 120,000 products
    assert float(matrix.square().sum() / 400) == pytest.approx(1, abs=0.02)
    # A model file does not carry its matrices: these digits must never change.
    pinned = [0.17484010756015778, -0.6363863945007324, 0.07523789256811142, 0.5547595024108887]
    assert gaussian_matrix(2, 2, 42, 9, 0).flatten().tolist() == pinned


def test_an_infinite_temperature_projects_on_the_plain_mean_of_the_neighbours() -> None:
    patches, memory = make_sets(9, 40, 60)
    nearest = reference.nearest(patches.numpy().astype(np.float64), memory.numpy().astype(np.float64), 5)[1]
    centroids = memory.numpy().astype(np.float64)[nearest].mean(axis=1)
    expected = np.sqrt(((patches.numpy() - centroids) ** 2).sum(axis=1))
    np.testing.assert_allclose(soft_residual(patches, memory, 5, float("inf")).numpy(), expected, rtol=RTOL)
