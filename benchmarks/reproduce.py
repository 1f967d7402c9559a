"""Every table of the paper on real images. Writes ``benchmarks/results/reproduce.csv``.

    python benchmarks/reproduce.py --data DIR_OF_MPDD --weights dinov2_vits14_dav2_fp16.safetensors

A row for each table, variant, category and bank seed, in percent; the last one is the wall time of the whole set.
``--data`` takes several datasets, ``--processes`` computes several categories at the same time. ``--output`` keeps the
runs, for ``procon report`` and ``procon figures``.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from environment import write_rows
from procon import Config
from procon.evaluation.data.datasets import open_dataset
from procon.evaluation.paper.reproduce import protocol
from procon.evaluation.paper.results import SPM, row_config
from procon.evaluation.paper.tables import ALL, TABLES, TableRow, build_table
from procon.evaluation.runs.run import Run, variant_name
from procon.vision.backbone import resolve_device

PHASES = {"single-layer", "fusion", "pools", "promotion"}


def open_run(root: Path, folder: Path, base: Config) -> Run:
    """The run of a dataset in a folder of its own."""
    dataset = open_dataset(root)
    return Run(folder / dataset.name, dataset, base)


def rows_of(name: str, dataset: str) -> tuple[TableRow, ...]:
    """The variants of a table as it is for a dataset."""
    return build_table(name, dataset).rows


def compute(
    root: Path, folder: Path, base: Config, category: str, tables: Sequence[str], seeds: int, device: str
) -> str:
    """Make the raw results of one category; says how long it took."""
    started = time.perf_counter()
    run = open_run(root, folder, base)
    rows = [row for name in tables for row in rows_of(name, run.dataset.name)] + [SPM]
    variants = list(dict.fromkeys(row_config(base, row, seed) for row in rows for seed in range(seeds)))
    run.compute(category, variants, resolve_device(device), lambda stage, done, total: None)
    return f"{category}: {len(variants)} variants, {time.perf_counter() - started:.0f} s"


def measure(root: Path, folder: Path, base: Config, category: str, variant: str) -> dict[str, float]:
    """All metrics of one variant on one category, in percent."""
    torch.set_num_threads(1)
    found = open_run(root, folder, base).measure(category, variant)
    return {metric: round(100 * found[metric], 2) for metric in ALL}


def measured_rows(
    jobs: Sequence[tuple[Path, str]],
    folder: Path,
    base: Config,
    tables: Sequence[str],
    seeds: int,
    pool: ProcessPoolExecutor,
) -> list[dict[str, Any]]:
    """A row for each table, variant, category and seed."""
    rows, waiting = [], {}
    for root, category in jobs:
        dataset = open_dataset(root).name
        for name in tables:
            for row in rows_of(name, dataset):
                for seed in range(seeds):
                    variant = variant_name(row_config(base, row, seed))
                    if (root, category, variant) not in waiting:
                        future = pool.submit(measure, root, folder, base, category, variant)
                        waiting[root, category, variant] = future
                    rows.append(
                        (
                            {"table": name, "row": row.label, "category": category, "seed": seed},
                            (root, category, variant),
                        )
                    )
    return [{**about, **waiting[key].result()} for about, key in rows]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="+", type=Path, required=True, help="folders with the categories of a dataset")
    parser.add_argument("--weights", required=True)
    parser.add_argument("--categories", nargs="+", default=["metal_plate", "bracket_white"])
    parser.add_argument("--tables", nargs="+", choices=list(TABLES), default=list(TABLES))
    parser.add_argument("--seeds", type=int, default=1, help="bank seeds of each variant")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--processes", type=int, default=1, help="categories at the same time")
    parser.add_argument("--output", type=Path, help="folder for the runs; a temporary one by default")
    given = parser.parse_args()
    started = time.perf_counter()
    base = Config(backbone="dinov2-small", weights=given.weights, precision="fp32")
    found = [(root, name) for root in given.data for name in open_dataset(root).categories if name in given.categories]
    decisions: list[str] = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.output or Path(temporary)
        with ProcessPoolExecutor(given.processes, get_context("spawn")) as pool:
            waiting = [
                pool.submit(compute, root, folder, base, category, given.tables, given.seeds, given.device)
                for root, category in found
            ]
            for future in waiting:
                done = future.result()
                print(f"{time.perf_counter() - started:7.0f} s  {done}", flush=True)
        cores = 1 if given.processes == 1 else os.cpu_count()
        with ProcessPoolExecutor(cores, get_context("spawn")) as pool:
            rows = measured_rows(found, folder, base, given.tables, given.seeds, pool)
        if set(given.tables) >= PHASES and len(given.data) == 1:
            decisions = protocol(open_run(given.data[0], folder, base), [category for _, category in found])
        seconds = time.perf_counter() - started
    print("\n".join(decisions))
    nothing = {"seed": "", **dict.fromkeys(ALL, "")}
    for line in decisions[2:]:
        rows.append({"table": "protocol", "row": line, "category": "", **nothing})
    rows.append({"table": "time", "row": f"{seconds:.0f}", "category": "", **nothing})
    print(f"{seconds:.0f} s; wrote {write_rows('reproduce', rows)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
