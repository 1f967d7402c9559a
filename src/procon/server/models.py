"""The models of a folder: loaded, watched, and swapped whole while requests keep what they began with."""

import contextlib
import copy
import logging
import re
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from weakref import WeakSet

from procon.config import Config
from procon.deploy import Runtime
from procon.deploy.manifest import MANIFEST, is_exported
from procon.detector import Detector
from procon.errors import ProconError
from procon.files import atomic_path
from procon.model.calibration import Calibration
from procon.model.file import calibration_of
from procon.model.history import Change
from procon.model.storage import read_metadata
from procon.server.refusal import Redactor, Refusal
from procon.server.settings import ENDING, NAME_PATTERN
from procon.server.uploads import sync_folder
from procon.vision.backbone import Backbone

_log = logging.getLogger(__name__)

_GONE_SECONDS = 0.05

Stamp = tuple[int, int, int]
"""Inode, size and time of change: another file at the same path has another stamp. Of a folder: of all its files."""


def _stamp(path: Path) -> Stamp:
    parts = [file.stat() for file in (path.iterdir() if path.is_dir() else (path,))]
    numbers = [(part.st_ino, part.st_size, part.st_mtime_ns) for part in parts]
    return sum(one[0] for one in numbers), sum(one[1] for one in numbers), max(one[2] for one in numbers)


@dataclass(frozen=True, eq=False)
class Model:
    """A loaded model. Never changed: a new file becomes a new one of these."""

    name: str
    path: Path
    stamp: Stamp
    revision: str
    """First digits of the checksum of the file: the same content has the same revision everywhere."""
    memory: str
    """The checksum of its memory, which a change of the threshold leaves alone."""
    scorer: Detector | Runtime
    """A detector, or an exported model, which can score and nothing else."""
    calibration: Calibration | None
    loaded: float
    """Seconds since 1970."""

    @property
    def config(self) -> Config:
        """Its settings."""
        return self.scorer.config

    @property
    def exported(self) -> str | None:
        """What it was exported to, as ``onnx fp32``; None for a model file."""
        if isinstance(self.scorer, Runtime):
            return f"{self.scorer.manifest.runtime} {self.scorer.manifest.precision}"
        return None

    @property
    def detector(self) -> Detector:
        """The detector, for what an exported model cannot do; asking that of one is refused."""
        if isinstance(self.scorer, Runtime):
            raise Refusal(
                409,
                f"the model {self.name} was exported ({self.exported}) and only scores images; to explain, to learn or "
                "to move its threshold, serve the .procon file it was made from",
            )
        return self.scorer


@dataclass(frozen=True)
class Entry:
    """What is known of one model file or exported folder."""

    model: Model | None = None
    failed: Stamp | None = None
    """The file that could not be loaded, so that it is not tried again."""
    error: str | None = None


