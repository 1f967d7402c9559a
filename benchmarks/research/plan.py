"""Recipes against the paper's, on parts nobody tuned on.

    python benchmarks/research --weights dinov2_vits14_dav2_fp16.safetensors --seeds 0 100 200 mpdd/* hazelnut_toy

Writes ``benchmarks/results/research.csv``: for each part, seed and reading the pixel metrics of its map and the image
metrics of its scores, in percent. ``docs/scripts/generate_best.py`` makes docs/understand/best.md of it.
"""

import argparse
import csv
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from environment import RESULTS, environment
from procon import Config
from procon.evaluation.data.datasets import Sample, open_dataset
from research.bench import Bench, Reading, image_scores
from research.leaderboard import map_metrics, samples_of, score_metrics
from research.readouts import PatchReadout

FIELDS = ("round", "part", "seed", "reading", "i_auroc", "i_ap", "i_f1", "p_auroc", "p_ap", "p_f1", "aupro")

SOFT, MEAN, NEAREST, UNIFORM = (PatchReadout(residual=kind) for kind in ("soft", "mean-distance", "nearest", "uniform"))
PLAIN = (SOFT, MEAN)


def relative(
    readout: PatchReadout, power: float = 1.0, statistic: str = "mean", shrinkage: float = 5.0
) -> PatchReadout:
    """The residual divided by what the same anchors leave on normal patches."""
    return replace(readout, relative_to="anchors", power=power, statistic=statistic, shrinkage=shrinkage)


FEW = (SOFT, MEAN, relative(SOFT), relative(MEAN), relative(MEAN, 0.5), relative(SOFT, 0.5))


def readouts() -> list[Reading]:
    """What is read from the neighbours of the paper's memory."""
    found = [replace(kind, neighbors=k) for kind in (SOFT, MEAN, UNIFORM) for k in (3, 5, 9)]
    found += [NEAREST, replace(MEAN, neighbors=2)]
    three, nine = replace(MEAN, neighbors=3), replace(MEAN, neighbors=9)
    for kind in (SOFT, MEAN, NEAREST, three, nine):
        found += [
            relative(kind, power, statistic)
            for power in (0.25, 0.5, 0.75, 1.0)
            for statistic in ("mean", "high", "largest")
        ]
    for kind in PLAIN:
        found += [relative(kind, power, "mean", prior) for power in (0.5, 1.0) for prior in (1.0, 20.0, 100.0)]
        found += [replace(relative(kind, power), relative_to="positions") for power in (0.5, 1.0)]
    readings = [Reading(readout=readout) for readout in found]
    readings += [Reading(readout=readout, scaled=True) for readout in FEW]
    readings += [Reading(readout=readout, blur_sigma=sigma) for readout in PLAIN for sigma in (2.0, 6.0, 8.0)]
    return readings


def depths() -> list[Reading]:
    """Which blocks are read."""
    sets = [
        (-4, -6, -8, -9), (-2, -4, -6, -8), (-1, -3, -6, -9), (-3, -5, -7, -9), (-6, -8, -9), (-6, -9), (-5, -7, -9),
        (-7, -8, -9, -10), (-3, -6, -9), (-4, -7, -10), (-3, -6, -8, -9, -10), (-4, -5, -6, -7, -8, -9),
        (-2, -3, -4, -5, -6, -7, -8, -9), (-3, -4, -5, -6, -7, -8, -9, -10), (-1, -2, -3, -4, -5, -6, -7, -8, -9, -10),
        ((-3, -4, -5, -6), (-7, -8, -9, -10)), ((-2, -3, -4, -5), (-6, -7, -8, -9)), ((-3, -6, -8, -9),),
        *((block,) for block in range(-1, -11, -1)),
    ]  # fmt: skip
    return [Reading(layers=layers, readout=readout) for layers in sets for readout in PLAIN]


def channels() -> list[Reading]:
    """What is done to the channels of a token."""
    return [
        Reading(channels=kind, readout=readout)  # type: ignore[arg-type]
        for kind in ("centred", "standard", "whitened")
        for readout in (*FEW, NEAREST)
    ]


