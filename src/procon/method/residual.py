"""The soft projection of a patch onto its normal neighbours, and the residual that it leaves."""

from importlib.util import find_spec

import torch
from torch import Tensor

from procon.method.consensus import median
from procon.method.neighbors import pairs_in_cache


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
    # Distances are measured from the nearest: with tau = 0 (identical images) it keeps all the weight.
    excess = distances - distances[..., :1]
    return torch.softmax(-excess / tau[..., None, None].clamp_min(torch.finfo(distances.dtype).tiny), dim=-1)


def residual_norms(patches: Tensor, anchors: Tensor, rows: Tensor, weights: Tensor) -> Tensor:
    """r_{b,p} = ‖z_p - sum_j w_j m_j‖: patches [N, P, D], anchors [U, D], rows, weights [N, B, P, k] -> [N, B, P]."""
    if patches.is_cuda and find_spec("triton") is not None:
        from procon.method.cuda.neighbors import residual_norms_cuda

        return residual_norms_cuda(patches, anchors, rows, weights)
    return torch.stack(
        [_image_residuals(image, anchors, *own) for image, *own in zip(patches, rows, weights, strict=True)]
    )


def _image_residuals(queries: Tensor, anchors: Tensor, rows: Tensor, weights: Tensor) -> Tensor:
    """:func:`residual_norms` of one image: queries [Q, D], rows and weights [B, Q, k] -> [B, Q]."""
    # z - sum w m = sum w (z - m), as the weights sum to 1: no cancellation when the patch is well explained.
    residuals = torch.empty_like(weights[:, :, 0])
    banks, _, k = rows.shape
    step = max(1, pairs_in_cache(queries) // (banks * k))
    for part in (slice(start, start + step) for start in range(0, len(queries), step)):
        near = anchors.index_select(0, rows[:, part].flatten()).view(banks, -1, k, anchors.shape[1])
        differences = torch.sub(queries[part].float().unsqueeze(1), near, out=near).mul_(weights[:, part].unsqueeze(3))
        residuals[:, part] = differences.sum(dim=2).square_().sum(dim=2).sqrt_()
    return residuals
