"""The models of a folder: loaded, watched, and swapped whole while requests keep what they began with."""

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

from procon.detector import Detector
from procon.errors import ProconError
from procon.history import Change
from procon.model_file import calibration_of
from procon.server.refusal import Redactor, Refusal
from procon.server.settings import ENDING, NAME_PATTERN
from procon.server.uploads import sync_folder
from procon.storage import atomic_path, read_metadata

_log = logging.getLogger(__name__)

Stamp = tuple[int, int, int]
"""Inode, size and time of change: another file at the same path has another stamp."""


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
    detector: Detector
    loaded: float
    """Seconds since 1970."""


@dataclass(frozen=True)
class Entry:
    """What is known of one model file."""

    model: Model | None = None
    failed: Stamp | None = None
    """The file that could not be loaded, so that it is not tried again."""
    error: str | None = None


class Models:
    """All models by name. Lookups never wait for loading."""

    def __init__(
        self,
        folder: Path,
        only: str | None,
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
        if not self.ready and re.fullmatch(NAME_PATTERN, name) and self.path(name).is_file():
            raise Refusal(503, f"the model {name} is being loaded", {"retry-after": "2"})
        raise Refusal(404, f"no such model: {name}" if re.fullmatch(NAME_PATTERN, name) else "no such model")

    def scan(self) -> None:
        """Load what is new or changed, drop what is gone; where loading fails, the model that was there stays."""
        with self._scanning:
            before, found = (self.ready, dict(self._entries)), self._files()
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
        found: dict[str, tuple[Path, Stamp]] = {}
        for path in sorted(self._folder.glob(f"*{ENDING}")):
            name = path.name.removesuffix(ENDING)
            if re.fullmatch(NAME_PATTERN, name) and self._only in (None, name):
                try:
                    status = path.stat()
                except OSError:  # gone a moment ago
                    continue
                found[name] = path, (status.st_ino, status.st_size, status.st_mtime_ns)
        return found

    def _loaded(self, name: str, path: Path, stamp: Stamp, before: Entry) -> Entry:
        # Tensors are mapped from the file. Somebody may write over it in place, which would end this process; a copy
        # that has no name any more nobody can touch.
        with tempfile.TemporaryDirectory(dir=self._private) as place:
            copied = Path(place) / path.name
            try:
                shutil.copyfile(path, copied)
                metadata = read_metadata(copied)
                revision, memory = str(metadata["checksum"])[:12], str(metadata["tensors_sha256"])
                if before.model is not None and before.model.memory == memory:
                    detector = _with_threshold(before.model.detector, metadata)
                else:
                    detector = self._load(copied, name)
            except (ProconError, OSError, KeyError, TypeError, ValueError) as error:
                reason = self._redact(str(error).replace(str(copied), path.name))
                _log.warning("model %s cannot be loaded: %s", name, reason)
                return replace(before, failed=stamp, error=reason)
        _log.warning("model %s loaded, revision %s", name, revision)
        return Entry(Model(name, path, stamp, revision, memory, detector, time.time()))


def _with_threshold(detector: Detector, metadata: dict[str, Any]) -> Detector:
    """A detector with the same memory and the threshold and log of ``metadata``; nothing is loaded."""
    changed = copy.copy(detector)
    changed.calibration = calibration_of(metadata)
    changed.config = replace(detector.config, false_alarm_rate=metadata["config"]["false_alarm_rate"])
    changed.history = tuple(Change.from_dict(entry) for entry in metadata["history"])
    return changed


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
