"""Reading a memory: how much of a patch its normal neighbours leave unexplained."""

import torch
from torch import Tensor

from procon.kernels.consensus import median
from procon.kernels.neighbors import nearest


def temperature(distances: Tensor, patches: int | None = None) -> Tensor:
    """tau_{l,b}: the median of the squared distances [Q, k] of one image to its neighbours, a scalar.

    All patches count. ``patches`` takes a fixed subsample of that many instead, as in the paper's supplement.
    """
    if patches is not None and patches < len(distances):
        generator = torch.Generator().manual_seed(0)
        chosen = torch.randperm(len(distances), generator=generator)[:patches]
        distances = distances[chosen.to(distances.device)]
    return median(distances.flatten(), dim=0)


def soft_weights(distances: Tensor, tau: Tensor) -> Tensor:
    """w_j = softmax(-‖z - m_j‖² / tau) over the neighbours: [Q, k] -> [Q, k], rows sum to 1."""
    # Distances are taken from the nearest first: with tau = 0 (identical images) it keeps all the weight.
    excess = distances - distances[:, :1]
    return torch.softmax(-excess / tau.clamp_min(torch.finfo(distances.dtype).tiny), dim=1)


def soft_residual(
    queries: Tensor,
    anchors: Tensor,
    k: int,
    tau: Tensor | float | None = None,
    *,
    tau_patches: int | None = None,
    exclude: Tensor | None = None,
) -> Tensor:
    """r_p = ‖z_p - sum_j w_j m_j‖ over the k nearest anchors: queries [Q, D] of one image, anchors [M, D] -> [Q].

    ``tau`` is the temperature; None takes the image's own (:func:`temperature`). ``exclude`` [M] hides anchors.
    """
    distances, indices = nearest(queries, anchors, k, exclude=exclude)
    if tau is None:
        tau = temperature(distances, tau_patches)
    weights = soft_weights(distances, torch.as_tensor(tau, dtype=distances.dtype, device=distances.device))
    # z - sum w m = sum w (z - m), as the weights sum to 1: no cancellation when the patch is well explained.
    differences = queries.float().unsqueeze(1) - anchors[indices].float()
    return (weights.unsqueeze(2) * differences).sum(dim=1).square().sum(dim=1).sqrt()


def hard_residual(queries: Tensor, anchors: Tensor, *, exclude: Tensor | None = None) -> Tensor:
    """s_NN(z) = min_m ‖z - m‖, the PatchCore score: queries [Q, D], anchors [M, D] -> [Q]."""
    distances, _ = nearest(queries, anchors, 1, exclude=exclude)
    return distances[:, 0].sqrt()
