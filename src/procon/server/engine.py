"""The stages of a prediction, apart: what needs the device, and what other threads can do before and after it."""

from collections.abc import Sequence

import torch
from torch import Tensor

from procon.detector import Detector
from procon.images import Picture, to_input
from procon.prediction import Explanation, Prediction

Reading = tuple[Tensor, Tensor, Tensor]
"""Score, map of the backbone's input [H, W] and median patch score of one image."""


def prepare(detector: Detector, picture: Picture) -> Tensor:
    """The input [3, H, W] of the backbone."""
    config = detector.config
    return torch.from_numpy(to_input(picture, config.input_size, config.resize))


def read(detector: Detector, inputs: Sequence[Tensor]) -> list[Reading]:
    """What the device says about inputs [3, H, W].

    On a CPU they pass one by one, as in ``Detector.predict_each``: rounding then never depends on the others. Results
    come to the CPU here, so that no other thread ever touches a GPU: it could break a graph that is being recorded.
    """
    size = len(inputs) if detector.device.type == "cuda" else 1
    found: list[Reading] = []
    for start in range(0, len(inputs), size):
        scores, maps, middles = detector._read(torch.stack(list(inputs[start : start + size])))
        found.extend(zip(scores.cpu(), maps.cpu(), middles.cpu(), strict=True))
    return found


def judge(detector: Detector, picture: Picture, reading: Reading) -> Prediction:
    """Heat map, verdict and regions."""
    with torch.inference_mode():
        return detector._judge(picture, *reading)


def explain(detector: Detector, picture: Picture, xy: tuple[float, float] | None) -> Explanation:
    """The normal patches that a pixel was compared with."""
    return detector.explain(picture, xy)
