"""Everything a request needs, in one object: models, queue, device, store, jobs and metrics."""

import asyncio
import fcntl
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, TypeVar
from weakref import WeakSet

from fastapi import Request
from starlette.requests import ClientDisconnect

from procon.detector import Detector
from procon.errors import ConfigError, ProconError
from procon.model.verdict import Measurement, judge
from procon.prediction import Explanation, Prediction
from procon.server import engine
from procon.server.jobs import Jobs
from procon.server.metrics import Metrics
from procon.server.models import Model, Models, Watcher, share_backbone
from procon.server.refusal import Redactor, Refusal
from procon.server.scheduler import Queue, Ticket, Work, Worker
from procon.server.settings import Settings
from procon.server.store import Scored, Store
from procon.server.uploads import Upload, decode, read_header, write_durable
from procon.vision.backbone import Backbone, resolve_device
from procon.vision.images import Picture
from procon.vision.pictures import jpeg, shrink

T = TypeVar("T")

_THUMBNAIL = 160  # pixels
_PRUNE_EVERY = 200  # verdicts


@dataclass(frozen=True)
class Inspection:
    """One image, scored."""

    model: Model
    upload: Upload
    picture: Picture
    prediction: Prediction
    number: int | None
    """Of the verdict, where it was kept."""


class Service:
    """The server without its HTTP."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.device = resolve_device(settings.device)
        state = settings.state_folder
        state.mkdir(parents=True, exist_ok=True)
        self._lock = _lock(state / "lock")
        self.redact = Redactor([settings.folder, state])
        self.store = Store(state / "server.sqlite")
        limits, cuda = settings.limits, self.device.type == "cuda"
        self.queue = Queue(
            settings.queue_images(cuda), limits.queue_bytes, limits.queue_seconds, least=os.cpu_count() or 2
        )
        batch = settings.batch if cuda else 1
        self.worker = Worker(batch, settings.window_seconds, self.queue)
        only = None if settings.only is None else settings.models.absolute()
        self.models = Models(settings.folder, only, state, self._load, self.redact, self.changed)
        self.metrics = Metrics(self._gauges)
        self.jobs = Jobs(settings, self.store, self.models, self.redact, self._learned, self.changed)
        self.version = 0
        """Grows with every change that a page may want to show."""
        self.stopping = False
        self.failure: ProconError | None = None
        """Why it could not start."""
        self._watcher = Watcher(self.models, settings.scan_seconds)
        self._pool = ThreadPoolExecutor(max(2, min(16, os.cpu_count() or 2)), thread_name_prefix="procon-images")
        self._since_pruned = 0
        self._backbones: WeakSet[Backbone] = WeakSet()
        self._parts = state / "parts"

    async def start(self) -> None:
        """Begin; models are loaded in the background."""
        self.worker.start()
        if self.settings.only is not None:  # one model: without it there is nothing to serve
            await asyncio.to_thread(self.models.scan)
            entry = self.models.entries.get(self.settings.only)
            if entry is None or entry.model is None:
                raise ConfigError(entry.error or "cannot be loaded" if entry else f"{self.settings.models}: is gone")
        self._watcher.start()
        self.jobs.start()

    async def stop(self) -> None:
        """Finish what is in flight, then end."""
        self.stopping = True
        self._watcher.stop()
        await self.jobs.stop()
        await asyncio.to_thread(self.worker.stop)
        self._pool.shutdown()
        self.store.close()
        self._lock.close()

    def changed(self) -> None:
        """Tell pages to look again."""
        self.version += 1

    def _load(self, path: Path, name: str) -> Detector:
        training = self.jobs.training_folder(name)
        detector = Detector.load(path, weights=self.settings.weights, training=training, device=str(self.device))
        share_backbone(detector, self._backbones)
        if self.device.type == "cuda":  # kernels compile and graphs are recorded now, not with the first part
            for count in engine.group_sizes(self.settings.batch):
                run = partial(engine.warm, detector, count)
                self.worker.submit(Work(object(), None, run, timed=False)).result()
        return detector

    def _gauges(self) -> dict[str, float]:
        return {
            "queue_images": self.queue.images,
            "queue_limit_images": self.queue.limit,
            "queue_places": self.queue.places,
            "queue_refused_total": self.queue.refused,
            "device_batches_total": self.worker.batches,
            "models_loaded": sum(entry.model is not None for entry in self.models.entries.values()),
            "jobs_live": len(self.store.jobs(states=("queued", "running", "finishing"))),
        }

    async def off(self, function: Callable[..., T], *arguments: Any) -> T:
        """Run something that takes a while in a thread for images."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, partial(function, *arguments))

    # --------------------------------------------------------------------------------------------------- prediction

    async def inspect(
        self,
        model: Model,
        upload: Upload,
        ticket: Ticket,
        request: Request | None,
        keep: bool,
        then: Callable[[Inspection], T],
    ) -> T:
        """Score one image and let a thread for images make ``then`` of it.

        ``request`` is watched, and the work dropped when its sender is gone.
        """
        ending, picture, inputs = await self.off(self._prepare, model, upload, ticket)
        run = partial(engine.measure, model.scorer.scorer)
        reading = await self._on_device(Work(model, inputs, run), request)
        return await self.off(self._finish, model, upload, picture, reading, ending, keep, then)

    async def explain(
        self,
        model: Model,
        upload: Upload,
        ticket: Ticket,
        request: Request,
        xy: tuple[int, int] | None,
        region: tuple[int, int, int, int] | None,
    ) -> tuple[Explanation, Picture]:
        """Why pixel ``xy``, the peak of the heat map in the box ``region``, or the peak of the image has its score."""
        detector = model.detector
        _, picture = await self.off(self._open, upload, ticket)

        def run(_items: Sequence[Any]) -> list[Explanation]:
            return [detector.explain(picture, xy, region)]

        try:
            found: Explanation = await self._on_device(Work(object(), None, run), request)
        except ConfigError as error:  # a pixel or a region outside the image
            raise Refusal(422, self.redact(str(error))) from None
        return found, picture

    async def _on_device(self, work: Work, request: Request | None) -> Any:
        future = asyncio.wrap_future(self.worker.submit(work))
        if request is None:
            return await future
        gone = asyncio.ensure_future(_disconnected(request))
        try:
            await asyncio.wait({future, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not future.done():
                future.cancel()
                raise ClientDisconnect
            return future.result()
        finally:
            gone.cancel()
            future.cancel()

    def _open(self, upload: Upload, ticket: Ticket) -> tuple[str, Picture]:
        """The ending and the pixels of an image, once its size is known and there is room for it."""
        header = read_header(upload.data, self.settings.limits)
        ticket.claim(header.cost)
        return header.ending, decode(upload.data)

    def _prepare(self, model: Model, upload: Upload, ticket: Ticket) -> tuple[str, Picture, engine.Input]:
        ending, picture = self._open(upload, ticket)
        return ending, picture, engine.prepare(model.scorer.scorer, picture)

    def _finish(
        self,
        model: Model,
        upload: Upload,
        picture: Picture,
        reading: Measurement,
        ending: str,
        keep: bool,
        then: Callable[[Inspection], T],
    ) -> T:
        prediction = judge(model.scorer.scorer, picture, reading)
        self.metrics.scored(model.name, prediction.score, prediction.is_anomalous)
        number = self._keep(model, upload, picture, prediction, ending) if keep else None
        return then(Inspection(model, upload, picture, prediction, number))

    def _keep(self, model: Model, upload: Upload, picture: Picture, prediction: Prediction, ending: str) -> int:
        limits, digest = self.settings.limits, upload.digest
        kept = (ending, len(upload.data)) if limits.kept_bytes else None
        path = self.part_file(digest, ending)
        if kept and not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            draft = path.with_name(f".{path.name}.{threading.get_ident()}.partial")
            draft.write_bytes(upload.data)
            draft.replace(path)
        number = self.store.add_verdict(
            Scored(
                model.name,
                model.revision,
                upload.name,
                digest,
                picture.size[1],
                picture.size[0],
                prediction.score,
                prediction.p_value,
                prediction.threshold,
                prediction.is_anomalous,
                [region.to_dict() for region in prediction.regions],
                jpeg(shrink(picture.rgb8(), _THUMBNAIL), quality=80),
            ),
            kept,
        )
        self._since_pruned += 1
        if self._since_pruned >= _PRUNE_EVERY:
            self._since_pruned = 0
            for old, old_ending in self.store.prune(limits.kept_bytes, limits.kept_verdicts):
                self.part_file(old, old_ending).unlink(missing_ok=True)
        self.changed()
        return number

    def part_file(self, digest: str, ending: str) -> Path:
        """Where the image of a verdict is kept."""
        return self._parts / digest[:2] / f"{digest}{ending}"

    def part_bytes(self, digest: str) -> tuple[bytes, str]:
        """The image of a verdict and its ending, or a refusal where it is no longer kept."""
        ending = self.store.part(digest)
        try:
            if ending is not None:
                return self.part_file(digest, ending).read_bytes(), ending
        except OSError:
            pass
        raise Refusal(410, "the image of this part is no longer kept")

    # --------------------------------------------------------------------------------------------------- feedback

    def accept(self, model: str, upload: Upload, ending: str, label: str, verdict: dict[str, Any] | None) -> int:
        """Keep feedback, and the image if it is to be learned, for good; the number of the feedback."""
        file = None
        if label == "good":
            file = self.jobs.feedback_file(model, upload.digest, ending)
            if not file.exists():
                write_durable(file, upload.data)
        score = verdict["score"] if verdict else None
        number = self.store.add_feedback(model, label, upload.digest, file, verdict["id"] if verdict else None, score)
        self.changed()
        return number

    async def _learned(self, model: str, rows: list[dict[str, Any]]) -> None:
        """Note what was learned, each with the score it has now."""
        for row in rows:
            score = None
            try:
                data = await self.off(Path(row["file"]).read_bytes)
                with self.queue.ticket() as ticket:
                    upload = Upload(data, "image")
                    chosen = self.models.get(model)
                    score = await self.inspect(chosen, upload, ticket, None, False, lambda done: done.prediction.score)
            except (Refusal, OSError, ProconError):
                pass  # the score is for people to look at; that it was learned is what counts
            settle = partial(self.store.settle_feedback, row["id"], "learned", None, score, only="pending")
            await asyncio.to_thread(settle)
        self.changed()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _lock(path: Path) -> IO[str]:
    """Two servers on one state folder would undo each other's work."""
    stream = path.open("w")
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        stream.close()
        raise ConfigError(f"{path.parent}: another server is using this folder; stop it, or give --state") from None
    return stream
