"""Editing and explaining a model on CUDA. Run where there is a GPU: pytest -m gpu."""

from pathlib import Path

import pytest
import torch

from procon import Detector
from tests.conftest import part_pixels, tiny_config
from tests.method.layers import k_center_from

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")]


def test_continued_picks_equal_those_of_the_cpu() -> None:
    points = torch.randn(3000, 24, generator=torch.Generator().manual_seed(0))
    here = k_center_from(points[500:], points[:500], 200, block=64)
    assert torch.equal(k_center_from(points[500:].cuda(), points[:500].cuda(), 200).cpu(), here)


def test_a_model_is_edited_and_explained_as_on_the_cpu(tiny_backbone: Path, tmp_path: Path) -> None:
    parts = [part_pixels(seed) for seed in range(9)]
    models = []
    for device in ("cpu", "cuda"):
        config = tiny_config(tiny_backbone, precision="fp32")
        detector = Detector(config, device=device).fit(parts[:4])
        detector.partial_fit(parts[4:6]).forget("image 1").calibrate(parts[8:])
        models.append(detector)
    one, two = models
    assert one.memory is not None and two.memory is not None
    assert one.memory.names == two.memory.names
    for first, second in zip(one.memory.layers, two.memory.layers, strict=True):
        assert second.anchors.is_cuda
        assert torch.equal(first.origin[first.banks], second.origin.cpu()[second.banks.cpu()])
    image = part_pixels(50, defect=True)
    here, there = one.predict(image), two.predict(image)
    assert there.score == pytest.approx(here.score, rel=1e-3)
    assert there.median_patch_score == pytest.approx(here.median_patch_score, rel=1e-3)
    assert two.predict([image] * 2)[1].median_patch_score == pytest.approx(
        here.median_patch_score, rel=1e-3
    )  # without the recorded graph
    why, also = one.explain(image, (40, 50)), two.explain(image, (40, 50))
    assert also.score == pytest.approx(why.score, rel=1e-3)
    assert also.normal_patches()[0].box == why.normal_patches()[0].box
    again = Detector.load(two.save(tmp_path / "a.procon"), device="cuda")
    assert again.predict(image).score == there.score
    assert again.calibration == two.calibration


def test_models_are_merged_on_cuda(tiny_backbone: Path, tmp_path: Path) -> None:
    from PIL import Image

    paths = []
    for seed in range(6):
        Image.fromarray(part_pixels(seed)).save(tmp_path / f"{seed}.png")
        paths.append(tmp_path / f"{seed}.png")
    config = tiny_config(tiny_backbone, precision="fp32")
    merged = [
        Detector(config, device=device).fit(paths[:3]).merge(Detector(config, device=device).fit(paths[3:]))
        for device in ("cpu", "cuda")
    ]
    assert merged[1].predict(part_pixels(9)).score == pytest.approx(merged[0].predict(part_pixels(9)).score, rel=1e-3)
