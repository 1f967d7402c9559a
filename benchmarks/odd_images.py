"""Defects planted among the good images: what becomes of them, of the threshold and of the verdicts.

    python benchmarks/odd_images.py --data DATA --weights WEIGHTS [--image-size 280]

For each part and number of planted defects, a detector is fitted on the good images and these. Each is kept in the
memory or forgotten, and the threshold sets odd images aside, as by default, or counts every image. The planted images
are not among those that are judged. Writes ``results/odd_images.csv``.
"""

import argparse
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from environment import write_rows
from procon import Config, Detector
from procon.model.calibration import Calibration
from procon.model.rates import measure_spread
from verdicts import judge, test_images

PLANTED = (0, 1, 3)


def thresholds(known: Calibration) -> dict[str, float]:
    """The default threshold, and the same rule without setting any image aside."""
    return {
        "set aside": known.threshold,
        "counted": measure_spread(known.scores, keep_all=True).at_rate(known.false_alarm_rate),
    }


def measure(root: Path, part: str, config: Config, planted: int) -> list[dict[str, Any]]:
    """A row for each memory and each threshold."""
    images = [(path, kind != "good") for path, kind, _ in test_images(root / part)]
    defects = [path for path, bad in images if bad]
    # Evenly spaced, so that they are of different kinds.
    chosen = [defects[place] for place in np.linspace(0, len(defects) - 1, planted + 2).round().astype(int)[1:-1]]
    judged = [(path, bad) for path, bad in images if path not in chosen]
    bad = np.array([is_bad for _, is_bad in judged])
    good = sorted((root / part / "train" / "good").iterdir())
    detector = Detector(config, device="cpu").fit([*good, *chosen])
    known = detector.calibration
    assert known is not None
    aside = {detector.model.memory.names[place] for place in known.spread.aside}
    about = {"part": part, "images": len(good), "planted": planted, "named": len(aside & set(map(str, chosen)))}
    about["good_ones_named"] = len(aside - set(map(str, chosen)))
    rows = []
    for memory in ("kept", "forgotten") if planted else ("kept",):
        if memory == "forgotten":
            detector.forget([str(path) for path in chosen])
        assert detector.calibration is not None
        scores = np.array(detector.score([path for path, _ in judged]))
        for rule, limit in thresholds(detector.calibration).items():
            line = judge(scores, bad, limit)
            rows.append({**about, "memory": memory, "odd": rule, "threshold": round(limit, 4), **line})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--image-size", type=int, default=280)
    parser.add_argument("--parts", default="hazelnut_toy,mpdd/metal_plate,mpdd/bracket_white")
    given = parser.parse_args()
    config = Config(backbone="dinov2-small", weights=str(given.weights), image_size=given.image_size)
    config = replace(config, banks=1)
    rows: list[dict[str, Any]] = []
    for part in given.parts.split(","):
        for planted in PLANTED:
            started = time.perf_counter()
            rows += measure(given.data, part, config, planted)
            print(f"{part}, {planted} planted: {time.perf_counter() - started:.0f} s", flush=True)
            settings = f"Config(image_size={given.image_size}, banks=1)"
            write_rows("odd_images", [{**row, "settings": settings} for row in rows])


if __name__ == "__main__":
    main()
