"""The stages of a prediction, apart: what needs the device, and what other threads can do before and after it."""

from collections.abc import Sequence
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch import Tensor

from procon.deploy import Runtime
from procon.detector import Detector
from procon.prediction import Prediction
from procon.vision.images import Picture

Scorer = Detector | Runtime
Reading = tuple[Any, Any, Any]
"""Score, map of the backbone's input [H, W] and median patch score of one image: tensors, or arrays of a runtime."""

_RECORDED = (1, 2, 4, 8, 16)  # images; larger groups keep a GPU busy as they are, and a recording holds their memory


class Input(NamedTuple):
    """An image as the backbone sees it."""

    pixels: Tensor
    """[3, H, W]"""
    size: tuple[int, int]
    """(height, width) of the image it was made from."""


def prepare(scorer: Scorer, picture: Picture) -> Input:
    """The input of the backbone."""
    if isinstance(scorer, Runtime):
        return Input(torch.from_numpy(scorer.prepare(picture)), picture.size)
    return Input(scorer.extractor.prepare(picture), picture.size)


def read(scorer: Scorer, inputs: Sequence[Input]) -> list[Reading]:
    """What the device says about ``inputs``.

    On a CPU they pass one by one, as in ``Detector.predict_each``: rounding then never depends on the others; and so
    they do where images are padded, as their sizes differ. Results come to the CPU here, so that no other thread ever
    touches a GPU: it could break a graph that is being recorded.
    """
    if isinstance(scorer, Runtime):
        readings = [scorer.read(one.pixels.numpy()[None]) for one in inputs]
        return [(scores[0], maps[0], middles[0]) for scores, maps, middles in readings]
    together = scorer.device.type == "cuda" and scorer.config.aspect == "stretch"
    waiting, found = iter(inputs), list[Reading]()
    while group := list(islice(waiting, len(inputs) if together else 1)):
        pixels = torch.stack([one.pixels.to(scorer.device) for one in group])
        scores, maps, middles = scorer.read(pixels, group[0].size)
        found.extend(zip(scores.cpu(), maps.cpu(), middles.cpu(), strict=True))
    return found


def group_sizes(most: int) -> list[int]:
    """Sizes of groups that a GPU is prepared for, largest first so that the smaller use its memory again."""
    return sorted({most, *(size for size in _RECORDED if size <= most)}, reverse=True)


def warm(detector: Detector, count: int, _items: Sequence[Any]) -> list[None]:
    """Work for a group of ``count`` images, done once: kernels compile, and small groups are recorded."""
    height, width = detector.config.input_size
    if count in _RECORDED:
        detector.record(count)
    read(detector, [Input(torch.zeros(3, height, width), (height, width))] * count)
    return [None]


def judge(scorer: Scorer, picture: Picture, reading: Reading) -> Prediction:
    """Heat map, verdict and regions."""
    score, input_map, middle = reading
    if isinstance(scorer, Runtime):
        return scorer.judge(picture, float(score), input_map, float(middle))
    return scorer.judge(picture, score, input_map, middle)
