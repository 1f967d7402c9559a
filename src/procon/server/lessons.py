"""What people said about parts, carried into a memory: good ones are learned, and taken back if they say so."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from procon.model.calibration import Calibration, change_note
from procon.model.file import read_calibration, write_calibration
from procon.model.history import Change, utc
from procon.model.storage import read_metadata
from procon.server.models import Models, install
from procon.server.process import JobError
from procon.server.settings import Settings
from procon.server.store import Store

Learned = Callable[[str, list[dict[str, Any]]], Awaitable[None]]
"""Hears the model and the feedback that its memory now holds."""
Run = Callable[[dict[str, Any]], Awaitable[None]]
"""Runs a task in a process of its own."""


@dataclass(frozen=True)
class Lessons:
    """Changes of memories that wait in the store."""

    settings: Settings
    store: Store
    models: Models
    learned: Learned

    def waiting(self) -> set[str]:
        """The models with something to learn or to forget."""
        return {row["model"] for row in self.store.feedback_in(("pending", "forgetting"))}

    async def teach(self, model: str, training: Path, result: Path, run: Run) -> bool:
        """Do what waits for ``model``; False where another memory came in between, and it must be done again."""
        path = self.models.path(model)
        rows = self.store.feedback_in(("pending",), model)
        gone = self.store.feedback_in(("forgetting",), model)
        if not rows and not gone:
            return True
        if not path.is_file():
            raise JobError(f"there is no model called {model} any more")
        before = await asyncio.to_thread(read_metadata, path)
        calibration = await asyncio.to_thread(read_calibration, path)
        await run(
            {
                "kind": "learn",
                "model": str(path),
                "weights": self.settings.weights,
                "training": str(training),
                "images": [row["file"] for row in rows],
                "forget": [row["file"] for row in gone],
                "device": self.settings.device,
                "output": str(result),
            }
        )

        def finish() -> bool:
            with self.models.editing(model):
                if result.exists():
                    if read_metadata(path)["tensors_sha256"] != before["tensors_sha256"]:
                        return False
                    keep_threshold(path, result, calibration)
                    install(result, path)
            self.models.scan()
            return True

        if not await asyncio.to_thread(finish):
            return False
        await self.learned(model, rows)
        for row in gone:  # after the model, which was calibrated on these files until now
            self.store.drop_feedback(row["id"], ("forgetting",))
            await asyncio.to_thread(Path(row["file"]).unlink, missing_ok=True)
        return True

    def fail(self, model: str, reason: str) -> None:
        """Say with each piece of feedback why nothing came of it."""
        for row in self.store.feedback_in(("pending",), model):
            self.store.settle_feedback(row["id"], "failed", reason, only="pending")
        for row in self.store.feedback_in(("forgetting",), model):
            self.store.settle_feedback(
                row["id"], "learned", f"it could not be taken back: {reason}", row["score_after"], only="forgetting"
            )

    def withdraw(self, row: dict[str, Any]) -> bool:
        """Take a piece of feedback back; whether a memory may hold its image, which is then to be forgotten."""
        if row["state"] in ("noted", "failed") or not self.models.path(row["model"]).is_file():
            self.store.drop_feedback(row["id"], (row["state"],))
            return False
        self.store.settle_feedback(row["id"], "forgetting", None, row["score_after"], only=row["state"])
        return True


def keep_threshold(path: Path, result: Path, before: Calibration | None) -> None:
    """Carry a threshold that was changed at ``path`` while ``result`` was made over to it."""
    now, made = read_calibration(path), read_calibration(result)
    if now is None or made is None or before is None:
        return
    if (now.fixed, now.false_alarm_rate) == (before.fixed, before.false_alarm_rate):
        return
    changed = made.at_rate(now.false_alarm_rate)
    if now.fixed is not None:
        changed = changed.at_score(now.fixed)
    write_calibration(result, changed, Change(utc(), "threshold", note=change_note(made, changed)))
