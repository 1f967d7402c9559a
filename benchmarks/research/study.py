"""Every candidate map and score on every part, on one GPU, in one run.

    PYTHONPATH=src:benchmarks python3 -m research.study OUT --data DATA --weights FILE [--limit 440]

Writes into the folder OUT, part by part:

- ``maps.csv``: pixel metrics of every map of :mod:`research.candidates`, for each part and seed, and how well the map
  tells drawn defects on good images from the rest (``drawn_*``); for the two references also by kind of defect.
- ``scores-SEED.npz``: eight numbers of each image under every candidate score, test images and good ones (these as if
  they had not been trained on), from which :mod:`research.choose` makes image scores of any kind.
- ``patches-SIZE.npz``: patch values of the first seed, eight bits each, on a logarithmic scale.
- ``parts.json``: what was read, how long it took, and how well parts are aligned.

Seeds after the first are dropped, part by part, where the time would not suffice.
"""

import argparse
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from procon.config import Config
from procon.method.consensus import lower_quartile, median, top_mean
from procon.method.coreset import to_grid_
from procon.method.maps import resize_maps
from procon.method.projection import gaussian_matrix
from procon.model.selection import coreset_size, select_anchors
from research import candidates
from research.candidates import BASE, Key, Reading, Scored
from research.judge import Judge, guided, render
from research.outputs import Output
from research.scopes import SCOPES, Plan, Scope
from research.tokens import JUDGED, Eye, Part, Pictures, guides_of, masks_of, open_part, start_reading
from research.voters import (
    far_anchors,
    measure_good,
    position_read,
    read_test,
    read_without,
    search,
    soft_only,
)

PARTS = (
    "hazelnut_toy", "mpdd/metal_plate", "mpdd/bracket_white", "mpdd/bracket_brown", "mpdd/bracket_black",
    "mvtec/bottle", "mvtec/cable", "mvtec/pill", "ksdd2", "ksdd2@auto",
)  # fmt: skip
WINDOW = 1 / 8  # of a side: how far an anchor may lie from a patch, for the voter "near"
RAD_IMAGES = 150
DESCRIPTORS = ("top 0.1%", "top 0.5%", "top 1%", "top 3%", "smooth top 0.5%", "mean", "deviation", "variation")
KEPT = (("-3", "-6", "-7", "-9", "-10"), ("-3", "-6", "-7", "-9", "-10"))  # blocks of patches-672 and patches-392


@dataclass
class Values:
    """One key's values on a grid: of test images, good images and drawn ones; some readings have only the first."""

    grid: tuple[int, int]
    test: Tensor
    good: Tensor | None
    drawn: Tensor | None
    shifted: bool = False

    def maps(self, which: str) -> Tensor | None:
        """[N, rows, columns] of ``test``, ``good`` or ``drawn``."""
        values = getattr(self, which)
        return None if values is None else values.view(len(values), *self.grid)


# ------------------------------------------------------------------------------------------------------- values


def pick(points: Tensor, block: str, depth: int, size: int, seeds: Sequence[int], base: Config) -> Tensor:
    """Rows [len(seeds), size] of good patches that become anchors, selected as the package does it."""
    number = int(block.lstrip("pw")) + depth
    matrix = gaussian_matrix(points.shape[1], base.selection_dim, base.seed, number, 1).to(points.device)
    return select_anchors(to_grid_(points @ matrix), size, seeds, "k-center").to(points.device)


