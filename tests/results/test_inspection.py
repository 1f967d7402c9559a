"""What a run over a folder leaves behind: summary, drift, regions as COCO, and a page that counts right."""

import csv
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray
from PIL import Image
from scipy import ndimage

from procon import Detector
from procon.results.drift import measure_drift
from procon.results.gallery import make_card, render_gallery
from procon.results.inspection import ScoredImage, find_images, inspect
from procon.results.score_axis import Mark
from procon.showing.painting import color_scale, erode, paint_prediction, region_mask
from procon.vision.images import Picture, read_file
from tests.conftest import Run, part_pixels, tiny_config, with_model


@pytest.fixture(scope="module")
def line(tiny_backbone: Path) -> Detector:
    """A detector with enough calibration images to speak of drift."""
    config = tiny_config(tiny_backbone, false_alarm_rate=0.05, threshold_rule="guarantee", coreset_ratio=0.1)
    return Detector(config, device="cpu").fit([part_pixels(seed) for seed in range(24)])


def write_parts(folder: Path, seeds: range, bad: int = 0, gain: float = 1.0) -> Path:
    folder.mkdir(parents=True)
    for number, seed in enumerate(seeds):
        pixels = part_pixels(seed, defect=number < bad).astype(float) * gain
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / f"{seed}.png")
    return folder


def test_a_summary_has_the_counts_and_the_drift(line: Detector, tmp_path: Path) -> None:
    folder = write_parts(tmp_path / "new", range(100, 126), bad=4)
    (folder / "broken.png").write_bytes(b"nothing")
    outcome = inspect(line, find_images([folder]), tmp_path / "out")
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["images"] == 27 and summary["unreadable"] == 1
    assert summary["anomalous"] == outcome.anomalous >= 4
    assert summary["calibration"] == "leave-one-out" and summary["promised_rate"] == pytest.approx(0.04)  # of 24 images
    assert outcome.drift is not None
    assert summary["drift"] == json.loads(json.dumps(outcome.drift.to_dict()))
    assert outcome.drift.left_out == outcome.anomalous
    assert outcome.drift.drifted is False
    with (tmp_path / "out" / "summary.csv").open() as stream:
        (row,) = csv.DictReader(stream)
    assert row["images"] == "27" and row["drift_test"] == "Mann-Whitney U, two-sided"
    assert float(row["drift_p_value"]) == outcome.drift.p_value
    assert "drift: none found" in (tmp_path / "out" / "index.html").read_text()


def test_a_lamp_that_fades_is_drift_and_defects_are_not(line: Detector, tmp_path: Path, run: Run) -> None:
    assert line.calibration is not None
    lenient = line.calibration.at_score(3 * line.calibration.threshold)  # a lamp moves all scores of these tiny parts
    model = with_model(line, calibration=lenient).save(tmp_path / "part.procon")
    dim = write_parts(tmp_path / "dim", range(100, 130), gain=0.98)
    code, out, err = run("predict", model, dim, "-o", tmp_path / "out")
    assert code == 0, err
    assert "DRIFT: new images have left the calibration" in out
    assert "<p class=warning>DRIFT: new images" in (tmp_path / "out" / "index.html").read_text()
    bad = write_parts(tmp_path / "bad", range(200, 230), bad=9)
    code, out, err = run("predict", model, bad, "--json")
    assert code == 0 and len(out.splitlines()) == 30  # JSON lines and nothing else
    assert "drift: none found" in err


def test_few_images_say_so(line: Detector, tmp_path: Path, run: Run) -> None:
    few = write_parts(tmp_path / "few", range(100, 103))
    out = run("predict", line.save(tmp_path / "part.procon"), few)[1]
    assert "drift: too few to tell, 3 new parts called good where 20 are needed" in out


def test_a_model_without_calibration_speaks_of_no_drift(line: Detector, tmp_path: Path) -> None:
    outcome = inspect(
        with_model(line, calibration=None), find_images([write_parts(tmp_path / "new", range(3))]), tmp_path / "out"
    )
    assert outcome.drift is None
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["drift"] is None


# --------------------------------------------------------------------------------------------------------------- COCO


