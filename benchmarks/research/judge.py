"""Pixel metrics on the device that made the maps: the numbers of :func:`procon.evaluation.metrics.evaluate`.

Values are rounded to 2^-18 of their range, which takes one pass in place of a sort. A test compares the metrics
with the package's, which are exact.
"""

import torch
from scipy import ndimage
from torch import Tensor

from procon.evaluation.metrics import FPR_LIMIT
from procon.method.maps import reflect_index, resize_maps

EIGHT = [[1, 1, 1]] * 3


BINS = 2**18


class Judge:
    """The true defects [T, H, W] of a set of images, ready to judge maps of that size."""

    def __init__(self, masks: Tensor) -> None:
        shares = torch.zeros(masks.shape, dtype=torch.float64)
        for number, mask in enumerate(masks.cpu().numpy()):
            labels, count = ndimage.label(mask, EIGHT)
            if count:
                sizes = torch.from_numpy(ndimage.sum_labels(mask, labels, range(count + 1)))
                inside = torch.from_numpy(labels > 0)
                shares[number][inside] = 1 / sizes[torch.from_numpy(labels).long()[inside]]
        self._places = masks.flatten().nonzero().flatten()  # of marked pixels
        self._shares = shares.flatten().to(masks.device)[self._places]  # of a region that each marked pixel is
        self._pixels = masks[0].numel()

    def measure(self, maps: Tensor, images: Tensor | None = None) -> dict[str, float]:
        """AUROC, AP, best F1 and AUPRO of the pixels of maps [T, H, W], in percent; of some images, if given."""
        low, high = maps.aminmax()
        bins = ((maps - low) * ((BINS - 1) / (high - low).clamp_min(1e-30))).long().clamp_(max=BINS - 1)
        places, shares = self._places, self._shares
        if images is not None:
            mine = torch.isin(places // self._pixels, images)
            places, shares = places[mine], shares[mine]
        marked = bins.flatten()[places]
        everything = (bins if images is None else bins[images]).flatten()
        reached = _from_the_top(torch.bincount(marked, minlength=BINS))
        selected = _from_the_top(torch.bincount(everything, minlength=BINS))
        covered = _from_the_top(torch.bincount(marked, shares, minlength=BINS))
        alarms = selected - reached
        positives, negatives, regions = reached[-1], alarms[-1], covered[-1]
        if not positives or not negatives:
            return dict.fromkeys(("p_auroc", "p_ap", "p_f1", "aupro"), float("nan"))
        precision = reached / selected.clamp_min(1)
        f1 = (2 * reached / (selected + positives)).max()
        ap = (torch.diff(reached, prepend=reached.new_zeros(1)) * precision).sum() / positives
        rate = alarms / negatives
        found = {"p_auroc": area(rate, reached / positives, 1.0), "p_ap": ap, "p_f1": f1}
        found["aupro"] = area(rate, covered / regions, FPR_LIMIT)
        return {name: 100 * float(value) for name, value in found.items()}


def _from_the_top(counts: Tensor) -> Tensor:
    """How much lies in each bin and above, highest first."""
    return counts.double().flip(0).cumsum(0)


def area(x: Tensor, y: Tensor, limit: float) -> Tensor:
    """The area under a rising curve from (0, 0) to x = ``limit``, straight between points, divided by ``limit``."""
    x, y = (torch.cat([line.new_zeros(1), line]) for line in (x, y))
    width = torch.diff(x)
    start, stop = x[:-1].clamp(max=limit), x[1:].clamp(max=limit)
    # The height in the middle of what lies below the limit, on the straight line between the two points.
    middle = torch.where(width > 0, ((start + stop) / 2 - x[:-1]) / width.clamp_min(1e-300), 0)
    return ((stop - start) * (y[:-1] + middle * torch.diff(y))).sum() / limit


def render(values: Tensor, size: tuple[int, int], sigma: tuple[float, float]) -> Tensor:
    """Patch values [T, rows, columns] as maps [T, H, W] of ``size``, blurred by ``sigma`` pixels down and across."""
    maps = resize_maps(values, size)
    for dim, width in zip((-2, -1), sigma, strict=True):
        maps = blur(maps, dim, width)
    return maps


def blur(maps: Tensor, dim: int, sigma: float) -> Tensor:
    """A Gaussian along one dimension, as :func:`procon.method.maps.gaussian_blur` along two."""
    if sigma == 0:
        return maps
    radius = int(4 * sigma + 0.5)
    offsets = torch.arange(-radius, radius + 1, dtype=torch.float64)
    weights = torch.exp(-0.5 * (offsets / sigma) ** 2)
    weights = (weights / weights.sum()).float()
    padded = maps.index_select(maps.ndim + dim, reflect_index(maps.shape[dim], radius, maps.device))
    blurred = torch.zeros_like(maps)
    for place, weight in enumerate(weights.tolist()):
        blurred.add_(padded.narrow(dim, place, maps.shape[dim]), alpha=weight)
    return blurred


def box(maps: Tensor, radius: int) -> Tensor:
    """The mean over squares of side 2 ``radius`` + 1, smaller at the borders: [T, H, W]."""
    side = 2 * radius + 1
    pooled: Tensor = torch.nn.functional.avg_pool2d(maps.unsqueeze(1), side, 1, radius, count_include_pad=False)
    return pooled.squeeze(1)


def guided(maps: Tensor, guide: Tensor, radius: int, floor: float) -> Tensor:
    """Maps [T, H, W] smoothed along the edges of the images ``guide`` [T, H, W] in 0..1: the guided filter.

    Within each square the result is a straight line in the guide; ``floor`` is the variance that counts as an edge.
    """
    mean, centre = box(guide, radius), box(maps, radius)
    slope = (box(guide * maps, radius) - mean * centre) / (box(guide * guide, radius) - mean * mean + floor)
    return box(slope, radius) * guide + box(centre - slope * mean, radius)
