"""What a smaller or faster memory costs and gains on real images. Writes ``benchmarks/results/compression.csv``.

    python benchmarks/compression.py --data DIR_OF_MPDD --weights dinov2_vits14_dav2_fp16.safetensors

The recipe at 5 % with five banks, once per setting of ``compression``; the memory is selected once and shared.
"""

import argparse
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from environment import write_rows
from procon import Config, Detector
from procon.config import CHOICES
from procon.evaluation.data.datasets import read_mask
from procon.evaluation.metrics import evaluate
from procon.method.consensus import top_mean
from procon.method.score import score_patches
from procon.model.file import save_model
from procon.vision.folders import read_layout
from procon.vision.images import open_each

COLUMNS = ("i_auroc", "i_ap", "i_f1", "p_auroc", "p_ap", "p_f1", "aupro")


def measure(category: Path, weights: str) -> list[dict[str, Any]]:
    layout = read_layout(category)
    config = Config(backbone="dinov2-small", weights=weights)
    fitted = Detector(config).fit(category)
    assert fitted.memory is not None
    tests = [path for images in layout.test.values() for path in images]
    features = [
        fitted.reader.extractor.features(pixels) for _, pixels in fitted.reader.extractor.batches(open_each(tests))
    ]
    labels = np.array([kind != "good" for kind, images in layout.test.items() for _ in images])
    masks = np.zeros((len(tests), *config.input_size), bool)
    for index, path in enumerate(tests):
        if labels[index]:
            mask = category / "ground_truth" / path.parent.name / f"{path.stem}_mask.png"
            masks[index] = read_mask(mask, config.input_size)
    rows = []
    for compression in CHOICES["compression"]:
        changed = replace(config, compression=compression)  # type: ignore[arg-type]
        layers = tuple(layer.compressed(compression) for layer in fitted.memory.layers)
        memory = replace(fitted.memory, layers=layers)
        score_patches(features[0], memory, changed)  # builds what is built once
        patch_scores: list[Tensor] = []
        times = []
        for image in features:
            begin = time.perf_counter()
            patch_scores.append(score_patches(image, memory, changed).scores)
            times.append(time.perf_counter() - begin)
        stacked = torch.cat(patch_scores)
        scores = top_mean(stacked, config.top_ratio).numpy()
        found = evaluate(scores, labels, fitted.reader.input_maps(stacked).numpy(), masks)
        result: dict[str, Any] = {"category": category.name, "compression": compression}
        result |= {name: round(100 * found[name], 2) for name in COLUMNS}
        result |= {
            "model_mib": model_mib(fitted, changed, memory),
            "score_ms": round(1000 * statistics.median(times), 1),
        }
        print(result, flush=True)
        rows.append(result)
    return rows


def model_mib(fitted: Detector, config: Config, memory: Any) -> float:
    """Size of the model file with this memory."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.procon"
        save_model(path, replace(fitted.model, config=config, memory=memory))
        return round(path.stat().st_size / 2**20, 2)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--weights", required=True)
    parser.add_argument("--categories", nargs="+", default=["metal_plate", "bracket_white"])
    arguments = parser.parse_args()
    rows = [row for name in arguments.categories for row in measure(arguments.data / name, arguments.weights)]
    print(f"wrote {write_rows('compression', rows)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
