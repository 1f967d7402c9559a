"""The command line as a user meets it: exit codes, files that are whole or absent, errors that name the remedy."""

import csv
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from PIL import Image

import procon
from procon import Config, Detector, ImageError, Prediction
from procon.cli import app
from procon.cli.flags import SETTINGS, parse_assignments
from procon.config import RECIPES
from tests.conftest import Run, part_pixels, tiny_config


@pytest.fixture(scope="module")
def flags(tiny_backbone: Path) -> list[str]:
    config = tiny_config(tiny_backbone)
    layers = ",".join(map(str, config.layers))
    return [
        *("--backbone", config.backbone, "--weights", str(tiny_backbone), "--image-size", str(config.image_size)),
        *("--set", f"layers={layers}", "--banks", "2", "--coreset-ratio", "0.3", "--set", "num_neighbors=3"),
    ]


@pytest.fixture
def model(detector: Detector, tmp_path: Path) -> Path:
    return detector.save(tmp_path / "part.procon")


def leftovers(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.name.endswith(".partial")]


def test_help_needs_no_heavy_import() -> None:
    code = "import sys; sys.argv = ['procon', '--help']\nfrom procon.cli import main\n"
    code += "try: main()\nexcept SystemExit: pass\n"
    code += "heavy = {'torch', 'transformers', 'scipy', 'PIL'} & set(sys.modules)\nassert not heavy, heavy"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "fit" in done.stdout and "predict" in done.stdout


def test_info_and_threshold_need_no_torch(model: Path) -> None:
    code = "import sys\nfrom procon.cli import main\n"
    code += f"for command in ('info', 'threshold'):\n    sys.argv = ['procon', command, {str(model)!r}]\n"
    code += "    try: main()\n    except SystemExit as stop: assert not stop.code\n"
    code += "heavy = {'torch', 'transformers', 'safetensors', 'PIL'} & set(sys.modules)\nassert not heavy, heavy"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "rates on offer" in done.stdout


def test_the_package_can_be_run_as_a_module() -> None:
    done = subprocess.run([sys.executable, "-m", "procon", "--help"], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "Usage: " in done.stdout and "predict" in done.stdout


def test_the_version_is_that_of_the_package(run: Run) -> None:
    assert run("--version") == (0, f"procon {procon.__version__}\n", "")


@pytest.mark.parametrize("columns", [50, 80])
def test_help_cuts_no_sentence(columns: int) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "procon", "--help"],
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": str(columns), "TERM": "dumb"},
        check=True,
    )
    words = " ".join(re.sub("[\u2500-\u257f]", " ", done.stdout).split())
    assert "\u2026" not in words and "..." not in words.replace("[ARGS]...", "")
    for command in typer.main.get_command(app).commands.values():  # type: ignore[attr-defined]
        assert " ".join(command.short_help.split()) in words
        later = (command.help or "").split("\n\n")[1:]
        assert not any("\n" in paragraph for paragraph in later), "a terminal breaks such a line in its middle"


def test_a_shell_completes_commands() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import sys; sys.argv = ['procon']\nfrom procon.cli import main; main()"],
        capture_output=True,
        text=True,
        env={**os.environ, "_PROCON_COMPLETE": "complete_bash", "COMP_WORDS": "procon thr", "COMP_CWORD": "1"},
        check=False,
    )
    assert done.stdout.split() == ["threshold"], done.stderr


def test_fit_has_few_options_and_no_default_of_a_setting() -> None:
    command: Any = typer.main.get_command(app)
    options = [one for one in command.commands["fit"].params if one.param_type_name == "option"]
    assert len(options) <= 16
    for option in options:
        if option.name in SETTINGS:
            assert option.default is None, f"--{option.name} must default to None: Config has the default"


