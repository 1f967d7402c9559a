"""Agreement over memories, then over depths, then over the patches of an image."""

import torch
from torch import Tensor


def median(values: Tensor, dim: int) -> Tensor:
    """The true median along ``dim``: the mean of the two middle values where their number is even."""
    ordered = values.sort(dim=dim).values
    count = values.shape[dim]
    low, high = ordered.select(dim, (count - 1) // 2), ordered.select(dim, count // 2)
    return (low + high) / 2


def lower_quartile(values: Tensor) -> Tensor:
    """The value a quarter of the way up the sorted values, interpolated between two: [..., P] -> [...]."""
    ordered = values.sort(dim=-1).values
    place = (values.shape[-1] - 1) / 4
    low, high = ordered[..., int(place)], ordered[..., min(int(place) + 1, values.shape[-1] - 1)]
    return low + (high - low) * (place - int(place))


def bank_consensus(residuals: Tensor) -> Tensor:
    """S_l(p) = median over banks of r_{l,b,p}: [..., B, P] -> [..., P]."""
    return median(residuals, dim=-2)


def layer_consensus(maps: Tensor, fusion: str = "mean") -> Tensor:
    """S_map(p), the mean over layers of S_l(p): [..., L, P] -> [..., P]. ``median`` and ``max`` are ablations."""
    if fusion == "mean":
        return maps.mean(dim=-2)
    if fusion == "median":
        return median(maps, dim=-2)
    if fusion == "max":
        return maps.amax(dim=-2)
    raise ValueError(f"fusion must be 'mean', 'median' or 'max', got {fusion!r}")


def robust_normalize(maps: Tensor) -> Tensor:
    """Each map of one image by its own median and median absolute deviation: [..., P] -> [..., P].

    The paper's negative result: it erases the difference between a good and a bad image.
    """
    centre = median(maps, dim=-1).unsqueeze(-1)
    spread = median((maps - centre).abs(), dim=-1).unsqueeze(-1)
    return (maps - centre) / spread.clamp_min(torch.finfo(maps.dtype).tiny)


def top_mean(maps: Tensor, ratio: float) -> Tensor:
    """S_img, the mean of the ``max(1, round(ratio * P))`` largest patch scores: [..., P] -> [...]."""
    count = max(1, round(ratio * maps.shape[-1]))
    return maps.topk(count, dim=-1).values.mean(dim=-1)
