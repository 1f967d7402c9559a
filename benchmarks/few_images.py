"""Verdicts from one to seven good images: false alarms, defects found, and what labels could have chosen.

    python benchmarks/few_images.py --data DATA --weights WEIGHTS [--tokens FOLDER] [PART ...]

For each part and number of images a detector is fitted on random draws of the sample of ``samples.py`` (``Config()``,
ViT-S), and the default threshold judges the test images of that sample. With one image the threshold
is a multiple of the score of its mirror image; for it, other multiples are judged too. Writes
``results/few_images.csv``: means over the draws that have a threshold, with the lowest and the highest.
"""

import argparse
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import torch

from environment import write_rows
from procon.method.consensus import top_mean
from procon.model.fitting import MIRROR_MARGIN
from samples import PARTS, open_detector, sample_tests, sample_training
from verdicts import judge

COUNTS = (1, 2, 3, 5, 7)
DRAWS = 4
MARGINS = (1.0, MIRROR_MARGIN, 1.25)


def measure(root: Path, weights: Path, tokens: Path | None) -> list[dict[str, Any]]:
    """A row for every number of images, and for one image one for every margin."""
    detector = open_detector(weights, tokens)
    known, tests = sample_training(root), sample_tests(root)
    bad = np.array([sample.mask is not None for sample in tests])
    read = list(detector.reader.embed_each([sample.path for sample in tests]))
    verdicts: dict[tuple[int, float], list[dict[str, Any]]] = {}
    without: Counter[int] = Counter()
    for count in COUNTS:
        for draw in range(DRAWS):
            chosen = np.random.default_rng([draw, count]).choice(len(known), count, replace=False)
            detector.fit([known[number] for number in chosen])
            if detector.calibration is None:  # leave-one-out needs k anchors of the other images
                without[count] += 1
                continue
            with torch.inference_mode():
                readings = [detector.reader.score_features(*one, detector.model.memory) for one in read]
            scores = np.array([float(top_mean(one.ranked, detector.config.top_ratio)) for one in readings])
            best = max(judge(scores, bad, limit)["balanced_accuracy"] for limit in scores)
            for margin in MARGINS if count == 1 else (MIRROR_MARGIN,):
                limit = detector.calibration.threshold * margin / MIRROR_MARGIN
                verdicts.setdefault((count, margin), []).append({**judge(scores, bad, limit), "best": best})
    return [
        {**summarize(count, margin, draws), "draws_without_threshold": without[count]}
        for (count, margin), draws in verdicts.items()
    ]


def summarize(count: int, margin: float, draws: list[dict[str, Any]]) -> dict[str, Any]:
    """Means over the draws."""
    alarms = [draw["false_alarms"] / draw["good"] for draw in draws]
    found = [draw["found"] / draw["defects"] for draw in draws]
    accuracies = [draw["balanced_accuracy"] for draw in draws]
    return {
        "images": count,
        "margin": margin if count == 1 else "",
        "draws": len(draws),
        "false_alarms": round(float(np.mean(alarms)), 4),
        "found": round(float(np.mean(found)), 4),
        "balanced_accuracy": round(float(np.mean(accuracies)), 4),
        "lowest": round(min(accuracies), 4),
        "highest": round(max(accuracies), 4),
        "best_with_labels": round(float(np.mean([draw["best"] for draw in draws])), 4),
    }


def main() -> None:
    """Measure part by part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=list(PARTS))
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--tokens", type=Path, help="keep features here, so that a second run is quick")
    given = parser.parse_intermixed_args()
    rows: list[dict[str, Any]] = []
    for part in given.parts:
        rows += [{"part": part, **row} for row in measure(given.data / part, given.weights, given.tokens)]
        write_rows("few_images", rows)
        print(part, flush=True)


if __name__ == "__main__":
    main()
