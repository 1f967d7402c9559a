"""Training images that the rest cannot explain: the likely defects among parts that were called good.

Each training image is scored without its own anchors, as a new one would be. A defect that only a few images share
scores high, unless the others that share it explain it: so those found are hidden too, and all are scored again, until
no more are found. The images that nothing speaks against set the scale, by their lower half alone, which defects among
the upper half do not stretch.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from procon.config import Config
from procon.errors import ConfigError
from procon.method.consensus import top_mean
from procon.model.memory import Memory

LIMIT = 3.0
"""Spreads above the median at which an image is suspected; of normal scores about 1 in 700 is that far out."""
_ROUNDS = 8


@dataclass(frozen=True)
class Suspect:
    """A training image and how far it stands out."""

    image: str
    """Its name in the memory."""
    number: int
    score: float
    """Image score without its own anchors, and without those of other suspects."""
    excess: float
    """How far the score lies above the median of the unsuspected, in their spreads."""
    flagged: bool
    box: tuple[int, int, int, int]
    """(left, top, right, bottom) of the patch that is least explained, in pixels of the image."""
    map: NDArray[np.float32] = field(repr=False)
    """[rows, columns] patch scores."""


def stand_out(scores: Sequence[float], trusted: Sequence[bool]) -> list[float]:
    """How many spreads each score lies above the median of the trusted ones; their lower half gives the spread."""
    kept = np.array([score for score, good in zip(scores, trusted, strict=True) if good], np.float64)
    middle = float(np.median(kept))
    spread = float(np.sqrt(np.square(kept[kept <= middle] - middle).mean()))
    spread = max(spread, float(np.finfo(np.float32).eps) * max(abs(middle), 1e-30))
    return [float((score - middle) / spread) for score in scores]


def find_outliers(
    memory: Memory, read: Callable[[int, frozenset[int]], Tensor], config: Config, limit: float
) -> tuple[list[Tensor], list[float], frozenset[int]]:
    """Patch scores [P] of every training image, how far each stands out, and those found.

    ``read`` gives the patch scores [P] of an image with the anchors of the given images hidden. A round hides those of
    the last one; an image that no longer stands out then is cleared. At most half the images are ever suspected (beyond
    that nobody can say which half is the good one), and never so many that a bank is left with fewer than k anchors.
    """
    count = len(memory.images)
    hidden: frozenset[int] = frozenset()
    if _fewest(memory, hidden) < config.num_neighbors:
        raise ConfigError("suspects need more training images or a larger coreset_ratio, as an image hides its anchors")
    for _ in range(_ROUNDS):
        maps = [read(number, hidden | {number}) for number in range(count)]
        scores = [float(top_mean(one, config.top_ratio)) for one in maps]
        excess = stand_out(scores, [number not in hidden for number in range(count)])
        worst = sorted(range(count), key=lambda number: -excess[number])[: count // 2]
        found = frozenset(number for number in worst if excess[number] > limit)
        if found == hidden or _fewest(memory, found) < config.num_neighbors:
            break
        hidden = found
    return maps, excess, found


def _fewest(memory: Memory, hidden: frozenset[int]) -> int:
    """Anchors of the smallest bank without those of ``hidden`` and of whichever image is read."""
    fewest = []
    for layer in memory.layers:
        source = layer.origin[layer.banks] // memory.patches
        hide = torch.tensor(sorted(hidden), dtype=source.dtype, device=source.device)
        for bank in source:
            left = bank[~torch.isin(bank, hide)]
            fewest.append(len(left) - (int(left.bincount().max()) if len(left) else 0))
    return min(fewest)