@pytest.mark.parametrize(
    ("recipe", "said"),
    [
        ([], "recipe: paper, the default, as it is the published one; --recipe best finds more"),
        (["--recipe", "paper"], "recipe: paper input of"),
        (["--recipe", "fast"], "recipe: fast, "),
        (["--recipe", "best"], "recipe: best, "),
    ],
)
def test_fit_says_which_recipe_it_takes_and_what_becomes_of_the_images(
    run: Run, good_folder: Path, flags: list[str], tmp_path: Path, recipe: list[str], said: str
) -> None:
    code, _, err = run("fit", good_folder, "-o", tmp_path / "part.procon", *flags, *recipe)
    assert code == 0 and said in " ".join(err.split()), err
    words = " ".join(err.split())
    assert "input of 70 x 70 pixels, 5 x 5 patches, as set by image_size" in words
    assert "images of 80 x 96 pixels: scale 0.88 across and 0.73 down, so a patch covers 16.0 x 19.2 of" in words
    assert "lost: the proportions of 8 of 8 images" in words and "--image-size auto keeps them" in words
    config = Detector.load(tmp_path / "part.procon", device="cpu").config
    expected = Config(**{**RECIPES[recipe[1] if recipe else "paper"], **flags_of(config)})
    assert config == expected


def flags_of(config: Config) -> dict[str, object]:
    """What the flags of these tests set."""
    names = ("backbone", "weights", "image_size", "layers", "banks", "coreset_ratio", "num_neighbors")
    return {name: getattr(config, name) for name in names}


def test_fit_chooses_the_shape_of_the_images(run: Run, good_folder: Path, flags: list[str], tmp_path: Path) -> None:
    auto = ["auto" if word == "70" else word for word in flags] + ["--set", "patch_budget=30"]
    code, _, err = run("fit", good_folder, "-o", tmp_path / "part.procon", *auto)
    assert code == 0, err
    words = " ".join(err.split())
    assert "input of 70 x 84 pixels, 5 x 6 patches, chosen from the proportions of the images" in words
    assert "8 images, 240 patches" in words and "lost: the proportions" not in words
    code, out, _ = run("info", tmp_path / "part.procon")
    assert code == 0 and "70 x 84 pixels" in out
    code, _, err = run("fit", good_folder, "--recipe", "quick")
    assert code == 2 and "--recipe must be one of fast, paper, best, got 'quick'" in err


def test_every_setting_has_a_group_and_a_text() -> None:
    assert set(SETTINGS) == {field.name for field in fields(Config)}


@pytest.mark.parametrize(
    ("assignment", "words"),
    [
        ("num_neighbors", "--set must be NAME=VALUE with a name among backbone, .*, got 'num_neighbors'"),
        ("colour=red", "--set must be NAME=VALUE"),
        ("num_neighbors=many", "num_neighbors must be a number, got 'many'"),
        ("num_neighbors=0", "num_neighbors must be an integer of at least 1, got 0"),
        ("coreset=dense", "coreset must be 'k-center' or 'random', got 'dense'; a value that the paper tried"),
        ("normalization=robust", "normalization must be 'none' or 'train'"),
        ("tau_patches=512", "tau_patches must be None"),
    ],
)
def test_a_wrong_setting_is_refused(run: Run, good_folder: Path, assignment: str, words: str) -> None:
    code, _, err = run("fit", good_folder, "--set", assignment)
    assert code == 2 and re.search(words, err), err


def test_a_setting_is_read_in_its_type() -> None:
    assert parse_assignments(
        ["tau=0.5", "tile=56", "resize=none", "layers=-1,-3", "image-size=112x70"], list(SETTINGS)
    ) == {
        "tau": 0.5,
        "tile": 56,
        "resize": None,
        "layers": (-1, -3),
        "image_size": (70, 112),
    }


def test_fit_writes_the_model_the_api_writes(
    run: Run, flags: list[str], good_folder: Path, detector: Detector, tmp_path: Path
) -> None:
    code, out, err = run("fit", good_folder, "-o", tmp_path / "a.procon", *flags)
    assert code == 0, err
    limit = f"{detector.calibration.threshold:.4f}" if detector.calibration else ""
    first, *_, last = out.splitlines()
    sentence = f"is ready: it knows 8 good images and calls a part anomalous above a score of {limit}"
    assert first == f"{tmp_path / 'a.procon'} {sentence}"
    assert last.startswith("next: procon predict")
    assert "8 images, 200 patches; 2 x 2 banks of 60 anchors" in err
    assert "of memory" in err
    detector.save(tmp_path / "b.procon")
    assert (tmp_path / "a.procon").read_bytes() == (tmp_path / "b.procon").read_bytes()


