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

from procon.detector import Detector
from procon.errors import ImageError
from procon.folders import inspection_images
from procon.gallery import MOST_CARDS, Card, make_card, write_gallery
from procon.images import open_image
from procon.prediction import Prediction
from procon.render import ColorScale, overlay, shrink, shrink_map
from procon.storage import atomic_path, atomic_text

OVERLAY_SIDE = 1600  # pixels; larger images are shrunk for the overlay, not for the scores
COLUMNS = ("source", "score", "is_anomalous", "p_value", "threshold", "regions", "seconds", "error")


@dataclass(frozen=True)
class Row:
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

    rows: list[Row] = field(default_factory=list)
    finished: bool = False

    @property
    def errors(self) -> list[Row]:
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


def inspect(
    detector: Detector,
    images: Sequence[tuple[str, Path]],
    out: Path | None = None,
    *,
    title: str = "ProCon",
    facts: Sequence[str] = (),
    on_row: Callable[[Row], None] | None = None,
) -> Outcome:
    """Score ``images``; with ``out``, write scores.csv, scores.jsonl, overlays/ and index.html there.

    Results of images already scored are written even if the run is interrupted; the interruption goes on afterwards.
    """
    outcome = Outcome()
    scale = color_scale(detector)
    cards: list[Card] = []
    targets = overlay_names([name for name, _ in images])
    try:
        for row in _score(detector, images):
            if out is not None and row.prediction is not None:
                pixels = open_image(row.source).rgb8()
                _write_overlay(out / "overlays" / targets[row.name], row.prediction, pixels, scale)
                cards.append(make_card(row.name, row.prediction, pixels, scale))
                if len(cards) > 2 * MOST_CARDS:
                    cards = sorted(cards, key=lambda card: -card.score)[:MOST_CARDS]
            outcome.rows.append(_without_map(row))
            if on_row is not None:
                on_row(row)
        outcome.finished = True
    finally:
        if out is not None and outcome.rows:
            _write_tables(out, outcome.rows)
            if cards:
                threshold = detector.calibration.threshold if detector.calibration else None
                write_gallery(out / "index.html", title, cards, threshold, facts)
    return outcome


def _score(detector: Detector, images: Sequence[tuple[str, Path]]) -> Iterator[Row]:
    started = time.perf_counter()
    results = detector.predict_each(path for _, path in images)
    for (name, path), result in zip(images, results, strict=True):
        seconds = time.perf_counter() - started
        if isinstance(result, ImageError):
            yield Row(name, str(path), seconds, error=str(result))
        else:
            yield Row(name, str(path), seconds, prediction=result)
        started = time.perf_counter()


def _without_map(row: Row) -> Row:
    """A row that can be kept for a hundred thousand images."""
    if row.prediction is None:
        return row
    empty = np.zeros((0, 0), np.float32)
    return Row(row.name, row.source, row.seconds, Prediction(**{**vars(row.prediction), "heatmap": empty}))


def color_scale(detector: Detector) -> ColorScale:
    """The colours of a model; without calibration, of unit vectors at a typical residual."""
    known = detector.calibration
    return ColorScale(known.typical, known.pixel_threshold) if known else ColorScale(0.4, 0.8)


def overlay_names(names: Sequence[str]) -> dict[str, str]:
    """A PNG name for each image name; a.jpg and a.bmp side by side keep their endings."""
    stems = {name: str(Path(name).with_suffix(".png")) for name in names}
    uses = Counter(stems.values())
    return {name: stem if uses[stem] == 1 else f"{name}.png" for name, stem in stems.items()}


def _write_overlay(path: Path, prediction: Prediction, pixels: Any, scale: ColorScale) -> None:
    small = shrink(pixels, OVERLAY_SIDE)
    with atomic_path(path) as temporary:
        Image.fromarray(overlay(small, shrink_map(prediction.heatmap, small.shape[:2]), scale)).save(temporary, "PNG")


def _write_tables(out: Path, rows: Sequence[Row]) -> None:
    with atomic_text(out / "scores.csv") as stream:
        writer = csv.DictWriter(stream, COLUMNS)
        writer.writeheader()
        writer.writerows(row.to_csv() for row in rows)
    with atomic_text(out / "scores.jsonl") as stream:
        stream.writelines(json.dumps(row.to_dict()) + "\n" for row in rows)
