"""What a pick costs in anomalib's own KCenterGreedy, on a measured prefix of picks.

Run with the peers' python (README.md in this folder). Every pick of these loops reads all the points and does the same
work, so a prefix is timed at two lengths or more, a line is fitted, and its slope is the cost of a pick. Everything
beyond the prefix is an extrapolation and is named so in the output.
"""

import argparse
import json
import os
import platform
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

os.environ.setdefault("TQDM_DISABLE", "1")  # before anomalib imports tqdm: no progress bar in the timing

import numpy as np
import torch
from anomalib.models.components import KCenterGreedy, SparseRandomProjection
from torch import Tensor

FULL_PICKS = 8192
FULL_BANKS = 5
SEED = 0


class TimedProjection(SparseRandomProjection):
    """anomalib's projection, with the seconds spent in it."""

    seconds = 0.0

    def fit(self, embedding: Tensor) -> SparseRandomProjection:
        """As in anomalib, timed."""
        begin = perf_counter()
        super().fit(embedding)
        self.seconds += perf_counter() - begin
        return self

    def transform(self, embedding: Tensor) -> Tensor:
        """As in anomalib, timed."""
        begin = perf_counter()
        projected = super().transform(embedding)
        self.seconds += perf_counter() - begin
        return projected


@dataclass(frozen=True)
class Run:
    """One selection: the picks in order, the loop's seconds, and those before the loop."""

    picks: list[int]
    loop_s: float
    before_s: float
    dims: int


def make_points(count: int, dims: int, seed: int = SEED) -> Tensor:
    """Unit vectors [count, dims] near a 24-dimensional subspace, fp32: the points of benchmarks/coreset.py."""
    base = np.random.RandomState(1).standard_normal((24, dims))
    state = np.random.RandomState(seed)
    points = state.standard_normal((count, 24)) @ base
    points += 0.7 * state.standard_normal((count, dims))
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    return torch.from_numpy(points.astype(np.float32))


def peer(points: Tensor, picks: int, *, project: bool) -> Run:
    """``KCenterGreedy.select_coreset_idxs`` as shipped.

    A matrix is projected first; anything with a third axis is flattened and taken as it is, which is how the class
    itself is asked to skip the projection.
    """
    torch.manual_seed(SEED)  # the projection and the first pick are random
    sampler = KCenterGreedy(points if project else points.unsqueeze(2), sampling_ratio=(picks + 0.5) / len(points))
    if sampler.coreset_size != picks:
        raise RuntimeError(f"asked anomalib for {picks} picks, it would make {sampler.coreset_size}")
    sampler.model = projection = TimedProjection(eps=sampler.model.eps)
    begin = perf_counter()
    chosen = sampler.select_coreset_idxs()
    total = perf_counter() - begin
    return Run(chosen, total - projection.seconds, projection.seconds, sampler.features.shape[1])


def textbook(points: Tensor, picks: int, start: int) -> Run:
    """The loop of the textbook: all points to the last pick, minimum, argmax."""
    begin = perf_counter()
    chosen = torch.empty(picks, dtype=torch.int64)
    chosen[0] = start
    nearest = torch.full((len(points),), torch.inf)
    for step in range(1, picks):
        nearest = torch.minimum(nearest, (points - points[chosen[step - 1]]).square().sum(1))
        chosen[step] = nearest.argmax()
    return Run(chosen.tolist(), perf_counter() - begin, 0.0, points.shape[1])


def textbook_product(points: Tensor, picks: int, start: int) -> Run:
    """The same loop with distances as |x|^2 + |p|^2 - 2 x.p: a matrix-vector product a pick, nothing large written."""
    begin = perf_counter()
    norms = points.square().sum(1)
    before = perf_counter() - begin
    begin = perf_counter()
    chosen = torch.empty(picks, dtype=torch.int64)
    chosen[0] = start
    nearest = torch.full((len(points),), torch.inf)
    for step in range(1, picks):
        last = chosen[step - 1]
        nearest = torch.minimum(nearest, torch.addmv(norms, points, points[last], alpha=-2).add_(norms[last]))
        chosen[step] = nearest.argmax()
    return Run(chosen.tolist(), perf_counter() - begin, before, points.shape[1])


