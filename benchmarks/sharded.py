"""k-center of k-centers beside the exact greedy loop: radius, time, memory, and what it does to a real part.

    python benchmarks/sharded.py --part DIR --weights FILE [--only synthetic | part]

Points are unit vectors near a 24-dimensional subspace, as in cpu.py, made shard by shard: of the largest set only one
shard exists at a time. Every line is measured in a process of its own, whose peak memory is the peak of the line. With
``--part`` (a folder with train/good, test and ground_truth) a detector is fitted in shards, scored, and compared with
the one fitted at once. Writes ``benchmarks/results/sharded.csv``.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from environment import read_rows, write_rows
from procon import Config, Detector
from procon.evaluation.data.datasets import open_dataset, read_mask
from procon.evaluation.metrics import evaluate
from procon.method.coreset import to_grid
from procon.model.selection import select_anchors
from procon.scale.cluster import ThisProcess
from procon.scale.family import fit_family
from procon.scale.sharded import pick_centers
from procon.vision.images import open_image

DIMS, SEED, PIECE = 192, 1, 187_500
COLUMNS = (
    "points",
    "picks",
    "shards",
    "radius",
    "times_exact",
    "factor",
    "seconds",
    "peak_mib",
    "i_auroc",
    "p_ap",
    "aupro",
)


def points(piece: int, count: int) -> Tensor:
    """One piece of the set, the same in every line: [count, 192]."""
    base = torch.randn(24, DIMS, generator=torch.Generator().manual_seed(1))
    random = torch.Generator().manual_seed(1000 + piece)
    values = torch.randn(count, 24, generator=random) @ base
    values += 0.7 * torch.randn(count, DIMS, generator=random)
    return torch.nn.functional.normalize(values, dim=1)


Pieces = list[tuple[int, int]]
"""Number and points of the pieces of a shard."""


def cut(total: int, shards: int) -> list[Pieces]:
    """The whole set in ``shards`` runs of whole pieces."""
    groups = np.array_split(np.arange(-(-total // PIECE)), shards)
    return [[(int(n), min(PIECE, total - int(n) * PIECE)) for n in group] for group in groups]


def made(shard: Pieces) -> Tensor:
    return torch.cat([points(*piece) for piece in shard])


def radius(total: int, centers: Tensor) -> float:
    """The farthest of all points from its nearest centre, exact to rounding, piece by piece."""
    largest = 0.0
    for piece in cut(total, -(-total // PIECE)):
        for rows in made(piece).split(8192):
            near = torch.full((len(rows),), torch.inf)
            for block in centers.split(4096):
                near = torch.minimum(near, (2 - 2 * rows @ block.T).amin(dim=1))  # of unit length
            largest = max(largest, float(near.max()))
    return largest**0.5


def exact(total: int, size: int) -> tuple[Tensor, float]:
    whole = torch.empty(total, DIMS)
    done = 0
    for piece in cut(total, -(-total // PIECE)):
        part = made(piece)
        whole[done : done + len(part)] = part
        done += len(part)
    picks = select_anchors(to_grid(whole), size, [SEED], "k-center")[0]
    return whole[picks], 2.0


def sharded(total: int, size: int, shards: int) -> tuple[Tensor, float]:
    """The centres, and how many times the best radius theirs is at most, by what was found on the way."""
    kept, worst = [], 0.0
    for shard in cut(total, shards):
        here = made(shard)
        rows, far = pick_centers(here, size, [SEED])
        kept.append(here[rows[0]])
        worst = max(worst, far)
    union = torch.cat(kept)
    rows, far = pick_centers(union, size, [SEED])
    return union[rows[0]], 2 * (worst + far) / max(worst, far)


def line(arguments: argparse.Namespace) -> dict[str, Any]:
    """One line, measured here."""
    started = time.perf_counter()
    if arguments.part is not None:
        return part_line(arguments, started)
    total, size, shards = arguments.points, arguments.picks, arguments.shards
    centers, factor = exact(total, size) if shards == 0 else sharded(total, size, shards)
    seconds = time.perf_counter() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    found: dict[str, Any] = {"points": total, "picks": size, "shards": shards or "exact", "factor": round(factor, 3)}
    found |= {"seconds": round(seconds, 1), "peak_mib": round(peak), "radius": round(radius(total, centers), 5)}
    return found


def part_line(arguments: argparse.Namespace, started: float) -> dict[str, Any]:
    data = open_dataset(arguments.part)
    listed = data.category(data.categories[0])
    config = Config(backbone="dinov2-small", weights=str(arguments.weights), coreset_ratio=0.01, banks=3)
    if arguments.shards == 0:
        detector, factor = Detector(config, device="cpu").fit(list(listed.train)), 2.0
    else:
        detector, coverage = fit_family(
            ThisProcess("cpu"), config, listed.train, lambda *_: None, shards=arguments.shards
        )
        factor = max(one.factor for one in coverage)
    seconds = time.perf_counter() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    scores, maps = [], []
    for sample in listed.test:
        ((_, pixels),) = detector.reader.extractor.batches([open_image(sample.path)])
        score, heat, _ = detector.scorer.measure_pixels(pixels)
        scores.append(float(score[0]))
        maps.append(heat[0].numpy())
    masks = [None if sample.mask is None else read_mask(sample.mask, config.input_size) for sample in listed.test]
    found = evaluate(np.array(scores), np.array([sample.defective for sample in listed.test]), maps, masks)
    patches = len(listed.train) * config.grid[0] * config.grid[1]
    assert detector.memory is not None
    row: dict[str, Any] = {"points": patches, "picks": detector.memory.layers[0].banks.shape[1], "radius": ""}
    row |= {"shards": arguments.shards or "exact", "factor": round(factor, 3), "seconds": round(seconds, 1)}
    row |= {key: round(100 * found[key], 2) for key in ("i_auroc", "p_ap", "aupro")}
    return {**row, "peak_mib": round(peak), "set": arguments.part.name}


def kept(only: str | None) -> list[dict[str, Any]]:
    """The lines of the file that are not measured again."""
    if only is None:
        return []
    lines = [{key: line[key] for key in ("set", *COLUMNS)} for line in read_rows("sharded")]
    return [line for line in lines if (line["set"] == "synthetic") == (only == "part")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", type=Path)
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--only", choices=("synthetic", "part"), help="measure these, keep the other lines of the file")
    parser.add_argument("--points", type=int, default=3_000_000)
    parser.add_argument("--picks", type=int, default=4096)
    parser.add_argument("--shards", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.shards is not None:
        print(json.dumps(line(arguments)))
        return
    wanted: list[tuple[str, dict[str, Any]]] = []
    if arguments.only != "part":
        sets = [(750_000, 0), (750_000, 4), (arguments.points, 0), (arguments.points, 16)]
        wanted += [("synthetic", {"points": n, "picks": arguments.picks, "shards": shards}) for n, shards in sets]
    if arguments.only != "synthetic":
        where = {"part": arguments.part, "weights": arguments.weights}
        wanted += [(arguments.part.name, {**where, "shards": shards}) for shards in (0, 2, 8)]
    rows: list[dict[str, Any]] = kept(arguments.only)
    for name, settings in wanted:
        words = [f"--{key}={value}" for key, value in settings.items()]
        done = subprocess.run([sys.executable, __file__, *words], stdout=subprocess.PIPE, text=True, check=True)
        row = {"set": name, **dict.fromkeys(COLUMNS, ""), **json.loads(done.stdout)}
        alone = next((r for r in rows if (r["set"], r["points"], r["shards"]) == (name, row["points"], "exact")), row)
        row["times_exact"] = round(row["radius"] / alone["radius"], 4) if row["radius"] else ""
        rows.append(row)
        print(row, flush=True)
        write_rows("sharded", rows)  # after every line: an interrupted run keeps what it measured


if __name__ == "__main__":
    main()
