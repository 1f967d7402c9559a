"""What anchors leave on normal patches, against plain loops."""

import numpy as np
import pytest
import torch

from procon.method.consensus import lower_quartile
from procon.method.levels import PRIOR, anchor_levels, relative_residuals, residual_sums
from tests import reference

BANKS, PATCHES, NEIGHBORS, ANCHORS = 2, 30, 3, 7


@pytest.fixture
def read() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Residuals [1, B, P], weights and rows [1, B, P, k] of an image; the last anchor is nobody's neighbour."""
    random = torch.Generator().manual_seed(0)
    residuals = torch.rand(BANKS, PATCHES, generator=random)
    weights = torch.rand(BANKS, PATCHES, NEIGHBORS, generator=random)
    rows = torch.stack([torch.randperm(ANCHORS - 1, generator=random)[:NEIGHBORS] for _ in range(BANKS * PATCHES)])
    weights /= weights.sum(dim=2, keepdim=True)
    return residuals[None], weights[None], rows.view(1, BANKS, PATCHES, NEIGHBORS)


def test_levels_are_those_of_plain_loops(read: tuple[torch.Tensor, ...]) -> None:
    residuals, weights, rows = read
    (levels,) = anchor_levels(residual_sums(residuals, weights, rows, ANCHORS))
    assert levels.shape == (BANKS, ANCHORS) and levels.dtype == torch.float32
    for bank in range(BANKS):
        values = residuals[0, bank].double().numpy()
        everyone = float(values.mean()), float(np.square(values).mean())  # weights of a patch sum to 1
        for anchor in range(ANCHORS):
            patch, place = np.nonzero(rows[0, bank].numpy() == anchor)
            mine = weights[0, bank].double().numpy()[patch, place]
            expected = reference.normal_level(list(values[patch]), list(mine), everyone, PRIOR)
            assert float(levels[bank, anchor]) == pytest.approx(expected, rel=1e-6)


def test_an_anchor_nobody_knows_has_the_level_of_its_bank(read: tuple[torch.Tensor, ...]) -> None:
    residuals, weights, rows = read
    (levels,) = anchor_levels(residual_sums(residuals, weights, rows, ANCHORS))
    for bank in range(BANKS):
        spread, mean = torch.std_mean(residuals[0, bank].double(), correction=0)
        assert float(levels[bank, -1]) == pytest.approx(float(mean + 2 * spread), rel=1e-6)


def test_sums_of_images_add_up(read: tuple[torch.Tensor, ...]) -> None:
    residuals, weights, rows = read
    halves = [residual_sums(residuals[:, :, part], weights[:, :, part], rows[:, :, part], ANCHORS)
              for part in (slice(0, 11), slice(11, None))]  # fmt: skip
    torch.testing.assert_close(halves[0] + halves[1], residual_sums(residuals, weights, rows, ANCHORS))


def test_a_residual_is_divided_by_the_weighted_level(read: tuple[torch.Tensor, ...]) -> None:
    residuals, weights, rows = read
    levels = torch.rand(BANKS, ANCHORS, generator=torch.Generator().manual_seed(1)) + 0.1
    (found,) = relative_residuals(residuals, weights, rows, levels)
    for bank, patch in ((0, 0), (1, 17)):
        level = sum(float(w) * float(levels[bank, j]) for w, j in zip(weights[0, bank, patch], rows[0, bank, patch],
                                                                       strict=True))  # fmt: skip
        assert float(found[bank, patch]) == pytest.approx(float(residuals[0, bank, patch]) / level, rel=1e-5)


def test_identical_images_leave_nothing_and_scores_stay_finite(read: tuple[torch.Tensor, ...]) -> None:
    residuals, weights, rows = read
    levels = anchor_levels(residual_sums(torch.zeros_like(residuals), weights, rows, ANCHORS))
    assert relative_residuals(residuals, weights, rows, levels).isfinite().all()
    assert not relative_residuals(torch.zeros_like(residuals), weights, rows, levels).any()


def test_images_together_say_what_each_says_alone(read: tuple[torch.Tensor, ...]) -> None:
    both = [torch.cat([part, part.flip(2)]) for part in read]
    sums = residual_sums(both[0], both[1], both[2], ANCHORS)
    levels = anchor_levels(sums)
    found = relative_residuals(both[0], both[1], both[2], levels)
    for image in (0, 1):
        residuals, weights, rows = (part[image : image + 1] for part in both)
        assert torch.equal(sums[image : image + 1], residual_sums(residuals, weights, rows, ANCHORS))
        assert torch.equal(found[image : image + 1], relative_residuals(residuals, weights, rows, levels[image]))


@pytest.mark.parametrize("count", [1, 2, 4, 5, 8, 784])
def test_lower_quartile(count: int) -> None:
    values = torch.rand(3, count, generator=torch.Generator().manual_seed(count))
    expected = [reference.lower_quartile(row.tolist()) for row in values]
    np.testing.assert_allclose(lower_quartile(values).numpy(), expected, rtol=1e-6)
    np.testing.assert_allclose(lower_quartile(values).numpy(), np.quantile(values.numpy(), 0.25, axis=1), rtol=1e-6)
