"""Which rule makes a threshold from good images alone: raw scores of many training draws, on a GPU.

    python benchmarks/research/thresholds.py thresholds.jsonl --data DATA --weights WEIGHTS

For every part and recipe: fits on all training images and on random subsets of 2 to 64, with and without one planted
odd image, and for each the leave-one-out scores with own anchors hidden and with stand-ins, the scores of the test
images, and real refits without an image. All banks and images are compared by plain matrix products in the full space,
and a stand-in is the nearest patch of all other images: the product's search finds the same ones for 19 anchors of 20.
The lines have the form that ``benchmarks/verdicts.py summarize`` reads, which makes the tables.
"""

import argparse
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy import ndimage
from torch import Tensor

from procon.config import Config
from procon.method.consensus import lower_quartile, median, top_mean
from procon.method.coreset import k_center_on_grid, to_grid_
from procon.method.levels import DEVIATIONS, PRIOR
from procon.method.maps import pixel_map
from procon.model.reader import Extractor
from procon.vision.backbone import Backbone
from procon.vision.images import open_image
from verdicts import PARTS, RECIPES, Counts, read_mask, test_images

DRAWS = ((2, 2), (4, 3), (8, 4), (16, 4), (32, 4), (64, 2))  # images in a draw, and how many draws
REFITS = 12  # training images that are also left out by a real refit


class Nearest(NamedTuple):
    """One bank's answer for the patches of an image."""

    residuals: Tensor  # [P]
    rows: Tensor  # [P, k]
    weights: Tensor  # [P, k]


@dataclass
class Bank:
    """One bank of one layer."""

    anchors: Tensor  # [M, D]
    source: Tensor  # [M], training image of each anchor
    stand_ins: Tensor  # [M, D]


def embed(extractor: Extractor, paths: list[Path], pool: ThreadPoolExecutor) -> list[Tensor]:
    """Embedded patches [N, P, D] of each layer."""
    parts = []
    prepared = list(pool.map(lambda path: extractor.prepare(open_image(path)), paths))
    for start in range(0, len(prepared), 32):
        parts.append(extractor.features(torch.stack(prepared[start : start + 32]).to(extractor.backbone.device)))
    return [torch.cat(layer) for layer in zip(*parts, strict=True)]


def select(features: list[Tensor], config: Config, extractor: Extractor) -> list[Tensor]:
    """Rows [B, M] of the patches of all images that become anchors, per layer."""
    picks = []
    for layer, selection in zip(features, extractor.selections, strict=True):
        flat = layer.flatten(0, 1)
        grid = to_grid_((flat.clone() if selection is None else flat @ selection).contiguous())
        starts = [int(np.random.RandomState(seed).random_sample() * len(grid)) for seed in config.bank_seeds]
        picks.append(k_center_on_grid(grid, max(int(config.coreset_ratio * len(grid)), config.num_neighbors), starts))
    return picks


