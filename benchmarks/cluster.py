"""What a Ray cluster of this machine costs and gains: start, units, the object store, and real work.

    python benchmarks/cluster.py --weights FILE --part DIR

``DIR`` is a category with train/good and test/. Two units at a time with one thread each, against one process with two
threads. Writes ``benchmarks/results/cluster.csv``.
"""

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from environment import write_rows
from procon import Config, Detector
from procon.results.inspection import find_images, inspect
from procon.scale.cluster import Cluster, Unit, Workers, collect_values
from procon.scale.images import inspect_on
from procon.vision.framing import to_input
from procon.vision.images import open_image


def ignore(*_: object) -> None:
    pass


def nothing(_report: Any) -> None:
    """A unit without work."""


def size_of(value: torch.Tensor, _report: Any) -> int:
    return value.numel()


def empty_units(workers: Workers, count: int) -> float:
    """Seconds of one unit that does nothing, among many."""
    list(collect_values(workers.run([Unit(str(n), nothing) for n in range(8)], ignore)))  # worker processes start here
    started = time.perf_counter()
    list(collect_values(workers.run((Unit(str(n), nothing) for n in range(count)), ignore)))
    return (time.perf_counter() - started) / count


def shared(workers: Workers, megabytes: int) -> float:
    """Seconds until a tensor of that size was put into the store once and read by eight units."""
    value = torch.zeros(megabytes * 2**18)
    started = time.perf_counter()
    reference = workers.share(value)
    list(collect_values(workers.run([Unit(str(n), size_of, (reference,)) for n in range(8)], ignore)))
    return time.perf_counter() - started


def decoding(folder: Path, side: int) -> float:
    """Seconds to open a JPEG of ``side`` pixels and bring it to the backbone's input, on one thread."""
    random = np.random.default_rng(0)
    rough = Image.fromarray(random.integers(0, 255, (side // 8, side // 8, 3), np.uint8)).resize((side, side))
    rough.save(folder / "part.jpg", quality=95)
    times = []
    for _ in range(20):
        started = time.perf_counter()
        to_input(open_image(folder / "part.jpg"), Config())
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--part", type=Path, required=True)
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []

    def row(measure: str, value: float, unit: str, note: str = "") -> None:
        rows.append({"measure": measure, "value": f"{value:.4g}", "unit": unit, "note": note})
        print(rows[-1], flush=True)

    config = Config(backbone="dinov2-small", weights=str(arguments.weights), coreset_ratio=0.01, banks=1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for side in (448, 1024, 2048):
            row(
                f"decoding, {side} px",
                1000 * decoding(folder, side),
                "ms",
                "a JPEG to the backbone's input, one thread",
            )
        started = time.perf_counter()
        detector = Detector(config, device="cpu").fit(arguments.part)
        row("fit of one part", time.perf_counter() - started, "s", "ViT-S/14, 1 %, one bank, one process")
        model = detector.save(folder / "part.procon")
        images = find_images([arguments.part])
        started = time.perf_counter()
        whole = inspect(detector, images, folder / "here")
        alone = time.perf_counter() - started
        row("predict, one process", len(images) / alone, "images/s", f"{len(images)} images, two threads, overlays")
        started = time.perf_counter()
        with Cluster(device="cpu") as cluster:
            row("start of a local cluster", time.perf_counter() - started, "s", f"{cluster.slots} slots")
            row("a unit that does nothing", 1000 * empty_units(cluster, 400), "ms", "400 of them")
            row("a tensor of 512 MiB to eight units", shared(cluster, 512), "s", "put once, mapped by each")
            times = []
            for turn in range(2):
                started = time.perf_counter()
                many = inspect_on(cluster, model, images, folder / f"there{turn}", ignore, detector=detector, shard=8)
                times.append(time.perf_counter() - started)
            note = f"shards of 8, one thread each; {alone / times[1]:.2f} times one process"
            row("predict, Ray, first time", len(images) / times[0], "images/s", "workers load the model")
            row("predict, Ray", len(images) / times[1], "images/s", note)
        same = [a.prediction and a.prediction.score for a in whole.rows] == [
            b.prediction and b.prediction.score for b in many.rows
        ]
        row("scores equal to those of one process", float(same), "", "bit for bit, all images")
        spent = statistics.median(one.seconds for one in whole.rows)
        row("one image", 1000 * spent, "ms", f"without writing; load average {os.getloadavg()[0]:.1f} at the end")
    print(f"wrote {write_rows('cluster', rows)}")


if __name__ == "__main__":
    main()
