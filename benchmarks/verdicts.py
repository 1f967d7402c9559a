"""Verdicts on real parts at the default threshold: defects found and false alarms, by part, recipe and rule.

    python benchmarks/verdicts.py measure verdicts.jsonl --data DATA --weights WEIGHTS [--device cuda]
    python benchmarks/verdicts.py summarize verdicts.jsonl

``measure`` fits a detector on each part as a user does and stores the scores of the training images and of the test
images, one JSON line for each part and recipe; parts that are already in the file are skipped. ``summarize`` reads only
these lines, or those of ``research/thresholds.py``, which has many training draws: another rate or rule needs no new
measurement. It writes ``results/verdicts.csv``.
"""

import argparse
import csv
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy import ndimage
from sklearn.metrics import roc_auc_score

from environment import environment
from procon import Config, Detector, Prediction
from procon.model.calibration import Calibration
from procon.model.rates import estimate_false_alarms

PARTS = (
    *("hazelnut_toy", "mpdd/metal_plate", "mpdd/bracket_white", "mpdd/bracket_black", "mpdd/bracket_brown"),
    *("mvtec/bottle", "mvtec/cable", "mvtec/pill", "ksdd2"),
)
RECIPES = {"Config.best()": Config.best, "Config()": Config}
EDGES = np.logspace(-3, 1, 2001)  # of heat-map values, for the best threshold that labels could choose
ROBUST_RATES = (0.01, 0.005, 0.02, 0.05)  # the default first
RULES = (*(("robust", rate) for rate in ROBUST_RATES), ("guarantee", 0.01), ("guarantee", 0.05))
DEFAULT = RULES[0]
BEST = ("best that labels could choose", "")
OUTPUT = Path(__file__).parent / "results" / "verdicts.csv"
SCORES = OUTPUT.with_name("verdict_scores.csv")  # what docs/images/threshold.png shows
SHOWN = ("mpdd/bracket_white", "mvtec/cable", "mvtec/pill", "ksdd2")


def measure(data: Path, weights: Path, raw: Path, device: str, parts: list[str]) -> None:
    """Fit on every part with every recipe, and store what was measured."""
    done = {(row["part"], row["recipe"]) for row in read_rows(raw)}
    machine = environment()
    for recipe, make in RECIPES.items():
        for part in parts:
            if (part, recipe) in done:
                continue
            started = time.perf_counter()
            detector = Detector(make(backbone="dinov2-small", weights=str(weights)), device=device)
            detector.fit(data / part / "train" / "good")
            fitted = time.perf_counter() - started
            row = {"part": part, "recipe": recipe, **measure_part(detector, data / part), "fit_seconds": fitted}
            with raw.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps({**row, "environment": machine}) + "\n")
            print(f"{recipe} {part}: {time.perf_counter() - started:.0f} s", flush=True)


def measure_part(detector: Detector, root: Path) -> dict[str, Any]:
    """Scores of training and test images, and how well regions cover the defects."""
    calibration = detector.calibration
    assert calibration is not None
    images = list(test_images(root))
    results = detector.predict_each(path for path, _, _ in images)
    scores, counts, hits = [], Counts(), []
    for (_, _, mask), result in zip(images, results, strict=True):
        assert isinstance(result, Prediction)
        scores.append(result.score)
        truth = read_mask(mask, result.heatmap.shape)
        counts.add(result.heatmap, truth)
        areas, count = ndimage.label(truth, np.ones((3, 3)))
        hits += np.atleast_1d(ndimage.maximum(result.heatmap, areas, range(1, count + 1))).tolist() if count else []
    return {
        "kinds": [kind for _, kind, _ in images],
        "scores": scores,
        "training": calibration.to_dict(),
        "counts": counts.to_dict(),
        "region_peaks": hits,
    }


def test_images(root: Path) -> Iterator[tuple[Path, str, Path | None]]:
    """Path, kind and mask of every test image; good ones have no mask."""
    for kind in sorted(path for path in (root / "test").iterdir() if path.is_dir()):
        for path in sorted(kind.iterdir()):
            names = (f"{path.stem}_mask.png", f"{path.stem}.png")
            masks = [root / "ground_truth" / kind.name / name for name in names]
            yield path, kind.name, None if kind.name == "good" else next(mask for mask in masks if mask.exists())


def read_mask(path: Path | None, shape: tuple[int, ...]) -> NDArray[np.bool_]:
    """The true defect [H, W] at the size of the heat map."""
    if path is None:
        return np.zeros(shape, bool)
    with Image.open(path) as image:
        return np.asarray(image.convert("L").resize((shape[1], shape[0]), Image.Resampling.NEAREST)) > 127


