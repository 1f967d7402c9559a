"""Agreement over banks, layers and patches."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from procon.method.consensus import bank_consensus, layer_consensus, median, robust_normalize, top_mean
from tests import reference


def make_maps(seed: int, *shape: int) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed))


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 2**32 - 1), st.integers(1, 7), st.integers(1, 30))
def test_bank_consensus_is_the_median(seed: int, banks: int, patches: int) -> None:
    residuals = make_maps(seed, banks, patches)
    found = bank_consensus(residuals).numpy()
    np.testing.assert_allclose(found, reference.bank_consensus(residuals.numpy()), rtol=1e-6)
    np.testing.assert_allclose(found, np.median(residuals.numpy(), axis=0), rtol=1e-6)


def test_two_middle_banks_are_averaged() -> None:
    residuals = torch.tensor([[4.0], [1.0], [100.0], [2.0]])
    assert bank_consensus(residuals).tolist() == [3.0]  # torch.median would say 2


def test_one_wild_bank_of_three_changes_nothing() -> None:
    residuals = make_maps(1, 2, 20)
    wild = torch.cat([residuals, torch.full((1, 20), 1e9)])
    assert torch.equal(bank_consensus(wild), residuals.amax(dim=0))


@pytest.mark.parametrize("fusion", ["mean", "median", "max"])
@pytest.mark.parametrize("layers", [1, 3, 4])
def test_layer_consensus_equals_the_reference(fusion: str, layers: int) -> None:
    maps = make_maps(layers, layers, 25)
    expected = reference.layer_consensus(maps.numpy(), fusion)
    np.testing.assert_allclose(layer_consensus(maps, fusion).numpy(), expected, rtol=1e-6)


def test_layers_are_averaged_by_default() -> None:
    maps = make_maps(2, 4, 9)
    assert torch.equal(layer_consensus(maps), layer_consensus(maps, "mean"))


def test_an_unknown_fusion_is_refused() -> None:
    with pytest.raises(ValueError, match="fusion must be 'mean', 'median' or 'max', got 'sum'"):
        layer_consensus(make_maps(0, 2, 3), "sum")


def test_robust_normalisation_equals_the_reference() -> None:
    maps = make_maps(3, 2, 3, 24)
    found = robust_normalize(maps)
    for index in np.ndindex(2, 3):
        expected = reference.robust_normalize(maps[index].double().numpy())
        np.testing.assert_allclose(found[index].numpy(), expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(median(found, dim=-1), torch.zeros(2, 3), atol=1e-6, rtol=0)
    torch.testing.assert_close(median(found.abs(), dim=-1), torch.ones(2, 3))


def test_robust_normalisation_of_a_flat_map_is_zero() -> None:
    assert torch.equal(robust_normalize(torch.full((2, 10), 0.3)), torch.zeros(2, 10))


@pytest.mark.parametrize(("patches", "ratio", "count"), [(784, 0.005, 4), (25, 0.005, 1), (100, 0.055, 6), (7, 1.0, 7)])
def test_top_mean_takes_the_rounded_share_and_at_least_one(patches: int, ratio: float, count: int) -> None:
    scores = torch.arange(patches, dtype=torch.float64).flip(0)
    assert float(top_mean(scores, ratio)) == pytest.approx(np.mean(range(patches - count, patches)))


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 2**32 - 1), st.integers(1, 300), st.floats(0.001, 1))
def test_top_mean_equals_the_reference(seed: int, patches: int, ratio: float) -> None:
    scores = make_maps(seed, patches)
    assert float(top_mean(scores, ratio)) == pytest.approx(reference.top_mean(scores.numpy(), ratio), rel=1e-6)


def test_images_in_front_do_not_mix() -> None:
    batch = make_maps(4, 3, 4, 5, 50)  # images, layers, banks, patches
    layers = bank_consensus(batch)
    maps = layer_consensus(layers)
    scores = top_mean(maps, 0.1)
    for index in range(3):
        assert torch.equal(layer_consensus(bank_consensus(batch[index])), maps[index])
        assert torch.equal(top_mean(maps[index], 0.1), scores[index])