def test_regions_are_coco_annotations(line: Detector, tmp_path: Path, run: Run) -> None:
    folder = write_parts(tmp_path / "new", range(100, 104), bad=2)
    code, _, err = run("predict", line.save(tmp_path / "a.procon"), folder, "--coco", tmp_path / "x" / "regions.json")
    assert code == 0, err
    document = json.loads((tmp_path / "x" / "regions.json").read_text())
    assert document["categories"] == [{"id": 1, "name": "anomaly"}]
    assert [image["file_name"] for image in document["images"]] == ["100.png", "101.png", "102.png", "103.png"]
    assert all((image["width"], image["height"]) == (80, 96) for image in document["images"])
    assert [one["id"] for one in document["annotations"]] == list(range(1, len(document["annotations"]) + 1))
    predictions = line.predict(folder)
    expected = [(number + 1, region) for number, one in enumerate(predictions) for region in one.regions]
    assert {number for number, _ in expected} >= {1, 2}
    for annotation, (number, region) in zip(document["annotations"], expected, strict=True):
        left, top, right, bottom = region.box
        assert annotation["image_id"] == number
        assert annotation["bbox"] == [left, top, right - left, bottom - top]
        assert annotation["area"] == region.area == sum(annotation["segmentation"]["counts"][1::2])
        assert annotation["segmentation"]["size"] == [96, 80]
        assert annotation["score"] == region.peak


def test_pycocotools_reads_the_masks(line: Detector) -> None:
    mask_tools = pytest.importorskip("pycocotools.mask")
    from procon.results.coco import encode_rle

    prediction = line.predict(part_pixels(100, defect=True))
    mask = region_mask(prediction.heatmap, prediction.regions[0])
    packed = mask_tools.frPyObjects(encode_rle(mask), *mask.shape)
    assert np.array_equal(mask_tools.decode(packed).astype(bool), mask)


def test_names_are_unique_and_stay_below_the_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("a", "b/c", "d/b/c"):
        write_parts(tmp_path / folder, range(100, 102))
    monkeypatch.chdir(tmp_path / "d")
    assert find_images([Path("../a")]) == [("100.png", Path("../a/100.png")), ("101.png", Path("../a/101.png"))]
    images = find_images([Path("../a"), Path("../b/c"), Path("b/c"), Path("b/c/100.png")])
    assert [name for name, _ in images] == [
        *("a/100.png", "a/101.png", "b/c/100.png", "b/c/101.png", "d/b/c/100.png", "d/b/c/101.png", "d/b/c/100.png")
    ]
    assert all((tmp_path / name).samefile(path) for name, path in images)