def budgets() -> list[Reading]:
    """Anchors and banks."""
    found = [Reading(coreset_ratio=0.01, banks=3), Reading(coreset_ratio=0.01, banks=3, readout=NEAREST)]
    found += [Reading(coreset_ratio=ratio, readout=readout) for ratio in (0.01, 0.02, 0.1) for readout in FEW]
    return found + [Reading(banks=banks, readout=readout) for banks in (1, 3) for readout in FEW]


def sizes() -> list[Reading]:
    """Pixels of the input."""
    return [Reading(image_size=size, readout=readout) for size in (448, 518, 672) for readout in (*FEW, NEAREST)]


def turns() -> list[Reading]:
    """Good images turned to make more, test images turned to agree."""
    found = [Reading(turned=kind, readout=readout) for kind in ("mirror", "mirrors", "all") for readout in FEW]
    return found + [Reading(turned=kind, views=kind, readout=r) for kind in ("mirror", "mirrors") for r in FEW]


THREE = (-4, -7, -10)
SETS = (
    Reading().layers, THREE, (-3, -6, -9), (-3, -6, -10), (-3, -7, -10), (-2, -5, -8), (-2, -6, -10),
    (-3, -6, -8, -9, -10), (-3, -5, -7, -9), (-4, -6, -8, -10), (-3, -4, -5, -6, -7, -8, -9, -10), (-5, -8, -10),
)  # fmt: skip
MORE = (
    SOFT, MEAN, replace(MEAN, neighbors=3), relative(SOFT), relative(SOFT, 1.0, "high"), relative(NEAREST),
    relative(MEAN, 0.5),
)  # fmt: skip


def larger() -> list[Reading]:
    """What to read at 672 pixels, with one bank."""
    big = Reading(image_size=672, banks=1)
    found = [replace(big, layers=layers, readout=readout) for layers in SETS for readout in MORE]
    for layers in SETS[:2]:
        for ratio in (0.01, 0.02):
            found += [replace(big, layers=layers, coreset_ratio=ratio, readout=readout) for readout in MORE]
    for readout in (SOFT, MEAN, relative(SOFT)):
        found += [replace(big, readout=readout, less_median=share) for share in (0.5, 1.0)]
        found += [replace(big, readout=readout, blur_sigma=sigma) for sigma in (2.0, 3.0, 6.0)]
    return found


def largest() -> list[Reading]:
    """The same at 784 pixels, with fewer anchors."""
    huge = Reading(image_size=784, banks=1, coreset_ratio=0.02)
    return [replace(huge, layers=layers, readout=readout) for layers in SETS[:3] for readout in MORE]


def middle() -> list[Reading]:
    """The same at 518 pixels."""
    plain = Reading(image_size=518, banks=1)
    return [replace(plain, layers=layers, readout=readout) for layers in SETS[:5] for readout in MORE]


def smallest() -> list[Reading]:
    """The best at the paper's size."""
    found = [Reading(layers=layers, readout=readout) for layers in SETS for readout in MORE]
    found += [Reading(layers=layers, readout=MEAN, less_median=share) for layers in SETS[:2] for share in (0.5, 1.0)]
    return found + [Reading(readout=r, less_median=share) for r in (SOFT, relative(SOFT)) for share in (0.5, 1.0)]


RECIPE = Reading(image_size=672, layers=(-3, -7, -10), banks=1, coreset_ratio=0.02)  # without tiles, which came later
HIGH = relative(SOFT, 1.0, "high")


def around() -> list[Reading]:
    """What lies next to the recipe."""
    sets = [
        (-3, -8, -10), (-3, -7, -11), (-3, -8, -11), (-2, -7, -11), (-4, -8, -11), (-3, -10), (-3, -11), (-7, -10),
        (-3, -6, -8, -10), (-3, -7, -8, -10), (-3, -5, -8, -10), (-3, -6, -9, -11), (-3, -7, -10, -11), (-1, -7, -10),
        (-2, -7, -10), (-3, -5, -10), ((-3, -4), (-6, -7), (-9, -10)), ((-3, -4, -5), (-6, -7, -8), (-9, -10)),
    ]  # fmt: skip
    found = [replace(RECIPE, layers=layers, readout=readout) for layers in sets for readout in (SOFT, HIGH)]
    found += [replace(RECIPE, less_median=1.0, typical=share) for share in (0.1, 0.25, 0.5, 0.75)]
    found += [replace(RECIPE, less_median=0.5)]
    found += [replace(RECIPE, blur_sigma=sigma) for sigma in (2.0, 3.0, 5.0)]
    found += [replace(RECIPE, scaled=True), replace(RECIPE, readout=replace(SOFT, neighbors=3))]
    found += [replace(RECIPE, readout=replace(SOFT, neighbors=9)), replace(RECIPE, readout=UNIFORM)]
    for prior in (1.0, 20.0):
        found.append(replace(RECIPE, readout=relative(SOFT, 1.0, "high", prior)))
    found += [replace(RECIPE, readout=replace(HIGH, neighbors=k)) for k in (3, 9)]
    found += [replace(RECIPE, readout=replace(HIGH, power=power)) for power in (0.75, 1.25)]
    return found


