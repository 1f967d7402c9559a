"""A kill at every call that writes, renames or syncs leaves the old or the new state, whole."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from procon import Detector

ROOT = Path(__file__).parents[2]
_FEWEST = {  # points: how many there are at least, so that the shim is known to see the calls
    "fit": 8,
    "fit new": 8,
    "add": 8,
    "forget": 8,
    "merge": 8,
    "threshold": 8,
    "calibrate": 8,
    "teach": 12,
    "export": 10,
    "watch": 60,
    "certificate": 10,
    "service": 150,
    "served files": 40,
}


@pytest.fixture(scope="session")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library that kills, compiled here."""
    if sys.platform != "linux" or shutil.which("gcc") is None:
        pytest.skip("needs Linux and gcc")
    library = tmp_path_factory.mktemp("shim") / "shim.so"
    command = ["gcc", "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", library, Path(__file__).with_name("shim.c")]
    subprocess.run([*map(str, command), "-ldl"], check=True)
    return library


def run_preloaded(shim: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "LD_PRELOAD": str(shim), "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = f"{ROOT / 'src'}{os.pathsep}{ROOT}"
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, check=False, cwd=ROOT, env=environment
    )


def kill_everywhere(shim: Path, *arguments: str) -> list[dict[str, object]]:
    done = run_preloaded(shim, "-m", "tests.crash.runner", *arguments)
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert found, done.stderr[-3000:]
    problems = "\n".join(f"{one['scenario']}: {failure}" for one in found for failure in one["failures"])
    assert done.returncode == 0 and not problems, problems + done.stderr[-1000:]
    return found


_COUNT = """
import ctypes, os, sqlite3, sys
from pathlib import Path
from procon.model.metadata import read_metadata, rewrite_metadata
shim, folder = ctypes.CDLL(None), Path(sys.argv[1])
shim.crash_arm(os.fsencode(folder), ctypes.c_long(int(sys.argv[2])), 0)
(folder / "a").write_text("a")
rewrite_metadata(folder / "m.procon", history=[])
base = sqlite3.connect(folder / "b.sqlite")
base.execute("PRAGMA journal_mode = WAL")
base.execute("CREATE TABLE t (x)")
base.close()
print(shim.crash_calls())
"""


def test_the_shim_counts_and_kills(shim: Path, detector: Detector, tmp_path: Path) -> None:
    """One pass counts, others are killed: before the first call nothing has changed, before the last all but one."""
    detector.save(tmp_path / "m.procon")
    before = (tmp_path / "m.procon").read_bytes()
    killed = run_preloaded(shim, "-c", _COUNT, str(tmp_path), "1")
    assert killed.returncode == -9 and sorted(path.name for path in tmp_path.iterdir()) == ["m.procon"]
    counted = run_preloaded(shim, "-c", _COUNT, str(tmp_path), "0")
    assert counted.returncode == 0 and int(counted.stdout) > 20, counted.stderr
    assert (tmp_path / "m.procon").read_bytes() == before  # the history was empty
    assert run_preloaded(shim, "-c", _COUNT, str(tmp_path), "6").returncode == -9
    assert (tmp_path / "m.procon").read_bytes() == before
    assert [path.suffix for path in tmp_path.glob(".procon.*")] == [".partial"]


@pytest.mark.slow
@pytest.mark.parametrize("scenario", _FEWEST)
def test_a_kill_at_every_call_leaves_the_old_or_the_new_state(scenario: str, shim: Path) -> None:
    for needed in {"export": ["onnxruntime"], "certificate": ["asyncua"]}.get(scenario, []):
        pytest.importorskip(needed)
    every = {"service": "9", "served files": "6", "watch": "3"}.get(scenario, "1")
    (found,) = kill_everywhere(shim, scenario, "--every", every)
    assert int(str(found["points"])) * int(every) >= _FEWEST[scenario]


@pytest.mark.slow
def test_a_kill_in_the_middle_of_a_write(shim: Path) -> None:
    kill_everywhere(shim, "add", "threshold", "teach", "watch", "--half", "--every", "2")
