"""The models of a folder: loaded, reloaded when their files change, without interrupting requests."""

import contextlib
import copy
import logging
import re
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from procon.config import Config
from procon.deploy import Runtime
from procon.deploy.manifest import MANIFEST, is_exported
from procon.detector import Detector
from procon.errors import ProconError
from procon.files import Stamp, find_stamp, read_stamp, temporary_folder
from procon.model.calibration import Calibration
from procon.model.document import calibration_of, renderings_of
from procon.model.history import Change
from procon.model.metadata import read_metadata
from procon.server.engine import Engine
from procon.server.request_errors import Redactor, RequestError
from procon.server.settings import ENDING, NAME_PATTERN, Settings

_log = logging.getLogger(__name__)

_GONE_SECONDS = 0.05
_RETRY_SECONDS, _MOST_RETRY_SECONDS = 5.0, 300.0  # after the first failure to load a file; doubled after each more


@dataclass(frozen=True, eq=False)
class ServedModel:
    """A loaded model, immutable: a changed file becomes a new object."""

    name: str
    stamp: Stamp
    revision: str  # first digits of the checksum of the file: the same content has the same revision everywhere
    engine: Engine
    config: Config
    calibration: Calibration | None
    images: int  # training images
    anchors: int  # of a bank
    loaded: float = field(default_factory=time.time)  # seconds since 1970
    history: tuple[Change, ...] = ()
    exported: str | None = None  # runtime and precision of an exported model, as "onnx fp32"; None for a model file
    memory_checksum: str | None = None  # of a model file; a change of the threshold does not change it
    full_detector: Detector | None = None  # of a model file; None for an exported model, which can only score

    @property
    def detector(self) -> Detector:
        """The detector, to explain or edit; refused for an exported model."""
        if self.full_detector is None:
            raise RequestError(
                409,
                f"the model {self.name} was exported ({self.exported}) and only scores images; to explain, to learn or "
                "to move its threshold, serve the .procon file it was made from",
            )
        return self.full_detector


@dataclass(frozen=True)
class Entry:
    """The state of one model file or exported folder."""

    model: ServedModel | None = None
    error: str | None = None  # why the file cannot be loaded
    failures: int = 0  # in a row
    retry_at: float = 0.0  # of time.monotonic(): when it is tried again, or earlier if one of its inputs changes
    inputs: tuple[Path, ...] = ()  # the file, and the weights that it needs
    stamps: tuple[Stamp | None, ...] = ()  # of the inputs when loading failed

    @property
    def due(self) -> bool:
        """Whether loading may succeed now."""
        return time.monotonic() >= self.retry_at or self.stamps != tuple(map(find_stamp, self.inputs))


