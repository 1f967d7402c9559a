"""Lessons: what patches that a person marked as defects add to the scores of new patches. Nothing is trained.

For a patch, n is its distance to the nearest normal anchor and d its distance to the nearest marked patch, both in the
same unit: the Euclidean distance of each layer, averaged over the layers. A patch that the marked patches explain
clearly better than the normal ones is evidence, and its score is multiplied by a gain that depends on d / n alone:

    gain = 1 + (MOST_GAIN - 1) * clip((REACH - d / n) / (REACH - CLEAR), 0, 1)

From ``d = REACH * n`` on the gain is 1, so that every other patch keeps its score to the last bit.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from procon.method.consensus import median
from procon.method.neighbors import pairs_in_cache

REACH = 0.9  # d / n from which on a patch is no evidence
CLEAR = 0.6  # d / n down from which the gain no longer rises
MOST_GAIN = 2.0

_TINY = 1e-12  # a patch that equals a normal anchor has n = 0: it is never evidence


@dataclass(frozen=True)
class LessonReading:
    """What marked patches say about the P patches of N images."""

    gain: Tensor  # [N, P]: what the scores are multiplied by; 1 where a patch is no evidence
    normal: Tensor  # [N, P]: n, the distance to the nearest normal anchor
    defect: Tensor  # [N, P]: d, the distance to the nearest marked patch
    rows: Tensor  # [N, P]: which marked patch that is


def read_lessons(features: Sequence[Tensor], nearest: Sequence[Tensor], marked: Sequence[Tensor]) -> LessonReading:
    """Embedded patches [N, P, D] per layer against ``marked`` patches [A, D] per layer.

    ``nearest`` [N, B, P] per layer are the squared distances to the nearest normal anchor of each bank.
    """
    normal = normal_distances(nearest)
    images = [marked_distances([layer[number] for layer in features], marked) for number in range(len(normal))]
    defect = torch.stack(images).min(dim=2)
    return LessonReading(gain_of(defect.values, normal), normal, defect.values, defect.indices)


def normal_distances(nearest: Sequence[Tensor]) -> Tensor:
    """The distance n [N, P] from squared ones [N, B, P] per layer to the nearest anchors: the median over banks."""
    return torch.stack([median(squared.sqrt(), dim=1) for squared in nearest]).mean(dim=0)


def marked_distances(patches: Sequence[Tensor], marked: Sequence[Tensor]) -> Tensor:
    """Mean over the layers of the distances between patches [P, D] and ``marked`` [A, D] per layer: [P, A]."""
    step = max(1, pairs_in_cache(patches[0]) // len(marked[0]))
    starts = range(0, len(patches[0]), step)
    # From differences, so that the result does not depend on how many patches are compared at a time.
    return torch.cat(
        [
            torch.stack(
                [
                    (layer[start : start + step].float().unsqueeze(1) - own).square_().sum(dim=2).sqrt_()
                    for layer, own in zip(patches, marked, strict=True)
                ]
            ).mean(dim=0)
            for start in starts
        ]
    )


def gain_of(defect: Tensor, normal: Tensor) -> Tensor:
    """The gain of patches at distance ``defect`` from marked and ``normal`` from normal patches, of any shape."""
    ratio = defect / normal.clamp_min(_TINY)
    return 1 + (MOST_GAIN - 1) * ((REACH - ratio) / (REACH - CLEAR)).clamp(0, 1)
