"""Score images and write the results: tables, JSON lines, overlays and an HTML page."""

import csv
import hashlib
import io
import json
import os
import time
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from procon.errors import ImageError, OutputError
from procon.files import write_bytes, write_text
from procon.model.verdict import Predictor
from procon.names import show_name
from procon.prediction import Prediction
from procon.results.coco import CocoFile
from procon.results.drift import Drift, measure_drift
from procon.results.gallery import MOST_CARDS, Card, Failure, make_card, picture_side, render_gallery
from procon.results.remarks import list_remarks
from procon.results.score_axis import Mark
from procon.showing.painting import color_scale, paint_prediction
from procon.vision.folders import inspection_images
from procon.vision.images import AHEAD, Picture, open_each
from procon.vision.pictures import png, shrink

_LONGEST_NAME = 255  # bytes; the limit of most file systems
OVERLAY_SIDE = 1600  # pixels; larger images are shrunk for the overlay, not for the scores
OnFile = Callable[[Path], None]  # called with each file and folder that is written completely
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
        return {**self.prediction.to_dict(), "seconds": round(self.seconds, 4)}


@dataclass
class Outcome:
    """All rows of a run, in order."""

    rows: list[ScoredImage] = field(default_factory=list)
    finished: bool = False
    drift: Drift | None = None  # None where the model has no calibration
    remarks: list[str] = field(default_factory=list)  # on the threshold and on all images together

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
        files = inspection_images(path)  # also of a pattern
        below = path if path.is_dir() else Path(os.path.commonpath([file.parent for file in files]))
        images += [(str(file.relative_to(below)), file) for file in files]
    if len({name for name, _ in images}) < len(images):  # the same name in two folders: use more of the path
        places = [os.path.normpath(path.absolute()) for _, path in images]
        shared = os.path.commonpath([Path(place).parent for place in places])
        images = [(os.path.relpath(place, shared), path) for place, (_, path) in zip(places, images, strict=True)]
    return images


@dataclass
class Findings:
    """The results of the images scored so far, without heat maps, so that there may be any number of images."""

    rows: list[ScoredImage] = field(default_factory=list)
    cards: list[Card] = field(default_factory=list)  # of the highest scores
    regions: CocoFile = field(default_factory=CocoFile)

    def join(self, later: "Findings") -> None:
        """Append the findings of later images."""
        self.rows += later.rows
        self.regions.join(later.regions)
        self.add_cards(later.cards)

    def add(self, row: ScoredImage, card: Card | None, regions: CocoFile) -> None:
        """Append one image."""
        self.rows.append(row)
        self.regions.join(regions)
        if card is not None:
            self.add_cards([card])

    def add_cards(self, cards: Sequence[Card]) -> None:
        """Add cards; those that can no longer appear on the page are dropped."""
        self.cards += cards
        if len(self.cards) > 2 * MOST_CARDS:
            self.cards = sorted(self.cards, key=lambda card: -card.score)[:MOST_CARDS]


class _Scored(NamedTuple):
    """One image on its way from the score to the pictures."""

    name: str
    path: Path
    result: Prediction | ImageError
    picture: Picture | ImageError | None
    seconds: float


_Shown = tuple[ScoredImage, Card | None, CocoFile]
"""What is kept of an image: its row, its card on the page, its regions."""


def inspect(
    detector: Predictor,
    images: Sequence[tuple[str, Path]],
    out: Path | None = None,
    *,
    title: str = "ProCon",
    facts: Sequence[str] = (),
    coco: Path | None = None,
    on_row: Callable[[ScoredImage], None] | None = None,
    on_file: OnFile = lambda path: None,
) -> Outcome:
    """Score ``images``; with ``out``, write scores.csv, scores.jsonl, summary.json, overlays/ and index.html there.

    With ``coco``, write the regions with their masks to that file. If the run is interrupted, the results of the images
    already scored are written before the interruption is raised again. ``on_file`` is called with each path written.
    """
    findings, finished = Findings(), False
    overlays, reported = overlay_names([name for name, _ in images]), 0
    rows = inspect_each(detector, images, overlays, findings, out, coco is not None, picture_side(len(images)))
    try:
        for row in rows:
            reported += 1
            if on_row is not None:
                on_row(row)
        finished = True
    finally:
        rows.close()
        for row in findings.rows[reported:]:  # their pictures were in work when the run was interrupted
            if on_row is not None:
                on_row(row)
        outcome = write_findings(
            detector, findings, finished, out, title=title, facts=facts, coco=coco, on_file=on_file
        )
    return outcome


