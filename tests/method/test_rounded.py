"""Candidates from bytes: distances of rounded points are exact, and never farther off than they say."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from procon.method.neighbors import Banks, nearest_in_banks
from procon.method.rounded import RoundedAnchors
from tests import reference
from tests.method.test_neighbors import KINDS, make_sets


@settings(deadline=None, max_examples=60)
@given(st.data(), st.sampled_from(KINDS), st.integers(0, 2**32 - 1))
def test_true_distances_are_within_the_stated_errors(data: st.DataObject, kind: str, seed: int) -> None:
    count, dim = data.draw(st.integers(2, 40)), data.draw(st.integers(1, 40))
    queries, anchors = make_sets(kind, seed, 6, count, dim)
    outlier = data.draw(st.integers(0, dim - 1))
    anchors[:, outlier] *= 7  # a coordinate that reaches far, and is spread over several columns
    rounded = RoundedAnchors.of(anchors, torch.ones(count, dtype=torch.bool))
    columns, distances, errors = rounded.candidates(queries, count)
    differences = queries.double().unsqueeze(1) - anchors.double()[columns]
    off = (differences.square().sum(dim=2).sqrt() - distances).abs()
    assert (off <= errors.unsqueeze(1)).all()


@pytest.mark.parametrize("count", [1, 5, 40, 300])
def test_candidates_are_the_nearest_rounded_points(count: int) -> None:
    queries, anchors = make_sets("gaussian", 3, 20, 1000, 12)
    rounded = RoundedAnchors.of(anchors, torch.ones(1000, dtype=torch.bool))
    columns, distances, _ = rounded.candidates(queries, count)
    points = [rounded.round(part)[0].numpy() for part in (queries, anchors)]
    expected = rounded.step * np.sqrt(reference.byte_distances(*points))
    np.testing.assert_allclose(distances.numpy(), np.sort(expected, axis=1)[:, :count], rtol=1e-6)
    np.testing.assert_allclose(np.take_along_axis(expected, columns.numpy(), 1), distances.numpy(), rtol=1e-6)


def test_what_no_bank_holds_and_what_is_hidden_is_infinitely_far() -> None:
    queries, anchors = make_sets("gaussian", 4, 5, 30, 8)
    rounded = RoundedAnchors.of(anchors, torch.arange(30) >= 10)
    columns, distances, _ = rounded.candidates(queries, 30, torch.arange(30) >= 20)
    found = [set(row[near.isfinite()].tolist()) for row, near in zip(columns, distances, strict=True)]
    assert found == [set(range(10, 20))] * 5


def test_a_coordinate_that_reaches_far_does_not_widen_the_error() -> None:
    _, anchors = make_sets("gaussian", 5, 1, 400, 64)
    wide = anchors.clone()
    wide[:, 9] *= 3
    everything = torch.ones(400, dtype=torch.bool)
    assert RoundedAnchors.of(wide, everything).error < 1.5 * RoundedAnchors.of(anchors, everything).error


@pytest.mark.parametrize("banks", [1, 3])
@pytest.mark.parametrize("hide", [False, True])
def test_proposals_change_nothing(banks: int, hide: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same bits with and without the product of bytes, where it is there; near ties and few banks included."""
    queries, anchors = make_sets("gaussian", 6, 60, 1500, 32)
    anchors[700:800] = anchors[:100] + 1e-4
    rows = torch.stack([torch.randperm(1500, generator=torch.Generator().manual_seed(b))[:900] for b in range(banks)])
    exclude = torch.arange(1500) % 7 == 0 if hide else None
    fast = nearest_in_banks(queries, Banks(anchors, rows), 5, exclude=exclude)
    monkeypatch.setattr(RoundedAnchors, "is_fast", staticmethod(lambda anchors: False))
    plain = nearest_in_banks(queries, Banks(anchors, rows), 5, exclude=exclude)
    assert torch.equal(fast[0], plain[0])
    assert torch.equal(fast[1], plain[1])