class Study:
    """One part on one device."""

    def __init__(
        self, part: Part, pictures: Pictures, eyes: Mapping[int, Eye], base: Config, depth: int, scope: Scope
    ) -> None:
        self.part, self.base, self.depth, self.scope = part, base, depth, scope
        self.device = next(iter(eyes.values())).device
        self.tokens = {size: eye.see(pictures, **scope.extra.get(size, {})) for size, eye in eyes.items()}
        self.source = torch.tensor(pictures.source, device=self.device)
        self.judge = Judge(masks_of(part, self.device))
        drawn = np.stack([future.result()[1] for future in pictures.drawn])
        self.drawn_judge = Judge(torch.from_numpy(drawn).to(self.device))
        self.guide = guides_of(pictures, max(eyes), self.device)
        self.aligned: dict[str, float] = {}

    def values(self, seed: int) -> dict[Key, Values]:
        """Everything that readings are made of, for one seed of the banks."""
        found: dict[Key, Values] = {}
        for plan in self.scope.plans:
            for block in plan.blocks:
                found.update(self._read(plan, block, seed))
        for size, blocks, radii in self.scope.rad:
            for block in blocks:
                for radius in radii:
                    found[size, block, 1.0, f"r{radius}"] = self._retrieve(size, block, radius)
        return found

    def _read(self, plan: Plan, block: str, seed: int) -> dict[Key, Values]:
        tokens = self.tokens[plan.size]
        good, test, drawn = (side[block] for side in (tokens.good, tokens.test, tokens.drawn))
        flat, grid = good.flatten(0, 1), tokens.shape(block)
        size = coreset_size(len(flat), plan.share, 5, None)
        picks = pick(flat, block, self.depth, size, [seed + 1 + bank for bank in range(plan.banks)], self.base)
        everyone = torch.arange(len(good), device=self.device)
        parts: list[tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Tensor]]] = []
        found: dict[Key, Values] = {}
        for rows in picks:
            anchors = flat[rows].float()
            bank, near, weights, lengths = measure_good(good, anchors, rows)
            known = (near, weights, lengths)
            hidden = search(drawn, anchors, self.source.unsqueeze(1) == bank.origin)
            parts.append((
                read_test(test, search(test, anchors), bank, plan.voters),
                read_without(good, everyone, near, bank, known, plan.voters),
                read_without(drawn, self.source, hidden, bank, known, plan.voters),
            ))  # fmt: skip
            if plan.window:
                far = far_anchors(bank.place, grid, WINDOW)
                sets = ((test, None), (good, everyone.unsqueeze(1) == bank.origin),
                        (drawn, self.source.unsqueeze(1) == bank.origin))  # fmt: skip
                windowed = [
                    soft_only(patches, search(patches, anchors, mask, far).rows, anchors) for patches, mask in sets
                ]
                found[plan.size, block, plan.share, "near"] = Values(grid, *windowed)
                self.aligned[block] = float(windowed[1].mean() / lengths.mean())
            if block in plan.shifted:
                moved = tokens.shifted[block]
                values = soft_only(moved, search(moved, anchors).rows, anchors)
                found[plan.size, block, plan.share, "shifted"] = Values(grid, values, None, None, shifted=True)
        for voter in plan.voters:
            sides = [median(torch.stack([part[side][voter] for part in parts]), dim=0) for side in range(3)]
            name = voter if plan.banks == 1 else f"{voter}{plan.banks}"
            found[plan.size, block, plan.share, name] = Values(grid, *sides)
        return found

    def _retrieve(self, size: int, block: str, radius: int) -> Values:
        """RAD's readout: whole memories, images retrieved by their CLS tokens, patches at near places."""
        tokens, context = self.tokens[size], self.tokens[self.scope.context].context
        good = tokens.good[block]
        memory = torch.nn.functional.normalize(context["good"], dim=1)
        half = good.half() if good.is_cuda else good
        results = []
        for name, own in (
            ("test", None),
            ("good", torch.arange(len(good), device=self.device)),
            ("drawn", self.source),
        ):
            likeness = torch.nn.functional.normalize(context[name], dim=1) @ memory.T
            if own is not None:
                likeness.scatter_(1, own.unsqueeze(1), -2.0)
            count = min(RAD_IMAGES, len(good) - (own is not None))
            seen = torch.zeros_like(likeness, dtype=torch.bool).scatter_(1, likeness.topk(count, dim=1).indices, True)
            patches = getattr(tokens, name)[block].to(half.dtype)
            results.append(position_read(patches, half, tokens.grid, seen, radius))
        return Values(tokens.grid, *results)


# ------------------------------------------------------------------------------------------------------- readings


def mix(terms: Sequence[tuple[Key, float]], values: Mapping[Key, Values], which: str, scaled: bool) -> Tensor | None:
    """The weighted mean [N, rows, columns] of values, on the finest grid among them; None where one is missing."""
    grid = max((values[key].grid for key, _ in terms), key=lambda shape: shape[0] * shape[1])
    if any(values[key].shifted for key, _ in terms):
        grid = (2 * grid[0], 2 * grid[1])
    total, mass = None, 0.0
    for key, weight in terms:
        maps = values[key].maps(which)
        if maps is None:
            return None
        maps = unshift(maps, grid) if values[key].shifted else resize_maps(maps, grid)
        if scaled:
            good = values[key].good
            maps = maps / (1.0 if good is None else float(good.mean()))
        total = weight * maps if total is None else total + weight * maps
        mass += weight
    return None if total is None else total / mass