class Models:
    """All models by name. Lookups never wait for loading."""

    def __init__(
        self,
        folder: Path,
        only: Path | None,
        private: Path,
        load: Callable[[Path, str], Detector],
        redact: Redactor,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self._folder, self._only, self._private = folder, only, private
        self._load, self._redact, self._changed = load, redact, changed
        self._entries: dict[str, Entry] = {}
        self._scanning = threading.Lock()
        self._edits: dict[str, threading.Lock] = {}
        self.ready = False

    def path(self, name: str) -> Path:
        """Where the model called ``name`` lies."""
        if not re.fullmatch(NAME_PATTERN, name):
            raise ValueError(f"not a model name: {name!r}")
        return self._folder / f"{name}{ENDING}"

    def exported(self, name: str) -> bool:
        """Whether a folder of that name holds an exported model."""
        return is_exported(self._folder / name)

    def editing(self, name: str) -> threading.Lock:
        """Held while the file of a model is being replaced."""
        return self._edits.setdefault(name, threading.Lock())

    @property
    def entries(self) -> dict[str, Entry]:
        """What is there now, by name."""
        return dict(sorted(self._entries.items()))

    def get(self, name: str) -> Model:
        """A model as it is now, or a refusal."""
        entry = self._entries.get(name)
        if entry is not None and entry.model is not None:
            return entry.model
        if entry is not None:
            raise Refusal(409, f"the model {name} cannot be loaded: {entry.error}")
        if not self.ready and re.fullmatch(NAME_PATTERN, name) and (self.path(name).is_file() or self.exported(name)):
            raise Refusal(503, f"the model {name} is being loaded", {"retry-after": "2"})
        raise Refusal(404, f"no such model: {name}" if re.fullmatch(NAME_PATTERN, name) else "no such model")

    def scan(self) -> None:
        """Load what is new or changed, drop what is gone; where loading fails, the model that was there stays."""
        with self._scanning:
            before, found = (self.ready, dict(self._entries)), self._files()
            if set(self._entries) - set(found):  # an export takes its old folder away just before the new one comes
                time.sleep(_GONE_SECONDS)
                found = self._files()
            for name in set(self._entries) - set(found):
                del self._entries[name]
                _log.warning("model %s is gone", name)
            for name, (path, stamp) in found.items():
                entry = self._entries.get(name, Entry())
                if (entry.model is None or entry.model.stamp != stamp) and entry.failed != stamp:
                    self._entries[name] = self._loaded(name, path, stamp, entry)
            self.ready = True
            same = before == (True, self._entries)
        if not same:
            self._changed()

    def _files(self) -> dict[str, tuple[Path, Stamp]]:
        """Model files and exported folders by name; where both have the same, the file is served."""
        found: dict[str, tuple[Path, Stamp]] = {}
        files = [(path.name.removesuffix(ENDING), path) for path in self._folder.glob(f"*{ENDING}")]
        folders = [(path.parent.name, path.parent) for path in self._folder.glob(f"*/{MANIFEST}")]
        for name, path in [*folders, *files]:
            if re.fullmatch(NAME_PATTERN, name) and self._only in (None, path):
                with contextlib.suppress(OSError):  # gone a moment ago
                    found[name] = path, _stamp(path)
        return dict(sorted(found.items()))

    def _loaded(self, name: str, path: Path, stamp: Stamp, before: Entry) -> Entry:
        # Tensors are mapped from the file. Somebody may write over it in place, which would end this process; a copy
        # that has no name any more nobody can touch.
        with tempfile.TemporaryDirectory(dir=self._private) as place:
            copied = Path(place) / path.name
            try:
                model = (self._exported if path.is_dir() else self._detector)(name, path, stamp, copied, before)
            except (ProconError, OSError, KeyError, TypeError, ValueError) as error:
                reason = self._redact(str(error).replace(str(copied), path.name))
                _log.warning("model %s cannot be loaded: %s", name, reason)
                return replace(before, failed=stamp, error=reason)
        _log.warning("model %s loaded, revision %s", name, model.revision)
        return Entry(model)

    def _detector(self, name: str, path: Path, stamp: Stamp, copied: Path, before: Entry) -> Model:
        shutil.copyfile(path, copied)
        metadata = read_metadata(copied)
        revision, memory = str(metadata["checksum"])[:12], str(metadata["tensors_sha256"])
        earlier = before.model.scorer if before.model is not None and before.model.memory == memory else None
        detector = _with_threshold(earlier, metadata) if isinstance(earlier, Detector) else self._load(copied, name)
        return Model(name, path, stamp, revision, memory, detector, detector.calibration, time.time())

    def _exported(self, name: str, path: Path, stamp: Stamp, copied: Path, _before: Entry) -> Model:
        shutil.copytree(path, copied)
        runtime = Runtime(copied)
        entries = runtime.manifest.entries
        stored, checksum = entries["calibration"], str(entries["checksum"])
        calibration = None if stored is None else Calibration.from_dict(stored)
        return Model(name, path, stamp, checksum[:12], checksum, runtime, calibration, time.time())


def _with_threshold(detector: Detector, metadata: dict[str, Any]) -> Detector:
    """A detector with the same memory and the threshold and log of ``metadata``; nothing is loaded."""
    changed = copy.copy(detector)
    history = tuple(Change.from_dict(entry) for entry in metadata["history"])
    changed.model = replace(detector.model, history=history).calibrated(calibration_of(metadata))
    return changed


def share_backbone(detector: Detector, known: WeakSet[Backbone]) -> None:
    """Let a detector use the weights of another that has the same; twenty models then hold them once.

    Only weights are shared. What depends on the size of the input stays its own.
    """
    own = detector.reader.extractor.backbone
    for other in known:
        if (other.fingerprint, other.dtype, other.device) == (own.fingerprint, own.dtype, own.device):
            own._model, own._tensors = other._model, other._tensors
            break
    known.add(own)


class Watcher:
    """Looks at the folder every so often, in a thread."""

    def __init__(self, models: Models, seconds: float) -> None:
        self._models, self._seconds = models, seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="procon-models", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End."""
        self._stop.set()

    def _loop(self) -> None:
        while True:
            try:
                self._models.scan()
            except Exception:
                _log.exception("looking for models failed")
            if self._stop.wait(self._seconds):
                return


def install(source: Path, target: Path) -> None:
    """Put a finished model in place, at once and for good."""
    try:
        source.replace(target)
    except OSError:  # another file system
        with atomic_path(target) as temporary:
            shutil.copyfile(source, temporary)
        source.unlink()
    sync_folder(target.parent)
