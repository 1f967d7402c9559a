"""torch, ONNX Runtime and OpenVINO on the same images. Writes ``benchmarks/results/deploy.csv`` and docs/use/deploy.md.

    python benchmarks/deploy.py [--weights dinov2_vits14_dav2_fp16.safetensors] [--data FOLDER_OF_IMAGES]
    python benchmarks/deploy.py --folder models --prepare          # the models first, the times on a quiet machine
    python benchmarks/deploy.py --folder models --backbones dinov2-base

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

from environment import RESULTS, environment
from procon import Config, Detector
from procon.demo.parts import render_part
from procon.deploy import Runtime
from procon.deploy.export import export
from procon.vision.folders import training_images
from procon.vision.framing import to_input
from procon.vision.images import open_image

PAGE = Path(__file__).parent.parent / "docs" / "use" / "deploy.md"
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


def prepare(backbone: str, weights: str | None, images: Sequence[Any], folder: Path) -> None:
    """Fit and export into ``folder`` what is not there yet."""
    file = folder / f"{backbone}.procon"
    if not file.is_file():
        found = weights or str(random_weights(backbone, folder / backbone))
        config = Config(backbone=backbone, weights=found, coreset="random", max_anchors=ANCHORS, coreset_ratio=1.0)
        Detector(config, device="cpu").fit(images).save(file, embed_backbone=True)
    detector = Detector.load(file, device="cpu")
    for runtime, precision in EXPORTS:
        target = folder / f"{backbone}-{runtime}-{precision}"
        if not target.is_dir():
            # Training images score low, and random weights are not made to be quantised: here only times matter.
            options: dict[str, Any] = {"tolerance": 100.0, "map_tolerance": 100.0, "images": images}
            export(detector, target, runtime=runtime, precision=precision, **options)
        print("there is", target.name, flush=True)


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


def measure(backbone: str, images: Sequence[Any], folder: Path, rounds: int) -> list[dict[str, Any]]:
    file = folder / f"{backbone}.procon"
    detector = Detector.load(file, device="cpu")
    assert detector.memory is not None
    anchors = sum(len(layer.anchors) for layer in detector.memory.layers)
    runners: dict[str, Run] = {
        "torch fp32": lambda pixels: detector.scorer.measure_pixels(torch.from_numpy(pixels))[:2]
    }
    manifests: dict[str, Mapping[str, Any]] = {}
    for runtime, precision in EXPORTS:
        name = f"{runtime} {precision}"
        opened = Runtime(folder / f"{backbone}-{runtime}-{precision}", threads=torch.get_num_threads())
        runners[name], manifests[name] = opened.score, opened.manifest.entries
    config = detector.config
    pixels = np.stack([to_input(open_image(image), config) for image in images])
    batch = np.concatenate([pixels] * (1 + BATCH // len(pixels)))[:BATCH]
    one, many = timed(runners, pixels[:1], rounds), timed(runners, batch, max(3, rounds // 4))
    latency = {name: statistics.median(times) for name, times in one.items()}
    rows = []
    for name, times in one.items():
        known = manifests.get(name)
        low, high = np.quantile(times, [0.25, 0.75])
        differs = known["check"]["difference"] if known else {}
        memory = known["size"].get("peak_memory_bytes") if known else None
        real = "random" if (folder / backbone).is_dir() else "real"
        row: dict[str, Any] = {
            "backbone": f"{SIZES[backbone]}, {real} weights",
            "runtime": name.split()[0],
            "precision": name.split()[1],
            "latency_ms": round(1000 * latency[name], 1),
            "spread_ms": round(1000 * float(high - low), 1),
            "images_per_s": round(BATCH / statistics.median(many[name]), 2),
            "times_torch": round(latency["torch fp32"] / latency[name], 2),
            "disk_mib": round((known["size"]["disk_bytes"] if known else file.stat().st_size) / 2**20, 1),
            "memory_mib": round(memory / 2**20) if memory else "",
            "score_difference": f"{differs['score_share']:.2g}" if differs else "",
            "map_difference": f"{differs['map_share']:.2g}" if differs else "",
            "anchors": anchors,
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
        f"{min(int(row['rounds']) for row in rows)} runs or more in turn; load of the machine {spread(loads)}, these "
        "runs included. Memory is the peak of a process that loads the model and scores one image. Made by "
        "`python benchmarks/deploy.py --weights FILE`.",
    ]
    return MARKS[0] + "\n" + "\n".join(lines) + "\n\n" + MARKS[1]


def spread(values: Sequence[float]) -> str:
    return f"{values[0]:g}" if values[0] == values[-1] else f"from {values[0]:g} to {values[-1]:g}"


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
    parser.add_argument("--folder", type=Path, help="keep the models here, and take those that are there")
    parser.add_argument("--prepare", action="store_true", help="only make the models, measure nothing")
    parser.add_argument("--table", action="store_true", help="measure nothing")
    options = parser.parse_args()
    if not options.table:
        images: Sequence[Any] = [render_part("good", seed).image for seed in range(BATCH)]
        if options.data is not None:
            images = training_images(options.data)[:BATCH]
        with tempfile.TemporaryDirectory() as temporary:
            folder = options.folder or Path(temporary)
            folder.mkdir(parents=True, exist_ok=True)
            for backbone in options.backbones:
                prepare(backbone, options.weights if backbone == "dinov2-small" else None, images, folder)
                if not options.prepare:
                    write(backbone, measure(backbone, images, folder, options.rounds))
    PAGE.write_text(put_table(PAGE.read_text(encoding="utf-8"), read_results()), encoding="utf-8")


def write(backbone: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Put the rows of one backbone in the place of those there were; one run may measure one backbone only."""
    here = environment()
    rows = [{**row, **here} for row in rows]
    others = [row for row in read_results() if not row["backbone"].startswith(SIZES[backbone])]
    with (RESULTS / "deploy.csv").open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, list(rows[0]))
        writer.writeheader()
        writer.writerows(sorted([*others, *rows], key=lambda row: list(SIZES.values()).index(row["backbone"][:5])))


if __name__ == "__main__":
    main()