def test_predict_writes_table_lines_overlays_and_page(run: Run, model: Path, tmp_path: Path) -> None:
    new = tmp_path / "new" / "line 1"
    new.mkdir(parents=True)
    Image.fromarray(part_pixels(50)).save(new / "ok.png")
    Image.fromarray(part_pixels(51, defect=True)).save(new / "bad.png")
    Image.fromarray(part_pixels(52)).save(new / "bad.bmp")  # the same stem: its overlay must not overwrite the other
    code, out, err = run("predict", model, tmp_path / "new", "-o", tmp_path / "out")
    assert code == 0, err
    with (tmp_path / "out" / "scores.csv").open() as stream:
        table = list(csv.DictReader(stream))
    lines = [json.loads(line) for line in (tmp_path / "out" / "scores.jsonl").read_text().splitlines()]
    assert [row["source"] for row in table] == [line["source"] for line in lines]
    assert [float(row["score"]) for row in table] == [line["score"] for line in lines]
    assert {Path(line["source"]).name: line["is_anomalous"] for line in lines} == {
        "ok.png": False,
        "bad.png": True,
        "bad.bmp": False,
    }
    overlays = sorted(path.name for path in (tmp_path / "out" / "overlays").rglob("*.png"))
    assert overlays == ["bad.bmp.png", "bad.png.png", "ok.png"]
    painted = np.asarray(Image.open(tmp_path / "out" / "overlays" / "line 1" / "bad.png.png"))
    assert painted.shape == (96, 80, 3)
    assert (painted != part_pixels(51, defect=True)).any()
    page = (tmp_path / "out" / "index.html").read_text()
    assert page.count("data:image/jpeg;base64,") == 3 and not re.search("https?:", page)
    assert "3 images, 1 anomalous" in out


def test_good_parts_do_not_glow(run: Run, model: Path, detector: Detector, tmp_path: Path) -> None:
    """A training image is explained by its own anchors, so its overlay is the image itself."""
    Image.fromarray(part_pixels(0)).save(tmp_path / "good.png")
    run("predict", model, tmp_path / "good.png", "-o", tmp_path / "out")
    painted = np.asarray(Image.open(tmp_path / "out" / "overlays" / "good.png")).astype(int)
    assert np.abs(painted - part_pixels(0)).max() <= 1


def test_predict_prints_json_lines(run: Run, model: Path, good_folder: Path) -> None:
    code, out, _ = run("predict", model, good_folder, "--json")
    assert code == 0
    assert len([json.loads(line) for line in out.splitlines()]) == 8


def truncated(path: Path, size: int) -> None:
    Image.fromarray(part_pixels(1)).save(path)
    os.truncate(path, size)


BAD: dict[str, Callable[[Path], object]] = {
    "text.png": lambda path: path.write_text("not an image"),
    "empty.jpg": lambda path: path.write_bytes(b""),
    "random.png": lambda path: path.write_bytes(bytes(range(256)) * 4),
    "cut.png": lambda path: truncated(path, 300),
    "cut.jpg": lambda path: truncated(path, 600),
    "cut.bmp": lambda path: truncated(path, 600),
    "pixel.png": lambda path: Image.new("RGB", (1, 1)).save(path),
    "sliver.png": lambda path: Image.new("RGB", (500, 5)).save(path),
    "panorama.png": lambda path: Image.new("L", (40_000, 20)).save(path),
    "moving.gif": lambda path: Image.new("L", (30, 30)).save(
        path, save_all=True, append_images=[Image.new("L", (30, 30), 255)]
    ),
    "pages.tif": lambda path: Image.new("L", (30, 30)).save(
        path, save_all=True, append_images=[Image.new("L", (30, 30), 255)]
    ),
    "float.tif": lambda path: Image.fromarray(np.full((30, 30), 1e6, np.float32)).save(path),
    "nan.tif": lambda path: Image.fromarray(np.full((30, 30), np.nan, np.float32)).save(path),
    "wide.tif": lambda path: Image.fromarray(np.full((30, 30), 2**20, np.int32)).save(path),
}


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    """Two good images among every kind of bad one."""
    folder = tmp_path / "mixed"
    folder.mkdir()
    for name, write in BAD.items():
        write(folder / name)
    Image.fromarray(part_pixels(60)).save(folder / "a.png")
    Image.fromarray(part_pixels(61)).save(folder / "z.png")
    return folder


