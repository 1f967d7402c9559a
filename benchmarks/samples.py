"""A sample of a part that two cores can measure, and features that are computed once for every image.

``limits.py`` and ``teach.py`` fit on at most ``TRAIN`` training images of a part and score at most ``TEST`` test images
of a kind, drawn evenly over the sorted files.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from procon import Config, Detector
from procon.model.reader import Extractor, Reader
from procon.vision.backbone import Backbone
from verdicts import PARTS, test_images

__all__ = ["PARTS", "TEST", "TRAIN", "Sample", "open_detector", "sample_tests", "sample_training"]

TRAIN, TEST = 40, 12  # images


class Sample(NamedTuple):
    """One test image."""

    path: Path
    kind: str
    mask: Path | None  # of a defect


class KeptExtractor(Extractor):
    """An extractor that stores the features of every input in a folder, exactly, and finds them there again."""

    folder: Path

    def features(self, pixels: Tensor) -> list[Tensor]:
        """Images [N, 3, H, W] to embedded patches [N, P, D], one tensor per memory."""
        images = [self._features_of(image) for image in pixels]
        return [torch.cat(layers) for layers in zip(*images, strict=True)]

    def _features_of(self, image: Tensor) -> list[Tensor]:
        digest = hashlib.sha256(image.numpy().tobytes()).hexdigest()[:24]
        file = self.folder / f"{digest}.npy"
        if file.exists():
            return [layer.unsqueeze(0) for layer in torch.from_numpy(np.load(file))]
        layers = super().features(image.unsqueeze(0))
        np.save(file, torch.cat(layers).numpy())
        return layers


def open_detector(weights: Path, tokens: Path | None, **settings: Any) -> Detector:
    """A detector with the settings that fit two cores; with ``tokens``, features are kept in that folder."""
    config = Config(**{"backbone": "dinov2-small", "weights": str(weights), "precision": "bf16", **settings})
    detector = Detector(config, device="cpu")
    if tokens is not None:
        tokens.mkdir(parents=True, exist_ok=True)
        extractor = KeptExtractor(Backbone.load(config, detector.device), config)
        extractor.folder = tokens
        detector._reader = Reader(extractor, config)
    return detector


def sample_training(root: Path) -> list[Path]:
    """At most ``TRAIN`` training images of the part in ``root``."""
    return spread(sorted((root / "train" / "good").iterdir()), TRAIN)


def sample_tests(root: Path) -> list[Sample]:
    """At most ``TEST`` test images of every kind, good ones included."""
    by_kind: dict[str, list[Sample]] = {}
    for path, kind, mask in test_images(root):
        by_kind.setdefault(kind, []).append(Sample(path, kind, mask))
    return [sample for samples in by_kind.values() for sample in spread(samples, TEST)]


def spread(items: Sequence[Any], most: int) -> list[Any]:
    """At most ``most`` of the items, evenly over all of them."""
    if len(items) <= most:
        return list(items)
    return [items[round(place)] for place in np.linspace(0, len(items) - 1, most)]
