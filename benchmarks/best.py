"""Config.best() beside Config() as users run them: accuracy, time to fit, time per image, size of the file.

    python benchmarks/best.py --weights dinov2_vits14_dav2_fp16.safetensors hazelnut_toy

Writes ``benchmarks/results/best.csv``. Maps are judged at the size of the input, as ``procon eval`` does it.
"""

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from environment import write_rows
from procon import Config, Detector
from procon.evaluation.data.datasets import open_dataset, read_mask
from procon.evaluation.metrics import evaluate
from procon.vision.images import open_image
from research.leaderboard import IMAGE, PIXEL, samples_of


def measure(part: Path, recipe: str, config: Config, device: str) -> dict[str, Any]:
    """One row: a recipe on a part."""
    dataset = open_dataset(part)
    category = dataset.category(dataset.categories[0])
    samples = samples_of(category)
    detector = Detector(config, device=device)
    detector.reader.extractor  # noqa: B018 - loads the weights, which is not part of the fit
    start = time.perf_counter()
    detector.fit(list(category.train))
    fit = time.perf_counter() - start
    detector.predict(samples[0].path)
    scores, maps, seconds = [], [], []
    for sample in samples:
        picture = open_image(sample.path)
        start = time.perf_counter()
        ((_, pixels),) = detector.reader.extractor.batches([picture])
        score, input_map, _ = detector.scorer.measure_pixels(pixels, picture.size)
        scores.append(float(score[0]))
        maps.append(input_map[0].cpu().numpy())
        seconds.append(time.perf_counter() - start)
    masks = [None if sample.mask is None else read_mask(sample.mask, detector.config.input_size) for sample in samples]
    found = evaluate(np.array(scores), np.array([sample.defective for sample in samples]), maps, masks)
    with tempfile.TemporaryDirectory() as folder:
        size = detector.save(Path(folder) / "part.procon").stat().st_size
    assert detector.memory is not None
    anchors = sum(len(layer.anchors) for layer in detector.memory.layers)
    return (
        {"part": part.name, "recipe": recipe, "train": len(category.train), "test": len(samples)}
        | {name: round(100 * found[name], 2) for name in (*IMAGE, *PIXEL)}
        | {"fit_s": round(fit, 1), "image_ms": round(1000 * float(np.median(seconds)), 1), "anchors": anchors}
        | {"file_mb": round(size / 1e6, 2), "backbone": "ViT-S/14 (Depth Anything V2)"}
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="+", type=Path, help="folders with train/good, test/* and ground_truth/*")
    parser.add_argument("--weights", required=True)
    parser.add_argument("--device", default="auto")
    arguments = parser.parse_args()
    settings = {"backbone": "dinov2-small", "weights": arguments.weights, "precision": "fp32"}
    recipes = {"paper": Config(**settings), "best": Config.best(image_size=672, **settings)}
    rows = []
    for part in arguments.parts:
        for name, config in recipes.items():
            rows.append(measure(part, name, config, arguments.device))
            print(rows[-1], flush=True)
    print(f"wrote {write_rows('best', rows)}")


if __name__ == "__main__":
    main()
