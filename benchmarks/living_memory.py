"""How far an edited memory is from one built anew. Writes ``benchmarks/results/living_memory.csv``.

    python benchmarks/living_memory.py --data DIR_OF_MPDD --weights dinov2_vits14_dav2_fp16.safetensors

The training images in order of name are cut in two. Each edit is compared with the full fit on the same images, on the
scores of all test images. The first row is the yardstick: two full fits that differ in the seeds of their banks alone.
"""

import argparse
import copy
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from environment import write_rows
from procon import Config, Detector
from procon.evaluation.data.datasets import read_mask
from procon.evaluation.metrics import evaluate
from procon.method.consensus import top_mean
from procon.method.score import score_patches
from procon.vision.folders import read_layout
from procon.vision.images import open_each


class Judge:
    """The test images of a category, embedded once, and what a detector makes of them."""

    def __init__(self, category: Path, detector: Detector) -> None:
        layout = read_layout(category)
        tests = [path for images in layout.test.values() for path in images]
        self.labels = np.array([kind != "good" for kind, images in layout.test.items() for _ in images])
        self.features = [
            detector.reader.extractor.features(px) for _, px in detector.reader.extractor.batches(open_each(tests))
        ]
        self.masks = np.zeros((len(tests), *detector.config.input_size), bool)
        for index, path in enumerate(tests):
            if self.labels[index]:
                mask = category / "ground_truth" / path.parent.name / f"{path.stem}_mask.png"
                self.masks[index] = read_mask(mask, detector.config.input_size)

    def __call__(self, detector: Detector) -> tuple[NDArray[Any], dict[str, float]]:
        """Scores of all test images, and how well they and the maps tell good from bad, in percent."""
        assert detector.memory is not None
        maps: list[Tensor] = [score_patches(image, detector.memory, detector.config).scores for image in self.features]
        stacked = torch.cat(maps)
        scores = top_mean(stacked, detector.config.top_ratio).numpy()
        found = evaluate(scores, self.labels, detector.reader.input_maps(stacked).numpy(), self.masks)
        return scores, {name: 100 * found[name] for name in ("i_auroc", "p_ap")}


def measure(category: Path, config: Config, first: int) -> list[dict[str, Any]]:
    images = list(read_layout(category).train)
    some, more = images[:first], images[first:]
    whole, whole_s = timed(lambda: Detector(config).fit(images))
    part, part_s = timed(lambda: Detector(config).fit(some))
    second = Detector(config).fit(more)
    judge = Judge(category, whole)
    full, less = facts(whole, whole_s, judge), facts(part, part_s, judge)
    other_seeds = Config(**{**config.to_dict(), "bank_seed": 100})
    edits: list[tuple[str, Callable[[], Detector], Facts]] = [
        ("none, other bank seeds", lambda: Detector(other_seeds).fit(images), full),
        (f"add {len(more)} to {first}", lambda: copy.copy(part).partial_fit(more), full),
        (f"merge {first} and {len(more)}", lambda: copy.copy(part).merge(second), full),
        (f"forget {len(more)} of {len(images)}", lambda: copy.copy(whole).forget(more), less),
    ]
    rows = []
    for name, make, rebuilt in edits:
        edited = facts(*timed(make), judge)
        change = np.abs(edited.scores - rebuilt.scores) / rebuilt.scores
        row: dict[str, Any] = {"category": category.name, "edit": name}
        row |= {
            "correlation": round(float(np.corrcoef(edited.scores, rebuilt.scores)[0, 1]), 5),
            "median_change_percent": round(100 * float(np.median(change)), 3),
            "largest_change_percent": round(100 * float(change.max()), 3),
        }
        for column in edited.columns:
            row |= {f"{column}_edited": edited.columns[column], f"{column}_rebuilt": rebuilt.columns[column]}
        print(row, flush=True)
        rows.append(row)
    return rows


@dataclass(frozen=True)
class Facts:
    """What is compared of a detector, taken before it is edited."""

    scores: NDArray[Any]
    columns: dict[str, float]


def facts(detector: Detector, seconds: float, judge: Judge) -> Facts:
    scores, quality = judge(detector)
    assert detector.memory and detector.calibration
    columns = {name: round(value, 2) for name, value in quality.items()}
    columns |= {"threshold": round(detector.calibration.threshold, 4), "images": len(detector.memory.images)}
    columns |= {"anchors": detector.memory.layers[0].banks.shape[1], "seconds": round(seconds, 1)}
    return Facts(scores, columns)


def timed(make: Callable[[], Detector]) -> tuple[Detector, float]:
    begin = time.perf_counter()
    return make(), time.perf_counter() - begin


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--weights", required=True)
    parser.add_argument("--category", default="metal_plate")
    parser.add_argument("--first", type=int, default=40, help="images of the first fit, before the edit")
    arguments = parser.parse_args()
    config = Config(backbone="dinov2-small", weights=arguments.weights)
    rows = measure(arguments.data / arguments.category, config, arguments.first)
    print(f"wrote {write_rows('living_memory', rows)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