def summary(runs: dict[int, list[Run]]) -> dict[str, Any]:
    """Medians over the rounds, the slope of the line through them, and what the slope says about a full run."""
    lengths = sorted(runs)
    seconds = [median(run.loop_s for run in runs[picks]) for picks in lengths]
    slope, intercept = np.polyfit(lengths, seconds, 1)
    before = median(run.before_s for length in runs.values() for run in length)
    return {
        "dims": runs[lengths[0]][0].dims,
        "before_loop_s": round(before, 4),
        "loop_s": {
            str(picks): {"median": round(middle, 4), "all": [round(run.loop_s, 4) for run in runs[picks]]}
            for picks, middle in zip(lengths, seconds, strict=True)
        },
        "seconds_per_pick": round(float(slope), 6),
        "intercept_s": round(float(intercept), 4),
        "extrapolated_s": round(FULL_BANKS * (before + float(slope) * FULL_PICKS), 1),
    }


def cpu_name() -> str:
    """The processor and how many of it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.machine()} x{len(names)}"


def measure(count: int, dims: int, lengths: list[int], rounds: int) -> dict[str, Any]:
    """Every loop at every length, the loops in turn within a round so that a busy spell falls on all of them."""
    load = os.getloadavg()[0]
    points = make_points(count, dims)
    start = peer(points, 2, project=False).picks[0]  # anomalib draws its own; the other loops begin where it does
    loops: dict[str, Callable[[int], Run]] = {
        "anomalib": lambda picks: peer(points, picks, project=True),
        "anomalib_unprojected": lambda picks: peer(points, picks, project=False),
        "textbook": lambda picks: textbook(points, picks, start),
        "textbook_product": lambda picks: textbook_product(points, picks, start),
    }
    for loop in loops.values():
        loop(3)
    runs: dict[str, dict[int, list[Run]]] = {name: {picks: [] for picks in lengths} for name in loops}
    for _ in range(rounds):
        for picks in lengths:
            for name, loop in loops.items():
                runs[name][picks].append(loop(picks))
                print(f"{name} {picks} picks: {runs[name][picks][-1].loop_s:.2f} s", flush=True)
    longest = max(lengths)
    plain = runs["textbook"][longest][0].picks
    return {
        "points": count,
        "dims": dims,
        "prefixes": lengths,
        "rounds": rounds,
        "threads": torch.get_num_threads(),
        "load_1min_before": round(load, 2),
        "load_1min_after": round(os.getloadavg()[0], 2),
        "cpu": cpu_name(),
        "python": platform.python_version(),
        "anomalib": version("anomalib"),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "extrapolated_to": {
            "picks": FULL_PICKS,
            "banks": FULL_BANKS,
            "how": "banks * (before_loop + per_pick * picks)",
        },
        "loops": {name: summary(of_loop) for name, of_loop in runs.items()},
        f"picks_equal_to_textbook_of_{longest}": {
            name: sum(a == b for a, b in zip(of_loop[longest][0].picks, plain, strict=True))
            for name, of_loop in runs.items()
            if name != "anomalib"
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", type=int, default=163_856)
    parser.add_argument("--dims", type=int, default=192)
    parser.add_argument("--picks", type=int, nargs="+", default=[40, 80], help="lengths of the prefix, two or more")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, metavar="OUT")
    arguments = parser.parse_args()
    lengths = sorted(set(arguments.picks))
    if len(lengths) < 2 or lengths[0] < 2:
        parser.error("--picks needs two different lengths or more, each at least 2")
    torch.set_num_threads(os.cpu_count() or 1)
    text = json.dumps(measure(arguments.points, arguments.dims, lengths, arguments.rounds), indent=2)
    print(text)
    if arguments.json is not None:
        arguments.json.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