def test_predict_reports_each_bad_image_and_scores_the_rest(run: Run, model: Path, mixed: Path, tmp_path: Path) -> None:
    code, _, err = run("predict", model, mixed, "-o", tmp_path / "out")
    assert code == 2
    for name in BAD:
        assert f"error: {mixed / name}: " in err
    with (tmp_path / "out" / "scores.csv").open() as stream:
        rows = {Path(row["source"]).name: row for row in csv.DictReader(stream)}
    assert set(rows) == {*BAD, "a.png", "z.png"}
    assert all(bool(row["error"]) == (name in BAD) == (row["score"] == "") for name, row in rows.items())
    assert sorted(path.name for path in (tmp_path / "out" / "overlays").iterdir()) == ["a.png", "z.png"]
    assert not leftovers(tmp_path)


def test_fit_refuses_bad_images_before_work_or_leaves_them_out(
    run: Run, flags: list[str], mixed: Path, tmp_path: Path
) -> None:
    code, _, err = run("fit", mixed, "-o", tmp_path / "a.procon", *flags)
    assert code == 2
    assert f"{len(BAD)} images cannot be used" in err and all(name in err for name in BAD)
    assert not (tmp_path / "a.procon").exists() and not leftovers(tmp_path)
    code, _, err = run("fit", mixed, "-o", tmp_path / "a.procon", "--skip-bad", *flags)
    assert code == 0, err
    assert "fitted on 2 good images" in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["fit", "{empty}"], "holds no images"),
        (["fit", "{good}", "--image-size", "400"], "image_size must be a side in pixels, WIDTHxHEIGHT such as 644x476"),
        (["fit", "{good}", "--image-size", "640x480"], "both multiples of 14, or auto; got 640x480"),
        (["fit", "{good}", "--image-size", "big"], "image_size must be a side in pixels"),
        (["fit", "{missing}"], "no such folder; check the path"),
        (["fit", "{good}", "--set", "layers=a"], "layers must be integers"),
        (["fit", "{good}", "--banks", "0"], "banks must be an integer of at least 1, got 0"),
        (["fit", "{good}", "--backbone", "resnet"], "backbone must be one of"),
        (["fit", "{good}", "--set", "readout=medium"], "readout must be one of"),
        (["fit", "{good}", "--coreset-ratio", "5"], "coreset_ratio must be"),
        (["fit", "{good}", "--weights", "{missing}"], "no such file or folder"),
        (["fit", "{good}", "--device", "tpu"], "device must be"),
        (["fit", "{good}", "-o", "{empty}"], "--output must be a file"),
        (["predict", "{missing}", "{good}"], "no such model file"),
        (["predict", "{text}", "{good}"], "is not a ProCon model"),
        (["predict", "{cut}", "{good}"], "is truncated"),
        (["predict", "{flipped}", "{good}"], "is corrupted"),
        (["predict", "{model}", "{missing}"], "no such file"),
        (["predict", "{model}", "{empty}"], "holds no images"),
        (["predict", "{model}", "{good}", "-o", "{text}"], "--output must be a folder"),
        (["info", "{text}"], "is not a ProCon model"),
        (["check", "{missing}"], "no such folder"),
        (["check", "{empty}"], "no images at all"),
        (["fit"], "Missing argument"),
        (["fly"], "No such command"),
    ],
)
def test_errors_exit_with_2_and_say_what_to_do(
    arguments: list[str], words: str, run: Run, model: Path, good_folder: Path, tmp_path: Path
) -> None:
    places = {name: tmp_path / name for name in ("missing", "empty", "text", "cut", "flipped")}
    places["empty"].mkdir()
    places["text"].write_text("hello")
    whole = model.read_bytes()
    places["cut"].write_bytes(whole[:-100])
    places["flipped"].write_bytes(whole[:-100] + bytes([whole[-100] ^ 1]) + whole[-99:])
    before = set(tmp_path.rglob("*"))
    code, _, err = run(*(text.format(good=good_folder, model=model, **places) for text in arguments))
    assert code == 2
    assert words in err
    assert "Traceback" not in err
    assert set(tmp_path.rglob("*")) == before, "something was left behind"


