"""Lessons in the service: a missed defect is marked, priced in the background, and then accepted or discarded."""

import copy
import json
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from procon.model.document import read_calibration
from procon.model.metadata import read_metadata
from procon.server.disk import install, write_durable
from procon.server.learning import keep_threshold
from procon.server.models import Models
from procon.server.process import JobError
from procon.server.request_errors import RequestError
from procon.server.settings import ENDING, Settings
from procon.server.store import Store, StoreRow

KIND = "teach"  # of a job


class Teaching:
    """Proposals of lessons: each is a job, whose results wait in the folder ``work`` until somebody decides."""

    def __init__(self, settings: Settings, store: Store, models: Models, work: Path, training: Path) -> None:
        self._settings, self._store, self._models = settings, store, models
        self._work, self._training = work, training
        self._queueing = threading.Lock()

    def queue(self, model: str, verdict: StoreRow, image: tuple[bytes, str], box: list[int], *, force: bool) -> int:
        """Queue the computation of a price; the image is on disk when this returns. An earlier proposal is dropped."""
        data, ending = image
        name = f"{verdict['digest'][:24]}{ending}"
        file = self._training / model / "lessons" / name
        with self._queueing:
            if any(
                job["kind"] == KIND and job["model"] == model for job in self._store.jobs(states=("queued", "running"))
            ):
                raise RequestError(409, "the price of another lesson is being computed; wait for it, or discard it")
            for job in self._store.jobs(limit=1000, states=("done",)):
                if job["kind"] == KIND and job["model"] == model:
                    self.discard(job["id"])
            if not file.exists():
                write_durable(file, data)
            settings = {"image": name, "name": verdict["name"], "verdict": verdict["id"], "box": box, "force": force}
            return self._store.add_job(KIND, model, settings)

    async def propose(self, job: StoreRow, run: Callable[[dict[str, Any]], Awaitable[None]]) -> None:
        """Compute the price of a lesson in a process that ``run`` starts."""
        path = self._models.path(job["model"])
        if not path.is_file():
            raise JobError(f"there is no model called {job['model']} any more")
        await run(
            {
                "kind": KIND,
                "model": str(path),
                "weights": self._settings.weights,
                "training": str(self._training / job["model"]),
                "image": str(self._training / job["model"] / "lessons" / job["settings"]["image"]),
                "box": job["settings"]["box"],
                "force": job["settings"]["force"],
                "device": self._settings.device,
                "output": str(self._model_of(job["id"])),
                "price": str(self._price_of(job["id"])),
            }
        )

    def price(self, job: StoreRow) -> dict[str, Any] | None:
        """What the lesson costs; None before that is known, and after it was accepted or discarded."""
        try:
            price: dict[str, Any] = json.loads(self._price_of(job["id"]).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        return price if job["state"] == "done" else None

    def accept(self, job: StoreRow, *, force: bool) -> None:
        """Install the model with the lesson; refused over the false-alarm rate unless ``force`` is given."""
        price, path, result = self.price(job), self._models.path(job["model"]), self._model_of(job["id"])
        if price is None or not result.exists():
            raise RequestError(409, "there is no price to accept: it is not computed yet, or was decided already")
        if price["is_too_high"] and not force:
            raise RequestError(
                409, "the lesson raises false alarms above the rate of the model; discard it, or accept it with force"
            )
        with self._models.editing(job["model"]):
            if not path.is_file() or read_metadata(path)["tensors_sha256"] != price["base"]:
                self.discard(job["id"])
                raise RequestError(409, "the model changed since the price was computed; ask for the price again")
            keep_threshold(path, result, read_calibration(result))
            install(result, path)
        self.discard(job["id"])
        self._models.scan()

    def discard(self, number: int) -> None:
        """Forget a proposal."""
        for file in (self._model_of(number), self._price_of(number)):
            file.unlink(missing_ok=True)

    def sweep(self) -> None:
        """Remove what is left of jobs that ended: prices that nobody decided about before the server stopped."""
        live = {str(job["id"]) for job in self._store.jobs(limit=1000, states=("queued", "running", "finishing"))}
        for file in (*self._work.glob(f"*{ENDING}"), *self._work.glob("*.json")):
            if file.stem not in live:
                file.unlink(missing_ok=True)

    def forget(self, model: str, lesson: str) -> None:
        """Take a lesson back."""
        with self._models.editing(model):
            served, path = self._models.get(model), self._models.path(model)
            detector = served.detector
            if read_metadata(path)["tensors_sha256"] != served.memory_checksum:
                raise RequestError(409, "the model has just changed; try again")
            if lesson not in [known.name for known in detector.model.lessons]:
                raise RequestError(404, "no such lesson")
            draft, changed = self._work / f"forget-{model}{ENDING}", copy.copy(detector)
            try:
                changed.forget([lesson]).save(draft)
                keep_threshold(path, draft, read_calibration(draft))
                install(draft, path)
            finally:
                draft.unlink(missing_ok=True)
        self._models.scan()

    def _model_of(self, number: int) -> Path:
        return self._work / f"{number}{ENDING}"

    def _price_of(self, number: int) -> Path:
        return self._work / f"{number}.json"
