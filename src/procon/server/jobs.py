"""Fits and lessons: one at a time, each in a process of its own, taken up again after a restart."""

import asyncio
import contextlib
import logging
import shutil
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from procon.server.lessons import Learned, Lessons
from procon.server.models import Models, install
from procon.server.process import JobError, Progress, run_task
from procon.server.refusal import Redactor, Refusal
from procon.server.settings import Settings
from procon.server.store import LIVE, Store

_log = logging.getLogger(__name__)
_MOST_ATTEMPTS = 3


class Jobs:
    """The queue of long work."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        models: Models,
        redact: Redactor,
        learned: Learned,
        changed: Callable[[], None],
    ) -> None:
        self._settings, self._store, self._models = settings, store, models
        self._redact, self._changed = redact, changed
        self.lessons = Lessons(settings, store, models, learned)
        self._work = settings.state_folder / "jobs"
        self._training = settings.state_folder / "training"
        self._progress: dict[int, Progress] = {}
        self._wake = asyncio.Event()
        self._process: asyncio.subprocess.Process | None = None
        self._running: int | None = None
        self._task: asyncio.Task[None] | None = None
        self._home: asyncio.AbstractEventLoop | None = None

    # ------------------------------------------------------------------------------------------------- for requests

    def training_folder(self, model: str) -> Path:
        """Where the training images of a model are kept."""
        return self._training / model

    def fit_folder(self, model: str) -> Path:
        """A place for the images of one fit."""
        return self.training_folder(model) / f"fit-{uuid.uuid4().hex[:12]}"

    def feedback_file(self, model: str, digest: str, ending: str) -> Path:
        """Where an image to learn is kept: the same content, the same place."""
        return self.training_folder(model) / "feedback" / f"{digest[:24]}{ending}"

    def fit(self, model: str, folder: Path, images: list[Path], config: dict[str, Any], replace: bool) -> int:
        """Queue a fit; it is on the disk when this returns."""
        settings = {
            "folder": str(folder.relative_to(self._training)),
            "images": [image.name for image in images],
            "config": config,
            "replace": replace,
        }
        number = self._store.add_job("fit", model, settings)
        self._touch()
        return number

    def learn(self, model: str) -> None:
        """See to it that what people said about parts of a model is learned; what waits is learned together."""
        waiting = self._store.jobs(states=("queued",))
        if not any(job["kind"] == "learn" and job["model"] == model for job in waiting):
            self._store.add_job("learn", model, {})
        self._touch()

    def check_free(self, model: str, replace: bool) -> None:
        """Refuse a fit whose name is taken, or one too many."""
        if self._models.exported(model):
            raise Refusal(409, f"there is an exported model called {model}; choose another name")
        if self._models.path(model).exists() and not replace:
            raise Refusal(409, f"there is a model called {model}; choose another name, or replace it (replace=true)")
        waiting = self._store.jobs(states=LIVE)
        if any(job["kind"] == "fit" and job["model"] == model for job in waiting):
            raise Refusal(409, f"{model} is being fitted; wait for it, or cancel it")
        if len(waiting) >= self._settings.limits.waiting_jobs:
            raise Refusal(503, "too many jobs are waiting; try again later", {"retry-after": "30"})

    async def cancel(self, number: int) -> dict[str, Any]:
        """Stop a fit for good; its images are removed."""
        job = self._store.job(number)
        if job is None:
            raise Refusal(404, "no such job")
        if job["kind"] != "fit" or job["state"] not in ("queued", "running"):
            reason = "only a fit can be cancelled" if job["kind"] != "fit" else f"the job is {job['state']}"
            raise Refusal(409, reason)
        if not self._store.move_job(number, "cancelled", "cancelled by request", only=("queued", "running")):
            raise Refusal(409, "the job has just ended")
        if self._running == number and self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
        self._discard(job)
        self._touch()
        return {**job, "state": "cancelled", "reason": "cancelled by request"}

    def progress(self, number: int) -> Progress:
        """How far a job is."""
        return self._progress.get(number, Progress())

    def _touch(self) -> None:
        """Something waits; called from any thread."""
        if self._home is not None:
            self._home.call_soon_threadsafe(self._wake.set)
        self._changed()

    # ------------------------------------------------------------------------------------------------------ running

    def start(self) -> None:
        """Take up what was left, and begin."""
        self._work.mkdir(parents=True, exist_ok=True)
        for job in self._store.jobs(limit=1000, states=("running", "finishing")):
            self._resume(job)
        for model in self.lessons.waiting():
            self.learn(model)
        self._sweep()
        self._home = asyncio.get_running_loop()
        self._task = asyncio.create_task(self._loop())

    async def stop(self) -> None:
        """End; a job that runs is taken up by the next server."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    def _resume(self, job: dict[str, Any]) -> None:
        number, result = job["id"], self._result(job["id"])
        if job["state"] == "finishing" and job["kind"] == "fit":
            # Written whole, and perhaps moved already: only the note was missing.
            if result.exists():
                install(result, self._models.path(job["model"]))
            self._store.move_job(number, "done")
        elif job["attempts"] >= _MOST_ATTEMPTS:
            self._store.move_job(number, "failed", f"the server ended {_MOST_ATTEMPTS} times while this ran")
            self._discard(job)
        else:
            result.unlink(missing_ok=True)
            self._store.move_job(number, "queued")

    def _sweep(self) -> None:
        """Remove what an upload that never became a job has left, and drafts of models."""
        used = {
            job["settings"].get("folder")
            for job in self._store.jobs(limit=100_000)
            if job["state"] not in ("failed", "cancelled")
        }
        for folder in self._training.glob("*/fit-*"):
            if str(folder.relative_to(self._training)) not in used:
                shutil.rmtree(folder, ignore_errors=True)
        for draft in self._models.path("x").parent.glob(".*.procon.*.partial"):
            draft.unlink(missing_ok=True)

    def _result(self, number: int) -> Path:
        return self._work / f"{number}.procon"

    def _discard(self, job: dict[str, Any]) -> None:
        self._result(job["id"]).unlink(missing_ok=True)
        if folder := job["settings"].get("folder"):
            shutil.rmtree(self._training / folder, ignore_errors=True)

    async def _loop(self) -> None:
        while True:
            self._wake.clear()  # before looking: what comes after the look wakes it again
            queued = self._store.jobs(limit=1000, states=("queued",))
            if not queued:
                await self._wake.wait()
                continue
            job = queued[-1]
            self._running = job["id"]
            try:
                await self._run(job)
            except asyncio.CancelledError:
                raise
            except Exception:
                _log.exception("job %s failed", job["id"])
                self._fail(job, "something went wrong in the server; its log says what")
            finally:
                self._running = None
                self._progress.pop(job["id"], None)
                self._changed()

    async def _run(self, job: dict[str, Any]) -> None:
        if not self._store.move_job(job["id"], "running", attempt=True, only=("queued",)):
            return  # cancelled a moment ago
        self._changed()
        try:
            if job["kind"] == "fit":
                await self._run_fit(job)
            else:
                await self._run_learn(job)
        except JobError as failed:
            state = self._store.job(job["id"])
            if state is None or state["state"] != "cancelled":
                self._fail(job, str(failed))
            else:
                self._discard(job)

    def _fail(self, job: dict[str, Any], reason: str) -> None:
        reason = self._redact(reason)
        _log.warning("job %s (%s %s) failed: %s", job["id"], job["kind"], job["model"], reason)
        self._store.move_job(job["id"], "failed", reason)
        if job["kind"] == "learn":
            self.lessons.fail(job["model"], reason)
        self._discard(job)

    async def _run_fit(self, job: dict[str, Any]) -> None:
        number, settings, result = job["id"], job["settings"], self._result(job["id"])
        folder, target = self._training / settings["folder"], self._models.path(job["model"])
        await self._in_process(
            number,
            {
                "kind": "fit",
                "images": [str(folder / name) for name in settings["images"]],
                "config": settings["config"],
                "device": self._settings.device,
                "output": str(result),
            },
        )

        def finish() -> None:
            with self._models.editing(job["model"]):
                if target.exists() and not settings["replace"]:
                    raise JobError(f"a model called {job['model']} appeared while this ran; fit under another name")
                if not self._store.move_job(number, "finishing", only=("running",)):
                    raise JobError("cancelled")
                install(result, target)
            self._models.scan()
            for old in self.training_folder(job["model"]).glob("fit-*"):
                if old != folder:
                    shutil.rmtree(old, ignore_errors=True)
            self._store.move_job(number, "done")

        await asyncio.to_thread(finish)

    async def _run_learn(self, job: dict[str, Any]) -> None:
        number, model, result = job["id"], job["model"], self._result(job["id"])
        if await self.lessons.teach(model, self.training_folder(model), result, partial(self._in_process, number)):
            self._store.move_job(number, "done")
            return
        result.unlink(missing_ok=True)
        self._store.move_job(number, "queued")

    async def _in_process(self, number: int, task: dict[str, Any]) -> None:
        """Run a task in a process of its own."""

        def started(process: asyncio.subprocess.Process) -> None:
            self._process = process

        def progressed(progress: Progress) -> None:
            self._progress[number] = progress
            self._changed()

        try:
            await run_task(task, self._work / f"{number}.log", started, progressed)
        finally:
            self._process = None
