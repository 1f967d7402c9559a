"""Every stored input and every seed passes its check; with atheris, also what a short run makes of them."""

import importlib.util
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz.targets import NAMES, find_target, stored_inputs

ROOT = Path(__file__).parents[2]
_SECONDS = 20


@pytest.mark.parametrize("name", NAMES)
def test_seeds_and_stored_inputs_are_answered_or_refused(name: str, tmp_path: Path) -> None:
    pytest.importorskip("fastapi")
    target = find_target(name)
    inputs = {**target.seeds(), **dict(stored_inputs(name))}
    with target.open(tmp_path) as check:
        for data in inputs.values():
            check(data)
        draw = random.Random(1)
        for data in draw.sample(sorted(inputs.values()), 10):  # and with a few bytes changed
            changed = bytearray(data)
            for _ in range(3):
                if changed:
                    changed[draw.randrange(len(changed))] = draw.randrange(256)
            check(bytes(changed))


@pytest.mark.parametrize("name", NAMES)
def test_a_check_notices_what_must_not_happen(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("fastapi")
    broken = {
        "model": "procon.model.document.calibration_of",
        "images": "procon.vision.images._checked_picture",
        "datasets": "procon.evaluation.data.datasets.list_category",
        "requests": "procon.server.service.read_header",
    }
    seeds = {"images": "rgb.png", "datasets": "mvtec", "requests": "predict"}
    target = find_target(name)
    data = target.seeds()[seeds[name]] if name in seeds else b"\0"

    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    with target.open(tmp_path) as check:
        check(data)
        monkeypatch.setattr(broken[name], fail)
        with pytest.raises((ZeroDivisionError, AssertionError)):
            check(data)
        monkeypatch.undo()


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_fuzzer_finds_nothing_in_a_short_run(name: str, tmp_path: Path) -> None:
    if importlib.util.find_spec("atheris") is None:
        pytest.skip("there is no atheris here; install it with: pip install 'procon[dev-all]'")
    command = [sys.executable, "-m", "tests.fuzz.run", name, "--seconds", str(_SECONDS), "--keep", str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, capture_output=True, text=True, errors="replace", check=False, cwd=ROOT, env=environment
    )
    assert done.returncode == 0 and " runs, 0 failures" in done.stdout, done.stdout[-4000:] + done.stderr[-2000:]
