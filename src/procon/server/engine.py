"""The stages of a prediction: what needs the device, and what other threads can do before and after it."""

from collections.abc import Sequence
from itertools import islice
from typing import Any, NamedTuple

import torch

from procon.model.scorer import ModelScorer
from procon.model.verdict import Measurement, Scorer, make_prediction
from procon.prediction import Prediction
from procon.vision.images import Picture

_RECORDED = (1, 2, 4, 8, 16)  # group sizes recorded as CUDA graphs; a recording holds memory of the GPU


class PreparedImage(NamedTuple):
    """The input of the backbone for an image."""

    pixels: Any  # [3, H, W]
    size: tuple[int, int]  # (height, width) of the original image


class Engine:
    """The stages of a prediction with one model."""

    def __init__(self, scorer: Scorer) -> None:
        self._scorer = scorer

    def prepare(self, picture: Picture) -> PreparedImage:
        """The input of the backbone."""
        return PreparedImage(self._scorer.prepare(picture), picture.size)

    def score(self, inputs: Sequence[PreparedImage]) -> list[Measurement]:
        """Measure ``inputs``: together if the scorer takes groups, else one by one. Call it on the device thread only.

        Results are on the CPU, because another thread that uses the GPU could break a recording.
        """
        remaining, measured = iter(inputs), list[Measurement]()
        while group := list(islice(remaining, len(inputs) if self._scorer.group_size > 1 else 1)):
            measured += self._scorer.measure([image.pixels for image in group], group[0].size)
        return measured

    def judge(self, picture: Picture, measured: Measurement) -> Prediction:
        """Heat map, verdict and regions."""
        return make_prediction(self._scorer, picture, measured)

    def warm_up(self, counts: Sequence[int]) -> list[None]:
        """Score groups of so many empty images, so that kernels compile and small groups are recorded."""
        height, width = self._scorer.config.input_size
        for count in counts:
            if isinstance(self._scorer, ModelScorer) and count in _RECORDED:
                self._scorer.record(count)
            self.score([PreparedImage(torch.zeros(3, height, width), (height, width))] * count)
        return [None] * len(counts)


def group_sizes(most: int) -> list[int]:
    """Group sizes to warm up, largest first so that the smaller ones reuse its memory."""
    return sorted({most, *(size for size in _RECORDED if size <= most)}, reverse=True)
