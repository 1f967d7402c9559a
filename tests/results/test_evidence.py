"""The normal patches behind a score: right anchors, right weights, right places, and a picture of them."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch import Tensor

from procon import Config, ConfigError, Detector, Explanation, NotFittedError, Region
from procon.method.neighbors import nearest_in_banks
from procon.method.score import score_patches
from procon.model.memory import Memory
from procon.model.scorer import contributions
from procon.prediction import Anchor, LayerEvidence
from procon.results.evidence import draw_evidence, write_evidence
from procon.vision.backbone import Backbone
from procon.vision.framing import patch_at, patch_box
from procon.vision.images import open_image
from tests import reference
from tests.conftest import Run, part_pixels, tiny_config, with_model


def memory_of(detector: Detector) -> Memory:
    assert detector.memory is not None
    return detector.memory


def features_of(detector: Detector, image: object) -> list[torch.Tensor]:
    ((_, pixels),) = detector.reader.extractor.batches([open_image(image)])
    return detector.reader.extractor.features(pixels)


# --------------------------------------------------------------------------------------------------------- geometry

sizes = st.tuples(st.integers(14, 600), st.integers(14, 600))
configs = st.sampled_from(
    [Config(image_size=70), Config(image_size=(56, 98)), Config(image_size=70, resize=90), Config(image_size=392)]
)


@settings(deadline=None)
@given(configs, sizes, st.data())
def test_a_pixel_lies_in_the_box_of_its_patch(config: Config, size: tuple[int, int], data: st.DataObject) -> None:
    xy = data.draw(st.integers(0, size[1] - 1)), data.draw(st.integers(0, size[0] - 1))
    try:
        patch = patch_at(config, xy, size)
    except ConfigError as error:
        assert config.resize is not None and "centre crop" in str(error)
        return
    left, top, right, bottom = patch_box(config, patch, size)
    assert left - 1 <= xy[0] <= right and top - 1 <= xy[1] <= bottom  # edges are rounded to pixels


def test_the_boxes_of_a_grid_tile_the_image() -> None:
    config = Config(image_size=(56, 70))
    covered = np.zeros((80, 100), int)
    for patch in range(20):
        left, top, right, bottom = patch_box(config, patch, (80, 100))
        covered[top:bottom, left:right] += 1
    assert (covered == 1).all()
    assert patch_box(config, 6, (80, 100)) == (20, 20, 40, 40)  # row 1, column 1
    assert patch_at(config, (20, 20), (80, 100)) == 6
    assert patch_at(config, (99, 79), (80, 100)) == 19


def test_boxes_of_a_centre_crop_leave_the_border_out() -> None:
    config = Config(image_size=70, resize=84)  # 7 pixels on each side
    assert patch_box(config, 0, (168, 84)) == (7, 14, 21, 42)
    assert patch_at(config, (7, 14), (168, 84)) == 0
    with pytest.raises(ConfigError, match="xy must lie in the centre crop that the model uses, got 3,80 outs"):
        patch_at(config, (3, 80), (168, 84))


@pytest.mark.parametrize("xy", [(-1, 0), (100, 0), (0, 80)])
def test_pixels_outside_the_image_are_refused(xy: tuple[int, int]) -> None:
    with pytest.raises(ConfigError, match=r"xy must be a pixel of the image, from 0,0 to 99,79, got"):
        patch_at(Config(), xy, (80, 100))


# --------------------------------------------------------------------------------------------------------- evidence


@pytest.mark.parametrize(
    "overrides",
    [
        {},
        {"banks": 3, "layers": (-1, -2, -3), "layer_fusion": "median"},
        {"layers": (-1, -2, -3), "layer_fusion": "max"},
        {"layer_fusion": "concat", "projection_dim": 16},
        {"normalization": "robust"},
        {"readout": "hard"},
        {"readout": "uniform"},
        {"tau": 0.05},
        {"tau_patches": 7},
    ],
)
def test_evidence_adds_up_to_the_score_of_the_patch(tiny_backbone: Path, overrides: dict[str, object]) -> None:
    detector = Detector(tiny_config(tiny_backbone, **overrides), device="cpu")
    detector.fit([part_pixels(seed) for seed in range(4)])
    image = part_pixels(50, defect=True)
    features, memory, config = features_of(detector, image), memory_of(detector), detector.config
    reading = score_patches(features, memory, config)
    scores, maps = reading.scores[0], reading.maps[0]
    for xy in ((40, 50), (0, 0), (79, 95)):
        found = detector.explain(image, xy)
        patch = found.patch[0] * 5 + found.patch[1]
        assert found.score == pytest.approx(float(scores[patch]), rel=1e-5)
        assert sum(layer.contribution for layer in found.layers) == pytest.approx(found.score)
        for number, layer in enumerate(found.layers):
            assert layer.residual == pytest.approx(float(maps[number, patch]), rel=1e-5)
            assert layer.residual == pytest.approx(reference.median(layer.residuals))
            for bank in range(1, config.banks + 1):
                ours = [anchor for anchor in layer.anchors if anchor.bank == bank]
                assert len(ours) == (1 if config.readout == "hard" else 3)
                assert sum(anchor.weight for anchor in ours) == pytest.approx(1)
                assert [a.distance for a in ours] == sorted(a.distance for a in ours)


def test_anchors_are_the_nearest_of_each_bank_with_their_origin(detector: Detector, good_folder: Path) -> None:
    image = part_pixels(51, defect=True)
    found = detector.explain(image, (40, 50))
    features, memory = features_of(detector, image), memory_of(detector)
    patch = found.patch[0] * 5 + found.patch[1]
    for number, layer in enumerate(found.layers):
        stored = memory.layers[number]
        assert layer.blocks == (detector.config.layers[number],)
        for bank in range(2):
            patches, anchors = features[number][0].numpy(), stored.bank(bank).numpy()
            distances, rows = reference.nearest(patches, anchors, 3)
            tau = np.median(distances)
            weights = np.exp(-distances[patch] / tau) / np.exp(-distances[patch] / tau).sum()
            ours = [anchor for anchor in layer.anchors if anchor.bank == bank + 1]
            assert [a.distance for a in ours] == pytest.approx(np.sqrt(distances[patch]), rel=1e-4)
            assert [a.weight for a in ours] == pytest.approx(weights, rel=1e-4)
            for anchor, row in zip(ours, rows[patch], strict=True):
                image_number, place = divmod(int(stored.origin[stored.banks[bank][row]]), 25)
                assert anchor.number == image_number
                assert anchor.image == str(good_folder / f"{image_number:03d}.png")
                assert anchor.box == patch_box(detector.config, place, (96, 80))


def test_a_training_patch_is_explained_by_itself(detector: Detector, good_folder: Path) -> None:
    memory = memory_of(detector)
    number, place = divmod(int(memory.layers[0].origin[memory.layers[0].banks[0, 0]]), 25)
    box = patch_box(detector.config, place, (96, 80))
    found = detector.explain(good_folder / f"{number:03d}.png", ((box[0] + box[2]) / 2, (box[1] + box[3]) / 2))
    first = found.layers[0].anchors[0]
    assert (first.number, first.box, first.distance) == (number, box, 0.0)
    assert found.box == box


def test_the_place_is_the_peak_by_default(detector: Detector) -> None:
    image = part_pixels(52, defect=True)
    prediction = detector.predict(image)
    y, x = map(int, np.unravel_index(prediction.heatmap.argmax(), prediction.heatmap.shape))
    assert detector.explain(image).xy == (x, y)
    assert detector.explain(image, region=prediction.regions[0]).xy == (x, y)
    corner = detector.explain(image, region=(0, 0, 20, 20))
    y, x = map(int, np.unravel_index(prediction.heatmap[:20, :20].argmax(), (20, 20)))
    assert corner.xy == (x, y)
    with pytest.raises(ConfigError, match=r"region must overlap the image of 80 x 96 pixels, got \(90, 0, 99, 9\)"):
        detector.explain(image, region=(90, 0, 99, 9))


def test_explaining_needs_a_fit(tiny_backbone: Path) -> None:
    with pytest.raises(NotFittedError):
        Detector(tiny_config(tiny_backbone), device="cpu").explain(part_pixels(0))


def make_explanation() -> Explanation:
    def anchor(number: int, bank: int, weight: float, distance: float) -> Anchor:
        return Anchor(f"{number}.png", number, (number, 0, number + 1, 1), bank, weight, distance)

    first = (anchor(7, 1, 0.6, 1.0), anchor(8, 1, 0.4, 2.0), anchor(7, 2, 1.0, 3.0))
    second = (anchor(9, 1, 1.0, 4.0), anchor(8, 2, 0.5, 5.0), anchor(7, 2, 0.5, 5.0))
    layers = (
        LayerEvidence((-3,), 0.5, (0.4, 0.6), 0.25, first),
        LayerEvidence((-6,), 0.7, (0.7, 0.7), 0.35, second),
    )
    return Explanation(None, (3, 4), (0, 0), (0, 0, 14, 14), 0.6, layers)


def test_weights_are_averaged_over_layers_and_banks() -> None:
    found = make_explanation().normal_patches()
    assert [patch.number for patch in found] == [7, 9, 8]
    assert [patch.weight for patch in found] == pytest.approx([(0.6 + 1.0 + 0.5) / 4, 1.0 / 4, (0.4 + 0.5) / 4])
    assert found[0].distance == pytest.approx((1 + 3 + 5) / 3)
    assert len(make_explanation().normal_patches(2)) == 2


def test_weights_of_all_patches_sum_to_one(detector: Detector) -> None:
    found = detector.explain(part_pixels(53, defect=True))
    assert sum(patch.weight for patch in found.normal_patches(10**6)) == pytest.approx(1)


def test_an_explanation_is_json(detector: Detector) -> None:
    found = json.loads(json.dumps(detector.explain(part_pixels(54)).to_dict()))
    assert found["normal_patches"] and len(found["layers"]) == 2
    assert set(found["layers"][0]["anchors"][0]) == {"image", "number", "box", "bank", "weight", "distance"}


def test_contributions_sum_to_the_fused_value() -> None:
    values = [0.2, 0.9, 0.5, 0.4]
    assert contributions(values, "mean") == pytest.approx([0.05, 0.225, 0.125, 0.1])
    assert contributions(values, "max") == [0, 0.9, 0, 0]
    assert contributions(values, "median") == pytest.approx([0, 0, 0.25, 0.2])
    assert contributions(values[:3], "median") == [0, 0, 0.5]


# ---------------------------------------------------------------------------------------------------------- drawing


def grey_tiles(drawn: Image.Image) -> bool:
    """Whether the picture has a grey tile in place of a normal patch."""
    return bool((np.asarray(drawn) == (225, 227, 230)).all(axis=2).sum() > 10_000)


@pytest.mark.parametrize("defect", [False, True])
def test_a_drawing_shows_the_part_and_normal_patches(detector: Detector, defect: bool) -> None:
    image = part_pixels(55, defect=defect)
    drawn = draw_evidence(detector, image, detector.explain(image))
    assert 800 < drawn.height < 1400 and drawn.width == 1416
    assert not grey_tiles(drawn)
    colours = np.asarray(drawn).reshape(-1, 3)
    assert (((colours - np.array([250, 30, 30])) ** 2).sum(axis=1) < 100).any() == defect  # the square itself


def test_without_training_images_there_are_thumbnails_or_grey_tiles(tiny_backbone: Path, tmp_path: Path) -> None:
    folder = tmp_path / "good"
    folder.mkdir()
    for seed in range(3):
        Image.fromarray(part_pixels(seed)).resize((640, 480)).save(folder / f"{seed}.png")
    detector = Detector(tiny_config(tiny_backbone), device="cpu").fit(folder, thumbnails=True)
    image = part_pixels(56, defect=True)
    found = detector.explain(image)
    for path in folder.iterdir():
        path.unlink()
    assert not grey_tiles(draw_evidence(detector, image, found))
    memory = memory_of(detector)
    bare = tuple(replace(training, thumbnail=b"") for training in memory.images)
    bare_detector = with_model(detector, memory=replace(memory, images=bare))
    assert grey_tiles(draw_evidence(bare_detector, image, found))


@pytest.mark.parametrize(
    "overrides", [{"layer_fusion": "concat"}, {"readout": "hard", "banks": 1}, {"image_size": (28, 84), "resize": None}]
)
def test_every_kind_of_model_can_be_drawn(tiny_backbone: Path, tmp_path: Path, overrides: dict[str, object]) -> None:
    detector = Detector(tiny_config(tiny_backbone, **overrides), device="cpu").fit(part_pixels(0))  # no threshold
    image = np.full((20, 300, 3), 128, np.uint8)
    write_evidence(tmp_path / "a" / "why.png", detector, image, detector.explain(image, (299, 0)))
    with Image.open(tmp_path / "a" / "why.png") as drawn:
        assert drawn.format == "PNG"


def test_a_region_of_a_saved_prediction_can_be_explained(detector: Detector) -> None:
    region = Region((10, 10, 30, 30), 5, 1.0, 1.0)
    x, y = detector.explain(part_pixels(57), region=region).xy
    assert 10 <= x < 30 and 10 <= y < 30


def test_the_command_runs_the_backbone_and_the_search_once(
    detector: Detector, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Image.fromarray(part_pixels(60, defect=True)).save(tmp_path / "bad.png")
    model = detector.save(tmp_path / "part.procon")
    calls = {"backbone": 0, "search": 0}
    tokens = Backbone.tokens

    def count_tokens(backbone: Backbone, pixels: Tensor) -> list[Tensor]:
        calls["backbone"] += 1
        return tokens(backbone, pixels)

    def count_search(*arguments: Any, **settings: Any) -> Any:
        calls["search"] += 1
        return nearest_in_banks(*arguments, **settings)

    monkeypatch.setattr(Backbone, "tokens", count_tokens)
    monkeypatch.setattr("procon.method.score.nearest_in_banks", count_search)
    assert run("explain", model, tmp_path / "bad.png", "-o", tmp_path / "why.png", "--device", "cpu")[0] == 0
    assert calls == {"backbone": 1, "search": len(detector.config.layers)}
