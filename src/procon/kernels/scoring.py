"""Reading a memory: how much of a patch its normal neighbours leave unexplained."""

import torch
from torch import Tensor

from procon.kernels.consensus import median
from procon.kernels.neighbors import nearest_in_banks, rows_in_cache


def temperature(distances: Tensor, patches: int | None = None) -> Tensor:
    """tau_{l,b}: the median of the squared distances of one image to its neighbours: [..., Q, k] -> [...].

    All patches count. ``patches`` takes a fixed subsample of that many instead, as in the paper's supplement.
    """
    if patches is not None and patches < distances.shape[-2]:
        generator = torch.Generator().manual_seed(0)
        chosen = torch.randperm(distances.shape[-2], generator=generator)[:patches]
        distances = distances[..., chosen.to(distances.device), :]
    return median(distances.flatten(-2), dim=-1)


def soft_weights(distances: Tensor, tau: Tensor) -> Tensor:
    """w_j = softmax(-‖z - m_j‖² / tau) over the neighbours: [..., Q, k] with tau [...] -> [..., Q, k], rows sum to 1."""
    # Distances are taken from the nearest first: with tau = 0 (identical images) it keeps all the weight.
    excess = distances - distances[..., :1]
    return torch.softmax(-excess / tau[..., None, None].clamp_min(torch.finfo(distances.dtype).tiny), dim=-1)


def bank_residuals(
    queries: Tensor,
    anchors: Tensor,
    banks: Tensor,
    k: int,
    tau: Tensor | float | None = None,
    *,
    tau_patches: int | None = None,
    exclude: Tensor | None = None,
) -> Tensor:
    """r_{b,p} = ‖z_p - sum_j w_j m_j‖ over the k nearest anchors of each bank: queries [Q, D] of one image -> [B, Q].

    ``anchors`` [U, D] are those of all banks, ``banks`` [B, M] rows of it; ``exclude`` [U] hides anchors. ``tau`` is the
    temperature; None takes the image's own for each bank (:func:`temperature`).
    """
    distances, indices = nearest_in_banks(queries, anchors, banks, k, exclude=exclude)
    found = temperature(distances, tau_patches) if tau is None else torch.as_tensor(tau, dtype=distances.dtype)
    weights = soft_weights(distances, found.to(distances.device).expand(len(banks)))
    # z - sum w m = sum w (z - m), as the weights sum to 1: no cancellation when the patch is well explained.
    residuals = torch.empty_like(distances[:, :, 0])
    step = rows_in_cache(queries, k)
    for bank, start in ((bank, start) for bank in range(len(banks)) for start in range(0, len(queries), step)):
        rows = slice(start, start + step)
        differences = queries[rows].float().unsqueeze(1) - anchors[indices[bank, rows]].float()
        combined = differences.mul_(weights[bank, rows].unsqueeze(2)).sum(dim=1)
        residuals[bank, rows] = combined.square_().sum(dim=1).sqrt_()
    return residuals


def bank_distances(queries: Tensor, anchors: Tensor, banks: Tensor, *, exclude: Tensor | None = None) -> Tensor:
    """s_NN(z) = min_m ‖z - m‖ in each bank, the PatchCore score: queries [Q, D] -> [B, Q]; see :func:`bank_residuals`."""
    return nearest_in_banks(queries, anchors, banks, 1, exclude=exclude)[0][:, :, 0].sqrt()


def soft_residual(
    queries: Tensor,
    anchors: Tensor,
    k: int,
    tau: Tensor | float | None = None,
    *,
    tau_patches: int | None = None,
    exclude: Tensor | None = None,
) -> Tensor:
    """:func:`bank_residuals` of a single memory: queries [Q, D] of one image, anchors [M, D] -> [Q]."""
    whole = torch.arange(len(anchors), device=anchors.device).unsqueeze(0)
    return bank_residuals(queries, anchors, whole, k, tau, tau_patches=tau_patches, exclude=exclude)[0]


def hard_residual(queries: Tensor, anchors: Tensor, *, exclude: Tensor | None = None) -> Tensor:
    """:func:`bank_distances` of a single memory: queries [Q, D], anchors [M, D] -> [Q]."""
    whole = torch.arange(len(anchors), device=anchors.device).unsqueeze(0)
    return bank_distances(queries, anchors, whole, exclude=exclude)[0]
