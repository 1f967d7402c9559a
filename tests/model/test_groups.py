"""Images in groups, as a GPU takes them: the same numbers as one by one. The groups are formed on the CPU here."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from procon import Config, Detector
from procon.model.reader import Extractor
from procon.vision.images import open_image
from tests.conftest import part_pixels, tiny_config

RECIPES: list[dict[str, Any]] = [
    {},
    {"score_relative_to": "anchors", "map_offset": 1.0, "banks": 1},
    {"normalization": "train", "readout": "hard"},
]
IMAGES = [part_pixels(seed) for seed in range(8)]


def fit(config: Config, **settings: Any) -> Detector:
    return Detector(config, device="cpu").fit(IMAGES, **settings)


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("size", [3, 8])
def test_a_fit_in_groups_is_that_of_single_images(
    recipe: dict[str, Any], size: int, tiny_backbone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny_config(tiny_backbone, **recipe)
    alone = fit(config)
    monkeypatch.setattr(Extractor, "group_size", size)
    together = fit(config)
    assert together.calibration is not None and together.calibration == alone.calibration
    assert together.memory is not None and alone.memory is not None
    for one, other in zip(alone.memory.layers, together.memory.layers, strict=True):
        assert torch.equal(one.anchors, other.anchors)
        assert one.sums is None or (other.sums is not None and torch.equal(one.sums, other.sums))
    assert alone.memory.quartile == together.memory.quartile
    together.forget("image 3").partial_fit([part_pixels(30)])
    results = together.predict([part_pixels(seed, defect=True) for seed in range(20, 25)])
    for seed, found in zip(range(20, 25), results, strict=True):
        single = together.predict(part_pixels(seed, defect=True))
        assert single.score == found.score and np.array_equal(single.heatmap, found.heatmap)


def test_a_group_with_a_region_of_interest(tiny_backbone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    roi = [(0, 0), (0.7, 0), (0.7, 1), (0, 1)]
    alone = fit(tiny_config(tiny_backbone), roi=roi)
    monkeypatch.setattr(Extractor, "group_size", 3)
    assert fit(tiny_config(tiny_backbone), roi=roi).calibration == alone.calibration


def test_bytes_and_inputs_stack_to_the_same_inputs(tiny_backbone: Path) -> None:
    extractor = fit(tiny_config(tiny_backbone)).reader.extractor
    deep = open_image(np.random.default_rng(0).random((90, 60, 3)).astype(np.float32))  # has no bytes to resize
    pictures = [open_image(part_pixels(1)), deep, open_image(part_pixels(2)[:50])]
    prepared = [
        torch.from_numpy(picture.pixels.copy()) if picture.pixels.dtype == np.uint8 else extractor.prepare(picture)
        for picture in pictures
    ]
    stacked = extractor.stack(prepared)
    assert torch.equal(stacked, torch.stack([extractor.prepare(picture) for picture in pictures]))
