"""Everything a request needs, in one object: models, queue, device, store, jobs and metrics."""

import asyncio
import logging
import os
import sqlite3
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakSet

from fastapi import Request
from starlette.requests import ClientDisconnect

from procon.detector import Detector
from procon.errors import ConfigError, ProconError
from procon.prediction import Explanation, Prediction
from procon.server.disk import describe_storage_error, lock_folder, write_durable
from procon.server.engine import Engine, group_sizes
from procon.server.jobs import Jobs
from procon.server.metrics import ServerMetrics
from procon.server.models import Models, ServedModel
from procon.server.parts import KeptParts
from procon.server.request_errors import Redactor, RequestError
from procon.server.scheduler import DeviceWorker, Queue, Work
from procon.server.settings import Settings
from procon.server.store import LIVE, Store, StoreRow
from procon.server.threads import guarded_thread
from procon.server.uploads import Header, Upload, decode, read_header
from procon.vision.backbone import Backbone, resolve_device
from procon.vision.images import Picture

T = TypeVar("T")

_log = logging.getLogger(__name__)
_JOIN_SECONDS = 10.0  # a model that is being loaded when the server stops is not waited for longer


@dataclass(frozen=True)
class InspectedPart:
    """One scored image."""

    model: ServedModel
    upload: Upload
    picture: Picture
    prediction: Prediction
    number: int | None  # of its verdict, if that was stored
    not_kept: str | None  # why it could not be stored


