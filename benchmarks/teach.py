"""What a lesson changes: defects that are missed at the default threshold are taught, and the others are scored again.

    python benchmarks/teach.py measure teach.jsonl --data DATA --weights WEIGHTS [--tokens FOLDER] [PART ...]
    python benchmarks/teach.py summarize teach.jsonl

``measure`` fits each part on a sample of its training images (see ``samples.py``; ViT-S, 392 pixels, one bank of 1 %).
For every kind of defect of which at least two test images are missed it draws 1, 3 and 5 of the missed ones, teaches
them with their true masks, and scores the *other* images of the kind, the other kinds and the good test images. This is
repeated over draws. ``summarize`` writes ``results/teach.csv``: means over the draws, and the range that holds 95 % of
them.
"""

import argparse
import csv
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from environment import environment
from procon import Detector
from procon.method.consensus import top_mean
from procon.method.lessons import REACH, gain_of, marked_distances, normal_distances
from procon.method.score import Reading
from procon.model.fitting import measure_images, read_as_new
from procon.model.teaching import marked_patches
from procon.progress import no_progress
from procon.vision.images import open_image
from samples import PARTS, Sample, open_detector, sample_tests, sample_training
from verdicts import read_mask

TAUGHT = (1, 3, 5)  # examples
DRAWS = 10
OUTPUT = Path(__file__).parent / "results" / "teach.csv"


@dataclass
class Scored:
    """An image without lessons, and what lessons need to know about it."""

    features: list[Tensor]  # per layer [P, D]
    ranked: Tensor  # [P]
    normal: Tensor  # [P]
    marked: list[int]  # the patches of its defect

    def distances(self, anchors: list[Tensor]) -> Tensor:
        """[P, A]."""
        return marked_distances(self.features, anchors)

    def score(self, ratio: float, distances: Tensor | None = None) -> float:
        """The image score, with the anchors behind ``distances`` [P, A] if there are any."""
        if distances is None or not distances.shape[1]:
            return float(top_mean(self.ranked, ratio))
        return float(top_mean(self.ranked * gain_of(distances.amin(dim=1), self.normal), ratio))


def scored(features: list[Tensor], reading: Reading, marked: list[int]) -> Scored:
    nearest = [layer.distances[:, :, :, 0] for layer in reading.layers if layer.distances is not None]
    return Scored([layer[0] for layer in features], reading.ranked[0], normal_distances(nearest)[0], marked)


def read_part(detector: Detector, tests: list[Sample]) -> tuple[list[Scored], list[Scored]]:
    """The training images, each without its own anchors, and the test images."""
    model, reader = detector.model, detector.reader
    memory, config = model.memory, model.config

    def embedded() -> Iterator[Any]:
        return reader.embed_each([image.name for image in memory.images])

    _, stand_ins, readings = measure_images(reader, memory, embedded, no_progress)
    training = []
    for number, (features, _) in enumerate(embedded()):
        layers = readings[number] if readings else None
        training.append(scored(features, read_as_new(memory, config, stand_ins, [number], features, layers), []))
    test = []
    for sample, (features, size) in zip(tests, reader.embed_each([sample.path for sample in tests]), strict=True):
        marked: list[int] = []
        if sample.mask is not None:
            mask = read_mask(sample.mask, open_image(sample.path).size)
            marked = marked_patches(model, mask, None) if mask.any() else []
        test.append(scored(features, reader.score_features(features, size, memory), marked))
    return training, test


