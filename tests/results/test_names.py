"""Names of images are bytes: whatever they are, every result is written, and a stored name leads back to its file."""

import csv
import html
import json
import os
import shutil
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from procon import BatchError, Detector, WeightsError
from procon.names import original_name, show_name
from tests.conftest import Run, part_pixels, tiny_config

NAMES = [
    b"caf\xe9.png",
    b"\xff\xfe\x80.png",
    b"line\nbreak\r.png",
    b"tab\tbell\x07esc\x1b[31m.png",
    "gnp.\u202egnp.png".encode(),
    "zero\u200bwidth\ufeff.png".encode(),
    "next\u0085line\u2028.png".encode(),
    rb"literal \x41 \u202e.png",
    "日本\u3000語 😀.png".encode(),
    b"quote'\" <b>&amp;, ;=1+1.png",
    b"%s {0} $HOME `ls`.png",
    b"-dash.png",
    b"a" * 250 + b".png",
    "ü".encode() * 125 + b".png",
]
CONTROL = {"Cc", "Cf", "Cs", "Zl", "Zp"}


def write_images(folder: Path, defect: bool = False) -> Path:
    folder.mkdir(parents=True)
    for seed, name in enumerate(NAMES):
        Image.fromarray(part_pixels(seed, defect)).save(folder / os.fsdecode(name), "PNG")
    return folder


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_images(tmp_path_factory.mktemp("names") / os.fsdecode(b"g\xf6\xf6d\n"))


