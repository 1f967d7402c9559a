"""What anchors leave on normal patches: sums gathered image by image, and the level that follows from them."""

import torch
from torch import Tensor

DEVIATIONS = 2.0  # standard deviations above the mean at which the level of an anchor lies
PRIOR = 5.0  # patches of the whole bank added to an anchor's own, so that a rare anchor is not judged by few

_STEPS = 2.0**40  # of an integer sum to 1: residuals are at most 2, and 2^20 patches of 2^2 stay below 2^63
_TINY = 1e-12  # identical training images leave nothing: a division by it stays finite


def residual_sums(residuals: Tensor, weights: Tensor, rows: Tensor, count: int) -> Tensor:
    """What the patches of each image say about ``count`` anchors: sums of w, w r and w r², float64 [N, 3, B, count].

    Residuals [N, B, P]; the weights of their neighbours and which anchors these are, both [N, B, P, k]. The same bits
    every time: on a CPU terms are added in order, on a GPU as integers.
    """
    images, banks = residuals.shape[:2]
    value, weight = residuals.double().unsqueeze(-1), weights.double()
    terms = torch.stack([weight, weight * value, weight * value.square()], dim=1).flatten(-2)  # [N, 3, B, P k]
    places = rows.flatten(2)
    if residuals.is_cuda:
        whole = torch.zeros(images, 3, banks, count, dtype=torch.int64, device=residuals.device)
        steps = terms.mul_(_STEPS).round_().long()
        return whole.scatter_add_(3, places.unsqueeze(1).expand_as(steps), steps).double() / _STEPS
    sums = [
        torch.bincount(places[image, bank], terms[image, term, bank], minlength=count)
        for image in range(images)
        for term in range(3)
        for bank in range(banks)
    ]
    return torch.stack(sums).view(images, 3, banks, count)


def anchor_levels(sums: Tensor) -> Tensor:
    """a_j = mean + 2 standard deviations of what anchor j leaves on normal patches: [..., 3, B, U] -> [..., B, U].

    ``sums`` are those of :func:`residual_sums` over all normal images. Mean and mean square of an anchor count with
    ``PRIOR`` patches of its bank in addition to its own.
    """
    mass, first, second = sums.unbind(-3)
    all_mass, all_first, all_second = sums.sum(dim=-1, keepdim=True).unbind(-3)
    weight = mass + PRIOR
    mean = (first + PRIOR * all_first / all_mass) / weight
    square = (second + PRIOR * all_second / all_mass) / weight
    levels: Tensor = mean + DEVIATIONS * (square - mean.square()).clamp_min(0).sqrt()
    return levels.float()


def relative_residuals(residuals: Tensor, weights: Tensor, rows: Tensor, levels: Tensor) -> Tensor:
    """Residuals [N, B, P] over sum_j w_j a_j, of weights and rows [N, B, P, k] and levels [B, U] or [N, B, U]."""
    near = levels.expand(len(rows), -1, -1).gather(2, rows.flatten(2)).view_as(weights)
    return residuals / (weights * near).sum(dim=3).clamp_min(_TINY)
