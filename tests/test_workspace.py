"""What a killed export leaves is removed by the next one, and only that."""

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from procon import ConfigError, Detector
from procon.deploy import Runtime
from procon.deploy.export import export
from procon.errors import OutputError
from procon.workspace import atomic_folder, find_leftovers

pytest.importorskip("onnxruntime")
pytest.importorskip("fcntl")


def start_export(model: Path, folder: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "procon", "export", str(model), "--to", "onnx", "-o", str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not list(folder.parent.glob(".procon-work-*/model/model.onnx")):
        assert process.poll() is None
        time.sleep(0.005)
    return process


def hidden(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.startswith(".")]


def test_the_next_export_removes_what_a_killed_one_left(detector: Detector, tmp_path: Path) -> None:
    model = detector.save(tmp_path / "a.procon")
    process = start_export(model, tmp_path / "part")
    assert find_leftovers(tmp_path) == []  # it still runs
    process.send_signal(signal.SIGSTOP)
    export(detector, tmp_path / "other", measure_memory=False)
    assert len(hidden(tmp_path)) == 1  # and is left alone
    process.kill()
    process.wait()
    assert [path.name for path in find_leftovers(tmp_path)] == hidden(tmp_path) != []
    export(detector, tmp_path / "part", measure_memory=False)
    assert hidden(tmp_path) == []
    Runtime(tmp_path / "part")


def test_an_export_killed_while_it_replaces_an_earlier_one_gives_that_back(detector: Detector, tmp_path: Path) -> None:
    """The process dies between the two renames, where the system cannot swap two folders: the worst moment there is."""
    earlier = export(detector, tmp_path / "part", measure_memory=False).folder
    before = (earlier / "manifest.json").read_bytes()
    code = (
        "import os, pathlib, signal, sys\n"
        "from procon import workspace\n"
        "workspace._exchange = lambda *_: False\n"
        "from procon.workspace import atomic_folder\n"
        "rename, target = pathlib.Path.rename, pathlib.Path(sys.argv[1])\n"
        "def die(self, to):\n"
        "    rename(self, to) if self == target else os.kill(os.getpid(), signal.SIGKILL)\n"
        "pathlib.Path.rename = die\n"
        "with atomic_folder(target): pass\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(earlier)], capture_output=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert not earlier.exists()
    with atomic_folder(tmp_path / "other"):
        assert (earlier / "manifest.json").read_bytes() == before
    assert hidden(tmp_path) == []
    Runtime(earlier)


def test_the_error_of_a_full_disk_names_the_folder(tmp_path: Path) -> None:
    full = pytest.raises(OutputError, match="part: the disk is full; free some space")
    with full, atomic_folder(tmp_path / "part") as work:
        raise OSError(errno.ENOSPC, "No space left on device", str(work / "good.png"))
    assert not list(tmp_path.iterdir())


def test_a_folder_with_the_longest_name_is_exported(detector: Detector, tmp_path: Path) -> None:
    Runtime(export(detector, tmp_path / ("ü" + "p" * 253), measure_memory=False).folder)
    name = tmp_path / os.fsdecode(b"\xffpart")
    with pytest.raises(ConfigError, match=r"\\xffpart: onnx needs a path in UTF-8; rename the folder"):
        export(detector, name, measure_memory=False)
    (tmp_path / ("ü" + "p" * 253)).rename(name)
    with pytest.raises(ConfigError, match="onnx needs a path in UTF-8; rename the folder"):
        Runtime(name)
