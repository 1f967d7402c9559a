"""Score images and leave results where people look: a table, JSON lines, overlays, a page."""

import csv
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from procon.errors import ImageError
from procon.files import atomic_path, atomic_text
from procon.model.verdict import Predictor
from procon.prediction import Prediction
from procon.results.coco import CocoFile
from procon.results.drift import Drift, measure_drift
from procon.results.gallery import MOST_CARDS, Card, Mark, make_card, write_gallery
from procon.results.rendering import ColorScale, color_scale, painted
from procon.vision.folders import inspection_images
from procon.vision.images import open_image
from procon.vision.pictures import shrink

OVERLAY_SIDE = 1600  # pixels; larger images are shrunk for the overlay, not for the scores
COLUMNS = (
    *("source", "score", "is_anomalous", "p_value", "threshold", "median_patch_score"),
    *("regions", "seconds", "error"),
)


@dataclass(frozen=True)
class ScoredImage:
    """The outcome of one image."""

    name: str
    """Path below the folder it was found in."""
    source: str
    seconds: float
    prediction: Prediction | None = None
    error: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """One JSON line."""
        if self.prediction is None:
            return {"source": self.source, "error": self.error}
        return {**self.prediction.to_dict(), "seconds": round(self.seconds, 4)}

    def to_csv(self) -> dict[str, Any]:
        """One CSV line."""
        line = self.to_dict()
        line["regions"] = len(line.get("regions", ()))
        return {name: line.get(name, "") for name in COLUMNS}


@dataclass
class Outcome:
    """All rows of a run, in order."""

    rows: list[ScoredImage] = field(default_factory=list)
    finished: bool = False
    drift: Drift | None = None
    """Whether the images have left the calibration of the model; None where it has none."""

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
    found: list[tuple[str, Path]] = []
    for path in paths:
        for image in inspection_images(path):
            found.append((str(image.relative_to(path)) if path.is_dir() else image.name, image))
    names = [name for name, _ in found]
    if len(set(names)) < len(names):  # the same name in two folders: fall back on what tells them apart
        found = [(str(path).lstrip("./"), path) for _, path in found]
    return found


