"""Model files as a whole: renamed, deleted, sent, received and exported, without interrupting requests."""

import json
import logging
import shutil
import sqlite3
import tempfile
import threading
import uuid
import zipfile
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Literal

from procon.detector import Detector
from procon.errors import OutputError, ProconError
from procon.files import temporary_folder
from procon.model.storage import read_model
from procon.server.disk import install, write_durable
from procon.server.request_errors import RequestError
from procon.server.service import Service

_log = logging.getLogger(__name__)

ExportTarget = Literal["onnx", "openvino"]


class ModelFiles:
    """What can be done with the files of models."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._changes = service.settings.state_folder / "changes"
        self._exporting = threading.Lock()

    def rename(self, old: str, new: str) -> None:
        """Give a model, its past parts and its training images another name."""
        models, store, jobs = self._service.models, self._service.store, self._service.jobs
        with self._changing(old):
            models.location(old)
            if models.path(new).exists() or (models.folder / new).exists() or store.is_busy(new):
                raise RequestError(409, f"there is a model called {new}; choose another name")
            if store.knows(new) or jobs.training_folder(new).exists():
                raise RequestError(
                    409, f"past parts of an earlier model called {new} are still here; choose another name"
                )
            with self._noting({"rename": old, "to": new}):
                try:
                    self._rename(old, new)
                except (OSError, sqlite3.Error):  # as if nothing had happened
                    self._rename(new, old)
                    raise
        models.scan()

    def _rename(self, old: str, new: str) -> None:
        """Rename what still has the old name, also after a part of it was renamed."""
        models, before, after = self._service.models, *map(self._service.jobs.training_folder, (old, new))
        self._service.store.rename_model(old, new, before.parent)
        if before.exists() and not after.exists():
            before.rename(after)
        for source, target in ((models.path(old), models.path(new)), (models.folder / old, models.folder / new)):
            if source.exists() and not target.exists():
                source.rename(target)

    def delete(self, name: str) -> None:
        """Delete a model with its past parts and its training images."""
        with self._changing(name):
            self._service.models.location(name)
            with self._noting({"delete": name}):
                self._delete(name)
        self._service.models.scan()

    def _delete(self, name: str) -> None:
        """Delete what is still there of a model."""
        models = self._service.models
        models.path(name).unlink(missing_ok=True)
        if models.is_exported(name):
            shutil.rmtree(models.folder / name)
        self._service.parts.drop_model(name)
        shutil.rmtree(self._service.jobs.training_folder(name), ignore_errors=True)

    @contextmanager
    def _noting(self, change: dict[str, str]) -> Iterator[None]:
        """Note a change of several files on disk while it is made; the next server finishes it after a kill."""
        note = self._changes / f"{uuid.uuid4().hex}.json"
        write_durable(note, json.dumps(change).encode())
        try:
            yield
        finally:
            note.unlink(missing_ok=True)

    def finish_changes(self) -> None:
        """Finish what a server that was killed had begun."""
        for note in sorted(self._changes.glob("*.json")):
            try:
                change = json.loads(note.read_bytes())
                if "rename" in change:
                    self._rename(change["rename"], change["to"])
                else:
                    self._delete(change["delete"])
                note.unlink()
            except (OSError, sqlite3.Error) as error:
                _log.warning("a change of a model is not finished, the next start tries again: %s", error)

    @contextmanager
    def _changing(self, name: str) -> Iterator[None]:
        """While a model is renamed or deleted; refused while something else is about to change it."""
        if self._service.settings.only is not None:
            raise RequestError(409, "this server serves one model; start it with a folder to rename or delete models")
        with self._service.models.editing(name):
            if self._service.store.is_busy(name):
                raise RequestError(409, f"{name} is being fitted or is learning; wait for it, or cancel it")
            yield

    def open(self, name: str) -> tuple[str, BinaryIO]:
        """The name of a file to send and the file: the model itself, or an exported folder as an archive."""
        path = self._service.models.location(name)
        return (path.name, path.open("rb")) if path.is_file() else (f"{name}.zip", _archive(path))

    async def receive(self, name: str, body: AsyncIterator[bytes], replace: bool) -> None:
        """Write a model file that a client sends, after its checksums; it takes the place of one if ``replace``."""
        service = self._service
        if service.settings.only is not None:
            raise RequestError(409, "this server serves one model; start it with a folder to add others")
        with temporary_folder(service.settings.state_folder) as place:
            draft = place / f"{name}.procon"
            with draft.open("wb") as stream:
                async for chunk in body:
                    stream.write(chunk)
            await service.in_pool(self._install, name, draft, replace)

    def _install(self, name: str, draft: Path, replace: bool) -> None:
        models, target = self._service.models, self._service.models.path(name)
        try:
            read_model(draft)
        except ProconError as error:
            raise RequestError(422, str(error).replace(str(draft), "the file")) from None
        with models.editing(name):
            if self._service.store.is_busy(name):
                raise RequestError(409, f"{name} is being fitted or is learning; wait for it, or cancel it")
            if models.is_exported(name):
                raise RequestError(409, f"there is an exported model called {name}; choose another name")
            if target.exists() and not replace:
                raise RequestError(
                    409, f"there is a model called {name}; choose another name, or replace it (replace=true)"
                )
            install(draft, target)
        models.scan()

    def export(self, name: str, to: ExportTarget) -> BinaryIO:
        """An archive of the model for machines without torch, compared with the model before it is sent."""
        from procon.deploy.export import export

        settings, path = self._service.settings, self._service.models.location(name)
        if path.is_dir():
            raise RequestError(409, f"the model {name} is exported already; download it")
        if not self._exporting.acquire(blocking=False):
            raise RequestError(503, "another export is running; try again in a minute", {"retry-after": "60"})
        try:
            with temporary_folder(settings.state_folder) as place:
                copied = place / path.name
                folder = place / "export" / name  # an export locks the parent of its folder, and `place` is locked
                shutil.copyfile(path, copied)  # the model in use may be replaced meanwhile
                training = self._service.jobs.training_folder(name)
                try:
                    detector = Detector.load(copied, weights=settings.weights, training=training, device="cpu")
                    export(detector, folder, runtime=to, measure_memory=False)
                except OutputError:
                    raise
                except ProconError as error:  # a missing extra, or an export that differs from its model
                    raise RequestError(409, str(error).replace(f"{place}/", "")) from None
                return _archive(folder)
        finally:
            self._exporting.release()


def _archive(folder: Path) -> BinaryIO:
    """An uncompressed zip archive with a folder, in a file that disappears when it is closed."""
    stream = tempfile.TemporaryFile(dir=folder.parent)  # noqa: SIM115  # whoever sends it closes it
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as archive:
        for file in sorted(path for path in folder.rglob("*") if path.is_file()):
            archive.write(file, f"{folder.name}/{file.relative_to(folder)}")
    stream.seek(0)
    return stream