def finalists() -> list[Reading]:
    """What the recipe was chosen from, for more than one seed."""
    found = [RECIPE, Reading(layers=RECIPE.layers), Reading(layers=RECIPE.layers, readout=HIGH), Reading(readout=HIGH)]
    for layers in (RECIPE.layers, Reading().layers, (-3, -6, -10), THREE):
        found += [replace(RECIPE, layers=layers, readout=readout) for readout in (SOFT, MEAN, HIGH, relative(SOFT))]
        found += [replace(RECIPE, layers=layers, readout=readout, less_median=1.0) for readout in (SOFT, MEAN)]
    found += [replace(RECIPE, readout=readout, coreset_ratio=0.05) for readout in (SOFT, MEAN, HIGH)]
    found += [replace(RECIPE, readout=readout, banks=3) for readout in (SOFT, MEAN, HIGH)]
    found += [replace(RECIPE, readout=readout, coreset_ratio=0.01) for readout in (SOFT, MEAN, HIGH)]
    found += [replace(RECIPE, readout=readout, image_size=518, coreset_ratio=0.03) for readout in (SOFT, MEAN, HIGH)]
    found += [Reading(layers=RECIPE.layers, less_median=1.0), replace(RECIPE, image_size=518, less_median=1.0)]
    return list(dict.fromkeys(found))


MAP = replace(RECIPE, less_median=1.0, typical=0.25, blur_sigma=4 * 392 / 672)
"""What the map of Config.best() reads; its blur is 4 pixels of the input."""
SCORE = replace(RECIPE, readout=HIGH)
"""What its image score reads."""
ABLATIONS = {
    "the whole recipe": (MAP, SCORE),
    "392 pixels and 5 %": tuple(
        replace(one, image_size=392, coreset_ratio=0.05, blur_sigma=4.0) for one in (MAP, SCORE)
    ),
    "the paper's four layers": tuple(replace(one, layers=Reading().layers) for one in (MAP, SCORE)),
    "5 % of the patches": tuple(replace(one, coreset_ratio=0.05) for one in (MAP, SCORE)),
    "three banks": tuple(replace(one, banks=3) for one in (MAP, SCORE)),
    "nothing taken off the map": (replace(MAP, less_median=0.0, typical=0.5), SCORE),
    "a blur of 6.9 pixels": (replace(MAP, blur_sigma=4.0), SCORE),
    "map: mean distance to the five": (replace(MAP, readout=MEAN), SCORE),
    "map: divided as the score is": (replace(MAP, readout=HIGH), SCORE),
    "score: not divided": (MAP, RECIPE),
    "score: divided by the mean level alone": (MAP, replace(SCORE, readout=relative(SOFT))),
    "score: nearest anchor, divided by its mean": (MAP, replace(SCORE, readout=relative(NEAREST))),
    "score: divided by the level of the position": (
        MAP, replace(SCORE, readout=replace(HIGH, relative_to="positions")),
    ),
}  # fmt: skip
"""The recipe with one thing changed: what the map reads, and what the score reads."""


def recipe() -> list[Reading]:
    """The recipe and everything it is compared with."""
    return [reading for pair in ABLATIONS.values() for reading in pair]