def measure_part(detector: Detector, root: Path) -> Iterator[dict[str, Any]]:
    """One row for every kind, number of examples and draw."""
    tests = sample_tests(root)
    training, test = read_part(detector, tests)
    assert detector.calibration is not None
    threshold, ratio = detector.calibration.threshold, detector.config.top_ratio
    kinds = [sample.kind for sample in tests]
    before = [image.score(ratio) > threshold for image in test]
    for kind in dict.fromkeys(kinds):
        own = [n for n, name in enumerate(kinds) if name == kind]
        missed = [n for n in own if not before[n] and test[n].marked]
        yield {"kind": kind, "taught": 0, "images": len(own), "found": sum(before[n] for n in own)}
        if kind == "good" or len(missed) < 2:
            continue
        for taught in TAUGHT:
            for draw in range(DRAWS if len(missed) > taught else 0):
                chosen = np.random.default_rng([draw, taught]).choice(missed, taught, replace=False).tolist()
                anchors = [
                    torch.cat([test[n].features[layer][test[n].marked] for n in chosen])
                    for layer in range(len(test[0].features))
                ]
                near = [image.distances(anchors) for image in training]
                hits = torch.stack(
                    [
                        (d < REACH * image.normal.unsqueeze(1)).any(dim=0)
                        for d, image in zip(near, training, strict=True)
                    ]
                )
                keep, count = ~hits.any(dim=0), hits.sum(dim=0)
                after = [
                    image.score(ratio, image.distances([layer[keep] for layer in anchors])) > threshold
                    for image in test
                ]
                price = [
                    image.score(ratio, d[:, count - hit.long() == 0]) > threshold
                    for image, d, hit in zip(training, near, hits, strict=True)
                ]
                rest = [n for n in own if n not in chosen]
                others = [n for n, name in enumerate(kinds) if name not in (kind, "good")]
                good = [n for n, name in enumerate(kinds) if name == "good"]
                groups = {"rest": rest, "other_kinds": others, "good": good}
                row: dict[str, Any] = {"kind": kind, "taught": taught, "draw": draw, "missed": len(missed)}
                for name, group in groups.items():
                    row[name] = [len(group), sum(before[n] for n in group), sum(after[n] for n in group)]
                flagged = sum(image.score(ratio) > threshold for image in training)
                row["training"] = [len(training), flagged, sum(price)]
                row["anchors"] = [len(keep), int(keep.sum())]
                yield row


def measure(data: Path, weights: Path, raw: Path, tokens: Path | None, parts: list[str]) -> None:
    """Measure the parts that are not in ``raw`` yet."""
    done = {row["part"] for row in read_rows(raw)}
    for part in parts:
        if part in done:
            continue
        detector = open_detector(weights, tokens, coreset_ratio=0.01, banks=1)
        detector.fit(sample_training(data / part))
        with torch.inference_mode():
            rows = list(measure_part(detector, data / part))
        with raw.open("a", encoding="utf-8") as stream:
            for row in rows:
                stream.write(json.dumps({"part": part, **row, "environment": environment()}) + "\n")
        print(part, flush=True)


def read_rows(raw: Path) -> list[dict[str, Any]]:
    """The lines of an earlier measurement."""
    return [json.loads(line) for line in raw.read_text(encoding="utf-8").splitlines()] if raw.exists() else []


def summarize(raw: Path) -> None:
    """Write ``results/teach.csv``: one row for every part, kind and number of examples."""
    groups: dict[tuple[str, str, int], list[dict[str, Any]]] = {}
    for row in read_rows(raw):
        if row["taught"]:
            groups.setdefault((row["part"], row["kind"], row["taught"]), []).append(row)
    lines = []
    for (part, kind, taught), rows in groups.items():
        line: dict[str, Any] = {"part": part, "kind": kind, "taught": taught, "draws": len(rows)}
        line["missed"] = rows[0]["missed"]
        for name, label in (
            ("rest", "others"),
            ("other_kinds", "other_kinds"),
            ("good", "good"),
            ("training", "training"),
        ):
            values = np.array(
                [[before / max(count, 1), after / max(count, 1)] for count, before, after in (r[name] for r in rows)]
            )
            low, high = np.percentile(values[:, 1], (2.5, 97.5))
            line[f"{label}_images"] = rows[0][name][0]
            line[f"{label}_before"] = f"{values[:, 0].mean():.3f}"
            line[f"{label}_after"] = f"{values[:, 1].mean():.3f}"
            line[f"{label}_low"], line[f"{label}_high"] = f"{low:.3f}", f"{high:.3f}"
        line["anchors_kept"] = f"{np.mean([r['anchors'][1] / r['anchors'][0] for r in rows]):.2f}"
        lines.append(line)
    with OUTPUT.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, list(lines[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)
    print(f"wrote {OUTPUT}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("measure", "summarize"))
    parser.add_argument("raw", type=Path)
    parser.add_argument("parts", nargs="*", default=list(PARTS))
    parser.add_argument("--data", type=Path)
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--tokens", type=Path, help="keep features here, so that a second run is quick")
    arguments = parser.parse_args()
    if arguments.command == "measure":
        measure(arguments.data, arguments.weights, arguments.raw, arguments.tokens, arguments.parts or list(PARTS))
    else:
        summarize(arguments.raw)


if __name__ == "__main__":
    main()
