"""Defects among the training images: are they found, and what does leaving them out gain? On real images.

    python benchmarks/suspects.py --weights dinov2_vits14_dav2_fp16.safetensors CATEGORY_DIR [CATEGORY_DIR ...]

For each category, share and seed, defective test images are mixed into the good ones and the rest of the test set is
scored: by a detector that knows nothing of it, by one fitted again without the suspects, by one with density-biased
pruning (the paper's failed remedy), and by one fitted on the good images alone. Writes
``benchmarks/results/suspects.csv``.
"""

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from environment import write_rows
from procon import Config, Detector
from procon.evaluation.data.datasets import Category, Sample, open_dataset, read_mask
from procon.evaluation.metrics import evaluate
from procon.vision.images import open_each

SHARES = (0.0, 0.05, 0.1, 0.2)


def measure(detector: Detector, test: list[Sample]) -> dict[str, float]:
    scores: list[float] = []
    maps: list[Any] = []
    for _, pixels in detector.reader.extractor.batches(open_each([sample.path for sample in test])):
        image_scores, image_maps, _ = detector.scorer.measure_pixels(pixels)
        scores += image_scores.tolist()
        maps += list(image_maps.cpu().numpy())
    size = detector.config.input_size
    masks = [read_mask(sample.mask, size) if sample.mask else None for sample in test]
    found = evaluate(scores, [sample.defective for sample in test], maps, masks)
    return {name: round(100 * found[name], 2) for name in ("i_auroc", "p_ap", "aupro")}


def rows_of(category: Category, config: Config, share: float, seed: int) -> list[dict[str, Any]]:
    bad = [sample for sample in category.test if sample.defective]
    count = round(share * len(category.train) / (1 - share))
    chosen = set(np.random.RandomState(seed).permutation(len(bad))[:count].tolist())
    planted = [bad[index].path for index in sorted(chosen)]
    test = [sample for sample in category.test if sample.path not in set(planted)]
    shared = {"category": category.name, "share": share, "seed": seed, "train": len(category.train), "planted": count}

    dirty = Detector(config).fit([*category.train, *planted])
    ranked = dirty.suspects()
    flagged = {Path(suspect.image) for suspect in ranked if suspect.flagged}
    hits = len(flagged & set(planted))
    first = sum(Path(suspect.image) in set(planted) for suspect in ranked[:count])
    counts = {"found": hits, "false": len(flagged) - hits, "first": first}
    kept = [path for path in (*category.train, *planted) if path not in flagged]
    variants = {
        "as it is": dirty,
        "without suspects": Detector(config).fit(kept) if flagged else dirty,
        "density-biased pruning": Detector(replace(config, coreset="dense")).fit([*category.train, *planted]),
        "good images alone": Detector(config).fit(list(category.train)) if count else dirty,
    }
    rows = []
    for name, detector in variants.items():
        rows.append({**shared, "memory": name, **measure(detector, test), **counts})
        print(rows[-1], flush=True)
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("categories", type=Path, nargs="+")
    parser.add_argument("--weights", required=True)
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    config = Config(backbone="dinov2-small", weights=arguments.weights, precision="fp32")
    rows = []
    for folder in arguments.categories:
        dataset = open_dataset(folder, "folder")
        category = dataset.category(dataset.categories[0])
        for share in SHARES:
            for seed in range(arguments.seeds if share else 1):
                rows += rows_of(category, config, share, seed)
    print(f"wrote {write_rows('suspects', rows)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
