"""The CUDA kernels in Triton's interpreter, on a machine without a GPU: what they compute, not how fast.

Skipped where Triton is not installed, as with the CPU build of torch: pip install triton.
"""

import os

import pytest
import torch

from procon import Config
from procon.method.neighbors import Banks
from procon.method.score import Neighbors, read_layer, read_neighbors
from tests.method.layers import PlainLayer

pytest.importorskip("triton")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(torch.cuda.is_available(), reason="the kernels run on the GPU here")]
os.environ.setdefault("TRITON_INTERPRET", "1")


def unit_vectors(count: int, dims: int, seed: int) -> torch.Tensor:
    """Points near a 12-dimensional subspace, about unit length."""
    base = torch.randn(12, dims, generator=torch.Generator().manual_seed(1))
    generator = torch.Generator().manual_seed(seed)
    points = torch.randn(count, 12, generator=generator) @ base + 0.7 * torch.randn(count, dims, generator=generator)
    return torch.nn.functional.normalize(points, dim=1)


@pytest.mark.parametrize("hide", [False, True])
@pytest.mark.parametrize("size", [6, 100, 700])
def test_neighbors_and_residuals_are_those_of_the_exact_search(size: int, hide: bool) -> None:
    from procon.method.cuda.neighbors import PackedBanks, nearest_packed, residual_norms_cuda

    anchors = unit_vectors(900, 64, 5)
    rows = torch.stack([torch.randperm(900, generator=torch.Generator().manual_seed(b))[:size] for b in range(3)])
    patches = unit_vectors(2 * 30, 64, 6).view(2, 30, 64)
    hidden = torch.rand(2, 900, generator=torch.Generator().manual_seed(3)) < 0.2
    hidden[:, rows[:, :5]] = False  # at least k of each bank stay
    exact = read_layer(patches, PlainLayer(Banks(anchors, rows)), Config(), hidden if hide else None)
    distances, found = nearest_packed(patches, PackedBanks(anchors, rows), 5, hidden if hide else None)
    assert torch.equal(found, exact.rows)
    torch.testing.assert_close(distances, exact.distances, rtol=1e-5, atol=1e-6)
    weights = read_neighbors(patches, anchors, Neighbors(distances, found), Config()).weights
    residuals = residual_norms_cuda(patches, anchors, found, weights)
    torch.testing.assert_close(residuals, exact.residuals, rtol=1e-5, atol=1e-6)


def test_ties_go_to_the_lower_row() -> None:
    from procon.method.cuda.neighbors import PackedBanks, nearest_packed

    anchors = unit_vectors(8, 64, 2).repeat(4, 1)  # each four times
    rows = torch.randperm(32, generator=torch.Generator().manual_seed(0)).unsqueeze(0)
    patches = anchors[:6].unsqueeze(0)
    exact = read_layer(patches, PlainLayer(Banks(anchors, rows)), Config())
    _, found = nearest_packed(patches, PackedBanks(anchors, rows), 5)
    assert torch.equal(found[0, 0, :, :4].sort(dim=1).values, exact.rows[0, 0, :, :4].sort(dim=1).values)
    assert found[0, 0, :, 0].tolist() == list(range(6))


@pytest.mark.parametrize("points", [torch.randn(300, 8), torch.randint(0, 3, (300, 2)).float()], ids=["gauss", "ties"])
def test_picks_are_those_of_the_cpu(points: torch.Tensor) -> None:
    from procon.method.coreset import k_center_on_grid, to_grid
    from procon.method.cuda.coreset import greedy_cuda

    grid = to_grid(points)
    assert torch.equal(greedy_cuda(grid, 40, [0, 299], 64, None), k_center_on_grid(grid, 40, [0, 299]))
