"""Every table of the paper on real images. Writes ``benchmarks/results/reproduce.csv``.

    python benchmarks/reproduce.py --data DIR_OF_MPDD --weights dinov2_vits14_dav2_fp16.safetensors

A row for each table, variant and category, in percent; the last one is the wall time of the whole set. ``--output``
keeps the run, for ``procon report`` and ``procon figures``.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from environment import write_rows
from procon import Config
from procon.evaluation.data.datasets import open_dataset
from procon.evaluation.paper.reproduce import NAMES, compute_here, protocol, reproduce
from procon.evaluation.paper.results import row_config
from procon.evaluation.paper.tables import ALL, TABLES, build_table
from procon.evaluation.runs.raw import Run, variant_name


def measured_rows(run: Run, categories: list[str]) -> list[dict[str, Any]]:
    rows = []
    for name in TABLES:
        table = build_table(name, run.dataset.name)
        for row in table.rows:
            for category in categories:
                found = run.measure(category, variant_name(row_config(run.base, row)))
                values = {metric: round(100 * found[metric], 2) for metric in ALL}
                rows.append({"table": name, "row": row.label, "category": category, **values})
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with the MPDD categories in it")
    parser.add_argument("--weights", required=True)
    parser.add_argument("--categories", nargs="+", default=["metal_plate", "bracket_white"])
    parser.add_argument("--output", type=Path, help="folder for the run; a temporary one by default")
    arguments = parser.parse_args()
    started = time.perf_counter()
    stages = [""]

    def progress(stage: str, done: int, total: int) -> None:
        if stage != stages[-1]:
            stages.append(stage)
            print(f"{time.perf_counter() - started:7.0f} s  {stage}", flush=True)

    with tempfile.TemporaryDirectory() as temporary:
        base = Config(backbone="dinov2-small", weights=arguments.weights)
        run = Run(arguments.output or Path(temporary), open_dataset(arguments.data), base)
        reproduce(run, NAMES, arguments.categories, compute_here(torch.device("cpu"), progress), progress)
        decisions = protocol(run, arguments.categories)
        seconds = time.perf_counter() - started
        rows = measured_rows(run, arguments.categories)
    print("\n".join(decisions))
    nothing = dict.fromkeys(ALL, "")
    for line in decisions[2:]:
        rows.append({"table": "protocol", "row": line, "category": "", **nothing})
    rows.append({"table": "time", "row": f"{seconds:.0f}", "category": "", **nothing})
    print(f"{seconds:.0f} s; wrote {write_rows('reproduce', rows)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