def unshift(maps: Tensor, grid: tuple[int, int]) -> Tensor:
    """Values [T, rows, columns] of images that were moved up and left by half a patch, where they belong on ``grid``.

    A cell of the grid is half a patch.
    """
    padded = torch.nn.functional.pad(resize_maps(maps, grid).unsqueeze(1), (1, 0, 1, 0), mode="replicate")
    return padded.squeeze(1)[:, :-1, :-1]


def heat_maps(reading: Reading, fused: Tensor, part: Part, guide: Tensor | None, good: Tensor | None) -> Tensor:
    """The maps [N, H, W] of a reading at the size at which they are judged; ``good`` are the values of good images."""
    if reading.offset:
        typical = lower_quartile(fused.flatten(1))
        if reading.bounded is not None:
            assert good is not None
            ends = torch.tensor([reading.bounded, 1 - reading.bounded], device=typical.device)
            typical = typical.clamp(*lower_quartile(good.flatten(1)).quantile(ends))
        fused = fused - reading.offset * typical[:, None, None]
    height, width = part.judged
    even = (part.side / 392, part.side / 392)
    stretch = even if part.aspect == part.true_aspect else (height / 392, width / 392)
    maps = render(fused, (height, width), (reading.blur * stretch[0], reading.blur * stretch[1]))
    if reading.guide is not None and guide is not None:
        maps = guided(maps, guide, *reading.guide)
    return maps


def measure_map(
    study: Study, reading: Reading, values: Mapping[Key, Values], kinds: Mapping[str, Tensor]
) -> list[dict[str, Any]]:
    """A row of pixel metrics, and rows by kind of defect where ``kinds`` lists the images of each."""
    test = mix(reading.terms, values, "test", reading.scaled)
    assert test is not None
    good = mix(reading.terms, values, "good", reading.scaled) if reading.bounded is not None else None
    maps = heat_maps(reading, test, study.part, study.guide, good)
    row: dict[str, Any] = {"reading": reading.name, "kind": "all", **study.judge.measure(maps)}
    drawn = None if reading.guide else mix(reading.terms, values, "drawn", reading.scaled)
    if drawn is not None:
        judged = study.drawn_judge.measure(heat_maps(reading, drawn, study.part, None, good))
        row |= {f"drawn_{name}": value for name, value in judged.items()}
    rows = [row]
    for kind, images in kinds.items():
        rows.append({"reading": reading.name, "kind": kind, **study.judge.measure(maps, images)})
    return rows


def describe(maps: Tensor) -> Tensor:
    """The numbers ``DESCRIPTORS`` of maps [N, rows, columns]: [N, 8]."""
    flat = maps.flatten(1)
    smooth = torch.nn.functional.avg_pool2d(maps.unsqueeze(1), 3, 1, 1, count_include_pad=False).flatten(1)
    tops = [top_mean(flat, ratio) for ratio in (0.001, 0.005, 0.01, 0.03)]
    steps = torch.diff(maps, dim=1).abs().mean((1, 2)) + torch.diff(maps, dim=2).abs().mean((1, 2))
    return torch.stack([*tops, top_mean(smooth, 0.005), flat.mean(1), flat.std(1), steps], dim=1)


def kinds_of(part: Part, device: torch.device) -> dict[str, Tensor]:
    """Good images with those of each kind of defect."""
    kinds = sorted({sample.kind for sample in part.test if sample.defective})
    return {
        kind: torch.tensor(
            [n for n, sample in enumerate(part.test) if not sample.defective or sample.kind == kind], device=device
        )
        for kind in kinds
    }


# ------------------------------------------------------------------------------------------------------- output


def keep_scores(out: Output, study: Study, seed: int, values: Mapping[Key, Values], scores: Sequence[Scored]) -> None:
    """The descriptors of all images under every score."""
    for which in ("test", "good"):
        numbers = []
        for one in scores:
            maps = mix(one.terms, values, which, one.scaled)
            assert maps is not None
            numbers.append(describe(maps).cpu().numpy())
        out.array(f"scores-{seed}", f"{study.part.name}:{which}", np.stack(numbers))


