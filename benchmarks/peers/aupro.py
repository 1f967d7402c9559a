"""anomalib's own AUPRO on maps that ``benchmarks/metrics.py`` makes in the same way: seconds and value.

Run with the peers' python (README.md in this folder). The maps are made from their number alone, with sums, products
and quotients only, so that both environments get the same bits; the digest in the output says whether they did.
"""

import argparse
import hashlib
import json
import os
import platform
import statistics
from importlib.metadata import version
from pathlib import Path
from time import perf_counter, process_time
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

SIDE, GRID = 392, 28


def image(number: int) -> tuple[NDArray[np.float32], NDArray[np.bool_] | None]:
    """A map [392, 392] from 28 x 28 random patch scores, and its mask; every other image has one to three blobs.

    About 1 % of all pixels are marked. A blob raises the scores around it by a random height, some of them too little.
    """
    random = np.random.default_rng(number)
    patches = 0.3 * random.standard_normal((GRID, GRID))
    mask = np.zeros((SIDE, SIDE), bool) if number % 2 else None
    pixel, patch = (np.arange(SIDE) + 0.5) / SIDE, (np.arange(GRID) + 0.5) / GRID
    for _ in range(random.integers(1, 4) if mask is not None else 0):
        (row, column), (high, wide), height = random.random(2), 0.03 + 0.08 * random.random(2), 2 * random.random()
        mask |= ((pixel - row) / high)[:, None] ** 2 + ((pixel - column) / wide)[None] ** 2 < 1
        away = ((patch - row) / high)[:, None] ** 2 + ((patch - column) / wide)[None] ** 2
        patches += height / (1 + away * away)
    return _bilinear(_bilinear(patches).T).T.astype(np.float32), mask


def _bilinear(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """[28, W] to [392, W], centres aligned."""
    place = np.clip((np.arange(SIDE) + 0.5) * GRID / SIDE - 0.5, 0, GRID - 1)
    first = np.minimum(place.astype(int), GRID - 2)
    part = (place - first)[:, None]
    return rows[first] * (1 - part) + rows[first + 1] * part


def stack(count: int) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """The first ``count`` maps and masks [count, 392, 392]."""
    maps, masks = np.empty((count, SIDE, SIDE), np.float32), np.zeros((count, SIDE, SIDE), bool)
    for number in range(count):
        maps[number], mask = image(number)
        if mask is not None:
            masks[number] = mask
    return maps, masks


def digest(maps: NDArray[np.float32], masks: NDArray[np.bool_]) -> str:
    """Of the bits of both."""
    return hashlib.sha256(maps.tobytes() + np.packbits(masks).tobytes()).hexdigest()[:16]


def measure(count: int, rounds: int) -> dict[str, Any]:
    """``AUPRO`` as shipped: one update with all maps, then compute."""
    import torch
    from anomalib.metrics import AUPRO

    torch.set_num_threads(os.cpu_count() or 1)
    load = os.getloadavg()[0]
    maps, masks = stack(count)
    batch = SimpleNamespace(anomaly_map=torch.from_numpy(maps), gt_mask=torch.from_numpy(masks).int())
    seconds: list[float] = []
    processor: list[float] = []
    value = 0.0
    for _ in range(rounds):
        metric = AUPRO(fields=["anomaly_map", "gt_mask"])
        begin, worked = perf_counter(), process_time()
        metric.update(batch)
        value = float(metric.compute())
        seconds.append(round(perf_counter() - begin, 3))
        processor.append(round(process_time() - worked, 3))
        print(f"{seconds[-1]:.2f} s, {processor[-1]:.2f} s of processor time, AUPRO {value:.8f}", flush=True)
    return {
        "maps": count,
        "pixels": maps.size,
        "digest": digest(maps, masks),
        "aupro": value,
        "seconds": {"median": statistics.median(seconds), "all": seconds},
        "processor_seconds": {"median": statistics.median(processor), "all": processor},
        "threads": torch.get_num_threads(),
        "load_1min_before": round(load, 2),
        "load_1min_after": round(os.getloadavg()[0], 2),
        "cpu": _cpu(),
        "python": platform.python_version(),
        "anomalib": version("anomalib"),
        "torch": torch.__version__,
        "numpy": np.__version__,
    }


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.machine()} x{len(names)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--maps", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, metavar="OUT")
    arguments = parser.parse_args()
    text = json.dumps(measure(arguments.maps, arguments.rounds), indent=2)
    if arguments.json is not None:
        arguments.json.write_text(text + "\n", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
