"""Writers of results on a full disk: the error names the file and the remedy, and no file is partial."""

import csv
import io
import json
import os
import re
from pathlib import Path

import pytest
from PIL import Image

from procon import Detector, OutputError
from procon.model.suspects import SUSPECT_LIMIT
from procon.results.evidence import write_evidence
from procon.results.inspection import find_images, inspect
from procon.results.suspect_page import write_suspects
from tests.conftest import Run, part_pixels

REMEDY = "the disk is full; free some space or choose another place"
PAGE = 4096  # bytes; what the file system gives at a time


def leave_free(disk: Path, pages: int) -> None:
    """Fill the disk but for so many pages."""
    status = os.statvfs(disk)
    with (disk / "filler").open("wb") as stream:
        stream.write(bytes((status.f_bavail - pages) * status.f_frsize))


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("parts")
    for seed in range(6):
        Image.fromarray(part_pixels(seed, defect=seed > 3)).save(folder / f"{seed}.png")
    return folder


def check_whole(path: Path) -> None:
    content = path.read_bytes()
    if path.suffix == ".png":
        Image.open(path).load()
    elif path.suffix == ".html":
        assert content.endswith(b"</html>\n")
    elif path.suffix == ".json":
        json.loads(content)
    elif path.suffix == ".jsonl":
        assert content.endswith(b"\n") and all(json.loads(line) for line in content.splitlines())
    else:
        lines = list(csv.reader(io.StringIO(content.decode(), newline="")))
        assert content.endswith(b"\n") and len({len(line) for line in lines}) == 1


@pytest.mark.parametrize("pages", [0, 1, 2, 5, 9, 12, 16, 18, 20, 21, 22, 23, 24, 25, 26, 30, 60])
def test_what_predict_names_was_written_and_is_whole(
    run: Run, detector: Detector, parts: Path, small_disk: Path, tmp_path: Path, pages: int
) -> None:
    model = detector.save(tmp_path / "part.procon")
    out = small_disk / "out"
    out.mkdir()
    old = {name: f"old {name}" for name in ("index.html", "scores.csv", "scores.jsonl", "summary.json", "summary.csv")}
    for name, text in old.items():
        (out / name).write_text(text)
    leave_free(small_disk, pages)
    code, _, err = run("predict", model, parts, "-o", out, "--coco", out / "regions.json")
    written = {path.relative_to(out).as_posix(): path for path in out.rglob("*") if path.is_file()}
    fresh = {name: path for name, path in written.items() if path.read_bytes() != old.get(name, "").encode()}
    for path in fresh.values():
        check_whole(path)
    assert set(old) <= set(written)
    assert not [name for name in written if name.endswith(".partial")]
    listed = re.search(rf"results in {re.escape(str(out))}: (.*)", err)
    names = set(listed[1].split(", ")) if listed else set()
    overlays = {"overlays/"} if any(name.startswith("overlays/") for name in fresh) else set()
    assert names - {"overlays/"} == {name for name in fresh if not name.startswith("overlays/")}
    assert names & {"overlays/"} <= overlays
    complete = len(fresh) == 6 + 6
    assert code == (0 if complete else 2), err
    assert complete or re.search(rf"^error: {re.escape(str(out))}/\S+: {REMEDY}$", err, re.MULTILINE), err
    if pages == 0:
        assert not fresh
    if pages == 60:
        assert complete


def test_inspect_raises_an_error_that_names_the_file(detector: Detector, parts: Path, small_disk: Path) -> None:
    leave_free(small_disk, 2)
    with pytest.raises(OutputError, match=REMEDY):
        inspect(detector, find_images([parts]), small_disk / "out")


def test_pages_and_pictures(detector: Detector, parts: Path, small_disk: Path) -> None:
    image = parts / "5.png"
    explanation = detector.explain(image)
    suspects = detector.suspects()
    for name in ("evidence.png", "suspects.html"):
        (small_disk / name).write_text("old")
    leave_free(small_disk, 1)
    with pytest.raises(OutputError) as caught:
        write_evidence(small_disk / "evidence.png", detector, image, explanation)
    assert str(caught.value) == f"{small_disk / 'evidence.png'}: {REMEDY}"
    with pytest.raises(OutputError) as caught:
        write_suspects(small_disk / "suspects.html", detector, suspects, SUSPECT_LIMIT)
    assert str(caught.value) == f"{small_disk / 'suspects.html'}: {REMEDY}"
    assert sorted(path.name for path in small_disk.iterdir()) == ["evidence.png", "filler", "suspects.html"]
    assert (small_disk / "evidence.png").read_text() == (small_disk / "suspects.html").read_text() == "old"


def test_models(run: Run, detector: Detector, good_folder: Path, parts: Path, small_disk: Path, tmp_path: Path) -> None:
    model = detector.save(small_disk / "part.procon")
    before = model.read_bytes()
    assert len(before) > 4 * PAGE
    leave_free(small_disk, 2)
    image = str(sorted(good_folder.iterdir())[0])
    for arguments in (
        ["threshold", model, "--false-alarm-rate", "0.2"],
        ["forget", model, image],
        ["add", model, parts / "5.png"],
        ["fit", good_folder, "-o", model, *settings_of(detector)],
        ["explain", model, image, "-o", small_disk / "evidence.png"],
    ):
        code, _, err = run(*arguments)
        assert code == 2, (arguments, err)
        target = "evidence.png" if arguments[0] == "explain" else "part.procon"
        assert f"error: {small_disk / target}: {REMEDY}" in err, (arguments, err)
        assert model.read_bytes() == before
        assert sorted(path.name for path in small_disk.iterdir()) == ["filler", "part.procon"]
    with pytest.raises(OutputError, match=REMEDY):
        detector.save(small_disk / "other.procon")


def settings_of(detector: Detector) -> list[str]:
    config = detector.config
    flags = ["--backbone", config.backbone, "--weights", str(config.weights), "--image-size", str(config.image_size)]
    return [*flags, "--set", "layers=-1,-3", "--set", "num_neighbors=3", "--coreset-ratio", "0.3"]
