"""Draw docs/images/threshold.png: how the default threshold follows from the scores of good images."""

import csv
from pathlib import Path

import matplotlib
import numpy as np

from procon.model.rates import measure_spread

matplotlib.use("Agg")
import matplotlib.pyplot as plt

DOCS = Path(__file__).resolve().parent.parent
RESULTS = DOCS.parent / "benchmarks" / "results" / "verdict_scores.csv"
GROUPS = (("training", "training images, each as if it were new", "#8a94a0"), ("good", "new good parts", "#1e7d46"))
DEFECTS = ("defect", "new defects", "#c81e3c")
LIMIT = 18.0  # deviations; what lies beyond is drawn at the edge


def main() -> None:
    """Read the scores and draw a row of three bands for each part."""
    with RESULTS.open(encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    parts = list(dict.fromkeys(row["part"] for row in rows))
    figure, axes = plt.subplots(len(parts), 1, figsize=(9, 1.9 * len(parts) + 0.9), sharex=True)
    random = np.random.default_rng(0)
    for axis, part in zip(axes, parts, strict=True):
        scores = {
            group: np.array([float(row["score"]) for row in rows if row["part"] == part and row["group"] == group])
            for group, _, _ in (*GROUPS, DEFECTS)
        }
        spread = measure_spread(scores["training"].tolist())
        for height, (group, label, color) in enumerate((*GROUPS, DEFECTS)):
            places = np.array([min(spread.deviations(score), LIMIT) for score in scores[group]])
            shake = random.uniform(-0.28, 0.28, len(places))
            axis.scatter(places, 2 - height + shake, s=9, color=color, alpha=0.65, linewidths=0, label=label)
        aside = [min(spread.deviations(scores["training"][place]), LIMIT) for place in spread.aside]
        axis.scatter(aside, [2] * len(aside), s=70, facecolors="none", edgecolors="#1c2024", label="odd: set aside")
        robust, highest = spread.at_rate(0.01), scores["training"].max()
        axis.axvline(spread.deviations(robust), color="#1c2024", label="threshold (default rule)")
        old = min(spread.deviations(highest), LIMIT)
        axis.axvline(old, color="#1c2024", linestyle=":", label="threshold (highest training score)")
        found = int((scores["defect"] > robust).sum())
        alarms = int((scores["good"] > robust).sum())
        before = int((scores["defect"] > highest).sum())
        axis.set_title(
            f"{part}: {found} of {len(scores['defect'])} defects found ({before} with the dotted line), "
            f"{alarms} of {len(scores['good'])} good parts flagged",
            fontsize=9,
            loc="left",
        )
        axis.set_yticks([])
        for side in ("top", "right", "left"):
            axis.spines[side].set_visible(False)
    axes[-1].set_xlabel("image score, in robust standard deviations above the median of the training images")
    handles, labels = axes[0].get_legend_handles_labels()
    known = dict(zip(labels, handles, strict=True))
    figure.legend(known.values(), known.keys(), loc="lower center", ncol=3, fontsize=8, frameon=False)
    figure.tight_layout(rect=(0, 0.08, 1, 1))
    figure.savefig(DOCS / "images" / "threshold.png", dpi=110)


if __name__ == "__main__":
    main()