class Models:
    """All models by name. Lookups never wait for loading."""

    def __init__(
        self,
        settings: Settings,
        load_detector: Callable[[Path, str], Detector],
        redact: Redactor,
        on_change: Callable[[], None],
    ) -> None:
        self.folder, self._private = settings.folder, settings.state_folder
        self._weights = settings.weights
        self._only = None if settings.only is None else settings.models.absolute()
        self._load_detector, self._redact, self._on_change = load_detector, redact, on_change
        self._entries: dict[str, Entry] = {}
        self._scanning = threading.Lock()
        self._edits: dict[str, threading.Lock] = {}
        self.ready = False

    def path(self, name: str) -> Path:
        """The file of the model ``name``."""
        if not re.fullmatch(NAME_PATTERN, name):
            raise ValueError(f"not a model name: {name!r}")
        return self.folder / f"{name}{ENDING}"

    def is_exported(self, name: str) -> bool:
        """Whether a folder of that name holds an exported model."""
        return is_exported(self.folder / name)

    def location(self, name: str) -> Path:
        """The file of a model, or the folder of an exported one; refused if there is neither."""
        if re.fullmatch(NAME_PATTERN, name):
            for path in (self.path(name), self.folder / name):
                if path.is_file() or (path.is_dir() and is_exported(path)):
                    return path
        raise RequestError(404, f"no such model: {name}")

    def editing(self, name: str) -> threading.Lock:
        """The lock to hold while the file of a model is replaced."""
        return self._edits.setdefault(name, threading.Lock())

    @property
    def entries(self) -> dict[str, Entry]:
        """All models, sorted by name."""
        return dict(sorted(self._entries.items()))

    @property
    def problems(self) -> list[str]:
        """The models that cannot be loaded, and why."""
        return [
            f"the model {name} cannot be loaded: {entry.error}; the next attempt is in "
            f"{max(0.0, entry.retry_at - time.monotonic()):.0f} s, or when its files change"
            for name, entry in self.entries.items()
            if entry.error
        ]

    def get(self, name: str) -> ServedModel:
        """The current model; refused if there is none."""
        entry = self._entries.get(name)
        if entry is not None and entry.model is not None:
            return entry.model
        if entry is not None:
            raise RequestError(409, f"the model {name} cannot be loaded: {entry.error}")
        if not re.fullmatch(NAME_PATTERN, name):
            raise RequestError(404, "no such model")
        if not self.ready and (self.path(name).is_file() or self.is_exported(name)):
            raise RequestError(503, f"the model {name} is being loaded", {"retry-after": "2"})
        raise RequestError(404, f"no such model: {name}")

    # ----------------------------------------------------------------------------------------------------- loading

    def scan(self) -> None:
        """Load new and changed models and drop deleted ones; if loading fails, the earlier model stays."""
        with self._scanning:
            before, files = (self.ready, dict(self._entries)), self._files()
            if set(self._entries) - set(files):  # an export removes its old folder just before it moves the new one
                time.sleep(_GONE_SECONDS)
                files = self._files()
            for name in set(self._entries) - set(files):
                del self._entries[name]
                _log.warning("model %s is gone", name)
            for name, (path, stamp) in files.items():
                entry = self._entries.get(name, Entry())
                if (entry.model is None or entry.model.stamp != stamp) and entry.due:
                    self._entries[name] = self._load(name, path, stamp, entry)
            self.ready = True
            changed = before != (True, self._entries)
        if changed:
            self._on_change()

    def _files(self) -> dict[str, tuple[Path, Stamp]]:
        """Model files and exported folders by name; where both have the same name, the file is served."""
        files: dict[str, tuple[Path, Stamp]] = {}
        exported = [(path.parent.name, path.parent) for path in self.folder.glob(f"*/{MANIFEST}")]
        for name, path in [*exported, *((p.name.removesuffix(ENDING), p) for p in self.folder.glob(f"*{ENDING}"))]:
            if re.fullmatch(NAME_PATTERN, name) and self._only in (None, path):
                with contextlib.suppress(OSError):  # deleted a moment ago
                    files[name] = path, read_stamp(path)
        return dict(sorted(files.items()))

    def _load(self, name: str, path: Path, stamp: Stamp, before: Entry) -> Entry:
        # Tensors are mapped from the file. If the file were overwritten in place, this process would crash, so a
        # private copy is loaded.
        with temporary_folder(self._private) as place:
            copied = place / path.name
            try:
                if path.is_dir():
                    shutil.copytree(path, copied)
                    model = _serve_runtime(name, stamp, Runtime(copied))
                else:
                    shutil.copyfile(path, copied)
                    model = self._serve_file(name, stamp, copied, before.model)
            except Exception as error:  # a damaged file raises any kind; so do missing weights and a full disk
                if not isinstance(error, ProconError | OSError):
                    _log.warning("loading model %s failed", name, exc_info=error)
                return self._failed(name, path, before, str(error).replace(str(copied), path.name))
        _log.warning("model %s loaded, revision %s", name, model.revision)
        return Entry(model)

    def _failed(self, name: str, path: Path, before: Entry, reason: str) -> Entry:
        seconds = min(_MOST_RETRY_SECONDS, _RETRY_SECONDS * 2**before.failures)
        reason = self._redact(reason)
        _log.warning("model %s cannot be loaded: %s; the next attempt is in %.0f s", name, reason, seconds)
        inputs = (path, *([Path(self._weights)] if self._weights else []), *_weights_of(path))
        stamps = tuple(map(find_stamp, inputs))
        return Entry(before.model, reason, before.failures + 1, time.monotonic() + seconds, inputs, stamps)

    def _serve_file(self, name: str, stamp: Stamp, file: Path, before: ServedModel | None) -> ServedModel:
        metadata = read_metadata(file)
        checksum = str(metadata["tensors_sha256"])
        if before is not None and before.full_detector is not None and before.memory_checksum == checksum:
            detector = _with_threshold(before.full_detector, metadata)
        else:
            detector = self._load_detector(file, name)
        assert detector.memory is not None
        return ServedModel(
            name,
            stamp,
            revision=str(metadata["checksum"])[:12],
            engine=Engine(detector.scorer),
            config=detector.config,
            calibration=detector.calibration,
            images=len(detector.memory.images),
            anchors=int(detector.memory.layers[0].banks.shape[1]),
            history=detector.history,
            memory_checksum=checksum,
            full_detector=detector,
        )


def _weights_of(path: Path) -> list[Path]:
    """The files of weights that a model file names."""
    try:
        metadata = read_metadata(path)
        sources = [str(metadata["backbone"]["source"]), f"path:{metadata['config']['weights'] or ''}"]
    except (ProconError, OSError, KeyError, TypeError):
        return []
    return [Path(source.removeprefix("path:")) for source in sources if source.startswith("path:")]


def _serve_runtime(name: str, stamp: Stamp, runtime: Runtime) -> ServedModel:
    entries = runtime.manifest.entries
    return ServedModel(
        name,
        stamp,
        revision=str(entries["checksum"])[:12],
        engine=Engine(runtime.scorer),
        config=runtime.config,
        calibration=None if entries["calibration"] is None else Calibration.from_dict(entries["calibration"]),
        images=int(entries["memory"]["images"]),
        anchors=int(entries["memory"]["anchors_per_bank"]),
        exported=f"{runtime.manifest.runtime} {runtime.manifest.precision}",
    )


def _with_threshold(detector: Detector, metadata: dict[str, Any]) -> Detector:
    """A detector with the same memory and the threshold, history and limits of ``metadata``; no tensor is loaded."""
    changed = copy.copy(detector)
    history = tuple(Change.from_dict(entry) for entry in metadata["history"])
    edited = replace(detector.model, history=history, renderings=renderings_of(metadata))
    changed.model = edited.calibrated(calibration_of(metadata))
    return changed
