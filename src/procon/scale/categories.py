"""Benchmarks in this process or over many workers: a unit is a category, or one of its memories where there are few.

The files do not depend on the workers, byte for byte on a CPU. Tokens are written to the run's folder once and
read from there by every unit of the category.
"""

from functools import lru_cache
from pathlib import Path

from procon.config import Config
from procon.evaluation.data.datasets import open_dataset
from procon.evaluation.paper.reproduce import Compute
from procon.evaluation.runs.run import Run, variant_name
from procon.progress import Progress
from procon.scale.cluster import Unit, WorkerProgress, Workers, collect_values
from procon.vision.backbone import resolve_device

RunSpec = tuple[str, str, str, Config, bool]
"""A run as a worker opens it: folder, root of the dataset, its name, the settings all variants share, with verdicts."""


def compute_on(workers: Workers, on_progress: WorkerProgress) -> Compute:
    """A ``compute`` for ``reproduce`` and ``bench`` that hands the work to ``workers``."""

    def compute(run: Run, needed: dict[str, list[Config]], keep_work: bool) -> None:
        weights = [] if run.base.weights is None else [Path(run.base.weights)]
        workers.check_shared(run.folder, run.dataset.root, *weights)
        spec = (str(run.folder), str(run.dataset.root), run.dataset.name, run.base, run.verdicts)
        todo = {
            category: variants
            for category, variants in needed.items()
            if not all(run.has(category, config) for config in variants)
        }
        if len(todo) < workers.slots:
            _score_memories(workers, spec, todo, on_progress)
        units = [
            Unit(category, _finish_category, (spec, category, variants, workers.device))
            for category, variants in needed.items()
        ]
        for unit, _ in collect_values(workers.run(units, on_progress)):
            if not keep_work:  # here and not on the worker: one that is off the network still sees the storage
                run.delete_work(unit.name)

    return compute


def _score_memories(
    workers: Workers, spec: RunSpec, needed: dict[str, list[Config]], on_progress: WorkerProgress
) -> None:
    """Score the memories of all categories at the same time, so that one category keeps several workers busy."""
    tokens = [Unit(name, _prepare, (spec, name, variants, workers.device)) for name, variants in needed.items()]
    units = [
        Unit(f"{name} {memory[:8]}", _score_memory, (spec, name, needed[name], memory, workers.device))
        for name, memories in ((unit.name, value) for unit, value in collect_values(workers.run(tokens, on_progress)))
        for memory in memories
    ]
    list(collect_values(workers.run(units, on_progress)))


# ---------------------------------------------------------------------------------------------------------- on a worker


@lru_cache(maxsize=1)
def _open_run(spec: RunSpec) -> Run:
    """The run, cached with its backbone for the next unit."""
    folder, root, name, base, verdicts = spec
    return Run(Path(folder), open_dataset(Path(root), name), base, verdicts=verdicts)


def _prepare(spec: RunSpec, category: str, variants: list[Config], device: str, on_progress: Progress) -> list[str]:
    return _open_run(spec).prepare_memories(category, variants, resolve_device(device), on_progress)


def _score_memory(
    spec: RunSpec, category: str, variants: list[Config], memory: str, device: str, on_progress: Progress
) -> None:
    _open_run(spec).score_memory(category, variants, memory, resolve_device(device), on_progress)


def _finish_category(spec: RunSpec, category: str, variants: list[Config], device: str, on_progress: Progress) -> None:
    """What is still missing of a category, and the metrics, which take longer than the rest if maps are large."""
    run = _open_run(spec)
    run.compute(category, variants, resolve_device(device), on_progress, keep_work=True)
    for count, config in enumerate(variants):
        run.measure(category, variant_name(config))
        on_progress("measuring", count + 1, len(variants))
