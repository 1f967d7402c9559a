"""Ctrl-C in a real process: exit code 130, a sentence, no traceback, and nothing half written."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from PIL import Image

from procon import Detector
from procon.deploy import Runtime
from procon.deploy.export import export
from tests.conftest import part_pixels


@pytest.fixture(autouse=True)
def obeyed_ctrl_c() -> Iterator[None]:
    """SIGINT is ignored in a background job (`nohup make test &`), and children inherit that, but not a handler."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def interrupt(arguments: list[object], ready: Callable[[int], bool], log: Path) -> tuple[int, str]:
    """Start `procon ARGUMENTS`, send SIGINT once it is ``ready`` (given its id): (exit code, stderr)."""
    with log.open("wb") as stream:
        command = [sys.executable, "-m", "procon", *map(str, arguments)]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=stream)
        deadline = time.monotonic() + 90
        while not ready(process.pid):
            assert process.poll() is None and time.monotonic() < deadline, log.read_text()
            time.sleep(0.005)
        process.send_signal(signal.SIGINT)
        code = process.wait(60)
    return code, log.read_text()


@pytest.fixture
def parts(tmp_path: Path) -> Path:
    folder = tmp_path / "parts"
    folder.mkdir()
    for index in range(300):
        Image.fromarray(part_pixels(index)).save(folder / f"{index:03d}.png")
    return folder


def assert_interrupted(code: int, err: str, folder: Path) -> None:
    # Python ends itself by the signal if it came inside exec() of text, as in dataclasses; a shell says 130 of both.
    assert code in (130, -signal.SIGINT), err
    assert err.splitlines()[-1] == "interrupted: files that were being written are complete or as they were before"
    assert "Traceback" not in err
    assert list(folder.rglob(".*")) == []


def test_fit(parts: Path, tiny_backbone: Path, detector: Detector, tmp_path: Path) -> None:
    model, log = detector.save(tmp_path / "a.procon"), tmp_path / "log"
    before = model.read_bytes()
    flags = ["--backbone", "dinov2-custom", "--weights", tiny_backbone, "--image-size", "70", "--set", "layers=-1"]
    code, err = interrupt(["fit", parts, "-o", model, *flags], lambda _: "patches" in log.read_text(), log)
    assert_interrupted(code, err, tmp_path)
    assert model.read_bytes() == before


def test_predict(parts: Path, detector: Detector, tmp_path: Path) -> None:
    model, out, log = detector.save(tmp_path / "a.procon"), tmp_path / "out", tmp_path / "log"
    ready: Callable[[int], bool] = lambda _: len(list(out.glob("overlays/*.png"))) > 3  # noqa: E731
    code, err = interrupt(["predict", model, parts, "-o", out], ready, log)
    assert_interrupted(code, err, tmp_path)
    scored = len((out / "scores.jsonl").read_text().splitlines())
    assert 3 <= scored < 300 and f"interrupted after {scored} of 300 images" in err
    assert len(list(out.glob("overlays/*.png"))) - scored in (0, 1)
    for overlay in out.glob("overlays/*.png"):
        Image.open(overlay).load()


def test_export(detector: Detector, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    model, log = detector.save(tmp_path / "a.procon"), tmp_path / "log"
    folder = export(detector, tmp_path / "part", measure_memory=False).folder
    before = (folder / "manifest.json").read_bytes()
    arguments = ["export", model, "--to", "onnx", "-o", folder, "--precision", "fp16"]
    code, err = interrupt(arguments, lambda _: "writing the fp16 model" in log.read_text(), log)
    assert_interrupted(code, err, tmp_path)
    assert (folder / "manifest.json").read_bytes() == before
    Runtime(folder)


def test_watch(parts: Path, detector: Detector, tmp_path: Path) -> None:
    model, table, log = detector.save(tmp_path / "a.procon"), tmp_path / "scores.csv", tmp_path / "log"
    arguments: list[object] = [
        "watch",
        parts,
        "--model",
        model,
        "--csv",
        table,
        "--outbox",
        tmp_path / "o.sqlite",
        "--existing",
    ]
    arguments += ["--settle", "0.01", "--every", "0.01"]
    code, err = interrupt(arguments, lambda _: table.exists() and table.stat().st_size > 2000, log)
    assert_interrupted(code, err, tmp_path)
    assert "\nstopped" in err and table.read_bytes().endswith(b"\n")


def loads_torch(pid: int) -> bool:
    return "libtorch" in Path(f"/proc/{pid}/maps").read_text()


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs /proc")
@pytest.mark.parametrize("command", ["threshold", "add", "explain"])
def test_while_the_model_is_loaded(command: str, parts: Path, detector: Detector, tmp_path: Path) -> None:
    model, log = detector.save(tmp_path / "a.procon"), tmp_path / "log"
    before = model.read_bytes()
    extra: dict[str, list[object]] = {
        "threshold": ["--calibrate", parts],
        "add": [parts],
        "explain": [parts / "000.png"],
    }
    code, err = interrupt([command, model, *extra[command]], loads_torch, log)
    assert_interrupted(code, err, tmp_path)
    assert model.read_bytes() == before
