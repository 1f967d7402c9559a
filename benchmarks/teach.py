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
RATE = 0.01  # the default false-alarm rate
OUTPUT = Path(__file__).parent / "results" / "teach.csv"
COLUMNS = (
    *("part", "kind", "taught", "images", "found", "draws", "missed", "refused"),
    *(
        f"{group}_{what}"
        for group in ("others", "other_kinds", "good", "training")
        for what in ("images", "before", "after", "low", "high")
    ),
    "anchors_kept",
)


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
    flagged = sum(image.score(ratio) > threshold for image in training)
    for kind in dict.fromkeys(kinds):
        own = [n for n, name in enumerate(kinds) if name == kind]
        missed = [n for n in own if not before[n] and test[n].marked]
        yield {"kind": kind, "taught": 0, "images": len(own), "found": sum(before[n] for n in own)}
        if kind == "good" or len(missed) < 2:
            continue
        groups = {"other_kinds": [n for n, name in enumerate(kinds) if name not in (kind, "good")]}
        groups["good"] = [n for n, name in enumerate(kinds) if name == "good"]
        lessons = Lessons(training, test, missed)
        for taught in TAUGHT:
            for draw in range(DRAWS if len(missed) > taught else 0):
                chosen = np.random.default_rng([draw, taught]).choice(missed, taught, replace=False).tolist()
                after, price, anchors = lessons.teach(chosen, ratio, threshold)
                row: dict[str, Any] = {"kind": kind, "taught": taught, "draw": draw, "missed": len(missed)}
                for name, group in {"rest": [n for n in own if n not in chosen], **groups}.items():
                    row[name] = [len(group), sum(before[n] for n in group), sum(after[n] for n in group)]
                yield {**row, "training": [len(training), flagged, sum(price)], "anchors": anchors}


class Lessons:
    """The marked patches of the ``missed`` test images, and how far every patch is from each: measured once."""

    def __init__(self, training: list[Scored], test: list[Scored], missed: list[int]) -> None:
        anchors = [
            torch.cat([test[n].features[layer][test[n].marked] for n in missed])
            for layer in range(len(test[0].features))
        ]
        self._training, self._test = training, test
        self._source = torch.tensor([n for n in missed for _ in test[n].marked])
        self._near_training = [image.distances(anchors) for image in training]
        self._near_test = [image.distances(anchors) for image in test]

    def teach(self, chosen: list[int], ratio: float, threshold: float) -> tuple[list[bool], list[bool], list[int]]:
        """What is flagged with the ``chosen`` images as lessons: test images, training images, and anchors kept.

        As in ``procon teach``: a marked patch that is evidence on a training image is left out, and a training image is
        scored with the patches that no other one leaves out.
        """
        own = torch.isin(self._source, torch.tensor(chosen))
        near = [distances[:, own] for distances in self._near_training]
        hits = torch.stack(
            [(d < REACH * image.normal.unsqueeze(1)).any(dim=0) for d, image in zip(near, self._training, strict=True)]
        )
        keep, count = ~hits.any(dim=0), hits.sum(dim=0)
        after = [
            image.score(ratio, distances[:, own][:, keep]) > threshold
            for image, distances in zip(self._test, self._near_test, strict=True)
        ]
        price = [
            image.score(ratio, d[:, count - hit.long() == 0]) > threshold
            for image, d, hit in zip(self._training, near, hits, strict=True)
        ]
        return after, price, [len(keep), int(keep.sum())]


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


GROUPS = {"rest": "others", "other_kinds": "other_kinds", "good": "good", "training": "training"}


def summarize(raw: Path) -> None:
    """Write ``results/teach.csv``: for every part and kind what is found without lessons, then with 1, 3 and 5."""
    rows = read_rows(raw)
    groups: dict[tuple[str, str, int], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["part"], row["kind"], row["taught"]), []).append(row)
    lines = [summarize_draws(*group, rows) for group, rows in groups.items()]
    machine = rows[0]["environment"]
    with OUTPUT.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, [*COLUMNS, *machine], lineterminator="\n", restval="")
        writer.writeheader()
        writer.writerows({**line, **machine} for line in lines)
    print(f"wrote {OUTPUT}")


def summarize_draws(part: str, kind: str, taught: int, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Means over the draws of one part, kind and number of examples, and the range that holds 95 % of them."""
    line: dict[str, Any] = {"part": part, "kind": kind, "taught": taught}
    if not taught:
        return line | {"images": rows[0]["images"], "found": rows[0]["found"]}
    line |= {"draws": len(rows), "missed": rows[0]["missed"], "refused": sum(map(is_refused, rows))}
    for name, label in GROUPS.items():
        counts, before, after = (np.array(column, float) for column in zip(*(row[name] for row in rows), strict=True))
        shares = after / np.maximum(counts, 1)
        low, high = np.percentile(shares, (2.5, 97.5))
        line[f"{label}_images"] = int(counts.mean())
        line[f"{label}_before"] = f"{(before / np.maximum(counts, 1)).mean():.3f}"
        line[f"{label}_after"] = f"{shares.mean():.3f}"
        line[f"{label}_low"], line[f"{label}_high"] = f"{low:.3f}", f"{high:.3f}"
    line["anchors_kept"] = f"{np.mean([row['anchors'][1] / row['anchors'][0] for row in rows]):.2f}"
    return line


def is_refused(row: dict[str, Any]) -> bool:
    """Whether ``procon teach`` refuses the lesson without ``--force``: nothing is left of it, or it costs too much."""
    count, before, after = row["training"]
    return not row["anchors"][1] or (after > before and after > RATE * count)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("measure", "summarize"))
    parser.add_argument("raw", type=Path)
    parser.add_argument("parts", nargs="*", default=list(PARTS))
    parser.add_argument("--data", type=Path)
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--tokens", type=Path, help="keep features here, so that a second run is quick")
    arguments = parser.parse_intermixed_args()
    if arguments.command == "measure":
        measure(arguments.data, arguments.weights, arguments.raw, arguments.tokens, arguments.parts or list(PARTS))
    else:
        summarize(arguments.raw)


if __name__ == "__main__":
    main()