def inspect_each(
    detector: Predictor,
    images: Sequence[tuple[str, Path]],
    overlays: dict[str, str],
    findings: Findings,
    out: Path | None,
    coco: bool,
    side: int,
) -> Generator[ScoredImage]:
    """Score ``images`` one by one, write the overlay of each below ``out``, and add the rest to ``findings``.

    ``side`` is that of the pictures on the page, in pixels. Pictures are made in threads while the next images are
    scored. When this ends early, the images whose pictures are in work are still added to ``findings``.
    """
    scale, no_map = color_scale(detector), np.zeros((0, 0), np.float32)
    workers, ahead = detector.scorer.workers, 2 * max(AHEAD, detector.scorer.group_size)
    pictures: deque[Picture | ImageError] = deque()  # decoded, and needed again for the overlay
    waiting: deque[Future[_Shown]] = deque()

    def decode() -> Iterator[Picture | ImageError]:
        for picture in open_each((path for _, path in images), workers, ahead):
            pictures.append(picture)
            yield picture

    def score() -> Iterator[_Scored]:
        started = time.perf_counter()
        results = detector.predict_each((path for _, path in images) if out is None else decode())
        for (name, path), result in zip(images, results, strict=True):
            picture = pictures.popleft() if out is not None else None
            yield _Scored(name, path, result, picture, time.perf_counter() - started)
            started = time.perf_counter()

    def show(scored: _Scored) -> _Shown:
        name, path, result, picture, seconds = scored
        card, regions = None, CocoFile()
        if isinstance(result, ImageError):
            return ScoredImage(name, str(path), seconds, error=str(result)), card, regions
        if out is not None and isinstance(picture, Picture):
            pixels = picture.rgb8()
            painted = Image.fromarray(paint_prediction(shrink(pixels, OVERLAY_SIDE), result, scale))
            write_bytes(out / "overlays" / overlays[name], png(painted))
            card = make_card(name, result, pixels, scale, side, f"overlays/{overlays[name]}")
        if coco:
            regions.add(name, result)
        # Full-size maps of all images would fill the memory.
        return ScoredImage(name, str(path), seconds, replace(result, heat=no_map)), card, regions

    def add_oldest() -> ScoredImage:
        row, card, regions = waiting[0].result()
        waiting.popleft()
        findings.add(row, card, regions)
        return row

    most = 2 * workers if out is not None or coco else 0
    with ThreadPoolExecutor(max_workers=workers, thread_name_prefix="procon-pictures") as pool:
        try:
            for scored in score():
                waiting.append(pool.submit(show, scored))
                if len(waiting) > most:
                    yield add_oldest()
            while waiting:
                yield add_oldest()
        finally:
            while waiting:
                add_oldest()


def write_findings(
    detector: Predictor,
    findings: Findings,
    finished: bool,
    out: Path | None,
    *,
    title: str,
    facts: Sequence[str],
    coco: Path | None,
    on_file: OnFile = lambda path: None,
) -> Outcome:
    """Write the files of :func:`inspect` that cover all images; if some fail, the first error is raised at the end."""
    scored = [row.prediction for row in findings.rows if row.prediction is not None]
    notes = list_remarks(detector.calibration, detector.describe(), scored)
    outcome = Outcome(findings.rows, finished, find_drift(detector, findings.rows), notes)
    files: dict[Path, str] = {}
    if coco is not None and findings.regions.images:
        files[coco] = findings.regions.to_json()
    if out is not None and outcome.rows:
        if findings.cards:
            threshold = detector.calibration.threshold if detector.calibration else None
            named = [(row.name, row.prediction) for row in outcome.rows if row.prediction is not None]
            marks = [Mark(name, prediction.score, prediction.is_anomalous) for name, prediction in named]
            failures = [Failure(row.name, str(row.error)) for row in outcome.errors]
            good = getattr(detector.calibration, "scores", ())  # not every exported model has them
            page = render_gallery(
                title, findings.cards, marks, threshold, facts, outcome.drift, notes, failures=failures, good=good
            )
            files[out / "index.html"] = page
        files |= {out / name: text for name, text in _tables(detector, outcome).items()}
    errors: list[OutputError] = []
    for path, text in files.items():
        try:
            write_text(path, text)
            on_file(path)
        except OutputError as error:
            errors.append(error)
    if out is not None and findings.cards:
        on_file(out / "overlays")
    if errors:
        raise errors[0]
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
    """A PNG name for each image name; a.jpg and a.bmp in one folder keep their suffixes. A name cannot get too long."""
    stems = {name: str(Path(name).with_suffix(".png")) for name in names}
    uses = Counter(stems.values())
    overlays = {name: stem if uses[stem] == 1 else f"{name}.png" for name, stem in stems.items()}
    for name, overlay in overlays.items():
        if len(os.fsencode(Path(overlay).name)) > _LONGEST_NAME:
            digest = hashlib.sha256(os.fsencode(name)).hexdigest()[:16]
            overlays[name] = str(Path(overlay).with_name(f"{Path(name).name[:50]}-{digest}.png"))
    return overlays


def _tables(detector: Predictor, outcome: Outcome) -> dict[str, str]:
    """The rows, and a summary of the run in one line, so that runs can be compared; both as CSV and as JSON."""
    calibration, drift = detector.calibration, outcome.drift  # that of an exported model has fewer fields
    lines = [row.to_dict() for row in outcome.rows]
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
    tested = drift.to_dict() if drift else {}
    flat = summary | {f"drift_{name}": value for name, value in tested.items()}
    return {
        "scores.csv": _csv([{**line, "regions": len(line.get("regions", ()))} for line in lines], _COLUMNS),
        "scores.jsonl": "".join(json.dumps(line) + "\n" for line in lines),
        "summary.json": json.dumps({**summary, "remarks": outcome.remarks, "drift": tested or None}, indent=2),
        "summary.csv": _csv([flat], list(flat)),
    }


def _csv(lines: Sequence[dict[str, Any]], columns: Sequence[str]) -> str:
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, columns, restval="", extrasaction="ignore")
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue()
