"""Score images and write the results: tables, JSON lines, overlays and an HTML page."""

import csv
import json
import os
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from procon.errors import ImageError
from procon.files import atomic_path, atomic_text, show_name
from procon.model.verdict import Predictor
from procon.prediction import Prediction
from procon.results.coco import CocoFile
from procon.results.drift import Drift, measure_drift
from procon.results.gallery import MOST_CARDS, Card, Mark, make_card, write_gallery
from procon.results.remarks import remarks
from procon.results.rendering import color_scale, paint_prediction
from procon.vision.folders import inspection_images
from procon.vision.images import Picture, open_each
from procon.vision.pictures import shrink

OVERLAY_SIDE = 1600  # pixels; larger images are shrunk for the overlay, not for the scores
_COLUMNS = (
    *("source", "score", "relative_score", "is_anomalous", "p_value", "threshold", "median_patch_score"),
    *("regions", "seconds", "error"),
)


@dataclass(frozen=True)
class ScoredImage:
    """The result of one image."""

    name: str  # unique in a run: its path below the folder that was given
    source: str
    seconds: float
    prediction: Prediction | None = None
    error: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """One JSON line."""
        if self.prediction is None:
            return {"source": show_name(self.source), "error": self.error}
        return {
            **self.prediction.to_dict(),
            "source": show_name(self.source),
            "seconds": round(self.seconds, 4),
        }


@dataclass
class Outcome:
    """All rows of a run, in order."""

    rows: list[ScoredImage] = field(default_factory=list)
    finished: bool = False
    drift: Drift | None = None  # None where the model has no calibration
    remarks: list[str] = field(default_factory=list)  # what decides, before any drift

    @property
    def errors(self) -> list[ScoredImage]:
        """Rows of images that could not be used."""
        return [row for row in self.rows if row.error is not None]

    @property
    def anomalous(self) -> int:
        """How many images were called anomalous."""
        return sum(bool(row.prediction and row.prediction.is_anomalous) for row in self.rows)


def find_images(paths: Sequence[Path]) -> list[tuple[str, Path]]:
    """(name, path) of every image at ``paths``; names are unique and relative to the folder given."""
    images: list[tuple[str, Path]] = []
    for path in paths:
        below = path if path.is_dir() else path.parent
        images += [(str(image.relative_to(below)), image) for image in inspection_images(path)]
    if len({name for name, _ in images}) < len(images):  # the same name in two folders: use more of the path
        places = [os.path.normpath(path.absolute()) for _, path in images]
        shared = os.path.commonpath([Path(place).parent for place in places])
        images = [(os.path.relpath(place, shared), path) for place, (_, path) in zip(places, images, strict=True)]
    return images


@dataclass
class Findings:
    """What is kept of the images scored so far: no heat maps, so there may be any number of images."""

    rows: list[ScoredImage] = field(default_factory=list)
    cards: list[Card] = field(default_factory=list)  # of the highest scores
    regions: CocoFile = field(default_factory=CocoFile)

    def join(self, later: "Findings") -> None:
        """Append the findings of later images."""
        self.rows += later.rows
        self.regions.join(later.regions)
        self.add_cards(later.cards)

    def add_cards(self, cards: Sequence[Card]) -> None:
        """Add cards; those that can no longer appear on the page are dropped."""
        self.cards += cards
        if len(self.cards) > 2 * MOST_CARDS:
            self.cards = sorted(self.cards, key=lambda card: -card.score)[:MOST_CARDS]


def inspect(
    detector: Predictor,
    images: Sequence[tuple[str, Path]],
    out: Path | None = None,
    *,
    title: str = "ProCon",
    facts: Sequence[str] = (),
    coco: Path | None = None,
    on_row: Callable[[ScoredImage], None] | None = None,
) -> Outcome:
    """Score ``images``; with ``out``, write scores.csv, scores.jsonl, summary.json, overlays/ and index.html there.

    With ``coco``, write the regions with their masks to that file. If the run is interrupted, the results of the images
    already scored are written before the interruption is raised again.
    """
    findings, finished = Findings(), False
    overlays = overlay_names([name for name, _ in images])
    try:
        for row in score_images(detector, images, overlays, findings, out, coco is not None):
            if on_row is not None:
                on_row(row)
        finished = True
    finally:
        outcome = write_findings(detector, findings, finished, out, title=title, facts=facts, coco=coco)
    return outcome


