"""The child process of a job: fits or edits a model, reports progress on stdout, and ends when the server does."""

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

from procon.config import Config
from procon.errors import ProconError

_EVERY_SECONDS = 0.1


def main() -> int:
    """Read a task, one line of JSON, from stdin and run it."""
    task = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.nice(5)  # requests come first
    try:
        (run_fit if task["kind"] == "fit" else run_learning)(task)
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


if __name__ == "__main__":
    sys.exit(main())
