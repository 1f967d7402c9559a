"""What does not count, counts nowhere: padding and background leave no trace in memory, score, threshold or map."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from procon import Config, ConfigError, Detector
from procon.model.memory import Memory
from procon.vision.framing import frame_of, patch_at, patch_box, patch_size, to_input
from procon.vision.images import Picture
from procon.vision.scope import Scope, parse_roi, roi_mask, scope_of
from tests.conftest import Run, part_pixels, tiny_config

CPU = torch.device("cpu")


def memory_of(detector: Detector) -> Memory:
    assert detector.memory is not None
    return detector.memory


def scope_for(config: Config, roi: NDArray[np.bool_] | None, size: tuple[int, int]) -> Scope:
    scope = scope_of(config, roi, size, CPU)
    assert scope is not None
    return scope


# ------------------------------------------------------------------------------------------------------------ frames


@settings(deadline=None)
@given(st.integers(14, 900), st.integers(14, 900), st.sampled_from([(70, 70), (56, 98), (392, 392)]))
def test_a_padded_image_keeps_its_proportions_and_lies_in_the_middle(height: int, width: int, input_size: Any) -> None:
    config = Config(image_size=input_size, aspect="pad")
    frame = frame_of(config, (height, width))
    assert frame.scaled[0] == input_size[0] or frame.scaled[1] == input_size[1]
    scale = min(input_size[0] / height, input_size[1] / width)
    assert abs(frame.scaled[0] - max(1, height * scale)) <= 0.5 and abs(frame.scaled[1] - max(1, width * scale)) <= 0.5
    for start, side, length in zip(frame.origin, input_size, frame.scaled, strict=True):
        before, after = -start, side - length + start
        assert before >= 0 and 0 <= after - before <= 1


def test_padding_repeats_the_edge_and_the_image_is_untouched() -> None:
    pixels = np.random.default_rng(0).integers(0, 255, (50, 30, 3)).astype(np.uint8)
    config = Config(image_size=70, aspect="pad")
    frame = frame_of(config, (50, 30))
    assert frame.scaled == (70, 42) and frame.origin == (0, -14)
    padded = to_input(Picture(pixels), config)
    alone = to_input(Picture(pixels), Config(image_size=(70, 42)))
    assert np.array_equal(padded[:, :, 14:56], alone)
    assert (padded[:, :, :14] == alone[:, :, :1]).all() and (padded[:, :, 56:] == alone[:, :, -1:]).all()


def test_patches_of_a_padded_image_lie_in_the_image() -> None:
    config = Config(image_size=70, aspect="pad")
    assert patch_size(config, (40, 20)) == (8, 8)
    covered = np.zeros((40, 20), int)
    for patch in scope_for(config, None, (40, 20)).rows.tolist():
        left, top, right, bottom = patch_box(config, patch, (40, 20))
        assert 0 <= left < right <= 20 and 0 <= top < bottom <= 40
        covered[top:bottom, left:right] += 1
    assert covered.max() == 1 and (covered[:, 3:17] == 1).all()
    for xy in ((0, 0), (19, 39), (10, 20)):
        left, top, right, bottom = patch_box(config, patch_at(config, xy, (40, 20)), (40, 20))
        assert left - 1 <= xy[0] <= right and top - 1 <= xy[1] <= bottom


# ------------------------------------------------------------------------------------------------------------ scopes


def test_everything_counts_unless_something_is_said() -> None:
    assert scope_of(Config(image_size=70), None, (300, 20), CPU) is None
    assert scope_of(Config(image_size=70, resize=90), None, (300, 20), CPU) is None
    assert scope_of(Config(image_size=70, aspect="pad"), None, (20, 20), CPU) is None
    assert scope_of(Config(image_size=70, aspect="pad"), None, (20, 30), CPU) is not None


def test_a_patch_counts_if_half_of_it_does() -> None:
    mask = np.zeros((70, 70), bool)
    mask[:21, :28] = True  # row 0 whole, row 1 half; columns 0 and 1
    scope = scope_for(Config(image_size=70), mask, (500, 300))
    assert scope.rows.tolist() == [0, 1, 5, 6]
    assert scope.nearest.view(5, 5)[:2, :2].tolist() == [[0, 1], [2, 3]]
    assert scope.nearest.view(5, 5)[0].tolist() == [0, 1, 1, 1, 1] and int(scope.nearest[-1]) == 3
    assert scope.pixels.numpy().sum() == 21 * 28
    assert scope.place(6) == 3
    with pytest.raises(ConfigError, match="region of interest"):
        scope.place(7)
    with pytest.raises(ConfigError, match="raise image_size"):
        scope_of(Config(image_size=70), np.eye(70, dtype=bool), (70, 70), CPU)


def test_a_region_is_part_of_the_image_also_when_padded_or_cropped() -> None:
    mask = np.zeros((70, 70), bool)
    mask[:, 35:] = True  # the right half
    padded = scope_for(Config(image_size=70, aspect="pad"), mask, (70, 35)).pixels.numpy()
    assert not padded[:, :34].any() and padded[:, 36:51].all() and not padded[:, 52:].any()
    cropped = scope_for(Config(image_size=70, resize=140), mask, (300, 300)).pixels.numpy()
    assert not cropped[:, :34].any() and cropped[:, 36:].all()


def test_a_region_comes_as_mask_or_polygon(tmp_path: Path) -> None:
    half = np.zeros((96, 80), np.uint8)
    half[:, 40:] = 255
    Image.fromarray(half).save(tmp_path / "mask.png")
    sizes = [(96, 80)] * 3
    corners = [(40, 0), (80, 0), (80, 96), (40, 96)]
    masks = [
        roi_mask(tmp_path / "mask.png", sizes, (70, 70)),
        roi_mask(half, sizes, (70, 70)),
        roi_mask(corners, sizes, (70, 70)),
        roi_mask([(0.5, 0), (1, 0), (1, 1), (0.5, 1)], [(96, 80), (20, 50)], (70, 70)),
        roi_mask(parse_roi(str(tmp_path / "mask.png")), sizes, (70, 70)),
        roi_mask(parse_roi("40,0 80,0 80,96 40,96"), sizes, (70, 70)),
    ]
    for mask in masks:
        assert mask.shape == (70, 70) and not mask[:, :34].any() and mask[:, 36:].all()
    triangle = roi_mask([(0, 0), (80, 0), (0, 96)], sizes, (70, 70))
    assert abs(triangle.mean() - 0.5) < 0.02 and triangle[5, 5] and not triangle[65, 65]


@pytest.mark.parametrize(
    ("roi", "sizes", "message"),
    [
        ([(0, 0), (1, 1)], [(96, 80)], "at least three corners"),
        ([(0, 0, 1), (1, 1, 1), (2, 2, 2)], [(96, 80)], "at least three corners"),
        ([(0, 0), (50, 0), (50, 50)], [(96, 80), (90, 80)], "images of one size"),
        ([(0, 0), (90, 0), (50, 50)], [(96, 80)], "must lie in the images, 80 x 96"),
        ([(0, 0), (-0.1, 0), (0.5, 0.5)], [(96, 80)], "must lie in the images"),
        (np.zeros((96, 80), np.uint8), [(96, 80)], "is empty"),
        (np.full((80, 96), 255, np.uint8), [(96, 80)], r"proportions of the images \(80 x 96 pixels\), got 96 x 80"),
    ],
)
def test_a_region_that_cannot_be_meant_is_refused(roi: Any, sizes: list[tuple[int, int]], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        roi_mask(roi, sizes, (70, 70))


def test_a_region_that_cannot_be_parsed_says_how_to_write_one() -> None:
    for text in ("nowhere.png", "1,2 3", "1;2 3;4 5;6"):
        with pytest.raises(ConfigError, match="'x,y x,y x,y'"):
            parse_roi(text)


# ------------------------------------------------------------------------------------------------------------ detectors

LEFT = [(0.0, 0.0), (0.6, 0.0), (0.6, 1.0), (0.0, 1.0)]


def fit(weights: Path, roi: Any = LEFT, **given: Any) -> Detector:
    return Detector(tiny_config(weights, **given), device="cpu").fit([part_pixels(seed) for seed in range(8)], roi=roi)


def test_background_enters_neither_memory_nor_score_nor_threshold_nor_map(tiny_backbone: Path) -> None:
    detector = fit(tiny_backbone)
    memory, scope = memory_of(detector), scope_for(detector.config, memory_of(detector).roi, (96, 80))
    for layer in memory.layers:
        assert torch.isin(layer.origin % memory.patches, scope.rows).all()
    assert memory.layers[0].banks.shape[1] == int(0.3 * 8 * len(scope.rows))
    found = detector.predict(part_pixels(20, defect=True))
    assert found.is_anomalous and (found.heatmap[:, 50:] == 0).all() and (found.heatmap[:, :46] > 0).all()
    assert all(region.box[2] <= 50 for region in found.regions)


def test_scores_are_those_of_the_patches_that_count(tiny_backbone: Path) -> None:
    """By hand: the residuals of the counted patches alone, temperature and top-mean too."""
    from procon.method.score import score_patches

    detector = fit(tiny_backbone, top_ratio=0.2)
    memory, config = memory_of(detector), detector.config
    rows = scope_for(config, memory.roi, (96, 80)).rows
    picture = Picture(part_pixels(21))
    features = detector.reader.extractor.features(detector.reader.extractor.prepare(picture).unsqueeze(0))
    alone = score_patches([layer[:, rows] for layer in features], memory, config).scores[0]
    count = max(1, round(0.2 * len(rows)))
    assert detector.predict(picture.pixels).score == pytest.approx(float(alone.sort().values[-count:].mean()), rel=1e-6)


def test_the_model_file_keeps_the_region(tiny_backbone: Path, tmp_path: Path) -> None:
    detector = fit(tiny_backbone)
    again = Detector.load(detector.save(tmp_path / "part.procon"))
    kept, known = memory_of(again).roi, memory_of(detector).roi
    assert kept is not None and known is not None and np.array_equal(kept, known)
    image = part_pixels(22, defect=True)
    assert again.predict(image).score == detector.predict(image).score
    assert np.array_equal(again.predict(image).heatmap, detector.predict(image).heatmap)


def test_a_living_memory_keeps_to_its_region(tiny_backbone: Path) -> None:
    detector = fit(tiny_backbone)
    before = memory_of(detector).layers[0].banks.shape[1]
    rows = scope_for(detector.config, memory_of(detector).roi, (96, 80)).rows
    detector.partial_fit([part_pixels(30), part_pixels(31)])
    memory = memory_of(detector)
    assert memory.roi is not None and torch.isin(memory.layers[0].origin % memory.patches, rows).all()
    assert memory.layers[0].banks.shape[1] == before + int(0.3 * 2 * len(rows))
    detector.forget("image 0")
    assert memory_of(detector).roi is not None
    with pytest.raises(ConfigError, match="same region of interest"):
        detector.merge(Detector(detector.config, device="cpu").fit([part_pixels(s) for s in range(40, 46)]))


def test_evidence_and_suspects_look_at_the_region_only(tiny_backbone: Path) -> None:
    detector = fit(tiny_backbone)
    image = part_pixels(23, defect=True)
    found = detector.explain(image)
    score = sum(layer.contribution for layer in found.layers)
    assert score == pytest.approx(found.score) and found.box[2] <= 56
    assert all(anchor.box[2] <= 56 for layer in found.layers for anchor in layer.anchors)
    with pytest.raises(ConfigError, match="region of interest"):
        detector.explain(image, xy=(75, 50))
    for suspect in detector.suspects():
        assert suspect.map.shape == (5, 5) and suspect.box[0] <= 40


def test_padded_images_of_many_sizes_score_like_themselves(tiny_backbone: Path) -> None:
    wide = [np.asarray(Image.fromarray(part_pixels(seed)).resize((160, 60))) for seed in range(4)]
    detector = Detector(tiny_config(tiny_backbone, aspect="pad"), device="cpu").fit(
        [*(part_pixels(seed) for seed in range(4)), *wide]
    )
    assert detector.calibration is not None
    images = [part_pixels(24, defect=True), wide[0], part_pixels(25)]
    together = detector.predict(images)
    for image, result in zip(images, together, strict=True):
        assert result.heatmap.shape == image.shape[:2] and (result.heatmap > 0).all()
        assert detector.predict(image).score == result.score
    again = detector.predict(images[::-1])[::-1]
    assert [one.score for one in again] == [one.score for one in together]
    assert together[0].is_anomalous
    y, x = np.unravel_index(together[0].heatmap.argmax(), (96, 80))
    assert 30 <= y < 70 and 20 <= x < 60


def test_what_lies_beside_a_padded_image_does_not_count(tiny_backbone: Path) -> None:
    detector = Detector(tiny_config(tiny_backbone, aspect="pad"), device="cpu").fit(
        [part_pixels(s)[:, :40] for s in range(6)]
    )
    memory = memory_of(detector)
    scope = scope_for(detector.config, None, (96, 40))
    assert len(scope.rows) < 25
    assert torch.isin(memory.layers[0].origin % memory.patches, scope.rows).all()


def test_a_region_works_with_the_command_line(run: Run, tiny_backbone: Path, good_folder: Path, tmp_path: Path) -> None:
    flags = ["--backbone", "dinov2-custom", "--weights", tiny_backbone, "--image-size", 70, "--set", "layers=-1,-3"]
    flags += ["--banks", 1, "--set", "num_neighbors=2", "--coreset-ratio", 0.3]
    model = tmp_path / "part.procon"
    code, out, _ = run("fit", good_folder, "-o", model, "--roi", "0,0 48,0 48,96 0,96", *flags)
    assert code == 0, out
    code, out, _ = run("info", model)
    assert code == 0 and "60% of the image" in out
    code, _, err = run("fit", good_folder, "-o", model, "--roi", "0,0 48,0", *flags)
    assert code == 2 and "at least three corners" in err
    code, _, err = run("fit", good_folder, "-o", model, "--roi", tmp_path / "none.png", *flags)
    assert code == 2 and "mask image or a polygon" in err


def test_a_centre_crop_cannot_be_padded() -> None:
    with pytest.raises(ConfigError, match=r"aspect must be 'stretch' .* got 'pad'"):
        Config(resize=448, aspect="pad")
    with pytest.raises(ConfigError, match="aspect must be"):
        replace(Config(aspect="pad"), resize=448)
