"""A real Ray cluster of several processes on this machine: the same files, also when a worker is killed."""

import os
import signal
import time
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import torch

from procon import Detector, ProconError
from procon.errors import ConfigError
from procon.results.inspection import find_images, inspect
from procon.scale.categories import RunSpec, compute_on
from procon.scale.cluster import ATTEMPTS, Cluster, Unit, collect_values
from procon.scale.images import inspect_on
from procon.scale.parts import find_parts, fit_parts
from tests.conftest import Run as Cli
from tests.conftest import tiny_config
from tests.scale.data import CATEGORIES, count, finish_slowly, make_dataset, make_run, metrics, raw_bytes, variants

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.slow

CPU = torch.device("cpu")
SLOTS = 2


def ignore(*_: object) -> None:
    pass


@pytest.fixture(scope="module")
def cluster() -> Any:
    """Two workers at a time, whatever this machine has."""
    ray.init(num_cpus=SLOTS, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    try:
        with Cluster(device="cpu") as opened:
            yield opened
    finally:
        ray.shutdown()


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_dataset(tmp_path_factory.mktemp("data") / "parts")


def test_results_are_those_of_one_process_bit_for_bit(
    cluster: Cluster, data: Path, tiny_backbone: Path, tmp_path: Path
) -> None:
    alone = make_run(tmp_path / "alone", data, tiny_backbone)
    for category in CATEGORIES:
        alone.compute(category, variants(alone), CPU, ignore)
    workers: set[str] = set()
    many = make_run(tmp_path / "many", data, tiny_backbone)
    compute = compute_on(cluster, lambda worker, *_: workers.add(worker))
    compute(many, {category: variants(many) for category in CATEGORIES}, False)
    assert raw_bytes(many) == raw_bytes(alone)
    assert metrics(many) == metrics(alone)
    assert len(workers) >= SLOTS and str(os.getpid()) not in {worker.split()[1] for worker in workers}
    one = make_run(tmp_path / "one", data, tiny_backbone)  # a single category keeps several workers busy
    units: set[str] = set()
    compute_on(cluster, lambda _w, unit, *_: units.add(unit))(one, {"lid": variants(one)}, False)
    assert raw_bytes(one) == {name: value for name, value in raw_bytes(alone).items() if "/lid/" in name}
    assert len(units) == 4  # the category and its three memories


def test_a_killed_worker_costs_only_its_unit(cluster: Cluster, data: Path, tiny_backbone: Path, tmp_path: Path) -> None:
    """Killed with its tokens on disk and its scores half done: that unit is begun again, the others are not."""
    alone = make_run(tmp_path / "alone", data, tiny_backbone)
    for category in CATEGORIES:
        alone.compute(category, variants(alone), CPU, ignore)
    run, notes = make_run(tmp_path / "run", data, tiny_backbone), tmp_path / "notes"
    notes.mkdir()
    spec: RunSpec = (str(run.folder), str(data), run.dataset.name, run.base, run.verdicts)
    units = [Unit(name, finish_slowly, (notes, spec, name, variants(run), "cpu")) for name in CATEGORIES]

    def kill() -> None:
        waiting = notes / "waiting"
        while not waiting.exists() or not waiting.read_text():
            time.sleep(0.05)
        killed.append(int(waiting.read_text()))
        os.kill(killed[0], signal.SIGKILL)

    killed: list[int] = []
    thread = Thread(target=kill, daemon=True)
    thread.start()
    done = [unit.name for unit, _ in collect_values(cluster.run(units, ignore))]
    assert sorted(done) == sorted(CATEGORIES)
    assert killed and killed[0] != os.getpid()
    assert {name: count(notes, name) for name in CATEGORIES} == {"lid": 1, "plate": 2, "tube": 1}
    attempts = (notes / "plate").read_text().split()
    assert attempts[0] == str(killed[0]) != attempts[1]
    assert raw_bytes(run) == raw_bytes(alone)
    assert metrics(run) == metrics(alone)


def die(notes: Path, _report: Any) -> None:
    with notes.open("a") as stream:
        stream.write("x")
    os.kill(os.getpid(), signal.SIGKILL)


def greet(name: str, _report: Any) -> str:
    return f"{name} {torch.get_num_threads()}"


def test_a_unit_that_kills_every_worker_is_given_up_and_named(cluster: Cluster, tmp_path: Path) -> None:
    units = [Unit("deadly", die, (tmp_path / "tries",)), Unit("kind", greet, ("hello",))]
    done = {one.unit.name: one for one in cluster.run(units, ignore)}
    assert done["kind"].value == "hello 1"
    assert str(done["deadly"].error).startswith(f"deadly: its worker died {ATTEMPTS} times")
    assert len((tmp_path / "tries").read_text()) == ATTEMPTS


def test_many_units_are_not_handed_out_at_once(cluster: Cluster) -> None:
    drawn: list[int] = []

    def units() -> Any:
        for number in range(40):
            drawn.append(number)
            yield Unit(str(number), greet, ("hello",))

    running = cluster.run(units(), ignore)
    next(running)
    assert len(drawn) <= SLOTS + 1
    assert len(list(running)) == 39


def test_images_and_parts_are_those_of_one_process(
    cluster: Cluster, data: Path, tiny_backbone: Path, detector: Detector, tmp_path: Path
) -> None:
    config = tiny_config(tiny_backbone)
    fitted = list(fit_parts(cluster, config, find_parts(data), tmp_path / "models", ignore))
    assert {one.name for one in fitted} == set(CATEGORIES)
    Detector(config, device="cpu").fit(data / "tube").save(tmp_path / "tube.procon")
    assert (tmp_path / "models" / "tube.procon").read_bytes() == (tmp_path / "tube.procon").read_bytes()
    model = detector.save(tmp_path / "part.procon")
    images = find_images([data / "lid", data / "tube"])
    whole = inspect(detector, images, tmp_path / "whole")
    many = inspect_on(cluster, model, images, tmp_path / "many", ignore, detector=detector, shard=3)
    scores = [[row.prediction and row.prediction.score for row in one.rows] for one in (whole, many)]
    assert scores[0] == scores[1] and None not in scores[0]
    overlays = [sorted((tmp_path / name / "overlays").rglob("*.png")) for name in ("whole", "many")]
    assert [path.read_bytes() for path in overlays[0]] == [path.read_bytes() for path in overlays[1]]
    assert (tmp_path / "whole" / "index.html").read_bytes() == (tmp_path / "many" / "index.html").read_bytes()


def test_what_a_worker_cannot_see_is_refused_before_any_work(cluster: Cluster, tmp_path: Path) -> None:
    with pytest.raises(ProconError, match=r"no-such-weights: not there on .* storage that every machine"):
        cluster.check_shared(tmp_path / "out", tmp_path / "no-such-weights")
    cluster.check_shared(tmp_path / "out", tmp_path)
    assert not list((tmp_path / "out").iterdir())


def test_what_the_cluster_has_not_is_refused(cluster: Cluster) -> None:
    with pytest.raises(ConfigError, match="has no GPU"):
        Cluster(device="cuda")
    with pytest.raises(ConfigError, match="takes 64 cores"):
        Cluster(device="cpu", cpus=64)


def test_bench_and_predict_on_the_command_line(
    cluster: Cluster, data: Path, tiny_backbone: Path, detector: Detector, tmp_path: Path, run: Cli
) -> None:
    settings = ["--backbone", "dinov2-custom", "--weights", tiny_backbone, "--image-size", "70"]
    settings += ["--set", "layers=-1", "--banks", "1", "--device", "cpu", "--categories", "lid,tube"]
    tables = []
    for name, more in (("here", []), ("there", ["--ray", "local"])):
        code, _out, err = run("eval", data, "-o", tmp_path / name, *settings, *more)
        assert code == 0, err
        tables.append((tmp_path / name / "tables" / "bench.csv").read_text())
    assert tables[0] == tables[1]
    raw = [{p.name: p.read_bytes() for p in (tmp_path / name / "raw").rglob("*.npz")} for name in ("here", "there")]
    assert raw[0] == raw[1]
    model = detector.save(tmp_path / "part.procon")
    code, out, err = run("predict", model, data / "lid", "--ray", "local", "--device", "cpu", "-o", tmp_path / "out")
    assert code == 0, err
    assert "6 images" in out and (tmp_path / "out" / "index.html").exists()