def test_ctrl_c_keeps_what_was_scored(
    run: Run, model: Path, good_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = Detector.predict_each

    def interrupted(self: Detector, images: object) -> Iterator[Prediction | ImageError]:
        for index, result in enumerate(original(self, images)):  # type: ignore[arg-type]
            if index == 3:
                raise KeyboardInterrupt
            yield result

    monkeypatch.setattr(Detector, "predict_each", interrupted)
    code, _, err = run("predict", model, good_folder, "-o", tmp_path / "out")
    assert code == 130
    assert "interrupted after 3 of 8 images" in err
    assert len((tmp_path / "out" / "scores.jsonl").read_text().splitlines()) == 3
    assert not leftovers(tmp_path)


@pytest.mark.slow
def test_ctrl_c_in_a_real_process_leaves_no_half_model(flags: list[str], tmp_path: Path) -> None:
    folder = tmp_path / "good"
    folder.mkdir()
    for index in range(400):
        Image.fromarray(part_pixels(index)).save(folder / f"{index}.png")
    code = "from procon.cli import main; main()"
    command = [sys.executable, "-c", code, "fit", str(folder), "-o", str(tmp_path / "a.procon"), *flags]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stderr is not None
    while "patches" not in process.stderr.readline():  # the plan is printed: work begins
        assert process.poll() is None
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    assert [path.name for path in tmp_path.iterdir()] == ["good"]


def test_info_tells_what_the_file_holds(run: Run, model: Path, tiny_backbone: Path) -> None:
    code, out, _ = run("info", model)
    assert code == 0
    assert "image size         70 x 70 pixels" in out
    assert "layers             -1,-3\n" in out and "max anchors        none\n" in out, "as they are typed"
    assert "threshold threshold" not in " ".join(out.split())
    assert "8 good images, 25 patches each" in out and "threshold" in out and str(tiny_backbone) in out
    code, out, _ = run("info", model, "--json")
    assert json.loads(out)["config"]["banks"] == 2


def test_check_names_layouts_counts_and_problems(run: Run, tmp_path: Path, mixed: Path) -> None:
    tree = tmp_path / "part"
    for folder in ("train/good", "test/good", "test/dent", "ground_truth/dent"):
        (tree / folder).mkdir(parents=True)
    for path in ("train/good/0.png", "test/good/0.png", "test/dent/0.png", "ground_truth/dent/0_mask.png"):
        Image.fromarray(part_pixels(0)).save(tree / path)
    code, out, err = run("check", tree)
    assert code == 0, err
    assert "MVTec tree" in out and "nothing wrong" in out and "4 images" not in out
    Image.fromarray(part_pixels(0)).save(tree / "test/dent/1.png")
    Image.fromarray(part_pixels(0)).save(tree / "ground_truth/dent/7_mask.png")
    Image.new("L", (50, 50)).save(tree / "ground_truth/dent/0_mask.png")
    code, _, err = run("check", tree)
    assert code == 2
    assert "1.png: has no mask" in err
    assert "7_mask.png: is a mask without an image" in err
    assert "0_mask.png: is 50 x 50 pixels, its image 80 x 96" in err
    code, _, err = run("check", mixed)
    assert code == 2 and err.count("problem:") == len(BAD)


def test_embedded_backbone_needs_no_weights(
    run: Run, good_folder: Path, detector: Detector, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = detector.save(tmp_path / "whole.procon", embed_backbone=True)
    monkeypatch.setattr("procon.vision.backbone.find_weights", lambda *_: pytest.fail("weights were looked for"))
    code, out, err = run("predict", path, good_folder, "--json")
    assert code == 0, err
    assert json.loads(out.splitlines()[0])["score"] == detector.predict(good_folder / "000.png").score
