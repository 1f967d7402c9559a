"""Speed on the CPU: k-center and scoring against the plain forms, in one run. Writes ``benchmarks/results/cpu.csv``.

    python benchmarks/cpu.py [--quick]

Points are unit vectors near a 24-dimensional subspace with isotropic noise, as tokens are; peers get the same points.
Where a slow form is extrapolated from a measured prefix, the row says so.
"""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from environment import write_rows
from plain import papers_form, plain_k_center
from procon import Config
from procon.method.coreset import k_center
from procon.method.neighbors import Banks
from procon.method.score import read_layer
from procon.model.memory import LayerMemory
from timing import seconds

PATCHES, BANKS, LAYERS = 784, 5, 4
PEER = Path(__file__).parent / "peers" / "kcenter-cpu.json"


def points(count: int, dims: int, seed: int) -> Tensor:
    base = np.random.RandomState(1).standard_normal((24, dims))
    random = np.random.RandomState(seed)
    values = random.standard_normal((count, 24)) @ base + 0.7 * random.standard_normal((count, dims))
    return torch.from_numpy((values / np.linalg.norm(values, axis=1, keepdims=True)).astype(np.float32))


def product_k_center(values: Tensor, size: int, start: int) -> Tensor:
    """The same loop with a matrix-vector product per pick: the fastest plain form."""
    norms = values.square().sum(dim=1)
    picks = [start]
    closest = norms + norms[start] - 2 * (values @ values[start])
    while len(picks) < size:
        picks.append(int(closest.argmax()))
        closest = torch.minimum(closest, norms + norms[picks[-1]] - 2 * (values @ values[picks[-1]]))
    return torch.tensor(picks)


def row(what: str, value: float, spread: float, settings: str, note: str = "") -> dict[str, Any]:
    print(f"{what:34} {settings:44} {value:10.4g} s ± {spread:.2g}  {note}", flush=True)
    return {
        "measure": what,
        "settings": settings,
        "seconds": float(f"{value:.5g}"),
        "spread": float(f"{spread:.3g}"),
    } | {"note": note}


def coreset_rows(count: int, picks: int, prefix: int) -> list[dict[str, Any]]:
    """All five banks of a layer, against the plain loop and anomalib's, both extrapolated from a prefix."""
    values = points(count, 192, 0)
    settings = f"N={count} d=192 picks={picks} banks={BANKS}"
    ours, spread = seconds(lambda: k_center(values, picks, [1, 2, 3, 4, 5]), 1)
    rows = [row("k-center, ours", ours, spread, settings, "one run")]
    begin = time.perf_counter()
    plain = plain_k_center(values, prefix, 1)
    loop = (time.perf_counter() - begin) / prefix * picks * BANKS
    note = f"{loop / ours:.0f} times ours; extrapolated from {prefix} picks"
    rows.append(row("k-center, plain loop", loop, 0, settings, note))
    same = int((plain == k_center(values, prefix, [1])[0]).sum())
    rows[0]["note"] += f"; the first {same} of {prefix} picks equal those of the plain loop"
    begin = time.perf_counter()
    product_k_center(values, prefix, 1)
    loop = (time.perf_counter() - begin) / prefix * picks * BANKS
    note = f"{loop / ours:.0f} times ours; extrapolated from {prefix} picks"
    rows.append(row("k-center, loop of products", loop, 0, settings, note))
    peer = json.loads(PEER.read_text()) if PEER.exists() else {}
    if peer.get("points") == count:
        for name in ("anomalib", "anomalib_unprojected"):
            total = peer["loops"][name]["seconds_per_pick"] * picks * BANKS
            note = f"{total / ours:.0f} times ours; extrapolated from {max(peer['prefixes'])} picks, own environment"
            rows.append(row(f"k-center, {name} {peer['anomalib']}", total, 0, settings, note))
    return rows


def growth_rows(sizes: list[int], picks: list[int]) -> list[dict[str, Any]]:
    """One bank, for the plot of time against N and M."""
    rows = []
    for count in sizes:
        values = points(count, 192, 0)
        for size in picks:
            value, spread = seconds(lambda values=values, size=size: k_center(values, size, [1]), 1)  # type: ignore[misc]
            rows.append(row("k-center, growth", value, spread, f"N={count} d=192 picks={size} banks=1"))
    return rows


def scoring_rows(count: int, repeats: int) -> list[dict[str, Any]]:
    """Four layers and five banks of 5 % of ``count`` patches, one image; the layers share one memory, selected once."""
    rows = []
    for dims, backbone in ((384, "ViT-S"), (512, "ViT-B")):
        pool = points(count, dims, 0)
        selection = pool @ torch.randn(dims, 192, generator=torch.Generator().manual_seed(0)) / 192**0.5
        origin, places = k_center(selection, count // 20, [1, 2, 3, 4, 5]).unique(return_inverse=True)
        layers = [Banks(pool[origin], places)] * LAYERS
        memories = [LayerMemory(banks.anchors, torch.arange(len(banks.anchors)), banks.rows) for banks in layers]
        queries = points(PATCHES, dims, 99)
        distinct = sum(len(banks.anchors) for banks in layers) / (LAYERS * layers[0].rows.numel())
        settings = f"{backbone} D={dims} 20 banks of {layers[0].rows.shape[1]}, {distinct:.0%} distinct"

        def ours(memories: list[LayerMemory] = memories, queries: Tensor = queries) -> None:
            for layer in memories:
                read_layer(queries.unsqueeze(0), layer, Config())

        def paper(layers: list[Banks] = layers, queries: Tensor = queries) -> None:
            for banks in layers:
                for bank in banks.rows:
                    papers_form(queries, banks.anchors[bank])

        ours()
        value, spread = seconds(ours, repeats)
        rows.append(row("scoring one image, ours", value, spread, settings))
        slow, spread = seconds(paper, repeats)
        rows.append(row("scoring one image, paper's form", slow, spread, settings, f"{slow / value:.1f} times ours"))
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes, a minute in all; writes nothing")
    quick = parser.parse_args().quick
    if quick:
        coreset_rows(20_000, 500, 20)
        scoring_rows(8_000, 1)
        return 0
    rows = scoring_rows(163_856, 5)
    rows += growth_rows([25_000, 50_000, 100_000, 163_856], [1_000, 2_000, 4_000])
    rows += coreset_rows(163_856, 8_192, 40)
    print(f"wrote {write_rows('cpu', rows)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
