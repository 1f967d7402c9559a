"""k-center of k-centers: a coreset of more points than one machine holds, and the loss of quality.

In every shard, ``size`` centres are picked greedily; the same greedy loop then picks ``size`` of the centres of all
shards. Let R be the best radius that any ``size`` points can have. Greedy picks of a set leave no point of it farther
than 2 R from a pick: otherwise the picks and that point would be ``size + 1`` points farther than 2 R from each other,
and two of them would share a centre of the best solution, which is within R of both. That holds in each shard and among
the centres, so a point is within 2 R + 2 R = 4 R of the final centres, where the greedy loop over all points gives 2 R.
"""

from collections.abc import Sequence

from torch import Tensor

from procon.method.coreset import to_grid
from procon.model.selection import select_anchors


def pick_centers(points: Tensor, size: int, seeds: Sequence[int]) -> tuple[Tensor, float]:
    """Greedy centres of points [n, d] from the start of each seed: rows, int64 [seeds, at most size], and the radius.

    The radius is the distance of the farthest point from its nearest centre, for the worst of the seeds. It is the
    distance of the next pick of the greedy loop from the picks before it.
    """
    picks = select_anchors(to_grid(points), min(size + 1, len(points)), seeds, "k-center")
    if picks.shape[1] <= size:
        return picks, 0.0
    gaps = [points[row[:size]].double() - points[row[size]].double() for row in picks]
    return picks[:, :size], max(float(gap.square().sum(dim=1).min().sqrt()) for gap in gaps)
