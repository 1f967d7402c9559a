"""What is said before the verdicts of a run, and the scene that made it necessary: one odd image among good ones."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from procon import Detector, Prediction
from procon.model.calibration import Calibration
from procon.results.inspection import find_images, inspect
from procon.results.remarks import list_remarks
from tests.conftest import Run, part_pixels, tiny_config, with_model

SCORES = tuple(0.5 + 0.005 * (number % 9) for number in range(30))
GOOD = Calibration(SCORES, SCORES, SCORES, 0.01)
NO_MAP = np.zeros((1, 1), np.float32)


def predictions(scores: list[float], known: Calibration = GOOD) -> list[Prediction]:
    return [Prediction(s, NO_MAP, s > known.threshold, known.threshold, known.p_value(s)) for s in scores]


def test_usual_parts_need_no_remark() -> None:
    assert list_remarks(GOOD, GOOD.describe(), predictions([0.51, 0.52, 0.53, 0.54, 0.9, 0.515])) == []
    assert list_remarks(GOOD, GOOD.describe(), predictions([0.9] * 3)) == []  # three images say nothing about a run


def test_a_model_without_a_threshold_says_so() -> None:
    assert list_remarks(None, [], [])[0].startswith("no threshold: scores can be ranked")


def test_many_flagged_or_far_parts_are_looked_at_first() -> None:
    (most,) = list_remarks(GOOD, GOOD.describe(), predictions([0.9] * 4 + [0.5]))
    assert most.startswith("most parts are flagged (4 of 5): look at the highest scores first")
    (far,) = list_remarks(GOOD, GOOD.describe(), predictions([0.545] * 4 + [0.5]))
    assert far.startswith("none is flagged, but 4 of 5 score higher than 90% of good parts: look at the highest scores")
    assert "procon threshold" in far and "add" not in far


def test_what_the_threshold_rests_on_comes_first() -> None:
    odd = Calibration((*SCORES, 2.0), (*SCORES, 2.0), (*SCORES, 2.0), 0.01)
    lines = list_remarks(odd, odd.describe(), predictions([0.9] * 5, odd))
    assert lines[0].startswith("odd: image 31 scores 2.0000") and lines[1].startswith("most parts are flagged")
    few = Calibration(SCORES[:9], SCORES[:9], SCORES[:9], 0.01)
    assert list_remarks(few, few.describe(), [])[0].startswith("weak: it rests on 9 images")


def test_the_score_in_units_of_its_threshold() -> None:
    one = Prediction(0.6, NO_MAP, True, 0.5, 0.1)
    assert one.relative_score == pytest.approx(1.2) and one.to_dict()["relative_score"] == one.relative_score
    assert Prediction(0.6, NO_MAP, None, None, None).relative_score is None


# ------------------------------------------------------------------------------- 31 good images, one of them odd


def with_background(seed: int, level: int) -> NDArray[np.uint8]:
    pixels = part_pixels(seed)
    dark = pixels.max(axis=2) < 80
    pixels[dark] = level + (seed % 3)
    return pixels


def faint_defect(seed: int) -> NDArray[np.uint8]:
    mixed = 0.8 * part_pixels(seed) + 0.2 * part_pixels(seed, defect=True)
    return np.asarray(mixed, np.uint8)


@pytest.fixture(scope="module")
def scene(tiny_backbone: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Detector, Path]:
    """30 usual parts and one on another background; 32 defects and 12 new good parts."""
    folder = tmp_path_factory.mktemp("scene")
    for number in range(31):
        pixels = with_background(number, 230) if number == 17 else part_pixels(number)
        _save(folder / "good" / f"{number:02}.png", pixels)
    for number in range(32):
        _save(folder / "new" / "defect" / f"{number:02}.png", faint_defect(100 + number))
    for number in range(12):
        _save(folder / "new" / "good" / f"{number:02}.png", part_pixels(200 + number))
    return Detector(tiny_config(tiny_backbone, coreset_ratio=0.1), device="cpu").fit(folder / "good"), folder


def _save(path: Path, pixels: NDArray[np.uint8]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


def test_one_odd_image_does_not_hide_the_defects(scene: tuple[Detector, Path]) -> None:
    detector, folder = scene
    known = detector.calibration
    assert known is not None and known.spread.aside == (17,)
    found = [bool(result.is_anomalous) for result in detector.predict(sorted((folder / "new" / "defect").iterdir()))]
    alarms = [bool(result.is_anomalous) for result in detector.predict(sorted((folder / "new" / "good").iterdir()))]
    assert sum(found) == 32 and sum(alarms) <= 1
    promise = with_model(detector, calibration=known.at_rate(0.01, "guarantee"))
    missed = [bool(result.is_anomalous) for result in promise.predict(sorted((folder / "new" / "defect").iterdir()))]
    assert sum(missed) < 32, "the highest score alone would hide defects"


def test_the_odd_image_is_named_and_shown(scene: tuple[Detector, Path], run: Run, tmp_path: Path) -> None:
    detector, folder = scene
    (odd,) = detector.odd_images()
    assert odd.image.endswith("17.png") and odd.excess > 6 and odd.map.shape == (5, 5)
    model = detector.save(tmp_path / "part.procon")
    outcome = inspect(detector, find_images([folder / "new"]), tmp_path / "out")
    assert outcome.remarks[0].startswith("odd: ") and "17.png" in outcome.remarks[0]
    page = (tmp_path / "out" / "index.html").read_text(encoding="utf-8")
    assert "17.png scores" in page and page.index("<p class=note>") < page.index("drift:")
    code, out, _ = run("predict", model, folder / "new")
    lines = out.splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("odd: "))
    assert code == 0 and lines[first + 1].startswith("most parts are flagged") and "drift" in lines[first + 2]
    code, out, _ = run("threshold", model)
    assert code == 0 and "17.png" in out and "set aside for the threshold" in out


def test_fit_names_the_odd_image_and_writes_its_picture(
    scene: tuple[Detector, Path], run: Run, tiny_backbone: Path, tmp_path: Path
) -> None:
    settings = ("--set", "layers=-1,-3", "--image-size", 70, "--coreset-ratio", 0.1, "--set", "num_neighbors=3")
    code, out, err = run(
        *("fit", scene[1] / "good", "-o", tmp_path / "part.procon", "--backbone", "dinov2-custom"),
        *("--weights", tiny_backbone, "--banks", 2, *settings),
    )
    assert code == 0, err
    assert "pictures of the odd images: " in out
    page = (tmp_path / "part-odd.html").read_text(encoding="utf-8")
    assert "1 of 31 training images scores far above the others" in page and page.count("<img class=heat") == 1
