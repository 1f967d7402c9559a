"""The child process of a job: fits or edits a model or prices a lesson, and ends when the server does."""

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from procon.config import Config
from procon.errors import ProconError
from procon.files import atomic_path

if TYPE_CHECKING:
    from procon.model.teaching import Price

_EVERY_SECONDS = 0.1


def main() -> int:
    """Read a task, one line of JSON, from stdin and run it."""
    task = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.nice(5)  # requests come first
    try:
        {"fit": run_fit, "learn": run_learning, "teach": run_teaching}[task["kind"]](task)
    except (ProconError, OSError) as error:
        _send(error=str(error))
        return 2
    return 0


def _end_with_parent() -> None:
    """End this process when stdin closes: it does when the server ends, even if it was killed."""
    try:
        sys.stdin.read()
    finally:
        os._exit(3)


def _send(**message: Any) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


class _ProgressReport:
    """Reports progress, a few times per second at most."""

    def __init__(self) -> None:
        self._last = 0.0

    def __call__(self, stage: str, done: int, total: int) -> None:
        now = time.monotonic()
        if done == total or now - self._last >= _EVERY_SECONDS:
            self._last = now
            _send(stage=stage, done=done, total=total)


def run_fit(task: dict[str, Any]) -> None:
    """Fit a model on the images of ``task``."""
    from procon.detector import Detector

    _send(stage="loading the backbone", done=0, total=1)
    detector = Detector(Config.from_dict(task["config"]), device=task["device"])
    detector.fit([Path(image) for image in task["images"]], progress=_ProgressReport(), thumbnails=True)
    detector.save(task["output"])


def run_learning(task: dict[str, Any]) -> tuple[int, int]:
    """Add images to a memory and forget others; returns how many. A second run changes nothing.

    An image that the memory already holds is not added, and only images that were added as feedback are forgotten.
    """
    from procon.detector import Detector
    from procon.model.training import digest_of

    _send(stage="loading the model", done=0, total=1)
    detector = Detector.load(task["model"], weights=task["weights"], training=task["training"], device=task["device"])
    assert detector.memory is not None
    digests = {image.digest for image in detector.memory.images}
    added = [Path(image) for image in task["images"] if digest_of(image) not in digests]
    if added:
        # A training image whose file is gone keeps its score: approximate, and the model says so.
        detector.partial_fit(added, progress=_ProgressReport(), keep_scores=True)
    withdrawn = {Path(image).parts[-2:] for image in task["forget"]}  # the state folder may have moved
    forgotten = [name for name in detector.memory.names if Path(name).parts[-2:] in withdrawn]
    if forgotten:
        detector.forget(forgotten, progress=_ProgressReport(), keep_scores=True)
    if added or forgotten:
        detector.save(task["output"])
    return len(added), len(forgotten)


def run_teaching(task: dict[str, Any]) -> None:
    """Write what a lesson costs, and the model with the lesson, for somebody to decide."""
    from procon.detector import Detector
    from procon.model.metadata import read_metadata

    _send(stage="loading the model", done=0, total=1)
    base = read_metadata(Path(task["model"]))["tensors_sha256"]
    detector = Detector.load(task["model"], weights=task["weights"], training=task["training"], device=task["device"])
    left, top, right, bottom = task["box"]
    proposal = detector.propose_lesson(
        Path(task["image"]), (left, top, right, bottom), force=task["force"], progress=_ProgressReport()
    )
    price = proposal.price
    found = {
        "base": base,
        "lesson": proposal.lesson.name,
        "sentences": proposal.describe(),
        "score_before": proposal.score[0],
        "score_after": proposal.score[1],
        "is_too_high": price is not None and price.is_too_high,
        "added": [] if price is None else [_flagged(price, place) for place in price.added],
    }
    detector.accept_lesson(proposal, force=True).save(task["output"])
    with atomic_path(Path(task["price"])) as draft:
        draft.write_text(json.dumps(found), encoding="utf-8")


def _flagged(price: "Price", place: int) -> dict[str, Any]:
    """A training image that only the lesson flags."""
    return {
        "number": place,
        "before": price.before[place],
        "after": price.after[place],
        "box": price.boxes[place],
    }


if __name__ == "__main__":
    sys.exit(main())
