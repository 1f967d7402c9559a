"""From the files of :mod:`research.study` to ``benchmarks/results/study.csv``: a row for every map and every score.

    PYTHONPATH=src:benchmarks python -m research.choose OUT [OUT ...]

Image scores are made here, from the descriptors of each map: the mean of the highest patches, or how far all
descriptors lie from those of good images (a diagonal Mahalanobis distance, the idea of StructCore). The threshold of a
verdict follows from good images alone, by the package's default rule. Rows of other parts, or of other numbers of
training images, are kept.
"""

import argparse
import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from environment import RESULTS, environment, read_rows
from procon.config import Config
from procon.evaluation.metrics import evaluate
from procon.model.calibration import Calibration, GoodScore

OUTPUT = RESULTS / "study.csv"
METRICS = ("i_auroc", "i_ap", "p_auroc", "p_ap", "p_f1", "aupro", "drawn_p_auroc", "drawn_p_ap", "drawn_aupro")
FIELDS = ("part", "seed", "reading", "taken", "kind", "train", "good", "defective", *METRICS, "verdict")
TAKEN = {"top 0.1%": 0, "top 0.5%": 1, "top 1%": 2, "top 3%": 3, "smooth top 0.5%": 4}
Values = NDArray[np.floating[Any]]


def structure(numbers: Values, good: Values) -> Values:
    """How far descriptors [N, F] lie from those of good images [M, F], each in its own standard deviations: [N].

    Less than usual counts nothing: a map that is quieter than those of good images shows no defect.
    """
    spread = good.std(axis=0, ddof=1)
    excess = np.maximum(0, (numbers - good.mean(axis=0)) / np.maximum(spread, 1e-9 + 1e-3 * np.abs(good.mean(axis=0))))
    distance: Values = np.sqrt(np.square(excess).mean(axis=1))
    return distance


def image_scores(test: Values, good: Values) -> Iterator[tuple[str, Values, Values]]:
    """Every way to take an image score from descriptors: its name, the scores of test and of good images."""
    for name, place in TAKEN.items():
        yield name, test[:, place], good[:, place]
    distances = [structure(numbers, good) for numbers in (test, good)]
    yield "structure", distances[0], distances[1]
    top = good[:, TAKEN["top 0.5%"]]
    centre, spread = top.mean(), max(float(top.std(ddof=1)), 1e-9)
    sums = [
        (numbers[:, TAKEN["top 0.5%"]] - centre) / spread + distance
        for numbers, distance in zip((test, good), distances, strict=True)
    ]
    yield "top 0.5% and structure", sums[0], sums[1]


def verdict(scores: Values, bad: NDArray[np.bool_], good: Values) -> float:
    """Balanced accuracy in percent at the default threshold, from the scores of good images."""
    known = Calibration.of([GoodScore(float(score), 0.0, 0.0) for score in good], Config.false_alarm_rate)
    flagged = scores > known.threshold
    return 50 * float(flagged[bad].mean() + (~flagged[~bad]).mean())


def score_rows(folder: Path, parts: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A row for each part, seed, set of values and way to take a score."""
    for path in sorted(folder.glob("scores-*.npz")):
        with np.load(path) as arrays:
            for name in arrays.files:
                part, which = name.split(":")
                if which != "test":
                    continue
                test, good = arrays[name].astype(float), arrays[f"{part}:good"].astype(float)
                bad = ~np.array(parts[part]["good"])
                for reading, one, other in zip(parts["scores"], test, good, strict=True):
                    for taken, scores, usual in image_scores(one, other):
                        found = evaluate(scores, bad)
                        row = {"part": part, "seed": path.stem.split("-")[1], "reading": reading, "taken": taken}
                        row |= {metric: round(100 * found[metric], 2) for metric in ("i_auroc", "i_ap")}
                        yield row | {"kind": "all", "verdict": round(verdict(scores, bad, usual), 2)}


def map_rows(folder: Path) -> Iterator[dict[str, Any]]:
    """The rows of the maps, to two digits."""
    with (folder / "maps.csv").open(newline="", encoding="utf-8") as stream:
        for row in csv.DictReader(stream):
            numbers = {name: round(float(row[name]), 2) for name in METRICS if row.get(name)}
            yield {name: row[name] for name in ("part", "seed", "reading", "kind")} | numbers | {"taken": "map"}


def rows_of(folder: Path) -> Iterator[dict[str, Any]]:
    """The rows of what one run of the study wrote."""
    parts = json.loads((folder / "parts.json").read_text(encoding="utf-8"))
    for row in (*map_rows(folder), *score_rows(folder, parts)):
        if row["part"] in parts:  # a part that was interrupted has no counts
            about = parts[row["part"]]
            counts = {"train": about["train"], "good": sum(about["good"])}
            counts["defective"] = len(about["good"]) - counts["good"]
            yield row | counts | parts["environment"]


def main() -> None:
    """Write the results file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+", help="what research.study wrote")
    rows = [row for folder in parser.parse_args().folders for row in rows_of(folder)]
    measured = {(row["part"], str(row["train"])) for row in rows}
    kept = [row for row in read_rows(OUTPUT.stem) if (row["part"], row["train"]) not in measured]
    with OUTPUT.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, [*FIELDS, *(name for name in rows[0] if name in environment())])
        writer.writeheader()
        writer.writerows([*kept, *rows])
    print(f"wrote {OUTPUT}")


if __name__ == "__main__":
    main()
