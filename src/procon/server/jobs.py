"""The queue of fits, feedback to learn and lessons to price: one at a time, in a process each; a restart resumes it."""

import asyncio
import contextlib
import logging
import shutil
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from procon.files import remove_partial_files
from procon.server.disk import install
from procon.server.learning import Learning, OnLearned
from procon.server.lessons import Teaching
from procon.server.models import Models
from procon.server.process import JobError, JobProcess, JobProgress
from procon.server.request_errors import Redactor, RequestError
from procon.server.settings import Settings
from procon.server.store import LIVE, Store, StoreRow
from procon.server.threads import OnCrash, crash_error

_log = logging.getLogger(__name__)
_MOST_ATTEMPTS = 3
_RETRY_SECONDS, _MOST_RETRY_SECONDS = 1.0, 60.0


class Jobs:
    """The queue of long work."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        models: Models,
        redact: Redactor,
        on_learned: OnLearned,
        on_change: Callable[[], None],
        on_crash: OnCrash,
    ) -> None:
        self._settings, self._store, self._models = settings, store, models
        self._redact, self._on_change, self._on_crash = redact, on_change, on_crash
        self.learning = Learning(settings, store, models, on_learned)
        self._work = settings.state_folder / "jobs"
        self._training = settings.state_folder / "training"
        self.teaching = Teaching(settings, store, models, self._work, self._training)
        self._wake = asyncio.Event()
        self._process = JobProcess(on_change)
        self._running: int | None = None
        self._task: asyncio.Task[None] | None = None
        self._event_loop: asyncio.AbstractEventLoop | None = None

    # ------------------------------------------------------------------------------------------------- for requests

    def training_folder(self, model: str) -> Path:
        """The folder of the training images of a model."""
        return self._training / model

    def new_fit_folder(self, model: str) -> Path:
        """A new folder for the images of one fit."""
        return self.training_folder(model) / f"fit-{uuid.uuid4().hex[:12]}"

    def queue_fit(self, model: str, folder: Path, images: list[Path], config: dict[str, Any], replace: bool) -> int:
        """Queue a fit and return its number; it is on disk when this returns."""
        settings = {
            "folder": str(folder.relative_to(self._training)),
            "images": [image.name for image in images],
            "config": config,
            "replace": replace,
        }
        number = self._store.add_job("fit", model, settings)
        self._notify()
        return number

    def queue_learning(self, model: str) -> None:
        """Queue a job that applies all waiting feedback of a model."""
        queued = self._store.jobs(states=("queued",))
        if not any(job["kind"] == "learn" and job["model"] == model for job in queued):
            self._store.add_job("learn", model, {})
        self._notify()

    def queue_lesson(
        self, model: str, verdict: StoreRow, image: tuple[bytes, str], box: list[int], *, force: bool
    ) -> int:
        """Queue the computation of the price of a lesson, and return its number."""
        number = self.teaching.queue(model, verdict, image, box, force=force)
        self._notify()
        return number

    def check_free(self, model: str, replace: bool) -> None:
        """Refuse a fit if its name is taken or if too many jobs are waiting."""
        if self._models.is_exported(model):
            raise RequestError(409, f"there is an exported model called {model}; choose another name")
        if self._models.path(model).exists() and not replace:
            raise RequestError(
                409, f"there is a model called {model}; choose another name, or replace it (replace=true)"
            )
        live = self._store.jobs(states=LIVE)
        if any(job["kind"] == "fit" and job["model"] == model for job in live):
            raise RequestError(409, f"{model} is being fitted; wait for it, or cancel it")
        if len(live) >= self._settings.limits.waiting_jobs:
            raise RequestError(503, "too many jobs are waiting; try again later", {"retry-after": "30"})

    async def cancel(self, job: StoreRow) -> None:
        """Stop a fit or the computation of a price, and remove what it made."""
        if job["kind"] == "learn":
            raise RequestError(409, "feedback cannot be cancelled; take it back")
        if not self._store.move_job(job["id"], "cancelled", "cancelled by request", only=("queued", "running")):
            state = (self._store.job(job["id"]) or job)["state"]
            raise RequestError(409, f"the job is {state}; only a queued or running one can be cancelled")
        if self._running == job["id"]:
            self._process.kill()
        self._discard(job)
        self._notify()

    def progress(self, number: int) -> JobProgress:
        """The progress of a job."""
        return self._process.progress if self._running == number else JobProgress()

    def _notify(self) -> None:
        """Wake the loop; called from any thread."""
        if self._event_loop is not None:
            self._event_loop.call_soon_threadsafe(self._wake.set)
        self._on_change()

    # ------------------------------------------------------------------------------------------------------ running

    def start(self) -> None:
        """Resume the jobs of an earlier server, and start the loop."""
        self._event_loop = asyncio.get_running_loop()
        self._task = asyncio.create_task(self._loop())
        self._task.add_done_callback(self._end)

    def _end(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            self._on_crash(crash_error("the queue of fits and feedback", task.exception()))

    async def stop(self) -> None:
        """Stop the loop; the next server resumes a running job."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    def _recover(self) -> None:
        """Resume the jobs that were running, and queue the feedback that waits."""
        self._work.mkdir(parents=True, exist_ok=True)
        for job in self._store.jobs(limit=1000, states=("running", "finishing")):
            self._resume(job)
        for model in self.learning.waiting():
            self.queue_learning(model)

    def _resume(self, job: StoreRow) -> None:
        number, result = job["id"], self._result(job["id"])
        if job["state"] == "finishing":
            # The model is complete, and perhaps installed already: only the state was not updated.
            if result.exists():
                install(result, self._models.path(job["model"]))
            self._store.move_job(number, "done")
        elif job["attempts"] >= _MOST_ATTEMPTS:
            self._store.move_job(number, "failed", f"the server ended {_MOST_ATTEMPTS} times while this ran")
            self._discard(job)
        else:
            result.unlink(missing_ok=True)
            self._store.move_job(number, "queued")

    def sweep(self) -> None:
        """Remove the images of uploads that never became a job, and what a killed server was writing.

        For the start only: later, images may be arriving for a job that does not exist yet.
        """
        jobs = [job for job in self._store.jobs(limit=100_000) if job["state"] not in ("failed", "cancelled")]
        used = {job["settings"].get("folder") for job in jobs}
        for folder in self._training.glob("*/fit-*"):
            if str(folder.relative_to(self._training)) not in used:
                shutil.rmtree(folder, ignore_errors=True)
        self.teaching.sweep()
        for folder in (self._models.folder, self._settings.state_folder):
            remove_partial_files(folder)

    def _result(self, number: int) -> Path:
        return self._work / f"{number}.procon"

    def _discard(self, job: StoreRow) -> None:
        self.teaching.discard(job["id"])
        if folder := job["settings"].get("folder"):
            shutil.rmtree(self._training / folder, ignore_errors=True)

    async def _loop(self) -> None:
        """Run the jobs; after an error of the store or of the disk, start again."""
        seconds = _RETRY_SECONDS
        while True:
            try:
                self._recover()
                await self._work_off()
            except Exception:
                _log.exception("the queue of fits and feedback failed; it begins again in %.0f s", seconds)
            await asyncio.sleep(seconds)
            seconds = min(2 * seconds, _MOST_RETRY_SECONDS)

    async def _work_off(self) -> None:
        while True:
            self._wake.clear()  # before the query: a job added after it sets the event again
            queued = self._store.jobs(limit=1000, states=("queued",))
            if not queued:
                await self._wake.wait()
                continue
            await self._run(queued[-1])

    async def _run(self, job: StoreRow) -> None:
        if not self._store.move_job(job["id"], "running", attempt=True, only=("queued",)):
            return  # cancelled a moment ago
        self._running = job["id"]
        self._on_change()
        try:
            run = {"fit": self._run_fit, "learn": self._run_learning, "teach": self._run_teaching}
            await run[job["kind"]](job)
        except JobError as error:
            self._fail(job, str(error))
        except Exception:
            _log.exception("job %s failed", job["id"])
            self._fail(job, "something went wrong in the server; its log says what")
        finally:
            self._running = None
            self._on_change()

    def _fail(self, job: StoreRow, reason: str) -> None:
        reason = self._redact(reason)
        if self._store.move_job(job["id"], "failed", reason):  # not if it was cancelled
            _log.warning("job %s (%s %s) failed: %s", job["id"], job["kind"], job["model"], reason)
            if job["kind"] == "learn":
                self.learning.fail(job["model"], reason)
        self._discard(job)

    async def _run_fit(self, job: StoreRow) -> None:
        number, settings, result = job["id"], job["settings"], self._result(job["id"])
        folder, target = self._training / settings["folder"], self._models.path(job["model"])
        task = {
            "kind": "fit",
            "images": [str(folder / name) for name in settings["images"]],
            "config": settings["config"],
            "device": self._settings.device,
            "output": str(result),
        }
        await self._run_process(number, task)

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

    async def _run_learning(self, job: StoreRow) -> None:
        number, model, result = job["id"], job["model"], self._result(job["id"])
        run = partial(self._run_process, number)
        finished = await self.learning.apply(model, self.training_folder(model), result, run)
        if not finished:
            result.unlink(missing_ok=True)
        self._store.move_job(number, "done" if finished else "queued")

    async def _run_teaching(self, job: StoreRow) -> None:
        await self.teaching.propose(job, partial(self._run_process, job["id"]))
        if not self._store.move_job(job["id"], "done", only=("running",)):
            self.teaching.discard(job["id"])  # cancelled while it ended

    async def _run_process(self, number: int, task: dict[str, Any]) -> None:
        await self._process.run(task, self._work / f"{number}.log")
