"""The stages of a prediction, apart: what needs the device, and what other threads can do before and after it."""

from collections.abc import Sequence
from itertools import islice
from typing import Any, NamedTuple

import torch

from procon.detector import Detector
from procon.model.verdict import Measurement, Scorer
from procon.vision.images import Picture

_RECORDED = (1, 2, 4, 8, 16)  # images; larger groups keep a GPU busy as they are, and a recording holds their memory


class Input(NamedTuple):
    """An image as the backbone sees it."""

    pixels: Any
    """[3, H, W]"""
    size: tuple[int, int]
    """(height, width) of the image it was made from."""


def prepare(scorer: Scorer, picture: Picture) -> Input:
    """The input of the backbone."""
    return Input(scorer.prepare(picture), picture.size)


def measure(scorer: Scorer, inputs: Sequence[Input]) -> list[Measurement]:
    """Measure ``inputs``: all together where the scorer takes groups, else one by one.

    Results come to the CPU here, so that no other thread ever touches a GPU: it could break a graph that is being
    recorded.
    """
    waiting, measured = iter(inputs), list[Measurement]()
    while group := list(islice(waiting, len(inputs) if scorer.group_size > 1 else 1)):
        measured += scorer.measure([one.pixels for one in group], group[0].size)
    return measured


def group_sizes(most: int) -> list[int]:
    """Sizes of groups that a GPU is prepared for, largest first so that the smaller use its memory again."""
    return sorted({most, *(size for size in _RECORDED if size <= most)}, reverse=True)


def warm(detector: Detector, count: int, _items: Sequence[Any]) -> list[None]:
    """Work for a group of ``count`` images, done once: kernels compile, and small groups are recorded."""
    height, width = detector.config.input_size
    if count in _RECORDED:
        detector.scorer.record(count)
    measure(detector.scorer, [Input(torch.zeros(3, height, width), (height, width))] * count)
    return [None]
