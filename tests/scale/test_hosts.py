"""Ray on four hosts with addresses of their own: one leaves the network, and the command ends with the same numbers."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from procon import Detector
from tests.conftest import part_pixels
from tests.evaluation.test_runs import make_category
from tests.scale.hosts import PORT, Host, Network, missing_requirement

pytest.importorskip("ray")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(missing_requirement() is not None, reason=str(missing_requirement())),
]

PROCON = [sys.executable, "-c", "from procon.cli import main; main()"]
RAY = ["--ray", f"10.77.0.1:{PORT}", "--device", "cpu"]
CATEGORIES = ("bracket_black", "bracket_brown", "bracket_white", "connector", "metal_plate", "tubes")
LOST = "started again because a worker was lost: "
PATIENCE = 300  # seconds for one command


@pytest.fixture(scope="module")
def env(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A token as docs/use/scale.md describes, and a head that misses a host after four seconds instead of a minute."""
    home = tmp_path_factory.mktemp("home")
    (home / ".ray").mkdir()
    (home / ".ray" / "auth_token").write_text("0123456789abcdef" * 2)
    check = {"initial_delay_ms": 1000, "period_ms": 1000, "timeout_ms": 1000, "failure_threshold": 3}
    settings = {f"RAY_health_check_{name}": str(value) for name, value in check.items()}
    return {**os.environ, "HOME": str(home), "RAY_AUTH_MODE": "token", **settings}


@pytest.fixture(scope="module")
def network(env: dict[str, str]) -> Iterator[Network]:
    """A head and three workers with one core each; a test that pulls a cable leaves it pulled."""
    network = Network(3)
    try:
        network.start_ray(env)
        yield network
    finally:
        network.stop()


def lose_a_worker(
    network: Network, words: list[str], env: dict[str, str], choose: Callable[[Host], str | None], frozen: bool
) -> tuple[str, str]:
    """Run a command on the head, and pull the cable of the first worker for which ``choose`` names its unit.

    The unit, and what the command printed.
    """
    command = network.head.command(*words, *RAY)
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen(command, env=env, **pipes) as running:
        unit = None
        while unit is None:
            assert running.poll() is None, f"it ended before a worker was lost: {running.communicate()[0]}"
            time.sleep(0.01)
            for host in network.workers:
                unit = choose(host)
                if unit is not None:
                    network.pull_cable(host)
                    if frozen:
                        host.freeze()
                    break
        printed, _ = running.communicate(timeout=PATIENCE)
    assert running.returncode == 0, printed
    return unit, printed


def repeated_units(printed: str) -> list[str]:
    """The units of which the command says that they were started again."""
    lines = [line.removeprefix(LOST).strip() for line in printed.splitlines() if line.startswith(LOST)]
    return [unit for line in lines for unit in line.split(", ")]


def files(folder: Path, pattern: str) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.glob(pattern))}


def test_bench_when_a_machine_and_its_storage_are_lost(
    network: Network, env: dict[str, str], tiny_backbone: Path, tmp_path: Path
) -> None:
    """Lost with the tokens of a category on disk: that category is computed again elsewhere, and no other."""
    for place, name in enumerate(CATEGORIES):
        make_category(tmp_path / "data" / name, 1000 * place, good=40)
    words = [*PROCON, "bench", "mpdd", "--root", str(tmp_path / "data"), "--backbone", "dinov2-custom"]
    words += ["--weights", str(tiny_backbone), "--image-size", "140", "--set", "layers=-1,-3", "--banks", "2"]
    words += ["--coreset-ratio", "0.3"]
    alone, many = tmp_path / "alone", tmp_path / "many"
    subprocess.run([*words, "-o", str(alone), "--device", "cpu"], env=env, check=True, capture_output=True)

    def choose(host: Host) -> str | None:
        titles = host.list_titles()
        started = (name for name in CATEGORIES if (many / "work" / name / "tokens" / "tokens.json").exists())
        return next((name for name in started if f"ray::{name}" in titles), None)

    unit, printed = lose_a_worker(network, [*words, "-o", str(many)], env, choose, frozen=True)
    assert repeated_units(printed) == [unit]
    assert len(files(many, "raw/*/*.npz")) == len(CATEGORIES)
    assert files(many, "raw/*/*.npz") == files(alone, "raw/*/*.npz")
    assert files(many, "tables/*") == files(alone, "tables/*")
    assert not list(many.glob("work/*"))


def test_predict_when_a_machine_is_lost_that_still_sees_the_storage(
    network: Network, env: dict[str, str], detector: Detector, tmp_path: Path
) -> None:
    """Its worker goes on writing the same overlays as the one that does its images again."""
    (tmp_path / "images").mkdir()
    for number in range(300):
        pixels = part_pixels(number, defect=number % 7 == 0)
        Image.fromarray(pixels).save(tmp_path / "images" / f"{number:03d}.png")
    model = detector.save(tmp_path / "part.procon")
    words = [*PROCON, "predict", str(model), str(tmp_path / "images")]
    alone, many = tmp_path / "alone", tmp_path / "many"
    subprocess.run([*words, "-o", str(alone), "--device", "cpu"], env=env, check=True, capture_output=True)

    def choose(host: Host) -> str | None:
        if len(list(many.glob("overlays/**/*.png"))) < 6:
            return None
        titles = (title.removeprefix("ray::") for title in host.list_titles())
        return next((title for title in titles if title.startswith("images ")), None)

    unit, printed = lose_a_worker(network, [*words, "-o", str(many)], env, choose, frozen=False)
    assert repeated_units(printed) == [unit]

    def rows(folder: Path) -> list[Any]:
        lines = (folder / "scores.jsonl").read_text().splitlines()
        return [{key: value for key, value in json.loads(line).items() if key != "seconds"} for line in lines]

    assert len(rows(many)) == 300 and rows(many) == rows(alone)
    overlays = files(many, "overlays/**/*.png")
    assert len(overlays) == 300 and overlays == files(alone, "overlays/**/*.png")
    assert (many / "index.html").read_bytes() == (alone / "index.html").read_bytes()
