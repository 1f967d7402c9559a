"""Short forms of benchmarks/slow_clients.py and benchmarks/soak.py, with a tiny model."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from procon import Detector
from tests.server.test_api import png

pytestmark = pytest.mark.slow
BODIES = [png(seed, defect=seed % 3 == 0) for seed in range(12)]


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Imports a script of the folder ``benchmarks``."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    before = set(sys.modules)
    yield importlib.import_module
    for name in {"server", "crowd", "soak", "slow_clients", "environment"} - before:
        sys.modules.pop(name, None)


@pytest.fixture
def models(tmp_path: Path, detector: Detector) -> Path:
    folder = tmp_path / "models"
    folder.mkdir()
    for name in ("flange", "learner"):
        detector.save(folder / f"{name}.procon")
    return folder


def test_slow_clients_of_each_kind_cost_the_others_little(scripts: Any, models: Path, tmp_path: Path) -> None:
    slow_clients, server = scripts("slow_clients"), scripts("server")
    with server.serving(models, "cpu") as (_, port):
        path = slow_clients.large_answer(port, tmp_path)
        alone, among, outcomes = slow_clients.measure(port, BODIES, path, 40, 2, 5.0)
    assert set(alone.statuses) == set(among.statuses) == {"200"}
    assert among.at(0.99) <= 1.5 * alone.at(0.99) + 100, (alone.at(0.99), among.at(0.99))  # ms; the machine may be busy
    assert "upload 408" in outcomes


def test_a_soak_with_kill_9_in_the_middle(scripts: Any, models: Path) -> None:
    report = scripts("soak").run_soak(models, BODIES, 20.0, 5)
    report.growth.clear()  # twenty seconds say nothing about memory
    report.check()
    assert report.outcomes["valid 200"] > 20 and report.outcomes["damaged 422"] > 5
