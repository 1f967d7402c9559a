"""k-center of k-centers: a coreset of more points than one machine holds, and what that costs in quality.

Every shard gives ``size`` centres of its own, picked greedily; the same greedy loop then picks ``size`` of all these.
Let R be the best radius that any ``size`` points can have. Greedy picks of a set leave no point of it farther than 2 R
from a pick: else the picks and that point would be ``size + 1`` points farther than 2 R from each other, and two of
them would share a centre of the best solution, which is within R of both. That holds in each shard and among the
centres, so a point is within 2 R + 2 R = 4 R of the final centres, where the greedy loop over all points gives 2 R.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from procon.method.coreset import k_center_on_grid, to_grid

FACTOR = 4.0
"""No point is farther from the centres than this many times the best radius possible."""


def first_pick(points: int, seed: int) -> int:
    """Where the greedy loop starts among so many points: drawn as a memory draws it."""
    return int(np.random.RandomState(seed).random_sample() * points)


def centers_of(points: Tensor, size: int, seeds: Sequence[int]) -> tuple[Tensor, float]:
    """Greedy centres of points [n, d] from the start of each seed: rows, int64 [seeds, at most size], and the radius.

    The radius is the distance of the point farthest from its nearest centre, for the worst of the seeds. The greedy
    loop finds it: it is how far the next pick would be from those before it.
    """
    starts = [first_pick(len(points), seed) for seed in seeds]
    picks = k_center_on_grid(to_grid(points), min(size + 1, len(points)), starts)
    if picks.shape[1] <= size:
        return picks, 0.0
    gaps = [points[row[:size]].double() - points[row[size]].double() for row in picks]
    return picks[:, :size], max(float(gap.square().sum(dim=1).min().sqrt()) for gap in gaps)


def sharded_k_center(points: Tensor, size: int, seed: int, shards: int) -> Tensor:
    """Both steps on points [N, d] in one place, cut into ``shards`` runs: rows, int64 [size]."""
    kept = [rows[centers_of(points[rows], size, [seed])[0][0]] for rows in torch.arange(len(points)).chunk(shards)]
    union = torch.cat(kept)
    return union[centers_of(points[union], size, [seed])[0][0]]
