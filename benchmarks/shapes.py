"""The square input against one with the proportions of the images, at the same number of patches, on real parts.

    python benchmarks/shapes.py --data DATA --weights dinov2_vits14_dav2_fp16.safetensors [--device cuda] [PART ...]

DATA holds the development parts (``mpdd/metal_plate`` ..., ``mvtec/bottle`` ..., ``hazelnut_toy``, ``ksdd2``); PART
names some of them. From a copy without an installed package: ``PYTHONPATH=src python3 benchmarks/shapes.py ...``.

Every part is fitted as a user fits it, with ``Config()`` and ``Config.best()``: on the square of the recipe; with the
proportions of the images; and with these, but never more pixels than the images have. Inputs that are equal are
measured once. Maps are compared with the masks at the size of the images, verdicts are those of the default threshold.
``--quick`` takes one bank of 1 % of the patches, and ``--every N`` every Nth training and test image, for a machine
without a GPU. Writes ``benchmarks/results/shapes.csv``;
parts and recipes that are in the file stay there unless they are measured again.
"""

import argparse
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from environment import read_rows, write_rows
from procon import Config, Detector, Prediction
from procon.evaluation.data.datasets import open_dataset, read_mask
from procon.evaluation.metrics import evaluate
from procon.vision.shape import choose_grid, median_size, scale_of, shape_of
from verdicts import PARTS

RECIPES = {"Config()": Config, "Config.best()": partial(Config.best, image_size=672)}
SQUARE, ENLARGED, LIMITED = "square", "proportions", "proportions, not enlarged"
METRICS = ("i_auroc", "i_ap", "p_ap", "p_f1", "aupro")
KEYS = ("part", "recipe", "input")


def inputs(config: Config, images: list[Path]) -> dict[str, tuple[int, int]]:
    """The (height, width) in pixels of each kind of input."""
    sizes = shape_of(config, images).sizes
    budget = config.grid[0] * config.grid[1]
    grids = {
        ENLARGED: choose_grid(median_size(sizes), budget, 8.0),
        LIMITED: choose_grid(median_size(sizes), budget),
    }
    return {SQUARE: config.input_size, **{name: (14 * rows, 14 * columns) for name, (rows, columns) in grids.items()}}


def measure(
    data: Path, part: str, make: Any, settings: dict[str, Any], device: str, every: int
) -> Iterator[dict[str, Any]]:
    """A row for each kind of input of one part; metrics of one are computed while the next is fitted."""
    dataset = open_dataset(data / part)
    category = dataset.category(dataset.categories[0])
    train, test = list(category.train[::every]), category.test[::every]
    done: dict[tuple[int, int], Future[dict[str, Any]]] = {}
    with ThreadPoolExecutor(1) as pool:
        wanted = inputs(make(**settings), train)
        for size in dict.fromkeys(wanted.values()):
            started = time.perf_counter()
            detector = Detector(make(**settings, image_size=size), device=device).fit(train)
            fitted = time.perf_counter()
            found = list(detector.predict_each([sample.path for sample in test]))
            seconds = {"fit_s": fitted - started, "image_s": (time.perf_counter() - fitted) / len(found)}
            done[size] = pool.submit(judge, test, found, seconds)
        typical = shape_of(make(**settings), train).typical
        for name, size in wanted.items():
            down, across = scale_of(make(**settings, image_size=size), typical)
            about = {"width": size[1], "height": size[0], "across": round(across, 3), "down": round(down, 3)}
            yield {"input": name, **about, **done[size].result()}


def judge(samples: Any, found: list[Any], seconds: dict[str, float]) -> dict[str, Any]:
    """Metrics and verdicts of predictions."""
    assert all(isinstance(one, Prediction) for one in found)
    maps = [one.heatmap for one in found]
    masks = [
        read_mask(sample.mask, one.shape) if sample.mask else None for sample, one in zip(samples, maps, strict=True)
    ]
    labels = [sample.defective for sample in samples]
    metrics = evaluate([one.score for one in found], labels, maps, masks)
    flagged = [one.is_anomalous for one in found]
    bad, good = sum(labels), len(labels) - sum(labels)
    hits = sum(flag and label for flag, label in zip(flagged, labels, strict=True))
    alarms = sum(flagged) - hits
    return {
        **{name: round(100 * metrics[name], 2) for name in METRICS},
        "found": hits,
        "defective": bad,
        "false_alarms": alarms,
        "good": good,
        "balanced_accuracy": round(100 * (hits / bad + 1 - alarms / good) / 2, 2),
        **{name: round(value, 3) for name, value in seconds.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--weights", required=True)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--recipes", nargs="+", choices=RECIPES, default=list(RECIPES))
    parser.add_argument("--quick", action="store_true", help="one bank of 1 %% of the patches")
    parser.add_argument("--every", type=int, default=1, help="every Nth training and test image only")
    arguments = parser.parse_args()
    settings: dict[str, Any] = {"backbone": "dinov2-small", "weights": arguments.weights}
    if arguments.quick:
        settings |= {"banks": 1, "coreset_ratio": 0.01}
    for recipe in arguments.recipes:
        name = f"{recipe}, 1 bank of 1 %" if arguments.quick else recipe
        name += f", 1 image in {arguments.every}" if arguments.every > 1 else ""
        for part in arguments.parts or PARTS:
            for measured in measure(arguments.data, part, RECIPES[recipe], settings, arguments.device, arguments.every):
                row = {"part": part, "recipe": name, **measured}
                print(row, flush=True)
                kept = [old for old in read_rows("shapes") if any(old[key] != row[key] for key in KEYS)]
                written = write_rows("shapes", [*kept, row])
    print(f"wrote {written}")


if __name__ == "__main__":
    main()
