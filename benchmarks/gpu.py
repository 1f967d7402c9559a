"""Speed and agreement on a CUDA device, written to ``benchmarks/results/gpu.csv``.

    python benchmarks/gpu.py [--weights dinov2_vits14.safetensors --category DIR_OF_A_CATEGORY]

A random ViT-B/14 in bf16, 20 banks of 8,192 anchors in 512 dimensions, 784 patches an image. The paper's form (one
distance matrix per bank, tau from a second one, a gather from an expanded tensor, image by image) is measured in the
same run. With real weights and a category, also what half precision does to the scores of real images.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from environment import write_rows
from plain import papers_form, plain_k_center
from procon import Config, Detector
from procon.method.coreset import k_center
from procon.method.score import read_layer
from procon.model.memory import LayerMemory, Memory
from procon.model.model import Model
from procon.vision.folders import read_layout
from timing import seconds

PATCHES, DIMS, ANCHORS, BANKS, LAYERS = 784, 512, 8192, 5, 4
TRAIN = 209 * PATCHES  # 163,856 patches: 5 % of them are 8,192


def milliseconds(work: Callable[[], object], repeats: int = 20) -> tuple[float, float]:
    """Median and spread (max - min) of a call, after three to warm up, by events on the device."""
    times = []
    for index in range(repeats + 3):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        work()
        end.record()
        torch.cuda.synchronize()
        if index >= 3:
            times.append(begin.elapsed_time(end))
    return statistics.median(times), max(times) - min(times)


def patches(count: int, dims: int, seed: int) -> Tensor:
    """Unit vectors near a 24-dimensional subspace, as tokens are: [count, dims] on the device."""
    base = torch.randn(24, dims, generator=torch.Generator().manual_seed(1)).cuda()
    generator = torch.Generator(device="cuda").manual_seed(seed)
    points = torch.randn(count, 24, generator=generator, device="cuda") @ base
    points += 0.7 * torch.randn(count, dims, generator=generator, device="cuda")
    return torch.nn.functional.normalize(points, dim=1)


def row(name: str, value: float, spread: float, unit: str, note: str = "") -> dict[str, Any]:
    print(f"{name:58} {value:10.4g} {unit}  ± {spread:.2g}  {note}", flush=True)
    return {
        "measure": name,
        "value": float(f"{value:.5g}"),
        "spread": float(f"{spread:.3g}"),
        "unit": unit,
        "note": note,
    }


def coreset_rows() -> list[dict[str, Any]]:
    sets = [patches(TRAIN, 192, layer) for layer in range(LAYERS)]
    k_center(sets[0], 300, [1, 2])  # compiles
    times = []
    for _ in range(3):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for points in sets:
            picks = k_center(points, ANCHORS, [1, 2, 3, 4, 5], block=2048)
        torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    ours, spread = statistics.median(times), max(times) - min(times)
    prefix = 400
    begin = time.perf_counter()
    plain = plain_k_center(sets[-1], prefix, 1)
    loop = (time.perf_counter() - begin) / prefix * ANCHORS * BANKS * LAYERS
    same = int((plain == picks[0, :prefix].cpu()).sum())
    return [
        row("k-center, 20 banks of 8,192 from 163,856 x 192", ours, spread, "s"),
        row("k-center, plain loop, extrapolated from 400 picks", loop, 0.0, "s", f"{loop / ours:.0f} times ours"),
        row("first 400 picks equal to the fp32 plain loop", same, 0, "picks", "fp32 rounding decides near-ties"),
    ]


def make_memory() -> Memory:
    pool = patches(30_000, DIMS, 9)
    layers = []
    for layer in range(LAYERS):
        generator = torch.Generator().manual_seed(layer)
        rows = torch.stack([torch.randperm(len(pool), generator=generator)[:ANCHORS] for _ in range(BANKS)])
        layers.append(LayerMemory(pool, torch.arange(len(pool)).cuda(), rows.cuda()))
    return Memory(tuple(layers), ("random",), PATCHES)


def scoring_rows(memory: Memory) -> list[dict[str, Any]]:
    rows = []
    for images in (64, 1):
        queries = [patches(images * PATCHES, DIMS, 50 + n).view(images, PATCHES, DIMS) for n in range(LAYERS)]

        def ours(queries: list[Tensor] = queries) -> None:
            for layer, layer_patches in zip(memory.layers, queries, strict=True):
                read_layer(layer_patches, layer, Config())

        value, spread = milliseconds(ours)
        rows.append(row(f"scoring, batch {images}", value / images, spread / images, "ms/image"))

    def paper() -> None:
        for layer, layer_patches in zip(memory.layers, queries, strict=True):
            for bank in range(BANKS):
                papers_form(layer_patches[0], layer.bank(bank))

    value, spread = milliseconds(paper, 10)
    times = " and ".join(f"{value / ours['value']:.0f} times {ours['measure'].split(', ')[1]}" for ours in rows)
    rows.append(row("scoring, the paper's form", value, spread, "ms/image", times))
    layer = memory.layers[0]
    fused = read_layer(queries[0], layer, Config()).residuals[0]
    exact = read_layer(queries[0][:1].cpu(), layer.to(torch.device("cpu")), Config()).residuals[0]
    error = ((fused.cpu() - exact).abs() / exact).max().item()
    rows.append(row("residuals, largest relative difference to fp32 exact", error, 0, ""))
    return rows


def end_to_end_rows(memory: Memory, folder: str) -> list[dict[str, Any]]:
    from transformers import Dinov2Config, Dinov2Model

    shape = Dinov2Config(hidden_size=768, num_hidden_layers=12, num_attention_heads=12, image_size=518, patch_size=14)
    Dinov2Model(shape).save_pretrained(folder)
    detector = Detector(Config(weights=folder), device="cuda")
    identity = detector.reader.extractor.backbone.identity()
    detector.model = Model(detector.config, memory, None, (), identity)
    rows = []
    for images in (64, 1):
        pixels = torch.randn(images, 3, 392, 392, device="cuda")
        value, spread = milliseconds(lambda pixels=pixels: detector.reader.extractor.features(pixels))  # type: ignore[misc]
        rows.append(row(f"ViT-B/14 bf16 and projection, batch {images}", value / images, spread / images, "ms/image"))
        value, spread = milliseconds(lambda pixels=pixels: detector.scorer.measure_pixels(pixels))  # type: ignore[misc]
        note = "recorded graph" if images == 1 else ""
        rows.append(row(f"pixels to score and map, batch {images}", value / images, spread / images, "ms/image", note))
    return rows


def real_rows(weights: str, category: Path) -> list[dict[str, Any]]:
    """What CUDA does to the scores of real images with one model: fp32 and bf16 against fp32 and exact on the CPU."""
    layout = read_layout(category)
    tests = [path for images in layout.test.values() for path in images]
    labels = torch.tensor([kind != "good" for kind, images in layout.test.items() for _ in images])
    config = Config(backbone="dinov2-small", weights=weights, precision="fp32")
    original = Detector(config, device="cpu").fit(layout.train)

    def moved(precision: Literal["fp32", "bf16"], device: str) -> Detector:
        detector = Detector(replace(config, precision=precision), device=device)
        detector.model = replace(
            original.model, config=detector.config, memory=original.model.memory.to(detector.device)
        )
        return detector

    def scores(precision: Literal["fp32", "bf16"], device: str) -> Tensor:
        detector = moved(precision, device)
        return torch.cat(
            [detector.scorer.measure_pixels(pixels)[0].cpu() for _, pixels in detector.reader.extractor.batches(tests)]
        )

    reference, rows = scores("fp32", "cpu"), []
    for precision in ("fp32", "bf16"):
        found = scores(precision, "cuda")  # type: ignore[arg-type]
        error = ((found - reference).abs() / reference).max().item()
        note = f"{len(tests)} images; " + ranking(found, reference, labels)
        rows.append(row(f"real image scores, cuda {precision} against cpu fp32", error, 0, "relative", note))
    detector = moved("bf16", "cuda")
    detector.predict([*tests])  # compiles
    detector.predict(tests[0])  # is recorded
    together, spread = seconds(lambda: list(detector.predict_each(tests)), 5)
    alone, _ = seconds(lambda: [detector.predict(path) for path in tests], 5)
    note = f"{len(tests) / together:.0f} images a second, {alone / together:.1f} times one by one"
    each = 1000 / len(tests)
    rows.append(row("files to predictions, ViT-S/14 bf16", together * each, spread * each, "ms/image", note))
    return rows


def ranking(scores: Tensor, reference: Tensor, labels: Tensor) -> str:
    swapped = (scores[:, None] > scores[None]) & (reference[:, None] < reference[None])
    across = swapped[labels][:, ~labels].sum() + swapped[~labels][:, labels].sum()
    return f"{int(swapped.sum())} pairs change order, {int(across)} of them good against defective"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights")
    parser.add_argument("--category", type=Path)
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("this benchmark needs a CUDA device")
    rows = coreset_rows()
    memory = make_memory()
    rows += scoring_rows(memory)
    with tempfile.TemporaryDirectory() as folder:
        rows += end_to_end_rows(memory, folder)
    if arguments.weights and arguments.category:
        rows += real_rows(arguments.weights, arguments.category)
    print(f"wrote {write_rows('gpu', rows)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
