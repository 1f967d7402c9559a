"""Commands on a fitted model: what they print, what they write, and that a file is changed whole or not at all."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from procon import Detector
from procon.model.document import read_calibration
from procon.model.metadata import read_metadata
from procon.model.storage import read_model
from tests.conftest import Run, part_pixels, tiny_config, with_model


def write_parts(folder: Path, seeds: range) -> Path:
    folder.mkdir(parents=True)
    for seed in seeds:
        Image.fromarray(part_pixels(seed)).save(folder / f"{seed:03d}.png")
    return folder


@pytest.fixture
def good(tmp_path: Path) -> Path:
    return write_parts(tmp_path / "good", range(6))


@pytest.fixture
def model(good: Path, tiny_backbone: Path, tmp_path: Path) -> Path:
    return Detector(tiny_config(tiny_backbone), device="cpu").fit(good).save(tmp_path / "part.procon")


@pytest.fixture
def separate(tmp_path: Path) -> Path:
    return write_parts(tmp_path / "separate", range(20, 24))


def tensor_bytes(path: Path) -> bytes:
    content = path.read_bytes()
    return content[8 + int.from_bytes(content[:8], "little") :]


def threshold_of(path: Path) -> float:
    known = read_calibration(path)
    assert known is not None
    return known.threshold


# ---------------------------------------------------------------------------------------------------------- threshold


def test_the_threshold_is_shown_with_what_it_can_promise(run: Run, model: Path) -> None:
    before = model.read_bytes()
    code, out, _ = run("threshold", model)
    assert code == 0
    first, second, third, fourth, *table = out.splitlines()
    assert first == (
        f"threshold {threshold_of(model):.4f} (6 good images, leave-one-out): the highest of their scores; too few to "
        "aim at a rate"
    )
    assert second == "weak: it rests on 6 images; with 20 or more it is reliable"
    assert (third, fourth) == (
        "rates on offer (robust rule); * is in force",
        "   rate  threshold  good images above it",
    )
    assert table == [
        f"*  1.0%     {threshold_of(model):.4f}  0",
        "what each rate finds: procon limits MODEL renders defects and says it here",
    ]
    assert model.read_bytes() == before
    facts = json.loads(run("threshold", model, "--json")[1])
    assert facts["kind"] == "leave-one-out" and facts["guaranteed"] is False and facts["images"] == 6
    assert facts["rule"] == "robust" and len(facts["offers"]) == 1 and facts["set_aside"] == []
    assert facts["promised_rate"] == pytest.approx(1 / 7)
    assert facts["rate_at_95_percent_confidence"] == pytest.approx(1 - 0.05 ** (1 / 6))


def test_the_guarantee_is_a_choice(run: Run, model: Path) -> None:
    before = threshold_of(model)
    code, out, _ = run("threshold", model, "--guarantee")
    first, second, third, *_ = out.splitlines()
    assert code == 0 and first == (
        f"threshold {threshold_of(model):.4f} (6 good images, leave-one-out): about 14.3% of good parts like these "
        "exceed it on average, about 39.3% at most with 95% confidence"
    )
    assert second.startswith("leave-one-out comes close to these rates; they are exact on good images")
    assert third == "1.0% was asked for and changes nothing below 14.3%: it takes 99 images (299 with 95% confidence)"
    code, out, err = run("threshold", model, "--false-alarm-rate", "0.05")
    assert code == 0 and " ".join(err.split()) == (
        "the threshold stays as it was: 6 images cannot guarantee less than 14.3%; calibrate on 19 good images "
        "(--calibrate FOLDER), or use --robust"
    )
    assert run("threshold", model, "--robust", "--false-alarm-rate", "0.01")[0] == 0
    assert threshold_of(model) == before


def test_a_rate_and_a_score_change_the_metadata_alone(run: Run, model: Path, good: Path) -> None:
    tensors, scores = tensor_bytes(model), read_calibration(model).scores  # type: ignore[union-attr]
    before = threshold_of(model)
    code, out, _ = run("threshold", model, "--false-alarm-rate", "0.5", "--guarantee")
    assert code == 0 and "about 42.9% of good parts" in out  # 3 of 7; 50 % was asked for
    assert threshold_of(model) == sorted(scores)[3] < before
    assert tensor_bytes(model) == tensors
    assert read_metadata(model)["config"]["false_alarm_rate"] == 0.5
    code, out, _ = run("threshold", model, "--score", "0.25")
    assert code == 0 and "set by hand" in out
    assert tensor_bytes(model) == tensors
    detector = Detector.load(model, device="cpu")  # checksums are right, and predictions follow
    prediction = detector.predict(good / "000.png")
    assert prediction.threshold == 0.25
    assert [change.what for change in detector.history] == ["threshold", "threshold"]
    assert detector.history[1].note == f"{sorted(scores)[3]:.4f} -> 0.2500 (by hand)"
    assert [path.name for path in model.parent.iterdir() if path.is_file()] == ["part.procon"]


def test_separate_images_and_the_way_back(run: Run, model: Path, separate: Path) -> None:
    original, tensors = threshold_of(model), tensor_bytes(model)
    code, out, err = run("threshold", model, "--calibrate", separate, "--false-alarm-rate", "0.2", "--guarantee")
    assert code == 0, err
    assert "(4 good images, held out): at most 20.0% of good parts like these exceed it on average" in out
    known = read_calibration(model)
    assert known is not None and known.kind == "held-out" and len(known.images) == 4
    assert known.scores == tuple(result.score for result in Detector.load(model, device="cpu").predict(separate))
    assert json.loads(run("threshold", model, "--json")[1])["guaranteed"] is True
    assert run("threshold", model, "--leave-one-out", "--false-alarm-rate", "0.01", "--robust")[0] == 0
    assert threshold_of(model) == original
    assert tensor_bytes(model) == tensors


def test_false_alarms_are_measured_with_an_interval(run: Run, model: Path, separate: Path) -> None:
    before = model.read_bytes()
    code, out, err = run("threshold", model, "--measure", separate)
    assert code == 0, err
    assert "of 4 good images exceed the threshold: " in out and "% Clopper-Pearson interval " in out
    found = json.loads(run("threshold", model, "--measure", separate, "--json")[1])["measured"]
    assert found["images"] == 4 and found["interval"] == "Clopper-Pearson" and found["confidence"] == 0.95
    assert model.read_bytes() == before
    out = run("threshold", model, "--score", "0", "--measure", separate)[1]
    assert "4 of 4 good images exceed the threshold: 100.0%" in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--score", "0.1", "--calibrate", "{good}"], "must come from one place, got --calibrate and --score"),
        (["--leave-one-out", "--calibrate", "{good}"], "must come from one place, got --calibrate and --leave-one-out"),
        (["--score", "0.1", "--false-alarm-rate", "0.1"], "got --score and --false-alarm-rate"),
        *(
            ([*extra, "--false-alarm-rate", rate], "false_alarm_rate must be a number of at least 0.000001 and below 1")
            for rate in ("1.5", "1", "0", "1e-7", "9e-7", "-0.1", "nan", "inf", "1e-320")
            for extra in ([], ["--leave-one-out"])
        ),
        *((["--score", score], "the threshold must be a score of at least 0, got") for score in ("nan", "inf", "-inf")),
        (["--score", "-1"], "the threshold must be a score of at least 0, got -1"),
        (["--calibrate", "{good}"], "images the model has not seen, got 6 that it has"),
        (["--measure", "{good}"], "images the model has not seen, got 6 that it has"),
        (["--measure", "{absent}"], "no such"),
        (["--training", "{absent}", "--leave-one-out"], "--training must be a folder, got"),
    ],
)
def test_a_threshold_that_cannot_be_is_refused(
    run: Run, model: Path, good: Path, arguments: list[str], words: str
) -> None:
    before = model.read_bytes()
    code, _, err = run("threshold", model, *(text.format(good=good, absent=good / "absent") for text in arguments))
    assert code == 2
    assert words in err and "Traceback" not in err
    assert model.read_bytes() == before


def test_a_model_without_a_threshold_gets_one(run: Run, tiny_backbone: Path, separate: Path, tmp_path: Path) -> None:
    fitted = Detector(tiny_config(tiny_backbone), device="cpu").fit(part_pixels(0))
    path = with_model(fitted, calibration=None).save(tmp_path / "one.procon")
    assert "no threshold; give it one with --calibrate FOLDER" in run("threshold", path)[1]
    assert json.loads(run("threshold", path, "--json")[1])["threshold"] is None
    code, _, err = run("threshold", path, "--score", "0.5")
    assert code == 2 and "is not calibrated; pass good images with --calibrate" in err
    assert run("threshold", path, "--calibrate", separate)[0] == 0
    assert threshold_of(path) > 0


# -------------------------------------------------------------------------------------------------------- add, forget


def test_images_are_added_and_forgotten(run: Run, model: Path, good: Path, separate: Path, tmp_path: Path) -> None:
    code, out, err = run("add", model, separate)
    assert code == 0, err
    assert " added 4 images (" in out and "the memory holds 10 images, 75 anchors in each bank" in out
    code, out, err = run("forget", model, good / "001.png", "022.png", "-o", tmp_path / "less.procon")
    assert code == 0, err
    assert " forgot 2 images (" in out and "the memory holds 8 images" in out
    assert "8 good images, leave-one-out" in out
    assert len(read_metadata(model)["images"]) == 10
    log = read_metadata(tmp_path / "less.procon")["history"]
    assert [(entry["what"], entry["count"]) for entry in log] == [("added", 4), ("forgot", 2)]
    assert log[1]["images"] == [str(good / "001.png"), str(separate / "022.png")]
    shown = run("info", tmp_path / "less.procon")[1]
    assert f"changes            {log[0]['when']} added 4 images" in shown and "forgot 2 images" in shown


def test_an_embedded_backbone_stays_embedded(run: Run, model: Path, good: Path, separate: Path) -> None:
    Detector.load(model, device="cpu").save(model, embed_backbone=True)
    assert run("add", model, separate)[0] == 0
    assert read_metadata(model)["backbone"]["embedded"]
    run("threshold", model, "--score", "0.5")
    assert Detector.load(model, device="cpu").predict(good / "000.png").threshold == 0.5


def test_models_are_merged(run: Run, model: Path, separate: Path, tiny_backbone: Path, tmp_path: Path) -> None:
    other = Detector(tiny_config(tiny_backbone), device="cpu").fit(separate).save(tmp_path / "other.procon")
    code, out, err = run("merge", model, other, "-o", tmp_path / "both.procon")
    assert code == 0, err
    assert "merged 4 images" in out and "the memory holds 10 images, 75 anchors in each bank" in out
    assert len(read_metadata(tmp_path / "both.procon")["images"]) == 10
    code, _, err = run("merge", model, tmp_path / "both.procon", "-o", tmp_path / "again.procon")
    assert code == 2 and "is in both models" in err
    assert not (tmp_path / "again.procon").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["forget", "{model}", "absent.png"], "absent.png: is not in the memory"),
        (["add", "{model}", "{good}"], "is in the memory already; leave it out"),
        (["add", "{model}", "{empty}"], "holds no images"),
        (["add", "{model}", "{separate}", "-o", "{empty}"], "--output must be a file"),
        (["merge", "{model}", "{empty}", "-o", "x.procon"], "no such model file"),
        (
            ["explain", "{model}", "{good}/000.png", "--xy", "5"],
            "--xy must be two whole numbers such as 310,122, got '5'",
        ),
        (["explain", "{model}", "{good}/000.png", "--xy", "5,500"], "xy must be a pixel of the image"),
        (["explain", "{model}", "{good}/absent.png"], "no such file"),
    ],
)
def test_what_cannot_be_done_changes_nothing(
    run: Run, model: Path, good: Path, separate: Path, tmp_path: Path, arguments: list[str], words: str
) -> None:
    places = {"model": model, "good": good, "separate": separate, "empty": tmp_path / "empty"}
    places["empty"].mkdir()
    before, files = model.read_bytes(), set(tmp_path.rglob("*"))
    code, _, err = run(*(text.format(**places) for text in arguments))
    assert code == 2
    assert words in err and "Traceback" not in err
    assert model.read_bytes() == before
    assert set(tmp_path.rglob("*")) == files


@pytest.mark.skipif(os.name == "nt", reason="no SIGKILL")
def test_a_kill_while_writing_leaves_the_old_file(model: Path, tmp_path: Path) -> None:
    """The process dies between the new file's last byte and its new name: the worst moment there is."""
    before = model.read_bytes()
    code = (
        "import os, signal, pathlib\n"
        "from procon.model import metadata\n"
        "pathlib.Path.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
        f"metadata.rewrite_metadata(pathlib.Path({str(model)!r}), history=[])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert model.read_bytes() == before
    read_model(model)


# ------------------------------------------------------------------------------------------------------------ explain


def test_an_explanation_is_printed_and_drawn(
    run: Run, model: Path, good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Image.fromarray(part_pixels(50, defect=True)).save(tmp_path / "bad.png")
    code, out, err = run("explain", model, tmp_path / "bad.png")
    assert code == 0, err
    assert "block -1 " in out and "block -3 " in out and str(good) in out
    with Image.open("bad-explained.png") as drawn:
        assert np.asarray(drawn).std() > 10
    code, out, _ = run("explain", model, tmp_path / "bad.png", "--xy", "3,90", "--json")
    assert code == 0
    assert json.loads(out)["xy"] == [3, 90] and json.loads(out)["patch"] == [4, 0]
    (tmp_path / "bad-explained.png").unlink()
    code, out, _ = run("explain", model, tmp_path / "bad.png", "--json", "-o", tmp_path / "why.png")
    assert json.loads(out)["box"] and (tmp_path / "why.png").is_file()
    assert not (tmp_path / "bad-explained.png").exists()


def test_moved_training_images_are_found_for_the_drawing(run: Run, model: Path, good: Path, tmp_path: Path) -> None:
    Image.fromarray(part_pixels(50, defect=True)).save(tmp_path / "bad.png")
    moved = good.rename(tmp_path / "moved")
    pictures = []
    for extra in ([], ["--training", moved]):
        code, _, err = run("explain", model, tmp_path / "bad.png", "-o", tmp_path / "why.png", *extra)
        assert code == 0, err
        pictures.append((tmp_path / "why.png").read_bytes())
    assert pictures[0] != pictures[1]


def test_thumbnails_are_stored_on_request(run: Run, good: Path, tiny_backbone: Path, tmp_path: Path) -> None:
    flags = ["--backbone", "dinov2-custom", "--weights", tiny_backbone, "--image-size", "70", "--set", "layers=-1,-3"]
    sizes = []
    for extra in ([], ["--embed", "thumbnails"]):
        code, _, err = run("fit", good, "-o", tmp_path / "t.procon", *flags, *extra)
        assert code == 0, err
        sizes.append((tmp_path / "t.procon").stat().st_size)
    stored = read_metadata(tmp_path / "t.procon")["thumbnail_bytes"]
    assert 0 < stored <= sizes[1] - sizes[0] + 8
    assert f"thumbnails         {stored / 2**20:.1f} MiB" in run("info", tmp_path / "t.procon")[1]


# ---------------------------------------------------------------------------------------------------------------- teach


def test_teach_tells_the_price_and_stores_the_lesson(run: Run, model: Path, tmp_path: Path) -> None:
    image = tmp_path / "missed.png"
    Image.fromarray(part_pixels(100, defect=True)).save(image)
    arguments = ("teach", model, image, "--box", "30,40,20,20", "--page", tmp_path / "price.html")
    code, out, err = run(*arguments)
    assert code == 2 and "the price must be accepted before the lesson is stored; add --yes" in err
    assert "price: none of 6 training images more would be flagged" in out
    assert "What the lesson costs" in (tmp_path / "price.html").read_text()
    code, out, _ = run(*arguments, "--yes", "--name", "red square")
    assert code == 0 and f"wrote {model}" in out
    _, out, _ = run("info", model)
    assert "red square: " in out and "taught 1 image red square" in out
    code, out, _ = run("explain", model, image, "--xy", "40,50", "-o", tmp_path / "why.png")
    assert code == 0 and "red square raised this score" in out
    code, out, _ = run("forget", model, "red square")
    assert code == 0 and "forgot 1 image red square" in out
    _, out, _ = run("info", model)
    assert "columns 30 to 49" not in out


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ((), "the defect must be marked with --box or with --mask"),
        (("--box", "1,2,3"), "--box must be four whole numbers such as 120,40,60,30, got '1,2,3'"),
        (("--box", "70,40,20,20"), "the marked box must lie in the image of 80 x 96 pixels"),
    ],
)
def test_teach_refuses_a_wrong_mark(
    run: Run, model: Path, tmp_path: Path, flags: tuple[str, ...], message: str
) -> None:
    image = tmp_path / "missed.png"
    Image.fromarray(part_pixels(100, defect=True)).save(image)
    code, _, err = run("teach", model, image, *flags, "--yes")
    assert code == 2 and message in err