@dataclass
class Findings:
    """What is kept of the images scored so far: no maps, so there may be any number of them."""

    rows: list[ScoredImage] = field(default_factory=list)
    cards: list[Card] = field(default_factory=list)
    """Those of the highest scores."""
    regions: CocoFile = field(default_factory=CocoFile)

    def join(self, later: "Findings") -> None:
        """Take over what was found in later images."""
        self.rows += later.rows
        self.regions.join(later.regions)
        self.keep(later.cards)

    def keep(self, cards: Sequence[Card]) -> None:
        """Add cards; those that can no longer come on the page go."""
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

    With ``coco``, write the regions with their masks to that file. Results of images already scored are written even if
    the run is interrupted; the interruption goes on afterwards.
    """
    found, finished = Findings(), False
    try:
        for row in score_images(
            detector, images, overlay_names([name for name, _ in images]), found, out, coco is not None
        ):
            if on_row is not None:
                on_row(row)
        finished = True
    finally:
        outcome = write_findings(detector, found, finished, out, title=title, facts=facts, coco=coco)
    return outcome


def score_images(
    detector: Predictor,
    images: Sequence[tuple[str, Path]],
    overlays: dict[str, str],
    found: Findings,
    out: Path | None,
    coco: bool,
) -> Iterator[ScoredImage]:
    """Score ``images`` one by one, write the overlay of each below ``out``, and put the rest into ``found``."""
    scale = color_scale(detector)
    for row in _score(detector, images):
        if out is not None and row.prediction is not None:
            pixels = open_image(row.source).rgb8()
            _write_overlay(out / "overlays" / overlays[row.name], row.prediction, pixels, scale)
            found.keep([make_card(row.name, row.prediction, pixels, scale)])
        if coco and row.prediction is not None:
            found.regions.add(row.name, row.prediction)
        found.rows.append(_without_map(row))  # a full-size map of every image would fill the memory
        yield found.rows[-1]


def write_findings(
    detector: Predictor,
    found: Findings,
    finished: bool,
    out: Path | None,
    *,
    title: str,
    facts: Sequence[str],
    coco: Path | None,
) -> Outcome:
    """Write the files of :func:`inspect` that are about all images together."""
    outcome = Outcome(found.rows, finished, find_drift(detector, found.rows))
    if coco is not None and found.regions.images:
        found.regions.write(coco)
    if out is not None and outcome.rows:
        _write_tables(out, outcome.rows)
        _write_summary(out, detector, outcome)
        if found.cards:
            threshold = detector.calibration.threshold if detector.calibration else None
            marks = _marks(outcome.rows)
            write_gallery(out / "index.html", title, found.cards, marks, threshold, facts, outcome.drift)
    return outcome


def find_drift(detector: Predictor, rows: Sequence[ScoredImage]) -> Drift | None:
    """Whether the images have left the calibration of the model; None where it has none."""
    medians = getattr(detector.calibration, "medians", None)  # an exported model may be without
    if medians is None:
        return None
    found = [row.prediction for row in rows if row.prediction is not None]
    good = [one.median_patch_score for one in found if not one.is_anomalous and one.median_patch_score is not None]
    return measure_drift(good, medians, len(found) - len(good))


def _marks(rows: Sequence[ScoredImage]) -> list[Mark]:
    found = [(row.name, row.prediction) for row in rows if row.prediction is not None]
    return [Mark(name, prediction.score, prediction.is_anomalous) for name, prediction in found]


def _score(detector: Predictor, images: Sequence[tuple[str, Path]]) -> Iterator[ScoredImage]:
    started = time.perf_counter()
    results = detector.predict_each(path for _, path in images)
    for (name, path), result in zip(images, results, strict=True):
        seconds = time.perf_counter() - started
        if isinstance(result, ImageError):
            yield ScoredImage(name, str(path), seconds, error=str(result))
        else:
            yield ScoredImage(name, str(path), seconds, prediction=result)
        started = time.perf_counter()


def _without_map(row: ScoredImage) -> ScoredImage:
    """A row that can be kept for a hundred thousand images."""
    if row.prediction is None:
        return row
    empty = np.zeros((0, 0), np.float32)
    return ScoredImage(row.name, row.source, row.seconds, Prediction(**{**vars(row.prediction), "heatmap": empty}))


def overlay_names(names: Sequence[str]) -> dict[str, str]:
    """A PNG name for each image name; a.jpg and a.bmp side by side keep their endings."""
    stems = {name: str(Path(name).with_suffix(".png")) for name in names}
    uses = Counter(stems.values())
    return {name: stem if uses[stem] == 1 else f"{name}.png" for name, stem in stems.items()}


def _write_overlay(path: Path, prediction: Prediction, pixels: Any, scale: ColorScale) -> None:
    small = shrink(pixels, OVERLAY_SIDE)
    with atomic_path(path) as temporary:
        Image.fromarray(painted(small, prediction, scale)).save(temporary, "PNG")


def _write_tables(out: Path, rows: Sequence[ScoredImage]) -> None:
    with atomic_text(out / "scores.csv") as stream:
        writer = csv.DictWriter(stream, COLUMNS)
        writer.writeheader()
        writer.writerows(row.to_csv() for row in rows)
    with atomic_text(out / "scores.jsonl") as stream:
        stream.writelines(json.dumps(row.to_dict()) + "\n" for row in rows)


def _write_summary(out: Path, detector: Predictor, outcome: Outcome) -> None:
    """The run in one object, as JSON and as a table of one line, so that runs can be put under each other."""
    known, drift = detector.calibration, outcome.drift  # that of an exported model knows less
    summary = {
        "images": len(outcome.rows),
        "unreadable": len(outcome.errors),
        "anomalous": outcome.anomalous,
        "finished": outcome.finished,
        "threshold": known.threshold if known else None,
        "pixel_threshold": known.pixel_threshold if known else None,
        "calibration": getattr(known, "kind", None),
        "promised_rate": getattr(known, "promised_rate", None),
    }
    with atomic_text(out / "summary.json") as stream:
        json.dump({**summary, "drift": drift.to_dict() if drift else None}, stream, indent=2)
    flat = summary | {f"drift_{name}": value for name, value in (drift.to_dict() if drift else {}).items()}
    with atomic_text(out / "summary.csv") as stream:
        writer = csv.DictWriter(stream, list(flat))
        writer.writeheader()
        writer.writerow(flat)