def test_an_image_is_decoded_once(line: Detector, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So the overlay shows the pixels that were scored, even if the file is replaced or removed meanwhile."""
    folder = write_parts(tmp_path / "new", range(100, 104), bad=1)
    (folder / "broken.png").write_bytes(b"nothing")
    read: list[str] = []

    def read_once(path: Path) -> tuple[Picture, bytes]:
        read.append(path.name)
        return read_file(path)

    monkeypatch.setattr("procon.vision.images.read_file", read_once)
    outcome = inspect(line, find_images([folder]), tmp_path / "out", on_row=lambda row: Path(row.source).unlink())
    assert sorted(read) == ["100.png", "101.png", "102.png", "103.png", "broken.png"]
    assert len(outcome.rows) == 5 and len(outcome.errors) == 1
    assert len(list((tmp_path / "out" / "overlays").iterdir())) == 4


# --------------------------------------------------------------------------- parts flagged without a pixel above


def test_a_flagged_part_always_has_a_region(line: Detector) -> None:
    known = line.calibration
    assert known is not None
    far = replace(known, peaks=tuple(peak + 10 for peak in known.peaks))  # no pixel gets there
    strict = with_model(line, calibration=far)
    prediction = strict.predict(part_pixels(300, defect=True))
    assert prediction.is_anomalous and prediction.pixel_threshold is not None
    (region,) = prediction.regions
    assert (
        region.level == pytest.approx((known.typical + region.peak) / 2, rel=1e-6)
        and region.level < prediction.pixel_threshold
    )
    assert region.peak == prediction.heatmap.max()
    assert prediction.to_dict()["regions"][0]["level"] == region.level
    drawn = paint_prediction(part_pixels(300, defect=True), prediction, color_scale(strict))
    outline = (drawn == 255).all(axis=2)
    assert outline.any() and not (outline & ~region_mask(prediction.heatmap, region)).any()
    assert strict.predict(part_pixels(300)).regions == ()


def test_colours_do_not_hang_on_the_threshold(line: Detector) -> None:
    """A defect shows on a part that passed: the scale comes from good patches, whatever the threshold is."""
    known = line.calibration
    assert known is not None
    lax = with_model(line, calibration=known.at_score(100.0))
    assert color_scale(lax) == color_scale(line) == color_scale(with_model(line, calibration=known.at_rate(0.3)))
    pixels = part_pixels(300, defect=True)
    missed, found = lax.predict(pixels), line.predict(pixels)
    assert found.is_anomalous and not missed.is_anomalous
    painted = paint_prediction(pixels, missed, color_scale(lax))
    assert np.array_equal(painted, paint_prediction(pixels, found, color_scale(line)))
    changed = np.abs(painted.astype(int) - pixels).max(axis=2) > 30
    assert changed[40:60, 30:50].mean() > 0.5
    good = part_pixels(301)
    glow = np.abs(paint_prediction(good, line.predict(good), color_scale(line)).astype(int) - good).max(axis=2) > 30
    assert glow.mean() < 0.02


# --------------------------------------------------------------------------------------------------------------- page


def test_the_page_counts_all_images_and_shows_the_strongest(line: Detector, tmp_path: Path) -> None:
    prediction = line.predict(part_pixels(100, defect=True))
    card = make_card("worst.png", prediction, part_pixels(100, defect=True), color_scale(line))
    marks = [Mark(f"{number}.png", number / 1000, number > 900) for number in range(1000)]
    page = render_gallery("title", [card], marks, 0.9, [], measure_drift([], []))
    assert "1,000 images, 99 called anomalous; the 1 with the highest scores are shown" in page
    assert 900 < page.count("<title>") <= 1001
    assert "drift: too few to tell" in page


# ------------------------------------------------------------------------------------------------------------- memory


def test_rows_hold_no_heat_maps(line: Detector, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither those of `inspect` nor those that the command keeps for its table."""
    folder = write_parts(tmp_path / "new", range(100, 104))
    rows: list[ScoredImage] = []
    inspect(line, find_images([folder]), on_row=rows.append)
    shown: list[ScoredImage] = []
    monkeypatch.setattr("procon.cli.predict._print_rows", lambda rows, **_: shown.extend(rows))
    assert run("predict", line.save(tmp_path / "part.procon"), folder)[0] == 0
    assert len(rows) == len(shown) == 4
    for row in [*rows, *shown]:
        assert row.prediction is not None and row.prediction.heatmap.size == 0


@given(hnp.arrays(bool, hnp.array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=12)), st.integers(1, 3))
@settings(deadline=None)
def test_outlines_are_those_of_scipy(mask: NDArray[np.bool_], steps: int) -> None:
    assert np.array_equal(erode(mask, steps), ndimage.binary_erosion(mask, iterations=steps, border_value=1))


# ------------------------------------------------------------------------------------------------ an exported model

BLOCKED = ("torch", "transformers", "safetensors", "scipy")
RUN_WITHOUT = f"""
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {BLOCKED}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent())
from procon.cli import main
main()
"""


def test_the_command_scores_an_exported_folder_without_torch_and_scipy(line: Detector, tmp_path: Path) -> None:
    from procon.deploy.export import export

    export(line, tmp_path / "part-onnx", measure_memory=False)
    folder = write_parts(tmp_path / "new", range(100, 123), bad=2)
    arguments = ["predict", "part-onnx", str(folder), "-o", "out", "--coco", "regions.json"]
    done = subprocess.run(
        [sys.executable, "-c", RUN_WITHOUT, *arguments], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "23 images, " in done.stdout and "drift: " in done.stdout
    written = {path.name for path in (tmp_path / "out").iterdir()}
    assert written == {"index.html", "scores.csv", "scores.jsonl", "summary.json", "summary.csv", "overlays"}
    assert len(list((tmp_path / "out" / "overlays").iterdir())) == 23
    assert json.loads((tmp_path / "regions.json").read_text())["annotations"]