@pytest.fixture(scope="module")
def model(good: Path, tiny_backbone: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / os.fsdecode(b"m\xf6del\n.procon")
    return Detector(tiny_config(tiny_backbone), device="cpu").fit(good, thumbnails=True).save(path)


def check_text(text: str) -> None:
    """Fail on anything that a terminal or a reader would not show."""
    text.encode()
    assert not [character for character in text if unicodedata.category(character) in CONTROL - {"Cc"}]
    assert not [character for character in text if unicodedata.category(character) == "Cc" and character not in "\r\n"]


def files_of(names: list[str]) -> list[bytes]:
    return sorted(os.fsencode(Path(original_name(name)).name) for name in names)


def test_every_result_of_every_name_is_written(run: Run, model: Path, tmp_path: Path) -> None:
    new = write_images(tmp_path / os.fsdecode(b"n\xe9w"), defect=True)
    out = tmp_path / os.fsdecode(b"\xf6ut")
    code, printed, err = run("predict", model, new, "-o", out, "--coco", out / "regions.json")
    assert code == 0, err
    check_text(printed)
    check_text(err)
    files = {name: (out / name).read_bytes() for name in ("scores.csv", "scores.jsonl", "regions.json", "index.html")}
    for content in files.values():
        check_text(content.decode())
    rows = list(csv.DictReader(files["scores.csv"].decode().splitlines()))
    lines = [json.loads(line) for line in files["scores.jsonl"].decode().splitlines()]
    regions = json.loads(files["regions.json"])
    for names in ([row["source"] for row in rows], [line["source"] for line in lines]):
        assert files_of(names) == sorted(NAMES)
        assert all(Path(original_name(name)).is_file() for name in names)
        assert all(name in printed for name in (show_name(os.fsdecode(name)) for name in NAMES))
    assert files_of([image["file_name"] for image in regions["images"]]) == sorted(NAMES)
    for name in NAMES:
        assert f"<small>{html.escape(show_name(os.fsdecode(name)))}</small>" in files["index.html"].decode()
    overlays = sorted(os.listdir(os.fsencode(out / "overlays")))  # noqa: PTH208 - names as bytes
    assert overlays == sorted(NAMES)


def test_json_lines_on_the_terminal(run: Run, model: Path, good: Path) -> None:
    code, printed, err = run("predict", model, good, "--json")
    assert code == 0, err
    assert files_of([json.loads(line)["source"] for line in printed.splitlines()]) == sorted(NAMES)
    check_text(printed + err)


def test_overlays_of_long_names_with_one_stem(run: Run, model: Path, tmp_path: Path) -> None:
    new = tmp_path / "new"
    new.mkdir()
    for stem in ("a" * 251, os.fsdecode("ü".encode() * 125)):
        Image.fromarray(part_pixels(1)).save(new / f"{stem}.png")
        Image.fromarray(part_pixels(2)).save(new / f"{stem}.bmp")
    code, _, err = run("predict", model, new, "-o", tmp_path / "out")
    assert code == 0, err
    assert len(list((tmp_path / "out" / "overlays").iterdir())) == 4


@pytest.mark.parametrize("name", NAMES)
def test_bad_images_are_named(run: Run, model: Path, tmp_path: Path, name: bytes) -> None:
    new = tmp_path / "new"
    new.mkdir()
    (new / os.fsdecode(name)).write_bytes(b"text")
    Image.fromarray(part_pixels(1)).save(new / "good.png")
    code, printed, err = run("predict", model, new, "-o", tmp_path / "out")
    assert code == 2
    check_text(printed + err)
    assert f"error: {show_name(new / os.fsdecode(name))}: is not an image Pillow can read" in err
    lines = [json.loads(line) for line in (tmp_path / "out" / "scores.jsonl").read_text().splitlines()]
    assert [line.get("score") is None for line in lines].count(True) == 1 and len(lines) == 2
    check_text((tmp_path / "out" / "scores.csv").read_text())
    with pytest.raises(BatchError) as caught:
        Detector.load(model, device="cpu").predict(new)
    check_text(str(caught.value))


def test_training_images_of_every_name_are_remembered(run: Run, model: Path, good: Path, tmp_path: Path) -> None:
    detector = Detector.load(model, device="cpu")
    assert sorted(os.fsencode(image.name) for image in detector.model.memory.images) == sorted(
        os.fsencode(good / os.fsdecode(name)) for name in NAMES
    )
    for arguments in (("info", model), ("info", model, "--json"), ("info", model)):
        code, printed, err = run(*arguments)
        assert code == 0, err
        check_text(printed + err)
    image = good / os.fsdecode(NAMES[0])
    explanation = detector.explain(image, xy=(40, 48))
    stored: Any = json.loads(json.dumps(explanation.to_dict()))
    check_text(json.dumps(stored, ensure_ascii=False))
    assert original_name(stored["source"]) == str(image)
    assert {os.fsencode(Path(original_name(patch["image"])).name) for patch in stored["normal_patches"]} <= set(NAMES)
    code, printed, err = run("explain", model, image, "--xy", "40,48", "-o", tmp_path / "evidence.png")
    assert code == 0, err
    check_text(printed + err)
    with Image.open(tmp_path / "evidence.png") as picture:
        assert picture.width > 1000


@pytest.mark.parametrize("shown", [False, True])
@pytest.mark.parametrize("name", NAMES[:-1])
def test_an_image_is_forgotten_by_its_name(run: Run, model: Path, tmp_path: Path, name: bytes, shown: bool) -> None:
    copy = shutil.copy(model, tmp_path / "copy.procon")
    given = show_name(os.fsdecode(name)) if shown else os.fsdecode(name)
    code, printed, err = run("forget", copy, *(["--"] if given.startswith("-") else []), given)
    assert code == 0, err
    check_text(printed + err)
    rest = {os.fsencode(Path(image).name) for image in Detector.load(Path(copy), device="cpu").model.memory.names}
    assert rest == set(NAMES) - {name}


def test_suspects_of_every_name(run: Run, good: Path, tiny_backbone: Path, tmp_path: Path) -> None:
    backbone = tiny_config(tiny_backbone).backbone
    flags = ["--backbone", backbone, "--weights", tiny_backbone, "--image-size", "70", "--set", "layers=-1,-3"]
    model = tmp_path / os.fsdecode(b"\xe9.procon")
    code, printed, err = run("fit", good, "-o", model, *flags, "--suspects", "list")
    assert code == 0, err
    check_text(printed + err)
    for page in tmp_path.glob("*.html"):
        check_text(page.read_text())


def test_a_path_of_5000_characters(run: Run, model: Path, tmp_path: Path) -> None:
    path = "a" * 5000
    detector = Detector.load(model, device="cpu")
    for images in (path, [path], f"{tmp_path}/{'b/' * 2500}"):
        with pytest.raises((BatchError, ValueError), match=r"cannot be read \(File name too long\); check the path"):
            detector.predict(images)
    for arguments in (("predict", model, path), ("fit", path, "-o", tmp_path / "a.procon"), ("check", path)):
        code, _, err = run(*arguments)
        assert code == 2 and ("name is too long" in err or "ame too long" in err or "no such folder" in err), err
    Image.fromarray(part_pixels(0)).save(tmp_path / "a.png")
    image = tmp_path / "a.png"
    more: list[tuple[object, ...]] = [("predict", path, image), ("predict", model, image, "-o", path), ("info", path)]
    for words in more:
        code, _, err = run(*words)
        assert code == 2 and "too long" in err, err
    with pytest.raises(WeightsError, match="no such file or folder"):
        Detector(tiny_config(Path(path)), device="cpu").fit(tmp_path)
