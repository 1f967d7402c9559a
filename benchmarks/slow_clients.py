"""What slow clients cost the others. Writes ``benchmarks/results/slow_clients.csv`` and a table in docs/use/server.md.

    python benchmarks/slow_clients.py --weights FILE [--count 200] [--seconds 30] [--image-size 112]

Measures a closed loop of a few clients while nobody else is there, and while ``--count`` slow clients of each kind
upload, send headers and read: in turn, twice each, so that a busy machine touches both. See ``crowd.py``.
"""

import argparse
import json
import os
import tempfile
import time
import urllib.request
from pathlib import Path

import numpy as np
from PIL import Image

from crowd import slow_crowd
from environment import write_rows
from procon.demo.parts import write_set
from server import Load, closed, fit_model, row, serving, write_page


def large_answer(port: int, folder: Path) -> str:
    """The path of an answer of several MB that costs the server no scoring: a part as it was sent."""
    image = folder / "large.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (1500, 1500, 3), np.uint8)).save(image)
    address = f"http://127.0.0.1:{port}/v1/models/flange/predict"
    request = urllib.request.Request(address, image.read_bytes(), {"content-type": "image/png"})
    with urllib.request.urlopen(request, timeout=120) as answer:
        return f"/v1/verdicts/{json.load(answer)['id']}/image"


def measure(
    port: int, bodies: list[bytes], path: str, count: int, clients: int, seconds: float
) -> tuple[Load, Load, str]:
    """The load alone, the load among slow clients, and what became of those."""
    alone, among, outcomes = Load(0), Load(0), ""
    closed(port, bodies, clients, 3)  # warm
    for _ in range(2):
        alone.add(closed(port, bodies, clients, seconds))
        with slow_crowd(port, count, path) as counts:
            time.sleep(15)  # until all are connected, and the readers have their first answers
            among.add(closed(port, bodies, clients, seconds))
        outcomes = ", ".join(f"{kind}: {number}" for kind, number in sorted(counts.items()))
        time.sleep(2)
    return alone, among, outcomes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--weights", required=True)
    parser.add_argument("--backbone", default="dinov2-small")
    parser.add_argument("--image-size", type=int, default=112)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--clients", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=30)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_set(folder / "parts", train=16, good=12, defects_per_kind=4, seed=7)
        fit_model(folder / "parts", folder / "models", given.backbone, given.weights, image_size=given.image_size)
        bodies = [path.read_bytes() for path in sorted((folder / "parts" / "test").rglob("*.png"))]
        with serving(folder / "models", "cpu") as (_, port):
            path = large_answer(port, folder)
            alone, among, outcomes = measure(port, bodies, path, given.count, given.clients, given.seconds)
    ratio = among.at(0.99) / alone.at(0.99)
    rows = [
        row(f"closed loop, {given.clients} clients", alone),
        row(f"the same among {given.count} slow clients of each kind", among, f"p99 {ratio:.2f} of alone; {outcomes}"),
    ]
    settings = f"{given.backbone} at {given.image_size} px, twice {given.seconds:g} s each in turn"
    settings += f"; load average {os.getloadavg()[0]:.1f} at the end"
    print("wrote", write_rows("slow_clients", [{**line, "settings": settings} for line in rows]))
    write_page()


if __name__ == "__main__":
    main()
