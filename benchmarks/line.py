"""On the line: how often good parts are flagged, and whether a lamp that fades is noticed.

    python benchmarks/line.py --data DIR_OF_MPDD --weights dinov2_vits14_dav2_fp16.safetensors

Writes ``benchmarks/results/false_alarms.csv``: the realised rate on the good test images of each category, and the
defects found, with the threshold calibrated leave-one-out on all training images, and held-out on a third of them with
the memory of the other two thirds. And ``benchmarks/results/drift.csv``: the good test images as they are, with defects
among them, and changed as a lamp or a lens would change them; beside the median patch score, on which drift is
measured, the image score.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from PIL import Image, ImageEnhance, ImageFilter

from environment import write_rows
from procon import Config, Detector, Prediction
from procon.results.drift import measure_drift
from procon.vision.folders import read_layout


def warmer(image: Image.Image) -> Image.Image:
    """A tenth more red and a tenth less blue."""
    bands = zip(image.split(), (1.1, 1.0, 0.9), strict=True)
    return Image.merge("RGB", [band.point([min(255, round(v * gain)) for v in range(256)]) for band, gain in bands])


CHANGES: dict[str, Callable[[Image.Image], Image.Image]] = {
    "as they are": lambda image: image,
    "5 % darker": lambda image: ImageEnhance.Brightness(image).enhance(0.95),
    "10 % darker": lambda image: ImageEnhance.Brightness(image).enhance(0.9),
    "20 % darker": lambda image: ImageEnhance.Brightness(image).enhance(0.8),
    "blurred by 1 pixel": lambda image: image.filter(ImageFilter.GaussianBlur(1)),
    "warmer light": warmer,
}


def false_alarm_rows(category: Path, config: Config, detector: Detector) -> list[dict[str, Any]]:
    layout = read_layout(category)
    train, good = list(layout.train), list(layout.test["good"])
    bad = [image for kind, images in layout.test.items() if kind != "good" for image in images]
    held_out = Detector(config).fit([image for index, image in enumerate(train) if index % 3])
    held_out.calibrate([image for index, image in enumerate(train) if index % 3 == 0])
    rows = []
    for one in (detector, held_out):
        known, found = one.calibration, one.measure_false_alarms(good)
        assert known is not None
        row = {"category": category.name, "calibration": known.kind, "images": len(known.scores)}
        row |= {"promised": round(known.promised_rate, 4), "confident": round(known.confident_rate(), 4)}
        row |= {"flagged": found.flagged, "good": found.images, "rate": round(found.rate, 4)}
        row |= {"low": round(found.low, 4), "high": round(found.high, 4)}
        # What the same scores say of defects, at this rate and at others: a low rate costs defects.
        scores = [result.score for result in one.predict(bad)]
        row |= {"defects": len(bad), "found": sum(score > known.threshold for score in scores)}
        for rate in (0.05, 0.1):
            there = known.at_rate(rate).threshold
            row |= {f"found_at_{rate:g}": sum(score > there for score in scores)}
        print(row, flush=True)
        rows.append(row)
    return rows


def drift_rows(category: Path, detector: Detector, defects: int = 10) -> list[dict[str, Any]]:
    layout = read_layout(category)
    good = list(layout.test["good"])
    bad = [image for kind, images in layout.test.items() if kind != "good" for image in images]
    some = bad[:: max(1, len(bad) // defects)][:defects]
    sets: list[tuple[str, Sequence[Any]]] = [(f"with {len(some)} defects", [*good, *some])]
    for name, change in CHANGES.items():
        sets.append((name, [change(Image.open(path).convert("RGB")) for path in good]))
    rows = []
    known = detector.calibration
    assert known is not None
    for name, images in sets:
        results: list[Prediction] = detector.predict(images)
        called_good = [one for one in results if not one.is_anomalous]
        left_out = len(results) - len(called_good)
        found = measure_drift([one.median_patch_score or 0.0 for one in called_good], known.medians, left_out)
        scores = measure_drift([one.score for one in called_good], known.scores, left_out)
        row: dict[str, Any] = {"category": category.name, "images": name, "count": len(results), "flagged": left_out}
        row |= {"drifted": found.drifted, "p_value": _short(found.p_value), "exceeding": _short(found.exceeding)}
        row |= {"shift": _short(found.shift), "score_p_value": _short(scores.p_value)}
        row |= {"score_exceeding": _short(scores.exceeding)}
        print(row, flush=True)
        rows.append(row)
    return rows


def _short(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--weights", required=True)
    parser.add_argument("--categories", nargs="+", default=["metal_plate", "bracket_white"])
    arguments = parser.parse_args()
    config = Config(backbone="dinov2-small", weights=arguments.weights, banks=1, coreset_ratio=0.01)
    alarms, drifts = [], []
    for name in arguments.categories:
        category = arguments.data / name
        detector = Detector(config).fit(category)
        alarms += false_alarm_rows(category, config, detector)
        drifts += drift_rows(category, detector)
    print(f"wrote {write_rows('false_alarms', alarms)} and {write_rows('drift', drifts)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