def score_images(
    detector: Predictor,
    images: Sequence[tuple[str, Path]],
    overlays: dict[str, str],
    findings: Findings,
    out: Path | None,
    coco: bool,
) -> Iterator[ScoredImage]:
    """Score ``images`` one by one, write the overlay of each below ``out``, and add the rest to ``findings``."""
    scale, no_map = color_scale(detector), np.zeros((0, 0), np.float32)
    pictures: deque[Picture | ImageError] = deque()  # decoded, and needed again for the overlay

    def decode() -> Iterator[Picture | ImageError]:
        for picture in open_each(path for _, path in images):
            pictures.append(picture)
            yield picture

    started = time.perf_counter()
    results = detector.predict_each((path for _, path in images) if out is None else decode())
    for (name, path), result in zip(images, results, strict=True):
        seconds = time.perf_counter() - started
        picture = pictures.popleft() if out is not None else None
        if isinstance(result, ImageError):
            row = ScoredImage(name, str(path), seconds, error=str(result))
        else:
            if out is not None and isinstance(picture, Picture):
                pixels = picture.rgb8()
                painted = Image.fromarray(paint_prediction(shrink(pixels, OVERLAY_SIDE), result, scale))
                with atomic_path(out / "overlays" / overlays[name]) as temporary:
                    painted.save(temporary, "PNG")
                findings.add_cards([make_card(name, result, pixels, scale)])
            if coco:
                findings.regions.add(name, result)
            # Full-size maps of all images would fill the memory.
            row = ScoredImage(name, str(path), seconds, replace(result, heatmap=no_map))
        findings.rows.append(row)
        yield row
        started = time.perf_counter()


def write_findings(
    detector: Predictor,
    findings: Findings,
    finished: bool,
    out: Path | None,
    *,
    title: str,
    facts: Sequence[str],
    coco: Path | None,
) -> Outcome:
    """Write the files of :func:`inspect` that cover all images."""
    scored = [row.prediction for row in findings.rows if row.prediction is not None]
    notes = remarks(detector.calibration, detector.describe(), scored)
    outcome = Outcome(findings.rows, finished, find_drift(detector, findings.rows), notes)
    if coco is not None and findings.regions.images:
        findings.regions.write(coco)
    if out is not None and outcome.rows:
        _write_tables(out, outcome.rows)
        _write_summary(out, detector, outcome)
        if findings.cards:
            threshold = detector.calibration.threshold if detector.calibration else None
            named = [(row.name, row.prediction) for row in outcome.rows if row.prediction is not None]
            marks = [Mark(name, prediction.score, prediction.is_anomalous) for name, prediction in named]
            write_gallery(out / "index.html", title, findings.cards, marks, threshold, facts, outcome.drift, notes)
    return outcome


def find_drift(detector: Predictor, rows: Sequence[ScoredImage]) -> Drift | None:
    """Whether the images differ from the calibration of the model; None where it has none."""
    medians = getattr(detector.calibration, "medians", None)  # not every exported model has them
    if medians is None:
        return None
    predictions = [row.prediction for row in rows if row.prediction is not None]
    good = [p.median_patch_score for p in predictions if not p.is_anomalous and p.median_patch_score is not None]
    return measure_drift(good, medians, len(predictions) - len(good))


def overlay_names(names: Sequence[str]) -> dict[str, str]:
    """A PNG name for each image name; a.jpg and a.bmp in one folder keep their suffixes."""
    stems = {name: str(Path(name).with_suffix(".png")) for name in names}
    uses = Counter(stems.values())
    return {name: stem if uses[stem] == 1 else f"{name}.png" for name, stem in stems.items()}


def _write_tables(out: Path, rows: Sequence[ScoredImage]) -> None:
    lines = [row.to_dict() for row in rows]
    _write_csv(out / "scores.csv", [{**line, "regions": len(line.get("regions", ()))} for line in lines], _COLUMNS)
    with atomic_text(out / "scores.jsonl") as stream:
        stream.writelines(json.dumps(line) + "\n" for line in lines)


def _write_summary(out: Path, detector: Predictor, outcome: Outcome) -> None:
    """The run as JSON, and as a CSV table of one line, so that runs can be compared in one table."""
    calibration, drift = detector.calibration, outcome.drift  # an exported model has fewer fields
    summary = {
        "images": len(outcome.rows),
        "unreadable": len(outcome.errors),
        "anomalous": outcome.anomalous,
        "finished": outcome.finished,
        "threshold": calibration.threshold if calibration else None,
        "pixel_threshold": calibration.pixel_threshold if calibration else None,
        "calibration": getattr(calibration, "kind", None),
        "promised_rate": getattr(calibration, "promised_rate", None),
    }
    with atomic_text(out / "summary.json") as stream:
        about = {"remarks": outcome.remarks, "drift": drift.to_dict() if drift else None}
        json.dump({**summary, **about}, stream, indent=2)
    summary |= {f"drift_{name}": value for name, value in (drift.to_dict() if drift else {}).items()}
    _write_csv(out / "summary.csv", [summary], list(summary))


def _write_csv(path: Path, lines: Sequence[dict[str, Any]], columns: Sequence[str]) -> None:
    with atomic_text(path) as stream:
        writer = csv.DictWriter(stream, columns, restval="", extrasaction="ignore")
        writer.writeheader()
        writer.writerows(lines)
