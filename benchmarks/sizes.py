"""Small defects: the whole image at once, larger, or larger in tiles. What each finds and costs, on real images.

    python benchmarks/sizes.py --weights dinov2_vits14_dav2_fp16.safetensors CATEGORY_DIR [CATEGORY_DIR ...]

Every variant runs in a process of its own, so that its peak memory is its own. Maps are compared with the masks at the
size of the images. Writes ``benchmarks/results/sizes.csv``.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from environment import write_rows
from procon import Config, Detector
from procon.evaluation.data.datasets import open_dataset, read_mask
from procon.evaluation.metrics import evaluate

VARIANTS: dict[str, dict[str, Any]] = {
    "392": {"image_size": 392},
    "784 in tiles of 392": {"image_size": 784, "tile": 392},
    "784 at once": {"image_size": 784},
}
METRICS = ("i_auroc", "i_ap", "i_f1", "p_auroc", "p_ap", "p_f1", "aupro")


def measure(folder: Path, weights: str, variant: str) -> dict[str, Any]:
    """Fit and score one variant; its row, without the environment."""
    dataset = open_dataset(folder, "folder")
    category = dataset.category(dataset.categories[0])
    shared: dict[str, Any] = {"banks": 1, "coreset_ratio": 0.01, "precision": "fp32"}
    detector = Detector(Config(backbone="dinov2-small", weights=weights, **shared, **VARIANTS[variant]))
    start = time.perf_counter()
    detector.fit(list(category.train))
    fitted = time.perf_counter()
    found = detector.predict([sample.path for sample in category.test])
    scored = time.perf_counter()
    masks = [
        read_mask(sample.mask, one.heatmap.shape) if sample.mask else None
        for sample, one in zip(category.test, found, strict=True)
    ]
    labels = [sample.defective for sample in category.test]
    metrics = evaluate([one.score for one in found], labels, [one.heatmap for one in found], masks)
    return {
        "category": category.name,
        "variant": variant,
        **{name: round(100 * metrics[name], 2) for name in METRICS},
        "fit_s": round(fitted - start, 1),
        "score_s": round((scored - fitted) / len(found), 3),
        "peak_gib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("categories", type=Path, nargs="+")
    parser.add_argument("--weights", required=True)
    parser.add_argument("--variant", choices=VARIANTS, help="measure this one alone and print its row")
    arguments = parser.parse_args()
    if arguments.variant:
        print(json.dumps(measure(arguments.categories[0], arguments.weights, arguments.variant)))
        return 0
    rows = []
    for folder in arguments.categories:
        for variant in VARIANTS:
            command = [sys.executable, __file__, str(folder), "--weights", arguments.weights, "--variant", variant]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            rows.append(json.loads(done.stdout))
            print(rows[-1], flush=True)
    print(f"wrote {write_rows('sizes', rows)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