def nearest_of_others(flat: Tensor, patches: int, rows: Tensor) -> Tensor:
    """For each patch in ``rows`` the nearest patch of another image, as a row of ``flat`` [N, D]."""
    squares, images = flat.square().sum(dim=1), torch.arange(len(flat), device=flat.device) // patches
    found = []
    for chunk in rows.split(max(1, 10**9 // len(flat))):
        distances = torch.addmm(squares, flat[chunk], flat.T, alpha=-2)
        distances.masked_fill_(images == (chunk // patches).unsqueeze(1), torch.inf)
        found.append(distances.argmin(dim=1))
    return torch.cat(found)


def make_banks(features: list[Tensor], picks: list[Tensor]) -> list[list[Bank]]:
    """The banks of every layer, with stand-ins where there are several images."""
    layers = []
    for layer, chosen in zip(features, picks, strict=True):
        flat, patches = layer.flatten(0, 1), layer.shape[1]
        rows, places = chosen.to(flat.device).unique(return_inverse=True)
        spare = flat[nearest_of_others(flat, patches, rows) if len(layer) > 1 else rows]
        layers.append([Bank(flat[rows[bank]], rows[bank] // patches, spare[bank]) for bank in places])
    return layers


def compare(patches: Tensor, bank: Bank, k: int, own: int | None, stand_ins: bool) -> Nearest:
    """Soft projection of patches [P, D] on a bank; anchors of image ``own`` are hidden, or replaced by stand-ins."""
    anchors = bank.anchors
    mine = None if own is None else bank.source == own
    if mine is not None and stand_ins:
        anchors = torch.where(mine.unsqueeze(1), bank.stand_ins, anchors)
    distances = torch.addmm(anchors.square().sum(dim=1), patches, anchors.T, alpha=-2)
    distances += patches.square().sum(dim=1, keepdim=True)
    if mine is not None and not stand_ins:
        distances.masked_fill_(mine, torch.inf)
    near, rows = distances.topk(k, dim=1, largest=False)
    near = near.clamp_min(0)
    weights = torch.softmax(-(near - near[:, :1]) / near.median().clamp_min(1e-30), dim=1)
    residuals = ((patches.unsqueeze(1) - anchors[rows]) * weights.unsqueeze(2)).sum(dim=1).norm(dim=1)
    return Nearest(residuals, rows, weights)


Reading = list[list[Nearest]]  # by layer and bank


def read_image(
    image: list[Tensor], banks: list[list[Bank]], k: int, own: int | None = None, *, stand_ins: bool = False
) -> Reading:
    """One image [P, D] per layer compared with every bank."""
    layers = zip(image, banks, strict=True)
    return [[compare(patches, bank, k, own, stand_ins) for bank in layer] for patches, layer in layers]


def level_sums(reading: Reading, anchors: int) -> list[Tensor]:
    """Sums [B, 3, M] of w, w r and w r² of each anchor, per layer."""
    layers = []
    for layer in reading:
        sums = torch.zeros(len(layer), 3, anchors, dtype=torch.float64, device=layer[0].rows.device)
        for bank, (residuals, rows, weights) in enumerate(layer):
            weight, value = weights.double(), residuals.double().unsqueeze(1)
            for term, amount in enumerate((weight, weight * value, weight * value.square())):
                sums[bank, term].index_add_(0, rows.flatten(), amount.flatten())
        layers.append(sums)
    return layers


def levels_of(sums: Tensor) -> Tensor:
    """Levels [B, M] from sums [B, 3, M], as :func:`procon.method.levels.anchor_levels`."""
    overall = sums.sum(dim=2, keepdim=True)
    mass = sums[:, 0] + PRIOR
    mean = (sums[:, 1] + PRIOR * overall[:, 1] / overall[:, 0]) / mass
    square = (sums[:, 2] + PRIOR * overall[:, 2] / overall[:, 0]) / mass
    levels: Tensor = mean + DEVIATIONS * (square - mean.square()).clamp_min(0).sqrt()
    return levels.float()


def fuse(
    reading: Reading, config: Config, levels: list[Tensor] | None, quartile: Tensor | None
) -> tuple[float, Tensor, Tensor]:
    """Image score, S_map [P] and what the heat map shows [P]."""
    maps, relative = [], []
    for index, layer in enumerate(reading):
        maps.append(median(torch.stack([bank.residuals for bank in layer]), dim=0))
        if levels is not None:
            near = [(bank.weights * levels[index][number][bank.rows]).sum(dim=1) for number, bank in enumerate(layer)]
            divided = [bank.residuals / level.clamp_min(1e-12) for bank, level in zip(layer, near, strict=True)]
            relative.append(median(torch.stack(divided), dim=0))
    scores = torch.stack(maps).mean(dim=0)
    ranked = torch.stack(relative).mean(dim=0) if relative else scores
    heat = scores if quartile is None else scores + (quartile - lower_quartile(scores.unsqueeze(0))[0])
    return float(top_mean(ranked, config.top_ratio)), scores, heat


def peak_map(heat: Tensor, config: Config) -> Tensor:
    """The heat map [H, W] at the size of the input."""
    return pixel_map(heat.view(1, *config.grid), config.input_size, config.blur_sigma)[0]


@torch.inference_mode()
def study(
    train: list[Tensor], test: list[Tensor], masks: list[Path | None] | None, config: Config, extractor: Extractor
) -> dict[str, Any]:
    """One fit: leave-one-out scores of both kinds, and the scores of the test images."""
    count, k, size = len(train[0]), config.num_neighbors, None
    picks = select(train, config, extractor)
    banks = make_banks(train, picks)
    images = [[layer[number] for layer in train] for number in range(count)]
    hidden = [read_image(image, banks, k, number) for number, image in enumerate(images)]
    levels: list[list[Tensor]] | None = None
    quartile = None
    if config.map_offset == "quartile":
        quarters = [lower_quartile(fuse(reading, config, None, None)[1].unsqueeze(0))[0] for reading in hidden]
        quartile = median(torch.stack(quarters), dim=0)
    everything = None
    if config.score_relative_to == "anchors":
        own = [level_sums(reading, picks[0].shape[1]) for reading in hidden]
        total = [torch.stack(layer).sum(dim=0) for layer in zip(*own, strict=True)]
        everything = [levels_of(layer) for layer in total]
        levels = [[levels_of(t - o) for t, o in zip(total, mine, strict=True)] for mine in own]
    result: dict[str, Any] = {"hidden": [], "scores": [], "peaks": [], "medians": []}
    for number, image in enumerate(images):
        without = None if levels is None else levels[number]
        result["hidden"].append(fuse(hidden[number], config, without, quartile)[0])
        spare = read_image(image, banks, k, number, stand_ins=True)
        score, scores, heat = fuse(spare, config, without, quartile)
        result["scores"].append(score)
        result["peaks"].append(float(peak_map(heat, config).max()))
        result["medians"].append(float(median(scores, dim=0)))
    counts, peaks, tested = Counts(), [], []
    for number in range(len(test[0])):
        score, _, heat = fuse(read_image([layer[number] for layer in test], banks, k), config, everything, quartile)
        tested.append(score)
        if masks is not None:
            heatmap = peak_map(heat, config).cpu().numpy()
            truth = read_mask(masks[number], heatmap.shape)
            counts.add(heatmap, truth)
            areas, size = ndimage.label(truth, np.ones((3, 3)))
            peaks += np.atleast_1d(ndimage.maximum(heatmap, areas, range(1, size + 1))).tolist() if size else []
    return {**result, "tested": tested, "counts": counts, "region_peaks": peaks, "banks": banks, "readings": hidden}


@torch.inference_mode()
def refit_bias(
    train: list[Tensor], fitted: dict[str, Any], chosen: list[int], config: Config, extractor: Extractor
) -> dict[str, float]:
    """Mean relative difference of S_map's image score from that of a refit without the image, for both kinds."""
    ratios: dict[str, list[float]] = {"hidden": [], "stand_ins": []}
    for number in chosen:
        rest = [torch.cat([layer[:number], layer[number + 1 :]]) for layer in train]
        image = [layer[number] for layer in train]
        banks = make_banks(rest, select(rest, config, extractor))
        true = fuse(read_image(image, banks, config.num_neighbors), config, None, None)[1]
        spare = read_image(image, fitted["banks"], config.num_neighbors, number, stand_ins=True)
        for kind, reading in (("hidden", fitted["readings"][number]), ("stand_ins", spare)):
            scores = fuse(reading, config, None, None)[1]
            ratios[kind].append(float(top_mean(scores, config.top_ratio) / top_mean(true, config.top_ratio)) - 1)
    return {kind: float(np.mean(values)) for kind, values in ratios.items()}


def plans(images: int, defects: int, other: bool) -> Iterator[tuple[str, list[int], tuple[str, int] | None]]:
    """Which training images each fit gets, and what is planted among them."""
    random = np.random.RandomState(7)
    yield "full", list(range(images)), None
    for size, repeats in DRAWS:
        for _ in range(repeats if size < images else 0):
            yield f"n{size}", sorted(random.permutation(images)[:size].tolist()), None
    for repeat in range(3):
        rows = sorted(random.permutation(images)[:30].tolist()) if images > 28 else list(range(images))
        if other:
            yield "odd_part", rows, ("other", repeat)
        yield "odd_defect", rows, ("defect", int(random.randint(defects)))


def main() -> None:
    """Measure every part with every recipe; a line for each fit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("raw", type=Path, help="JSON lines")
    for name in ("data", "weights"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--parts", default=",".join(PARTS))
    given = parser.parse_args()
    device, pool = torch.device("cuda" if torch.cuda.is_available() else "cpu"), ThreadPoolExecutor()
    for recipe, make in RECIPES.items():
        config = make(backbone="dinov2-small", weights=str(given.weights))
        extractor, other = Extractor(Backbone.load(config, device), config), None
        for part in given.parts.split(","):
            root = given.data / part
            images = sorted(test_images(root), key=lambda image: image[1] != "good")
            good = sum(kind == "good" for _, kind, _ in images)
            train = embed(extractor, sorted((root / "train" / "good").iterdir()), pool)
            test = embed(extractor, [path for path, _, _ in images], pool)
            for draw, rows, planted in plans(len(train[0]), len(images) - good, other is not None):
                subset = [layer[rows] for layer in train]
                if planted is not None:
                    source = other if planted[0] == "other" else [layer[good:] for layer in test]
                    assert source is not None
                    odd = [layer[planted[1]].unsqueeze(0) for layer in source]
                    subset = [torch.cat(pair) for pair in zip(subset, odd, strict=True)]
                masks = [mask for _, _, mask in images] if draw == "full" else None
                fitted = study(subset, test, masks, config, extractor)
                training = {name: fitted[name] for name in ("scores", "peaks", "medians")}
                line: dict[str, Any] = {
                    "part": part,
                    "recipe": recipe,
                    "draw": draw,
                    "planted": planted,
                    "kinds": [kind for _, kind, _ in images],
                    "scores": fitted["tested"],
                    "training": {**training, "false_alarm_rate": 0.01, "rule": "robust", "images": []},
                    "hidden": fitted["hidden"],
                }
                if draw == "full":
                    chosen = np.random.RandomState(7).permutation(len(rows))[:REFITS].tolist()
                    line |= {"counts": fitted["counts"].to_dict(), "region_peaks": fitted["region_peaks"]}
                    line["bias"] = refit_bias(subset, fitted, chosen, config, extractor)
                with given.raw.open("a", encoding="utf-8") as stream:
                    stream.write(json.dumps(line) + "\n")
            other = [layer[:3].clone() for layer in train]


if __name__ == "__main__":
    main()
