"""Predictions and detectors as a person sees them in Python: pictures, files, plots, cards."""

import gc
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from procon import ConfigError, Detector, ImageError, MissingExtraError, Prediction
from procon.showing.painting import color_scale, paint_prediction
from procon.vision.images import Picture
from tests.conftest import part_pixels, tiny_config, with_model


@pytest.fixture
def image(tmp_path: Path) -> Path:
    path = tmp_path / "part & <b>.png"
    Image.fromarray(part_pixels(300, defect=True)).save(path)
    return path


def test_the_image_is_read_again_from_its_path(detector: Detector, image: Path) -> None:
    result: Prediction = detector.predict(image)
    assert result.origin is None
    assert np.array_equal(result.image, part_pixels(300, defect=True))
    overlay = result.overlay()
    expected = paint_prediction(part_pixels(300, defect=True), result, color_scale(detector))
    assert np.array_equal(np.asarray(overlay), expected) and overlay.size == (80, 96)
    image.unlink()
    with pytest.raises(ImageError, match="no such file"):
        _ = result.image
    assert np.array_equal(np.asarray(result.overlay(part_pixels(300, defect=True))), expected)


def test_another_image_than_the_scored_one_is_refused(detector: Detector, image: Path) -> None:
    result: Prediction = detector.predict(image)
    Image.fromarray(part_pixels(300)[:70]).save(image)
    with pytest.raises(ImageError, match="must be the one that was scored, 80x96 as its heat map, got 80x70"):
        result.overlay()


@pytest.mark.parametrize("kind", ["array", "tensor", "PIL"])
def test_an_image_without_a_path_is_the_object_that_was_passed(detector: Detector, kind: str) -> None:
    pixels = part_pixels(301)
    tensor = torch.from_numpy(pixels).permute(2, 0, 1)
    passed: Any = {"array": pixels, "tensor": tensor, "PIL": Image.fromarray(pixels)}[kind]
    result: Prediction = detector.predict(passed)
    assert result.origin is passed and np.array_equal(result.image, pixels)
    (listed,) = detector.predict([passed])
    assert listed.origin is passed


def test_decoded_images_are_not_kept(detector: Detector, good_folder: Path) -> None:
    gc.collect()
    before = sum(type(thing) is Picture for thing in gc.get_objects())
    results = detector.predict(good_folder)
    streamed = list(detector.predict_each(iter([part_pixels(1), *sorted(good_folder.iterdir())])))
    gc.collect()
    assert sum(type(thing) is Picture for thing in gc.get_objects()) == before
    assert len(results) == 8 and all(result.origin is None for result in results)
    first = streamed[0]
    assert isinstance(first, Prediction) and first.origin is None
    with pytest.raises(ImageError, match=r"has no path and was not kept; pass it: prediction\.plot\(image\)"):
        first.overlay()
    assert first.overlay(part_pixels(1)).size == (80, 96)


def test_a_prediction_is_saved_by_the_ending_of_the_file(detector: Detector, image: Path, tmp_path: Path) -> None:
    result: Prediction = detector.predict(image)
    picture = result.save(tmp_path / "overlay.png")
    assert np.array_equal(np.asarray(Image.open(picture)), np.asarray(result.overlay()))
    for ending in ("jpg", "webp"):
        assert Image.open(result.save(tmp_path / f"overlay.{ending}")).size == (80, 96)
    assert json.loads(result.save(tmp_path / "a.json").read_text()) == json.loads(json.dumps(result.to_dict()))
    assert np.array_equal(np.load(result.save(str(tmp_path / "a.npy"))), result.heatmap)
    with pytest.raises(ConfigError, match=r"must end in \.png, .*\.json, \.npy, got a\.gif"):
        result.save(tmp_path / "a.gif")
    assert not (tmp_path / "a.gif").exists()


def test_a_prediction_is_a_card_in_notebooks(detector: Detector, image: Path) -> None:
    page = detector.predict(image)._repr_html_()
    assert page.count("<img") == 2 and "data:image/jpeg;base64," in page
    assert "ANOMALOUS, score " in page and "x the threshold" in page and "threshold 0." in page
    assert page.count("stroke='#8b95a1'") == 8 + 1  # a tick for each good image, and the axis
    assert "part &amp; &lt;b&gt;.png" in page and "<b>.png" not in page
    assert len(page) < 60_000
    image.unlink()
    gone = with_model(detector, calibration=None).predict(part_pixels(1))
    assert "no threshold, score" in gone._repr_html_() and "threshold 0." not in gone._repr_html_()
    assert "no such file" in replace(gone, source=str(image), origin=None)._repr_html_()


def test_a_plot_has_the_part_its_map_and_the_scale(detector: Detector, image: Path) -> None:
    pytest.importorskip("matplotlib")
    figure = detector.predict(image).plot()
    part, heat, score = figure.axes
    assert part.get_title() == "part & <b>.png" and heat.get_title().startswith("ANOMALOUS, score ")
    assert np.array_equal(part.images[0].get_array(), part_pixels(300, defect=True))
    assert len(score.lines[0].get_xdata()) == 8


def test_what_draws_without_its_extra_names_the_pip_command(
    detector: Detector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'procon\[notebook\]'"):
        detector.predict(part_pixels(1)).plot()


def test_a_detector_says_what_it_is(detector: Detector, tiny_backbone: Path, good_folder: Path) -> None:
    assert detector.calibration is not None
    assert repr(detector) == (
        f"Detector(dinov2-custom, 70x70, 8 good images of {good_folder}, "
        f"threshold {detector.calibration.threshold:.4f})"
    )
    page = detector._repr_html_()
    assert "aims at 1.0% false alarms" in page and "<svg" in page and "8 good images" in page
    fresh = Detector(tiny_config(tiny_backbone), device="cpu")
    assert repr(fresh) == "Detector(dinov2-custom, not fitted)"
    assert "call fit(images) first" in fresh._repr_html_()
    assert repr(with_model(detector, calibration=None)).endswith("no threshold)")


def test_names_cannot_put_markup_into_a_card(detector: Detector, tmp_path: Path) -> None:
    hostile: Iterator[str] = iter(["<img src=x onerror=window.hit=1>.png", "' onload='x.png"])
    for name in hostile:
        path = tmp_path / name
        Image.fromarray(part_pixels(5)).save(path, "PNG")
        page = detector.predict(path)._repr_html_()
        assert not re.search(r"<img src=x|'\s*onload=", page)
