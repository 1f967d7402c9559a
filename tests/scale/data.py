"""Data and comparisons for the tests of work cut into units, with and without a cluster."""

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from procon import Config
from procon.evaluation.data.datasets import open_dataset
from procon.evaluation.runs.run import Run
from procon.progress import Progress
from procon.scale.categories import RunSpec, _finish_category
from tests.evaluation.test_runs import make_category

CATEGORIES = ("lid", "plate", "tube")


def make_dataset(root: Path, good: int = 5) -> Path:
    """Three MVTec categories of small parts with a square defect."""
    for place, name in enumerate(CATEGORIES):
        make_category(root / name, 1000 * place, good)
    return root


def make_run(folder: Path, data: Path, weights: Path) -> Run:
    return Run(folder, open_dataset(data), Config(backbone="dinov2-custom", weights=str(weights), image_size=70))


def variants(run: Run) -> list[Config]:
    """Two that share their memories and one with a memory of its own."""
    small: dict[str, Any] = {"layers": (-1, -3), "banks": 2, "coreset_ratio": 0.3, "num_neighbors": 3}
    return [replace(run.base, **{**small, **more}) for more in ({}, {"banks": 1}, {"layer_fusion": "concat"})]


def raw_bytes(run: Run) -> dict[str, bytes]:
    """Every raw file of a run, by its place."""
    return {str(path.relative_to(run.folder)): path.read_bytes() for path in sorted(run.folder.glob("raw/*/*.npz"))}


def metrics(run: Run) -> dict[tuple[str, str], dict[str, float]]:
    return {(c, v): dict(run.measure(c, v)) for c, stored in run.list_variants().items() for v in stored}


def count(notes: Path, name: str) -> int:
    """How often a unit was begun, told by a line in a file of its own."""
    return len((notes / name).read_text().splitlines())


def finish_slowly(
    notes: Path, spec: RunSpec, category: str, wanted: list[Config], device: str, report: Progress
) -> None:
    """The unit of a category that says it began, and the first time "plate" is scored, waits to be killed."""
    with (notes / category).open("a") as stream:
        stream.write(f"{os.getpid()}\n")
    first = category == "plate" and count(notes, category) == 1

    def report_and_wait(stage: str, done: int, total: int) -> None:
        report(stage, done, total)
        if first and stage == "scoring" and done == 2:  # tokens are on disk, residuals are not
            (notes / "waiting").write_text(str(os.getpid()))
            time.sleep(600)

    _finish_category(spec, category, wanted, device, report_and_wait)
