"""Apply feedback to memories: good parts are learned, and forgotten again when the feedback is withdrawn."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from procon.model.calibration import Calibration, change_note
from procon.model.document import read_calibration, write_calibration
from procon.model.history import Change, utc
from procon.model.metadata import read_metadata
from procon.server.disk import install
from procon.server.models import Models
from procon.server.process import JobError
from procon.server.settings import Settings
from procon.server.store import Store, StoreRow

OnLearned = Callable[[str, list[StoreRow]], Awaitable[None]]
"""Called with a model and the feedback that its memory now contains."""


class Learning:
    """Applies the feedback that waits in the store to the memories of models."""

    def __init__(self, settings: Settings, store: Store, models: Models, on_learned: OnLearned) -> None:
        self._settings, self._store, self._models, self._on_learned = settings, store, models, on_learned

    def waiting(self) -> set[str]:
        """The models with feedback to learn or to forget."""
        return {row["model"] for state in ("pending", "forgetting") for row in self._store.feedback_in(state)}

    async def apply(
        self, model: str, training: Path, result: Path, run: Callable[[dict[str, Any]], Awaitable[None]]
    ) -> bool:
        """Apply the waiting feedback of ``model`` in a process that ``run`` starts.

        Returns False if the memory was replaced while the process ran; the work must then be repeated.
        """
        path = self._models.path(model)
        good, withdrawn = self._store.feedback_in("pending", model), self._store.feedback_in("forgetting", model)
        if not good and not withdrawn:
            return True
        if not path.is_file():
            raise JobError(f"there is no model called {model} any more")
        before = await asyncio.to_thread(read_metadata, path)
        calibration = await asyncio.to_thread(read_calibration, path)
        task = {
            "kind": "learn",
            "model": str(path),
            "weights": self._settings.weights,
            "training": str(training),
            "images": [row["file"] for row in good],
            "forget": [row["file"] for row in withdrawn],
            "device": self._settings.device,
            "output": str(result),
        }
        await run(task)

        def finish() -> bool:
            with self._models.editing(model):
                if result.exists():
                    if read_metadata(path)["tensors_sha256"] != before["tensors_sha256"]:
                        return False
                    keep_threshold(path, result, calibration)
                    install(result, path)
            self._models.scan()
            return True

        if not await asyncio.to_thread(finish):
            return False
        await self._on_learned(model, good)
        for row in withdrawn:  # after the model, which was calibrated on these files until now
            self._store.drop_feedback(row["id"], "forgetting")
            await asyncio.to_thread(Path(row["file"]).unlink, missing_ok=True)
        return True

    def fail(self, model: str, reason: str) -> None:
        """Store with each waiting piece of feedback why it was not applied."""
        for row in self._store.feedback_in("pending", model):
            self._store.settle_feedback(row["id"], "failed", reason, only="pending")
        for row in self._store.feedback_in("forgetting", model):
            note = f"it could not be taken back: {reason}"
            self._store.settle_feedback(row["id"], "learned", note, row["score_after"], only="forgetting")

    def withdraw(self, row: StoreRow) -> bool:
        """Withdraw feedback; returns whether the memory may contain its image, which must then be forgotten."""
        if row["state"] in ("noted", "failed") or not self._models.path(row["model"]).is_file():
            self._store.drop_feedback(row["id"], row["state"])
            return False
        self._store.settle_feedback(row["id"], "forgetting", None, row["score_after"], only=row["state"])
        return True


def write_threshold(path: Path, before: Calibration, after: Calibration) -> None:
    """Write another threshold into a model file, with an entry in its history."""
    write_calibration(path, after, Change(utc(), "threshold", note=change_note(before, after)))


def keep_threshold(path: Path, result: Path, before: Calibration | None) -> None:
    """If the threshold at ``path`` was changed while ``result`` was being made, apply the change to ``result``."""
    now, made = read_calibration(path), read_calibration(result)
    if now is None or made is None or before is None:
        return
    if (now.fixed, now.false_alarm_rate, now.rule) == (before.fixed, before.false_alarm_rate, before.rule):
        return
    changed = made.at_rate(now.false_alarm_rate, now.rule)
    write_threshold(result, made, changed if now.fixed is None else changed.at_score(now.fixed))
