r"""Which blocks a map is made of, and how far it is shifted: from the patch values that a study stored.

    PYTHONPATH=src:benchmarks python -m research.study OUT --data DATA --weights FILE --scope nine --few 48 24 44 \
        --seeds 0
    PYTHONPATH=src:benchmarks python -m research.offsets OUT [OUT ...] --data DATA

Writes ``benchmarks/results/offsets.csv``: pixel metrics of every part under every union of blocks and every share of
the shift, and of ``Config()`` on the same images. Stored values have eight bits on a logarithmic scale, so metrics
differ a little from those of the study, which has some of the same maps. Parts that are not in the folders keep their
rows.
"""

import argparse
import csv
import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from environment import read_rows, write_rows
from procon.method.consensus import lower_quartile
from research.judge import Judge, render
from research.tokens import masks_of, open_part

UNIONS = (
    ("-3", "-7", "-10"), ("-3", "-7", "-9", "-10"), ("-3", "-9", "-10"), ("-3", "-6", "-9", "-10"),
    ("-3", "-6", "-7", "-9", "-10"),
)  # fmt: skip
SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
METRICS = ("p_auroc", "p_ap", "p_f1", "aupro")
PAPER = "Config()"
MOST_LOST = 1.0  # points of P-AP, P-F1 or AUPRO against Config(), on any part
SIZE = 672
BLUR = 4 * 392 / SIZE  # pixels of a map of side 392

Row = Mapping[str, Any]


def stored_maps(folder: Path, part: str, grid: tuple[int, int]) -> dict[str, Tensor]:
    """Patch values [T, rows, columns] of each block of the test images."""
    maps = {}
    with np.load(folder / f"patches-{SIZE}.npz") as arrays:
        for block in {block for union in UNIONS for block in union}:
            low, high = arrays[f"{part}:{block}:range"]
            bits = arrays[f"{part}:{block}"].astype(np.float32)
            maps[block] = torch.from_numpy(np.exp(bits / 255 * (high - low) + low)).float().view(-1, *grid)
    return maps


def measure(folder: Path, data: Path, part: str, about: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The rows of one part."""
    good = sum(about["good"])
    counts = {"train": about["train"], "good": good, "defective": len(about["good"]) - good}
    opened = open_part(data, part, tuple(counts.values()))  # type: ignore[arg-type]
    judge = Judge(masks_of(opened, torch.device("cpu")))
    blocks = stored_maps(folder, part, opened.grid(SIZE))
    height, width = opened.judged
    even = opened.aspect == opened.true_aspect
    blur = (BLUR, BLUR) if even else (BLUR * height / 392, BLUR * width / 392)
    with (folder / "maps.csv").open(newline="", encoding="utf-8") as stream:
        for row in csv.DictReader(stream):
            if (row["part"], row["reading"], row["kind"]) == (part, PAPER, "all"):
                yield row_of(part, counts, PAPER, "", {name: float(row[name]) for name in METRICS})
    for union, share in product(UNIONS, SHARES):
        fused = torch.stack([blocks[block] for block in union]).mean(0)
        shifted = fused - share * lower_quartile(fused.flatten(1))[:, None, None]
        yield row_of(part, counts, " ".join(union), share, judge.measure(render(shifted, (height, width), blur)))


def row_of(part: str, counts: Row, layers: str, share: object, found: Mapping[str, float]) -> dict[str, Any]:
    """A row of the results file."""
    metrics = {name: round(found[name], 2) for name in METRICS}
    return {"part": part, **counts, "layers": layers, "share": share, **metrics}


def name_of(row: Row) -> tuple[str, float]:
    """Blocks and share of a row."""
    return row["layers"], float(row["share"] or 0)


def table_of(rows: Sequence[Row]) -> dict[tuple[str, float], dict[str, dict[str, float]]]:
    """Metrics by map and part."""
    table: dict[tuple[str, float], dict[str, dict[str, float]]] = {}
    for row in rows:
        table.setdefault(name_of(row), {})[row["part"]] = {name: float(row[name]) for name in METRICS}
    return table


def aim(metrics: Mapping[str, float]) -> float:
    """What counts: P-AP and AUPRO, each a third; the image score has the other."""
    return (metrics["p_ap"] + metrics["aupro"]) / 3


def least_change(table: Mapping[str, Mapping[str, float]], paper: Mapping[str, Mapping[str, float]],
                 parts: Sequence[str]) -> float:  # fmt: skip
    """The worst change of P-AP, P-F1 or AUPRO against ``Config()`` on any of the parts."""
    return min(table[part][name] - paper[part][name] for part in parts for name in METRICS[1:])


def choose(rows: Sequence[Row], parts: Sequence[str]) -> tuple[str, float]:
    """The map with the best aim among those that lose at most a point on any of the parts."""
    table = table_of(rows)
    paper = table.pop((PAPER, 0.0))
    safe = [name for name in table if least_change(table[name], paper, parts) >= -MOST_LOST]
    return max(safe or table, key=lambda name: statistics.fmean(aim(table[name][part]) for part in parts))


def main() -> None:
    """Measure everything and write the results file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+", help="what research.study wrote")
    parser.add_argument("--data", type=Path, required=True)
    given = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for folder in given.folders:
        parts = json.loads((folder / "parts.json").read_text(encoding="utf-8"))
        for part, about in parts.items():
            if isinstance(about, dict) and "good" in about:
                rows += measure(folder, given.data, part, about)
                print(part, flush=True)
    measured = {row["part"] for row in rows}
    write_rows("offsets", [*(row for row in read_rows("offsets") if row["part"] not in measured), *rows])


if __name__ == "__main__":
    main()
