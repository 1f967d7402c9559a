"""What anchors leave on normal patches: sums gathered image by image, and the level that follows from them."""

import torch
from torch import Tensor

DEVIATIONS = 2.0  # standard deviations above the mean at which the level of an anchor lies
PRIOR = 5.0  # patches of the whole bank that count beside an anchor's own, so that a rare anchor is not judged by few

_TINY = 1e-12  # identical training images leave nothing: a division by it stays finite


def residual_sums(residuals: Tensor, weights: Tensor, rows: Tensor, count: int) -> Tensor:
    """What the patches of an image say about ``count`` anchors: sums of w, w r and w r², float64 [3, B, count].

    Residuals [B, P]; the weights of their neighbours and which anchors these are, both [B, P, k]. Summed on the CPU,
    in order: the same bits every time.
    """
    parts = []
    for bank in range(len(residuals)):
        value = residuals[bank].double().cpu().unsqueeze(1)
        weight, place = weights[bank].double().cpu(), rows[bank].cpu().flatten()
        for term in (weight, weight * value, weight * value.square()):
            parts.append(torch.bincount(place, term.flatten(), minlength=count))
    return torch.stack(parts).view(len(residuals), 3, count).transpose(0, 1).to(residuals.device)


def anchor_levels(sums: Tensor) -> Tensor:
    """a_j = mean + 2 standard deviations of what anchor j leaves on normal patches: [3, B, U] -> float32 [B, U].

    ``sums`` are those of :func:`residual_sums` over all normal images. Mean and mean square of an anchor count with
    ``PRIOR`` patches of its bank beside its own.
    """
    mass, first, second = sums
    overall = sums.sum(dim=2, keepdim=True)
    weight = mass + PRIOR
    mean = (first + PRIOR * overall[1] / overall[0]) / weight
    square = (second + PRIOR * overall[2] / overall[0]) / weight
    levels: Tensor = mean + DEVIATIONS * (square - mean.square()).clamp_min(0).sqrt()
    return levels.float()


def relative_residuals(residuals: Tensor, weights: Tensor, rows: Tensor, levels: Tensor) -> Tensor:
    """Residuals [B, P] over sum_j w_j a_j, of weights and rows of anchors [B, P, k] and levels [B, U]: [B, P]."""
    near = levels.gather(1, rows.flatten(1)).view_as(weights)
    return residuals / (weights * near).sum(dim=2).clamp_min(_TINY)