class Service:
    """The server without the HTTP layer."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.device = resolve_device(settings.device)
        state = settings.state_folder
        self.redact = Redactor([settings.folder, state])
        try:
            state.mkdir(parents=True, exist_ok=True)
            self._lock = lock_folder(state)
            self.store = Store(state / "server.sqlite")
        except (OSError, sqlite3.Error) as error:
            raise ConfigError(f"{state}: {describe_storage_error(error)}") from None
        limits, batch = settings.limits, settings.batch if self.device.type == "cuda" else 1
        images = limits.queue_images or (2 * batch if batch > 1 else 32)
        self.queue = Queue(images, limits.queue_bytes, limits.queue_seconds, least=os.cpu_count() or 2)
        self.worker = DeviceWorker(batch, settings.window_seconds, self.queue, self.crash)
        self.models = Models(settings, self._load, self.redact, self.notify)
        self.parts = KeptParts(state / "parts", self.store, limits, self.redact, self.notify)
        self.metrics = ServerMetrics(self._gauges)
        self.jobs = Jobs(settings, self.store, self.models, self.redact, self._settle_learned, self.notify, self.crash)
        self._watcher = guarded_thread("procon-watch", self._watch, self.crash)
        self._stop = threading.Event()
        self.version = 0  # incremented with every change that a page may show
        self.stopping = False
        self.failure: ProconError | None = None  # why it could not start, or had to stop
        self._pool = ThreadPoolExecutor(max(2, min(16, os.cpu_count() or 2)), thread_name_prefix="procon-images")
        self._backbones: WeakSet[Backbone] = WeakSet()

    async def start(self) -> None:
        """Start all threads; models are loaded in the background."""
        self.jobs.sweep()
        self.worker.start()
        if self.settings.only is not None:  # without its one model there is nothing to serve
            await asyncio.to_thread(self.models.scan)
            entry = self.models.entries.get(self.settings.only)
            if entry is None or entry.model is None:
                raise ConfigError(entry.error or "cannot be loaded" if entry else f"{self.settings.models}: is gone")
        self._watcher.start()
        self.jobs.start()

    async def stop(self) -> None:
        """Finish the requests in progress, then stop all threads."""
        self.stopping = True
        self._stop.set()
        await self.jobs.stop()
        await asyncio.to_thread(self.worker.stop)
        if self._watcher.is_alive():  # it uses the state folder
            await asyncio.to_thread(self._watcher.join, _JOIN_SECONDS)
        self._pool.shutdown()
        self.store.close()
        self._lock.close()

    def notify(self) -> None:
        """Tell pages that something changed."""
        self.version += 1

    def crash(self, error: ProconError) -> None:
        """Stop the server, because a part of it cannot go on."""
        self.failure = self.failure or error
        self.stopping = True

    def _watch(self) -> None:
        """Look for changed models, and for space on a disk that was full, until the server stops."""
        while True:
            for look in (self.models.scan, self.parts.check_storage):
                try:
                    look()
                except Exception:
                    _log.exception("watching the folders failed; it is tried again")
            if self._stop.wait(self.settings.scan_seconds):
                return

    @property
    def problems(self) -> list[str]:
        """What does not work at the moment while images are still scored, in sentences."""
        storage = f"scored parts are not kept for review: {self.parts.error}"
        return [*([storage] if self.parts.error else []), *self.models.problems]

    def _load(self, path: Path, name: str) -> Detector:
        training = self.jobs.training_folder(name)
        detector = Detector.load(path, weights=self.settings.weights, training=training, device=str(self.device))
        detector.reader.extractor.backbone.share(self._backbones)
        if self.device.type == "cuda":  # kernels compile and graphs are recorded now, not with the first part
            engine = Engine(detector.scorer)
            for count in group_sizes(self.settings.batch):
                self.worker.submit(Work(object(), count, engine.warm_up, timed=False)).result()
        return detector

    def _gauges(self) -> dict[str, float]:
        return {
            "queue_images": self.queue.images,
            "queue_limit_images": self.queue.limit,
            "queue_places": self.queue.places,
            "queue_refused_total": self.queue.refused,
            "device_batches_total": self.worker.batches,
            "models_loaded": sum(entry.model is not None for entry in self.models.entries.values()),
            "jobs_live": len(self.store.jobs(states=LIVE)),
        }

    async def in_pool(self, function: Callable[..., T], *arguments: Any) -> T:
        """Run slow work in the thread pool for images."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, partial(function, *arguments))

    # --------------------------------------------------------------------------------------------------- prediction

    async def inspect(
        self,
        model: ServedModel,
        upload: Upload,
        request: Request | None,
        keep: bool,
        respond: Callable[[InspectedPart], T],
    ) -> T:
        """Score one image and return the result of ``respond``, which is called in the thread pool.

        If the sender of ``request`` disconnects, the work is dropped.
        """
        with ExitStack() as place:

            def prepare() -> tuple[Header, Picture, Any]:
                header, picture = self._open(upload, place)
                return header, picture, model.engine.prepare(picture)

            header, picture, prepared = await self.in_pool(prepare)
            measured = await self._on_device(Work(model, prepared, model.engine.score), request)

            def finish() -> T:
                prediction = model.engine.judge(picture, measured)
                self.metrics.count_score(model.name, prediction.score, prediction.is_anomalous)
                number = self.parts.keep(model, upload, header, picture, prediction) if keep else None
                not_kept = self.parts.error if keep and number is None else None
                return respond(InspectedPart(model, upload, picture, prediction, number, not_kept))

            return await self.in_pool(finish)

    async def explain(
        self,
        model: ServedModel,
        upload: Upload,
        request: Request,
        xy: tuple[int, int] | None,
        region: tuple[int, int, int, int] | None,
        respond: Callable[[ServedModel, Picture, Explanation], T],
    ) -> T:
        """Explain pixel ``xy``, the peak of the heat map in the box ``region``, or the peak of the image."""
        detector = model.detector
        with ExitStack() as place:
            _, picture = await self.in_pool(self._open, upload, place)

            def run(_items: Sequence[Any]) -> list[Explanation]:
                return [detector.explain(picture, xy, region)]

            try:
                explanation: Explanation = await self._on_device(Work(object(), None, run), request)
            except ConfigError as error:  # a pixel or a region outside the image
                raise RequestError(422, self.redact(str(error))) from None
            return await self.in_pool(respond, model, picture, explanation)

    async def _on_device(self, work: Work, request: Request | None) -> Any:
        future = asyncio.wrap_future(self.worker.submit(work))
        if request is None:
            return await future
        disconnect = asyncio.ensure_future(_wait_for_disconnect(request))
        try:
            await asyncio.wait({future, disconnect}, return_when=asyncio.FIRST_COMPLETED)
            if not future.done():
                raise ClientDisconnect
            return future.result()
        finally:
            disconnect.cancel()
            future.cancel()

    def _open(self, upload: Upload, place: ExitStack) -> tuple[Header, Picture]:
        """Header and pixels of an image, once it has a place in the queue."""
        header = read_header(upload.data, self.settings.limits)
        place.enter_context(self.queue.place(header.cost))
        return header, decode(upload.data)

    # --------------------------------------------------------------------------------------------------- feedback

    def accept_good(self, model: str, data: bytes, ending: str, verdict: StoreRow | None = None) -> int:
        """Store an image to be learned, on disk, with its feedback; returns the number of the feedback."""
        digest = Upload(data).digest
        file = self.jobs.training_folder(model) / "feedback" / f"{digest[:24]}{ending}"  # the same content, one path
        if not file.exists():
            write_durable(file, data)
        return self.note(model, "good", digest, file, verdict)

    def note(self, model: str, label: str, digest: str, file: Path | None, verdict: StoreRow | None) -> int:
        """Store feedback and return its number; with a ``file``, the image is to be learned."""
        number, score = (verdict["id"], verdict["score"]) if verdict else (None, None)
        feedback = self.store.add_feedback(model, label, digest, file, number, score)
        self.notify()
        return feedback

    async def _settle_learned(self, model: str, rows: list[StoreRow]) -> None:
        """Mark feedback as learned, each with the score that its image has now."""
        for row in rows:
            score = None
            try:
                upload = Upload(await self.in_pool(Path(row["file"]).read_bytes))
                served = self.models.get(model)
                score = await self.inspect(served, upload, None, False, lambda part: part.prediction.score)
            except (RequestError, OSError, ProconError):
                pass  # the score is only shown to people
            settle = partial(self.store.settle_feedback, row["id"], "learned", None, score, only="pending")
            await asyncio.to_thread(settle)
        self.notify()


async def _wait_for_disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
