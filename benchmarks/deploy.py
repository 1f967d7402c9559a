"""torch, ONNX Runtime and OpenVINO on the same images. Writes ``benchmarks/results/deploy.csv`` and docs/deploy.md.

    python benchmarks/deploy.py [--weights dinov2_vits14_dav2_fp16.safetensors] [--data FOLDER_OF_IMAGES]

Runners take turns image by image, so that a load on the machine falls on all of them; times are medians. Without
``--weights`` the ViT-S is random too, which does not change times. ``--table`` only writes the table of the document.
"""

import argparse
import csv
import os
import re
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from environment import RESULTS, write_rows
from procon import Config, Detector
from procon.deploy import Runtime
from procon.deploy.export import Exported, export
from procon.folders import training_images
from procon.images import open_image, to_input
from procon.parts import render_part

PAGE = Path(__file__).parent.parent / "docs" / "deploy.md"
MARKS = "<!-- results of benchmarks/deploy.py -->\n", "<!-- end of results -->\n"
EXPORTS = [(runtime, precision) for runtime in ("onnx", "openvino") for precision in ("fp32", "int8")]
BATCH = 8
ANCHORS = 2_000  # in each of five banks a layer: what 5 % of fifty images come to
SIZES = {"dinov2-small": "ViT-S", "dinov2-base": "ViT-B"}

Run = Callable[[np.ndarray[Any, Any]], Any]


def random_weights(backbone: str, folder: Path) -> Path:
    """A random DINOv2 of the published shape; times do not depend on values."""
    from transformers import Dinov2Config, Dinov2Model

    width, heads = {"dinov2-small": (384, 6), "dinov2-base": (768, 12)}[backbone]
    torch.manual_seed(0)
    model = Dinov2Model(Dinov2Config(hidden_size=width, num_attention_heads=heads, image_size=518, patch_size=14))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lambda1" in name:
                parameter.fill_(0.1)
            elif name.endswith("bias"):  # openvino takes another way, and fails, where all of them are 0
                parameter.normal_(std=0.02)
    model.save_pretrained(folder)
    return folder


def timed(runners: Mapping[str, Run], pixels: np.ndarray[Any, Any], rounds: int) -> dict[str, list[float]]:
    """Seconds of every run, the runners in turn."""
    times: dict[str, list[float]] = {name: [] for name in runners}
    for number in range(rounds + 1):
        for name, run in runners.items():
            begin = time.perf_counter()
            run(pixels)
            if number:  # the first is for warming up
                times[name].append(time.perf_counter() - begin)
    return times


def measure(
    backbone: str, weights: str | None, images: Sequence[Any], folder: Path, rounds: int
) -> list[dict[str, Any]]:
    found = weights or str(random_weights(backbone, folder / backbone))
    config = Config(backbone=backbone, weights=found, coreset="random", max_anchors=ANCHORS, coreset_ratio=1.0)
    detector = Detector(config, device="cpu").fit(images)
    assert detector.memory is not None
    file = detector.save(folder / f"{backbone}.procon", embed_backbone=True)
    runners: dict[str, Run] = {"torch fp32": lambda pixels: detector.score(torch.from_numpy(pixels))}
    exports: dict[str, Exported] = {}
    for runtime, precision in EXPORTS:
        name = f"{runtime} {precision}"
        # Random weights are not made to be quantised: here only times are looked at.
        exports[name] = export(
            detector,
            folder / f"{backbone}-{runtime}-{precision}",
            runtime=runtime,
            precision=precision,
            tolerance=100.0,
        )
        runners[name] = Runtime(exports[name].folder, threads=torch.get_num_threads()).score
    pixels = np.stack([to_input(open_image(image), config.input_size) for image in images])
    batch = np.concatenate([pixels] * (1 + BATCH // len(pixels)))[:BATCH]
    one, many = timed(runners, pixels[:1], rounds), timed(runners, batch, max(3, rounds // 4))
    latency = {name: statistics.median(times) for name, times in one.items()}
    rows = []
    for name, times in one.items():
        done = exports.get(name)
        low, high = np.quantile(times, [0.25, 0.75])
        row: dict[str, Any] = {
            "backbone": SIZES[backbone] + (", random weights" if weights is None else ", real weights"),
            "runtime": name.split()[0],
            "precision": name.split()[1],
            "latency_ms": round(1000 * latency[name], 1),
            "spread_ms": round(1000 * float(high - low), 1),
            "images_per_s": round(BATCH / statistics.median(many[name]), 2),
            "times_torch": round(latency["torch fp32"] / latency[name], 2),
            "disk_mib": round((done.bytes if done else file.stat().st_size) / 2**20, 1),
            "memory_mib": round(done.memory_bytes / 2**20) if done and done.memory_bytes else "",
            "score_difference": f"{done.difference.score_share:.2g}" if done else "",
            "map_difference": f"{done.difference.map_share:.2g}" if done else "",
            "anchors": sum(len(layer.anchors) for layer in detector.memory.layers),
            "rounds": rounds,
            "load": round(os.getloadavg()[0], 1),
        }
        print(row, flush=True)
        rows.append(row)
    return rows


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The results as Markdown, between the marks of the document."""
    lines = [
        "| backbone | runtime | precision | batch 1, ms (quartile range) | batch 8, images/s | times torch | disk, MiB "
        "| memory, MiB |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        lines.append(
            f"| {row['backbone']} | {row['runtime']} | {row['precision']} | {row['latency_ms']} ({row['spread_ms']}) | "
            f"{row['images_per_s']} | {row['times_torch']} | {row['disk_mib']} | {row['memory_mib'] or '-'} |"
        )
    loads = sorted({float(row["load"]) for row in rows})
    first = rows[0]
    lines += [
        "",
        f"{first['cpu']}, {first['threads']} threads, torch {first['torch']}, 392 x 392 pixels, five banks a layer, "
        f"{first['anchors']} distinct anchors in all layers of the {first['backbone'].split(',')[0]}; medians of "
        f"{first['rounds']} runs; load of the machine from {loads[0]:g} to {loads[-1]:g}.",
    ]
    return MARKS[0] + "\n" + "\n".join(lines) + "\n\n" + MARKS[1]


def read_results() -> list[dict[str, str]]:
    path = RESULTS / "deploy.csv"
    if not path.is_file():
        return []
    with path.open(encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def put_table(text: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """The document with the table of ``rows`` in it."""
    pattern = re.escape(MARKS[0]) + ".*?" + re.escape(MARKS[1])
    body = table(rows) if rows else f"{MARKS[0]}\nNot measured yet: `python benchmarks/deploy.py`\n\n{MARKS[1]}"
    return re.sub(pattern, lambda _: body, text, flags=re.DOTALL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", help="ViT-S/14")
    parser.add_argument("--data", type=Path, help="good images; default: rendered parts")
    parser.add_argument("--backbones", nargs="+", default=list(SIZES), choices=list(SIZES))
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--table", action="store_true", help="measure nothing")
    options = parser.parse_args()
    if not options.table:
        images: Sequence[Any] = [render_part("good", seed).image for seed in range(BATCH)]
        if options.data is not None:
            images = training_images(options.data)[:BATCH]
        with tempfile.TemporaryDirectory() as folder:
            rows = []
            for backbone in options.backbones:
                weights = options.weights if backbone == "dinov2-small" else None
                rows += measure(backbone, weights, images, Path(folder), options.rounds)
        write_rows("deploy", rows)
    PAGE.write_text(put_table(PAGE.read_text(encoding="utf-8"), read_results()), encoding="utf-8")


if __name__ == "__main__":
    main()
