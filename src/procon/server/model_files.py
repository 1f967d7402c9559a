"""Model files as a whole: renamed, deleted, sent, received and exported, without interrupting requests."""

import shutil
import tempfile
import threading
import zipfile
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Literal

from procon.detector import Detector
from procon.errors import OutputError, ProconError
from procon.model.storage import read_model
from procon.server.disk import install
from procon.server.request_errors import RequestError
from procon.server.service import Service

ExportTarget = Literal["onnx", "openvino"]


class ModelFiles:
    """What can be done with the files of models."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._exporting = threading.Lock()

    def rename(self, old: str, new: str) -> None:
        """Give a model, its past parts and its training images another name."""
        models, store, jobs = self._service.models, self._service.store, self._service.jobs
        with self._changing(old):
            source = models.location(old)
            target = models.path(new) if source.is_file() else models.folder / new
            before, after = jobs.training_folder(old), jobs.training_folder(new)
            if models.path(new).exists() or (models.folder / new).exists() or store.is_busy(new):
                raise RequestError(409, f"there is a model called {new}; choose another name")
            if store.knows(new) or after.exists():
                raise RequestError(
                    409, f"past parts of an earlier model called {new} are still here; choose another name"
                )
            moved = before.exists()
            if moved:
                before.rename(after)
            try:
                store.rename_model(old, new, before.parent)
                source.rename(target)
            except OSError:  # as if nothing had happened
                store.rename_model(new, old, before.parent)
                if moved:
                    after.rename(before)
                raise
        models.scan()

    def delete(self, name: str) -> None:
        """Delete a model with its past parts and its training images."""
        models = self._service.models
        with self._changing(name):
            path = models.location(name)
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
            self._service.parts.drop_model(name)
            shutil.rmtree(self._service.jobs.training_folder(name), ignore_errors=True)
        models.scan()

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
        with tempfile.TemporaryDirectory(dir=service.settings.state_folder) as place:
            draft = Path(place) / f"{name}.procon"
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
            with tempfile.TemporaryDirectory(dir=settings.state_folder) as place:
                copied = Path(place) / path.name
                shutil.copyfile(path, copied)  # the model in use may be replaced meanwhile
                training = self._service.jobs.training_folder(name)
                try:
                    detector = Detector.load(copied, weights=settings.weights, training=training, device="cpu")
                    export(detector, Path(place) / name, runtime=to, measure_memory=False)
                except OutputError:
                    raise
                except ProconError as error:  # a missing extra, or an export that differs from its model
                    raise RequestError(409, str(error).replace(f"{place}/", "")) from None
                return _archive(Path(place) / name)
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
