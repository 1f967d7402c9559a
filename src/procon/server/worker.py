"""The other process: fits or extends a model, says how far it is on stdout, and ends when its parent does."""

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
    """Read one line of JSON that says what to do, do it, and say what came of it."""
    task = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.nice(5)  # requests come first
    try:
        result = _fit(task) if task["kind"] == "fit" else _learn(task)
    except (ProconError, OSError) as error:
        _say(error=str(error))
        return 2
    _say(**result)
    return 0


def _end_with_parent() -> None:
    """The pipe closes when the server ends, however it ends."""
    sys.stdin.read()
    os._exit(3)


def _say(**message: Any) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


class _Report:
    """Progress, not more often than a person can read."""

    def __init__(self) -> None:
        self._last = 0.0

    def __call__(self, stage: str, done: int, total: int) -> None:
        now = time.monotonic()
        if done == total or now - self._last >= _EVERY_SECONDS:
            self._last = now
            _say(stage=stage, done=done, total=total)


def _fit(task: dict[str, Any]) -> dict[str, Any]:
    from procon.detector import Detector

    _say(stage="loading the backbone", done=0, total=1)
    detector = Detector(Config.from_dict(task["config"]), device=task["device"])
    detector.fit([Path(image) for image in task["images"]], progress=_Report(), thumbnails=True)
    detector.save(task["output"])
    return {"added": len(task["images"])}


def _learn(task: dict[str, Any]) -> dict[str, Any]:
    """Add images to a memory and forget others, so that doing this twice is doing it once.

    One that it holds already is not added; one that it does not hold, or got from elsewhere, is not forgotten.
    """
    from procon.detector import Detector
    from procon.model.training import digest_of

    _say(stage="loading the model", done=0, total=1)
    detector = Detector.load(task["model"], weights=task["weights"], training=task["training"], device=task["device"])
    assert detector.memory is not None
    held = {image.digest for image in detector.memory.images}
    added = [Path(image) for image in task["images"] if digest_of(image) not in held]
    if added:
        # A training image that is gone keeps its score: approximate, and the model says so.
        detector.partial_fit(added, progress=_Report(), keep_scores=True)
    given = {Path(image).parts[-2:] for image in task["forget"]}  # the folder above them may have moved
    gone = [name for name in detector.memory.names if Path(name).parts[-2:] in given]
    if gone:
        detector.forget(gone, progress=_Report(), keep_scores=True)
    if added or gone:
        detector.save(task["output"])
    return {"added": len(added), "forgotten": len(gone)}


if __name__ == "__main__":
    sys.exit(main())
