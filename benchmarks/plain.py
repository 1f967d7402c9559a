"""The slow forms that ours are measured against, on any device."""

import torch
from torch import Tensor


def plain_k_center(values: Tensor, size: int, start: int) -> Tensor:
    """The textbook loop: all points against one pick at a time."""
    picks = [start]
    closest = (values - values[start]).square().sum(dim=1)
    while len(picks) < size:
        picks.append(int(closest.argmax()))
        closest = torch.minimum(closest, (values - values[picks[-1]]).square().sum(dim=1))
    return torch.tensor(picks)


def papers_form(queries: Tensor, anchors: Tensor, k: int = 5) -> Tensor:
    """One bank and image as the published method computes it: a second distance matrix sets tau."""
    sample = queries[torch.randperm(len(queries), device=queries.device)[:512]]
    tau = torch.cdist(sample, anchors).square().topk(k, largest=False).values.median()
    near, index = torch.cdist(queries, anchors).square().topk(k, dim=1, largest=False)
    weights = torch.softmax(-near / tau, dim=1)
    expanded = anchors.unsqueeze(0).expand(len(queries), -1, -1)
    neighbors = expanded.gather(1, index.unsqueeze(2).expand(-1, -1, anchors.shape[1]))
    return (queries - (weights.unsqueeze(2) * neighbors).sum(dim=1)).norm(dim=1)
