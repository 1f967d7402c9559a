"""Benchmarks over many workers: a unit is a category, or one memory of a category where there are few of them.

The files are those of a run on one machine, byte for byte on a CPU. Tokens are written to the run's folder once and
read from there by every unit of the category.
"""

from functools import lru_cache
from pathlib import Path

from procon.config import Config
from procon.evaluation.data.datasets import open_dataset
from procon.evaluation.paper.reproduce import Compute
from procon.evaluation.runs.raw import Run, variant_name
from procon.progress import Progress
from procon.scale.cluster import Unit, WorkerProgress, Workers, values
from procon.vision.backbone import resolve_device

Place = tuple[str, str, str, Config]
"""A run as a worker opens it: folder, root of the dataset, its name, the settings all variants share."""


def compute_on(workers: Workers, progress: WorkerProgress) -> Compute:
    """What ``reproduce`` and ``bench`` take as ``compute``: the work is done by ``workers``."""

    def compute(run: Run, needed: dict[str, list[Config]], keep_work: bool) -> None:
        weights = [] if run.base.weights is None else [Path(run.base.weights)]
        workers.check_shared(run.folder, run.dataset.root, *weights)
        place = (str(run.folder), str(run.dataset.root), run.dataset.name, run.base)
        todo = {
            category: variants
            for category, variants in needed.items()
            if not all(run.has(category, config) for config in variants)
        }
        if len(todo) < workers.slots:
            _read_memories(workers, place, todo, progress)
        units = [
            Unit(category, _finish, (place, category, variants, workers.device, keep_work))
            for category, variants in needed.items()
        ]
        for _ in values(workers.run(units, progress)):
            pass

    return compute


def _read_memories(workers: Workers, place: Place, needed: dict[str, list[Config]], progress: WorkerProgress) -> None:
    """The memories of all categories at the same time, so that one category keeps several workers busy."""
    first = [
        Unit(category, _prepare, (place, category, variants, workers.device)) for category, variants in needed.items()
    ]
    units = [
        Unit(f"{unit.name} {memory[:8]}", _read_memory, (place, unit.name, needed[unit.name], memory, workers.device))
        for unit, memories in values(workers.run(first, progress))
        for memory in memories
    ]
    for _ in values(workers.run(units, progress)):
        pass


# ---------------------------------------------------------------------------------------------------------- on a worker


@lru_cache(maxsize=1)
def _open(place: Place) -> Run:
    """The run, kept with the backbone it has loaded for the next unit of the same run."""
    folder, root, name, base = place
    return Run(Path(folder), open_dataset(Path(root), name), base)


def _prepare(place: Place, category: str, variants: list[Config], device: str, report: Progress) -> list[str]:
    return _open(place).prepare(category, variants, resolve_device(device), report)


def _read_memory(
    place: Place, category: str, variants: list[Config], memory: str, device: str, report: Progress
) -> None:
    _open(place).read_memory(category, variants, memory, resolve_device(device), report)


def _finish(
    place: Place, category: str, variants: list[Config], device: str, keep_work: bool, report: Progress
) -> None:
    """What is still missing of a category, and the metrics, which take longer than the rest where maps are large."""
    run = _open(place)
    run.compute(category, variants, resolve_device(device), report, keep_work=keep_work)
    for count, config in enumerate(variants):
        run.measure(category, variant_name(config))
        report("measuring", count + 1, len(variants))
