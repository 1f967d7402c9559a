"""Prediction in stages: prepare and judge run in any thread, score runs on the device."""

from collections.abc import Sequence
from itertools import islice
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from procon.deploy import Runtime
from procon.detector import Detector
from procon.prediction import Prediction
from procon.vision.images import Picture

Reading = tuple[Any, Any, Any]
"""Score, heat map of the backbone's input [H, W] and median patch score of one image: tensors, or arrays."""

_RECORDED = (1, 2, 4, 8, 16)  # group sizes recorded as CUDA graphs; a recording holds memory of the GPU


class PreparedImage(NamedTuple):
    """An image as the backbone takes it."""

    pixels: Tensor
    """[3, H, W]"""
    size: tuple[int, int]
    """(height, width) of the original image."""


class Engine(Protocol):
    """The stages of a prediction with one model."""

    def prepare(self, picture: Picture) -> PreparedImage:
        """The input of the backbone."""

    def score(self, inputs: Sequence[PreparedImage]) -> list[Reading]:
        """Run the model on ``inputs``; only the device thread calls this."""

    def judge(self, picture: Picture, reading: Reading) -> Prediction:
        """Heat map, verdict and regions."""


class RuntimeEngine:
    """The stages of an exported model."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def prepare(self, picture: Picture) -> PreparedImage:
        """The input of the exported graph."""
        return PreparedImage(torch.from_numpy(self._runtime.prepare(picture)), picture.size)

    def score(self, inputs: Sequence[PreparedImage]) -> list[Reading]:
        """One image at a time."""
        readings = [self._runtime.read(image.pixels.numpy()[None]) for image in inputs]
        return [(scores[0], maps[0], medians[0]) for scores, maps, medians in readings]

    def judge(self, picture: Picture, reading: Reading) -> Prediction:
        """Heat map, verdict and regions."""
        score, input_map, median = reading
        return self._runtime.judge(picture, float(score), input_map, float(median))


class DetectorEngine:
    """The stages of a detector."""

    def __init__(self, detector: Detector) -> None:
        self._detector = detector

    def prepare(self, picture: Picture) -> PreparedImage:
        """The input of the backbone."""
        return PreparedImage(self._detector.extractor.prepare(picture), picture.size)

    def score(self, inputs: Sequence[PreparedImage]) -> list[Reading]:
        """On a CPU, and where images are padded, one image at a time: rounding never depends on the other images.

        Results are copied to the CPU here, so that no other thread uses the GPU: that could break a recording.
        """
        detector = self._detector
        together = detector.device.type == "cuda" and detector.config.aspect == "stretch"
        remaining, readings = iter(inputs), list[Reading]()
        while group := list(islice(remaining, len(inputs) if together else 1)):
            pixels = torch.stack([image.pixels.to(detector.device) for image in group])
            results = detector.read(pixels, group[0].size)
            readings.extend(zip(*(values.cpu() for values in results), strict=True))
        return readings

    def judge(self, picture: Picture, reading: Reading) -> Prediction:
        """Heat map, verdict and regions."""
        return self._detector.judge(picture, *reading)

    def warm_up(self, counts: Sequence[int]) -> list[None]:
        """Score groups of so many empty images: kernels compile, and small groups are recorded."""
        height, width = self._detector.config.input_size
        for count in counts:
            if count in _RECORDED:
                self._detector.record(count)
            self.score([PreparedImage(torch.zeros(3, height, width), (height, width))] * count)
        return [None] * len(counts)


def group_sizes(most: int) -> list[int]:
    """Group sizes to warm up, largest first so that the smaller ones reuse its memory."""
    return sorted({most, *(size for size in _RECORDED if size <= most)}, reverse=True)