class Counts:
    """Histograms of heat-map values inside and outside of defects."""

    def __init__(self) -> None:
        self.inside = np.zeros(len(EDGES) + 1, np.int64)
        self.outside = np.zeros(len(EDGES) + 1, np.int64)

    def add(self, heatmap: NDArray[np.float32], truth: NDArray[np.bool_]) -> None:
        """Count the pixels of one image."""
        bins = np.searchsorted(EDGES, heatmap)
        self.inside += np.bincount(bins[truth], minlength=len(EDGES) + 1)
        self.outside += np.bincount(bins[~truth], minlength=len(EDGES) + 1)

    def to_dict(self) -> dict[str, list[int]]:
        """JSON-ready."""
        return {"inside": self.inside.tolist(), "outside": self.outside.tolist()}

    @classmethod
    def from_dict(cls, stored: dict[str, list[int]]) -> "Counts":
        """The inverse of :meth:`to_dict`."""
        counts = cls()
        counts.inside, counts.outside = np.array(stored["inside"]), np.array(stored["outside"])
        return counts

    def summary(self, threshold: float) -> dict[str, float]:
        """F1 of pixels at ``threshold``, and at the best that labels could choose."""
        hits, alarms = self.inside[::-1].cumsum()[::-1], self.outside[::-1].cumsum()[::-1]
        f1 = 2 * hits / np.maximum(hits + alarms + self.inside.sum(), 1)
        best = int(f1.argmax())
        at = min(int(np.searchsorted(EDGES, threshold)) + 1, len(EDGES))
        return {"f1": float(f1[at]), "best_f1": float(f1[best]), "best_threshold": float(EDGES[max(best - 1, 0)])}


def read_rows(raw: Path) -> list[dict[str, Any]]:
    """What was measured so far."""
    return [json.loads(line) for line in raw.read_text(encoding="utf-8").splitlines()] if raw.exists() else []


def summarize(raw: Path) -> list[dict[str, Any]]:
    """A row for each part, recipe and rule with all training images, then means over parts and draws."""
    rows = [(row, read_calibration(row)) for row in read_rows(raw)]
    lines = [(row.get("draw", "full"), line) for row, known in rows for line in judge_row(row, known)]
    table = [line for draw, line in lines if draw == "full"]
    for draw in dict.fromkeys(draw for draw, _ in lines):
        table += means(draw, [line for other, line in lines if other == draw])
    chosen = [(row, known) for row, known in rows if row.get("draw", "full") == "full"]
    for recipe in RECIPES:
        table += leave_one_part_out([(row, known) for row, known in chosen if row["recipe"] == recipe])
    biases = [{"part": row["part"], "recipe": row["recipe"], **row["bias"]} for row, _ in chosen if "bias" in row]
    for bias in biases:
        about = {"part": bias["part"], "recipe": bias["recipe"], "rule": "bias of leave-one-out against refits"}
        table.append({**about, **{f"bias_{kind}": round(bias[kind], 4) for kind in ("hidden", "stand_ins")}})
    return table


def read_calibration(row: dict[str, Any]) -> Calibration:
    """The calibration behind the row of a fit."""
    return Calibration.from_dict(row["training"])


def judge_row(row: dict[str, Any], known: Calibration) -> Iterator[dict[str, Any]]:
    """What every rule makes of one fit."""
    scores, bad = np.array(row["scores"]), np.array([kind != "good" for kind in row["kinds"]])
    if row.get("planted") and row["planted"][0] == "defect":  # it was in the memory
        keep = np.arange(len(scores)) != int((~bad).sum()) + row["planted"][1]
        scores, bad = scores[keep], bad[keep]
    about = {"part": row["part"], "recipe": row["recipe"], "images": len(known.scores)}
    about["image_auroc"] = round(float(roc_auc_score(bad, scores)), 4)
    for rule, rate in RULES:
        read = replace(known, rule=rule, false_alarm_rate=rate, fixed=None)
        line = {**about, "rule": rule, "rate": rate, **judge(scores, bad, read.threshold)}
        if (rule, rate) == DEFAULT and "counts" in row:
            peaks, pixels = np.array(row["region_peaks"]), Counts.from_dict(row["counts"]).summary(read.pixel_threshold)
            line |= {"set_aside": len(read.spread.aside), "pixel_f1": round(pixels["f1"], 4)}
            line["regions_hit"] = round(float((peaks > read.pixel_threshold).mean()), 4)
            line["best_pixel_f1"] = round(pixels["best_f1"], 4)
            line["regions_hit_at_best_f1"] = round(float((peaks > pixels["best_threshold"]).mean()), 4)
        yield line
    if "hidden" in row:  # the default rule on scores of images whose own anchors are only hidden
        hidden = replace(known, scores=tuple(row["hidden"]))
        yield {**about, "rule": "robust, own anchors hidden", "rate": 0.01, **judge(scores, bad, hidden.threshold)}
    best = max((judge(scores, bad, limit) for limit in scores), key=lambda one: one["balanced_accuracy"])
    yield {**about, "rule": BEST[0], "rate": BEST[1], **best}


