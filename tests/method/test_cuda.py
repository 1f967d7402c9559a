"""The CUDA paths against the exact ones. Run where there is a GPU: pytest -m gpu."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from procon import Config, Detector
from procon.errors import ImageError
from procon.method.coreset import k_center
from procon.method.neighbors import Banks
from procon.method.score import read_layer
from procon.vision.framing import resample
from procon.vision.images import open_image
from procon.vision.on_device import resample_bytes
from tests.conftest import part_pixels, tiny_config, write_tiny_backbone
from tests.method.layers import PlainLayer

BEST_SETTINGS = {"score_relative_to": "anchors", "map_offset": 1.0, "banks": 1}

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")]


def clustered(count: int, dims: int, seed: int) -> torch.Tensor:
    """Points near a 12-dimensional subspace, about unit length."""
    base = torch.randn(12, dims, generator=torch.Generator().manual_seed(1))
    generator = torch.Generator().manual_seed(seed)
    points = torch.randn(count, 12, generator=generator) @ base + 0.7 * torch.randn(count, dims, generator=generator)
    return torch.nn.functional.normalize(points, dim=1)


@pytest.mark.parametrize("block", [16, 100, 2048])
@pytest.mark.parametrize(
    "points",
    [
        torch.randn(3000, 24, generator=torch.Generator().manual_seed(0)),
        torch.randint(0, 4, (2000, 3), generator=torch.Generator().manual_seed(0)).float(),  # ties everywhere
        torch.randn(50, 8, generator=torch.Generator().manual_seed(0)).repeat(20, 1),  # fewer points than picks
        torch.zeros(300, 4),
        clustered(20_000, 192, 3),
    ],
    ids=["gauss", "lattice", "duplicates", "equal", "clustered"],
)
def test_picks_equal_those_of_the_cpu(points: torch.Tensor, block: int) -> None:
    starts = [0, 7, len(points) - 1]
    heard: list[int] = []
    picks = k_center(points.cuda(), 250, starts, block=block, on_pick=heard.append)
    assert picks.is_cuda
    assert torch.equal(picks.cpu(), k_center(points, 250, starts))
    assert heard == sorted(heard)
    assert heard[-1] == 3 * 250


@pytest.mark.parametrize("dims", [64, 384, 512])
@pytest.mark.parametrize("size", [6, 100, 2048, 2100, 9000])
def test_fused_residuals_agree_with_the_exact_path(size: int, dims: int) -> None:
    anchors = clustered(12_000, dims, 5)
    rows = torch.stack([torch.randperm(12_000, generator=torch.Generator().manual_seed(b))[:size] for b in range(3)])
    patches = clustered(2 * 400, dims, 6).view(2, 400, dims)
    fused = read_layer(patches.cuda(), PlainLayer(Banks(anchors.cuda(), rows.cuda())), Config()).residuals.cpu()
    exact = read_layer(patches, PlainLayer(Banks(anchors, rows)), Config()).residuals
    assert fused.shape == (2, 3, 400)
    # Half precision may swap an anchor at the edge of the candidates; nothing else may differ but rounding.
    error = (fused - exact).abs() / exact
    assert error.max() < 1e-3
    assert error.median() < 1e-6


@pytest.mark.parametrize("readout", ["soft", "hard", "uniform"])
@pytest.mark.parametrize("size", [6, 100, 2100])
def test_anchors_hidden_from_each_image_are_not_found(size: int, readout: str) -> None:
    anchors = clustered(3000, 64, 5)
    rows = torch.stack([torch.randperm(3000, generator=torch.Generator().manual_seed(b))[:size] for b in range(2)])
    patches = clustered(3 * 50, 64, 6).view(3, 50, 64)
    hidden = torch.rand(3, 3000, generator=torch.Generator().manual_seed(3)) < 0.1
    hidden[:, rows[:, :5]] = False  # at least k of each bank stay
    config = Config(readout=readout)  # type: ignore[arg-type]
    there = read_layer(patches.cuda(), PlainLayer(Banks(anchors.cuda(), rows.cuda())), config, hidden.cuda())
    here = read_layer(patches, PlainLayer(Banks(anchors, rows)), config, hidden)
    assert not hidden[torch.arange(3).view(3, 1, 1, 1), there.rows.cpu()].any()
    assert torch.equal(there.rows.cpu(), here.rows)
    for name in ("residuals", "distances", "weights"):
        torch.testing.assert_close(getattr(there, name).cpu(), getattr(here, name), rtol=1e-4, atol=1e-5)
    sums, expected = there.sums(3000).cpu(), here.sums(3000)
    torch.testing.assert_close(sums, expected, rtol=1e-4, atol=1e-6)
    assert torch.equal(sums, there.sums(3000).cpu())


@pytest.mark.parametrize("recipe", [{}, BEST_SETTINGS])
def test_calibration_in_groups_is_that_of_the_cpu(recipe: dict[str, Any], tiny_backbone: Path) -> None:
    wide = write_tiny_backbone(tiny_backbone.parent / "wide", hidden=64)
    config = tiny_config(wide, precision="fp32", **recipe)
    here, there = (Detector(config, device=d).fit([part_pixels(s) for s in range(9)]) for d in ("cpu", "cuda"))
    assert here.calibration is not None and there.calibration is not None
    assert there.calibration.scores == pytest.approx(here.calibration.scores, rel=1e-3)
    assert there.calibration.peaks == pytest.approx(here.calibration.peaks, rel=1e-3)
    for one, other in zip(here.suspects(), there.suspects(), strict=True):
        assert other.number == one.number and other.score == pytest.approx(one.score, rel=1e-3)


@pytest.mark.parametrize("shape", [(1024, 1024), (230, 640), (672, 672)])
def test_images_are_resized_to_the_bytes_of_pillow(shape: tuple[int, int]) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (*shape, 3), dtype=np.uint8)
    for size in ((392, 392), (672, 672), (224, 630)):
        resized = resample_bytes(torch.from_numpy(pixels).cuda().permute(2, 0, 1).unsqueeze(0), size)
        assert np.array_equal(resized[0].permute(1, 2, 0).cpu().numpy(), resample(pixels, size))


@pytest.mark.parametrize("settings", [{}, {"image_size": 140, "tile": 70}, {"aspect": "pad"}, {"roi": True}])
def test_a_detector_scores_alike_on_cpu_and_gpu_alone_and_in_batches(
    settings: dict[str, Any], tiny_backbone: Path
) -> None:
    roi = [(0, 0), (0.7, 0), (0.7, 1), (0, 1)] if settings.get("roi") else None
    given = {name: value for name, value in settings.items() if name != "roi"}
    config = tiny_config(tiny_backbone, precision="fp32", **given)
    on_gpu = Detector(config, device="cuda").fit([part_pixels(seed) for seed in range(8)], roi=roi)
    on_cpu = Detector(config, device="cpu").fit([part_pixels(seed) for seed in range(8)], roi=roi)
    images = [part_pixels(20), part_pixels(21, defect=True), part_pixels(22)]
    together = on_gpu.predict(images)
    for image, batched in zip(images, together, strict=True):
        alone, reference = on_gpu.predict(image), on_cpu.predict(image)
        # Products as tiny as these may be summed in another order where there are more; real ones are tested below.
        assert alone.score == pytest.approx(batched.score, rel=1e-6)
        np.testing.assert_allclose(alone.heatmap, batched.heatmap, rtol=1e-5, atol=1e-6)
        assert alone.score == pytest.approx(reference.score, rel=1e-3)
        assert abs(alone.heatmap - reference.heatmap).max() < 1e-3 * reference.heatmap.max()


def test_a_recorded_graph_follows_its_input(tiny_backbone: Path) -> None:
    """64 dimensions let the fused kernels run, so the single image is a replayed graph."""
    wide = write_tiny_backbone(tiny_backbone.parent / "wide", hidden=64)
    detector = Detector(tiny_config(wide, precision="fp32"), device="cuda").fit([part_pixels(s) for s in range(8)])
    first, second = part_pixels(30), part_pixels(31, defect=True)
    scores = [detector.predict(image).score for image in (first, second, first, second)]
    assert scores[0] == scores[2] != scores[1] == scores[3]
    batch = [result.score for result in detector.predict([first, second])]
    assert scores[:2] == batch


def test_images_prepared_and_judged_in_threads_keep_their_order_and_their_errors(tiny_backbone: Path) -> None:
    detector = Detector(tiny_config(tiny_backbone, precision="fp32"), device="cuda")
    detector.fit([part_pixels(seed) for seed in range(8)])
    images: list[Any] = [part_pixels(seed, defect=seed % 3 == 0) for seed in range(150)]
    images[70] = "missing.png"
    results = list(detector.predict_each(images))  # three groups
    assert isinstance(results[70], ImageError)
    for seed in (0, 63, 64, 69, 71, 149):
        alone, found = detector.predict(images[seed]), results[seed]
        assert not isinstance(found, ImageError)
        assert alone.score == pytest.approx(found.score, rel=1e-6)
        np.testing.assert_allclose(alone.heatmap, found.heatmap, rtol=1e-5, atol=1e-6)
        assert [region.box for region in alone.regions] == [region.box for region in found.regions]


@pytest.mark.parametrize("hidden", [384, 768])  # the second is projected
@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_a_score_does_not_depend_on_the_group_recorded_or_not(hidden: int, precision: str, tmp_path: Path) -> None:
    weights = write_tiny_backbone(tmp_path / "wide", hidden=hidden)
    config = tiny_config(weights, precision=precision, image_size=392)
    detector = Detector(config, device="cuda").fit([part_pixels(seed) for seed in range(6)])
    pictures = [open_image(part_pixels(seed, defect=seed % 3 == 0)) for seed in range(20, 40)]
    pixels = torch.stack([detector.reader.extractor.prepare(picture) for picture in pictures])

    def in_groups(size: int) -> list[torch.Tensor]:
        parts = [detector.scorer.measure_pixels(group, pictures[0].size) for group in pixels.split(size)]
        return [torch.cat(kind) for kind in zip(*parts, strict=True)]

    alone = in_groups(1)
    for recorded in (False, True):
        for size in (20, 16, 7, 3, 2):
            if recorded:
                detector.scorer.record(size)
            assert all(torch.equal(one, other) for one, other in zip(alone, in_groups(size), strict=True)), size
