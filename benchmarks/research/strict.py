"""A choice that loses nowhere: at no more than 1.3 times the cost of Config.best(), judged on a part that had no say.

A recipe is a reading for the map and one for the image score. It may lose at most a point of image AUROC, P-AP, P-F1
or AUPRO against the paper's recipe, on every part and with every seed that it is chosen on. What counts is the mean of
image AUROC, P-AP and AUPRO. The map has a say in the last three, the score in the first.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from research.bench import TURNS, Reading, _blocks
from research.leaderboard import Board

MAP = ("p_ap", "p_f1", "aupro")
SCORE = ("i_auroc",)
AIMS = {MAP: ("p_ap", "aupro"), SCORE: SCORE}
MOST_LOST = 1.0  # points
MOST_COST = 1.3  # of Config.best()
IMAGES = 200  # training images for which costs are compared
WIDTH, DEPTH = 384, 12  # of a ViT-S


@dataclass(frozen=True)
class Cost:
    """What a reading costs."""

    operations: float  # multiplications for one image: the backbone, and the search
    anchors: float  # that are stored, over all layers and banks


def cost_of(reading: Reading) -> Cost:
    """Operations and anchors of a reading, for ``IMAGES`` training images."""
    patches = (reading.image_size // 14) ** 2
    seen, windows = patches, 1
    if reading.tile is not None:
        seen = (reading.tile // 14) ** 2
        windows = (-(-(reading.image_size - reading.tile) // (reading.tile // 2)) + 1) ** 2
    blocks = DEPTH + 1 + max(block for layer in reading.layers for block in _blocks(layer))
    backbone = blocks * windows * (12 * seen * WIDTH**2 + 2 * seen**2 * WIDTH)
    anchors = len(reading.layers) * reading.banks * reading.coreset_ratio * patches * IMAGES
    return Cost(len(TURNS[reading.views]) * (backbone + patches * anchors * WIDTH), anchors)


def is_affordable(reading: Reading, best: Reading) -> bool:
    """Whether neither time nor bytes are above ``MOST_COST`` times those of ``best``."""
    mine, other = cost_of(reading), cost_of(best)
    return mine.operations <= MOST_COST * other.operations and mine.anchors <= MOST_COST * other.anchors


def least_gain(board: Board, reading: str, baseline: str, parts: Sequence[str]) -> float:
    """The worst change of any metric on any part against the baseline at the same seed, in points."""
    return min(
        found[metric] - board.values[baseline][part][seed][metric]
        for part in parts
        for seed, found in board.values[reading][part].items()
        for metric in board.metrics
    )


def aim(board: Board, reading: str, parts: Sequence[str]) -> float:
    """What a reading adds to the mean of image AUROC, P-AP and AUPRO over parts."""
    return sum(board.mean(reading, parts, metric) for metric in AIMS[board.metrics]) / 3


def choose(board: Board, allowed: Sequence[str], baseline: str, parts: Sequence[str]) -> str:
    """The reading with the best aim among those that lose at most ``MOST_LOST`` on any of the parts."""
    safe = [name for name in allowed if least_gain(board, name, baseline, parts) >= -MOST_LOST]
    return max(safe or [baseline], key=lambda name: aim(board, name, parts))


@dataclass(frozen=True)
class Choice:
    """What is chosen without a part, and what it does there."""

    part: str
    reading: str
    gain: float  # of the aim over today's recipe, on the part
    least: float  # the worst change of any metric against the paper's recipe, on the part


def choose_without_each(
    board: Board,
    readings: Mapping[str, Reading],
    parts: Sequence[str],
    baseline: str,
    today: str,
    is_allowed: Callable[[Reading], bool],
) -> list[Choice]:
    """The whole choice for each part, made without it."""
    allowed = [name for name in board.complete(parts) if name in readings and is_allowed(readings[name])]
    found = []
    for part in parts:
        name = choose(board, allowed, baseline, [other for other in parts if other != part])
        gain = aim(board, name, [part]) - aim(board, today, [part])
        found.append(Choice(part, name, gain, least_gain(board, name, baseline, [part])))
    return found