def leave_one_part_out(rows: list[tuple[dict[str, Any], Calibration]]) -> Iterator[dict[str, Any]]:
    """For each part the rate of the robust rule that is best on the others, at 3 % false alarms on their mean."""
    judged = [[line for line in judge_row(row, known) if line["rule"] == "robust"] for row, known in rows]
    for left_out, (row, known) in enumerate(rows):
        others = [lines for number, lines in enumerate(judged) if number != left_out]
        allowed = []
        for place, line in enumerate(judged[left_out]):
            alarms = np.mean([lines[place]["false_alarms"] / lines[place]["good"] for lines in others])
            if alarms <= 0.03:
                allowed.append((np.mean([lines[place]["balanced_accuracy"] for lines in others]), place, line["rate"]))
        if allowed:
            _, place, rate = max(allowed)
            about = {"part": row["part"], "recipe": row["recipe"], "images": len(known.scores)}
            line = judged[left_out][place]
            yield {**line, **about, "rule": "robust at the rate that the other parts choose", "rate": rate}


def write_scores(raw: Path) -> None:
    """The scores behind the picture of docs/use/threshold.md."""
    with SCORES.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(["part", "group", "score"])
        for row in read_rows(raw):
            if row["part"] in SHOWN and row["recipe"] == "Config.best()" and row.get("draw", "full") == "full":
                groups = [("training", score) for score in row["training"]["scores"]]
                pairs = zip(row["kinds"], row["scores"], strict=True)
                groups += [("good" if kind == "good" else "defect", score) for kind, score in pairs]
                writer.writerows([row["part"], group, round(score, 5)] for group, score in groups)


def judge(scores: NDArray[np.float64], bad: NDArray[np.bool_], threshold: float) -> dict[str, Any]:
    """Counts and intervals of what a threshold flags."""
    alarms, found = int((scores[~bad] > threshold).sum()), int((scores[bad] > threshold).sum())
    good, defects = int((~bad).sum()), int(bad.sum())
    alarm, hit = estimate_false_alarms(alarms, good), estimate_false_alarms(found, defects)
    return {
        "false_alarms": alarms,
        "good": good,
        "false_alarm_interval": f"{alarm.low:.3f}-{alarm.high:.3f}",
        "found": found,
        "defects": defects,
        "found_interval": f"{hit.low:.3f}-{hit.high:.3f}",
        "balanced_accuracy": round((1 - alarms / good + found / defects) / 2, 4),
    }


def means(draw: str, table: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The mean over parts and draws for each recipe and rule, with the lowest balanced accuracy of a part."""
    rows = []
    for recipe, rule, rate in dict.fromkeys((line["recipe"], line["rule"], line["rate"]) for line in table):
        lines = [line for line in table if (line["recipe"], line["rule"], line["rate"]) == (recipe, rule, rate)]
        parts = list(dict.fromkeys(line["part"] for line in lines))
        mean: dict[str, Any] = {"part": f"mean of {len(parts)}, {draw}", "recipe": recipe, "rule": rule, "rate": rate}
        alarms = {part: [x["false_alarms"] / x["good"] for x in lines if x["part"] == part] for part in parts}
        found = {part: [x["found"] / x["defects"] for x in lines if x["part"] == part] for part in parts}
        mean["false_alarms"], mean["found"] = (round(mean_of_means(shares), 4) for shares in (alarms, found))
        for name in ("image_auroc", "balanced_accuracy", "pixel_f1", "regions_hit", "best_pixel_f1"):
            values = {part: [x[name] for x in lines if x["part"] == part and name in x] for part in parts}
            if all(values.values()):
                mean[name] = round(mean_of_means(values), 4)
                if name == "balanced_accuracy":
                    mean["lowest_balanced_accuracy"] = round(min(float(np.mean(v)) for v in values.values()), 4)
        rows.append(mean)
    return rows


def mean_of_means(values: dict[str, list[float]]) -> float:
    """Every part counts the same, however many draws it has."""
    return float(np.mean([np.mean(draws) for draws in values.values()]))


def main() -> None:
    """Run one of the two commands."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("measure", "summarize"))
    parser.add_argument("raw", type=Path, help="JSON lines")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--parts", default=",".join(PARTS))
    given = parser.parse_args()
    if given.command == "measure":
        measure(given.data, given.weights, given.raw, given.device, given.parts.split(","))
        return
    table = summarize(given.raw)
    write_scores(given.raw)
    columns = list(dict.fromkeys(name for line in table for name in line))
    with OUTPUT.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, columns, restval="")
        writer.writeheader()
        writer.writerows(table)
    for line in table:
        if line["part"].startswith("mean"):
            print(line)


if __name__ == "__main__":
    main()
