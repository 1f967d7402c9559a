"""Reading a memory: how much of a patch its normal neighbours leave unexplained."""

from importlib.util import find_spec

import torch
from torch import Tensor

from procon.method.consensus import median
from procon.method.neighbors import Banks, nearest_in_banks, rows_in_cache, single


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
    """w_j = softmax(-‖z - m_j‖² / tau) over the neighbours: [..., Q, k] and tau [...] -> [..., Q, k], rows sum to 1."""
    # Distances are taken from the nearest first: with tau = 0 (identical images) it keeps all the weight.
    excess = distances - distances[..., :1]
    return torch.softmax(-excess / tau[..., None, None].clamp_min(torch.finfo(distances.dtype).tiny), dim=-1)


def bank_residuals(
    queries: Tensor,
    banks: Banks,
    k: int,
    tau: Tensor | float | None = None,
    *,
    tau_patches: int | None = None,
    exclude: Tensor | None = None,
) -> Tensor:
    """r_{b,p} = ‖z_p - sum_j w_j m_j‖ over the k nearest anchors of each bank: queries [Q, D] of one image -> [B, Q].

    ``tau`` is the temperature; None takes the image's own for each bank (:func:`temperature`), infinity weighs all
    neighbours alike. ``exclude`` [U] hides anchors.
    """
    distances, indices = nearest_in_banks(queries, banks, k, exclude=exclude)
    return neighbor_residuals(queries, banks, distances, indices, tau, tau_patches=tau_patches)


def neighbor_residuals(
    queries: Tensor,
    banks: Banks,
    distances: Tensor,
    indices: Tensor,
    tau: Tensor | float | None = None,
    *,
    tau_patches: int | None = None,
) -> Tensor:
    """:func:`bank_residuals` from neighbours that are known: squared distances and rows of anchors, both [B, Q, k]."""
    found = temperature(distances, tau_patches) if tau is None else torch.as_tensor(tau, dtype=distances.dtype)
    weights = soft_weights(distances, found.to(distances.device).expand(len(distances)))
    # z - sum w m = sum w (z - m), as the weights sum to 1: no cancellation when the patch is well explained.
    residuals = torch.empty_like(distances[:, :, 0])
    step = rows_in_cache(queries, distances.shape[2])
    for bank, start in ((bank, start) for bank in range(len(distances)) for start in range(0, len(queries), step)):
        rows = slice(start, start + step)
        differences = queries[rows].float().unsqueeze(1) - banks.anchors[indices[bank, rows]]
        combined = differences.mul_(weights[bank, rows].unsqueeze(2)).sum(dim=1)
        residuals[bank, rows] = combined.square_().sum(dim=1).sqrt_()
    return residuals


def bank_distances(queries: Tensor, banks: Banks, *, exclude: Tensor | None = None) -> Tensor:
    """s_NN(z) = min_m ‖z - m‖ in each bank, the PatchCore score: queries [Q, D] -> [B, Q]; ``exclude`` [U] hides."""
    return nearest_in_banks(queries, banks, 1, exclude=exclude)[0][:, :, 0].sqrt()


def image_residuals(
    patches: Tensor,
    banks: Banks,
    k: int,
    tau: float | None = None,
    *,
    tau_patches: int | None = None,
    exclude: Tensor | None = None,
) -> Tensor:
    """:func:`bank_residuals` of several images: patches [N, P, D] -> [N, B, P]. On CUDA they share the products."""
    if (
        patches.is_cuda
        and banks.propose is None
        and tau is None
        and tau_patches is None
        and exclude is None
        and fused_neighbors(patches.shape[2], k)
    ):
        from procon.method.cuda.neighbors import fused_residuals

        fused: Tensor = fused_residuals(patches, banks.packed, k)
        return fused
    return torch.stack([bank_residuals(q, banks, k, tau, tau_patches=tau_patches, exclude=exclude) for q in patches])


def fused_neighbors(dims: int, k: int) -> bool:
    """Whether the fused CUDA kernels take this many dimensions and neighbours, and are installed."""
    return dims % 64 == 0 and k <= 8 and find_spec("triton") is not None


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
    return bank_residuals(queries, single(anchors), k, tau, tau_patches=tau_patches, exclude=exclude)[0]


def hard_residual(queries: Tensor, anchors: Tensor, *, exclude: Tensor | None = None) -> Tensor:
    """:func:`bank_distances` of a single memory: queries [Q, D], anchors [M, D] -> [Q]."""
    return bank_distances(queries, single(anchors), exclude=exclude)[0]