def tiles() -> list[Reading]:
    """Larger inputs seen in overlapping squares."""
    found = []
    for size, tile in ((672, 392), (672, 336), (672, 280), (784, 392), (560, 392)):
        for layers in (RECIPE.layers, Reading().layers, (-3, -6, -10)):
            tiled = {"image_size": size, "tile": tile, "layers": layers}
            whole, blurred = replace(MAP, **tiled), 4 * 392 / size
            found += [replace(whole, blur_sigma=blurred), replace(whole, blur_sigma=blurred, readout=MEAN)]
            found += [replace(RECIPE, **tiled), replace(RECIPE, **tiled, blur_sigma=blurred)]
            found += [replace(SCORE, **tiled), replace(SCORE, **tiled, readout=relative(SOFT))]
    return found


TILED = {
    name: tuple(replace(one, tile=392) for one in ABLATIONS[name])
    for name in ABLATIONS
    if name not in ("392 pixels and 5 %", "three banks")
}


def tiled_recipe() -> list[Reading]:
    """The recipe in tiles and everything it is compared with."""
    return [reading for pair in TILED.values() for reading in pair]


ROUNDS = {
    "readouts": readouts, "depths": depths, "channels": channels, "budgets": budgets, "sizes": sizes, "turns": turns,
    "larger": larger, "largest": largest, "middle": middle, "smallest": smallest,
    "around": around, "finalists": finalists, "recipe": recipe, "tiles": tiles, "tiled-recipe": tiled_recipe,
}  # fmt: skip


def ways(reading: Reading) -> list[Reading]:
    """Other ways to take an image score from a reading; every reading was looked at so, the file keeps these few."""
    found = [replace(reading, top_ratio=ratio) for ratio in (0.001, 0.0025, 0.01, 0.02, 0.05)]
    return found + [replace(reading, top_ratio=ratio, smooth=1) for ratio in (0.001, 0.005, 0.01)]


def judge(
    samples: tuple[Sample, ...], values: NDArray[np.float32], reading: Reading, side: int
) -> list[dict[str, Any]]:
    """The metrics of patch values [T, rows, columns] as a map, and as the scores taken from it."""
    patches = torch.from_numpy(values)
    pixel = map_metrics(samples, patches, reading.blur_sigma, side)
    found: list[dict[str, Any]] = [
        {"reading": reading.name, **score_metrics(samples, image_scores(patches, reading)), **pixel}
    ]
    for way in ways(reading) if reading == SCORE else []:
        found.append({"reading": way.name, **score_metrics(samples, image_scores(patches, way))})
    return found


def rows_of(
    part: Path, readings: list[Reading], seeds: list[int], base: Config, pool: ProcessPoolExecutor, side: int
) -> Iterator[dict[str, Any]]:
    """Rows of one part, as they become known."""
    dataset = open_dataset(part)
    category = dataset.category(dataset.categories[0])
    samples = samples_of(category)
    bench = Bench(category, base, torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    for seed in seeds:
        waiting = [
            pool.submit(judge, samples, values.numpy(), reading, side) for reading, values in bench.run(readings, seed)
        ]
        for future in waiting:
            for row in future.result():
                metrics = {name: round(value, 3) if isinstance(value, float) else value for name, value in row.items()}
                yield {"part": part.name, "seed": seed} | metrics


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="+", type=Path, help="folders with train/good, test/* and ground_truth/*")
    parser.add_argument("--weights", required=True)
    parser.add_argument("--rounds", nargs="+", default=list(ROUNDS), choices=list(ROUNDS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--side", type=int, default=392, help="pixels at which maps are judged")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--output", type=Path, default=RESULTS / "research.csv")
    arguments = parser.parse_args()
    base = Config(backbone="dinov2-small", weights=arguments.weights, precision="fp32")
    here = environment()
    start = time.perf_counter()
    with (
        arguments.output.open("w", newline="", encoding="utf-8") as stream,
        ProcessPoolExecutor(arguments.processes, get_context("spawn"), torch.set_num_threads, (1,)) as pool,
    ):
        writer = csv.DictWriter(stream, [*FIELDS, *here])
        writer.writeheader()
        for round_name in arguments.rounds:
            readings = list(dict.fromkeys([Reading(), *ROUNDS[round_name]()]))
            for part in arguments.parts:
                for row in rows_of(part, readings, arguments.seeds, base, pool, arguments.side):
                    writer.writerow({"round": round_name} | row | here)
                stream.flush()
                print(f"{time.perf_counter() - start:6.1f} s  {round_name} {part.name}: {len(readings)}", flush=True)