def keep_patches(out: Output, study: Study, values: Mapping[Key, Values]) -> None:
    """Patch values of test images, eight bits each."""
    for size, share, blocks in ((672, BASE, KEPT[0]), (392, 0.05, KEPT[1])):
        for block in blocks:
            if (size, block, share, "soft") not in values:
                continue
            logs = values[size, block, share, "soft"].test.clamp_min(1e-6).log()
            low, high = float(logs.min()), float(logs.max())
            bits = ((logs - low) / (high - low) * 255).round().to(torch.uint8).cpu().numpy()
            out.array(f"patches-{size}", f"{study.part.name}:{block}", bits)
            out.array(f"patches-{size}", f"{study.part.name}:{block}:range", np.array([low, high]))


def run_seed(study: Study, seed: int, out: Output, maps: Sequence[Reading], scores: Sequence[Scored]) -> None:
    """Everything about one part with one seed."""
    values = study.values(seed)
    keep_scores(out, study, seed, values, scores)
    if seed == 0:
        keep_patches(out, study, values)
        usual = {key: float(one.good.mean()) for key, one in values.items() if one.good is not None}
        out.parts[study.part.name] |= {"usual": {"/".join(map(str, key)): round(v, 5) for key, v in usual.items()}}
    kinds = kinds_of(study.part, study.device)
    for reading in maps:
        by_kind = kinds if seed == 0 and reading.name in candidates.ABLATION else {}
        out.rows(study.part.name, seed, measure_map(study, reading, values, by_kind))


def work_of(part: Part) -> float:
    """How long a seed of a part takes, relative to other parts."""
    return len(part.train) * (len(part.train) + len(part.test)) / 400 + 2 * len(part.test) + len(part.train)


@torch.inference_mode()
def main() -> None:
    """Measure everything."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--weights", required=True)
    parser.add_argument("--parts", nargs="+", default=list(PARTS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 100, 200])
    parser.add_argument("--limit", type=float, default=440, help="seconds after which no further seed is begun")
    parser.add_argument("--few", nargs=3, type=int, help="images to train on, good ones to test, defective ones")
    parser.add_argument("--scope", choices=list(SCOPES), default="full", help="all but full: what two cores can do")
    parser.add_argument("--threads", type=int, default=16, help="that read images")
    parser.add_argument("--side", type=int, default=JUDGED, help="pixels at which maps are judged")
    parser.add_argument("--scale", type=int, default=1, help="divide all inputs by it, to try the program")
    parser.add_argument("--readings", type=int, default=1, help="take every n-th candidate, to try the program")
    given = parser.parse_args()
    start = time.perf_counter()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    scope = SCOPES[given.scope]
    base = Config(backbone="dinov2-small", weights=given.weights, precision=scope.precision)
    out = Output(given.output)
    maps = [one for one in scope.readings() if scope.can_read(one.terms)][:: given.readings]
    scores = [one for one in candidates.score_readings() if scope.can_read(one.terms)]
    out.parts |= {"scores": [one.name for one in scores], "descriptors": DESCRIPTORS}
    eyes = {size: Eye(base, size, blocks, device) for size, blocks in scope.blocks.items()}
    parts = [open_part(given.data, name, given.few, given.side, given.scale) for name in given.parts]
    depth = 12
    spent = done = 0.0
    with ThreadPoolExecutor(given.threads) as pool:
        waiting = [start_reading(part, tuple(scope.blocks), scope.drawn, pool) for part in parts]
        for number, part in enumerate(parts):
            begun = time.perf_counter()
            study = Study(part, waiting[number], eyes, base, depth, scope)
            waiting[number] = None  # type: ignore[call-overload]
            seen = time.perf_counter() - begun
            good = [not sample.defective for sample in part.test]
            out.parts[part.name] = {"train": len(part.train), "good": good, "tokens_s": round(seen, 1)}
            out.parts[part.name] |= {"kinds": [sample.kind for sample in part.test]}
            for place, seed in enumerate(given.seeds):
                left = work_of(part) + (place + 1) * sum(map(work_of, parts[number + 1 :]))
                if place and time.perf_counter() - start + spent / done * left > given.limit:
                    break
                run_seed(study, seed, out, maps, scores)
                print(f"{time.perf_counter() - start:6.1f} s  {part.name} seed {seed}", flush=True)
                done += work_of(part)
                spent += time.perf_counter() - begun
                begun = time.perf_counter()
            out.parts[part.name] |= {"aligned": {block: round(v, 4) for block, v in study.aligned.items()}}
            out.save()
            del study
    print(f"{time.perf_counter() - start:6.1f} s  done", flush=True)


if __name__ == "__main__":
    main()
