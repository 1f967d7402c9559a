"""The models of a line: loaded once each, reloaded when their files change, and scoring in turn."""

import shutil
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from procon.deploy import load_any
from procon.errors import ProconError
from procon.files import Stamp, find_stamp
from procon.model.metadata import read_metadata
from procon.model.verdict import Predictor, make_prediction
from procon.names import show_name
from procon.prediction import Prediction
from procon.progress import Say, say_nothing
from procon.vision.images import ImageLike, Picture, open_image

if TYPE_CHECKING:
    from procon.vision.backbone import Backbone

_RETRY_SECONDS, _MOST_RETRY_SECONDS = 5.0, 300.0  # after the first failure to load a file; doubled after each more
_GONE_SCANS = 2  # an export removes its old folder just before it moves the new one


class Turns:
    """The device, for one image at a time: who has waited longest is next, so no station can crowd out another."""

    def __init__(self) -> None:
        self._lock, self._waiting = Lock(), deque[Event]()

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Wait for the device and have it while the block runs."""
        ticket = Event()
        with self._lock:
            self._waiting.append(ticket)
            self._waiting[0].set()
        ticket.wait()
        try:
            yield
        finally:
            with self._lock:
                self._waiting.popleft()
                if self._waiting:
                    self._waiting[0].set()


@dataclass(frozen=True)
class LoadedModel:
    """A model that is ready to score; a changed file becomes a new object."""

    predictor: Predictor
    revision: str  # first digits of the checksum of the file: the same content has the same revision everywhere
    turns: Turns

    def predict(self, image: ImageLike) -> Prediction:
        """Score one image; only the measuring needs the device."""
        return self.judge(*self.measure(image))

    def measure(self, image: ImageLike) -> tuple[Picture, Any]:
        """The picture and what was measured on it."""
        scorer, picture = self.predictor.scorer, open_image(image)
        prepared = scorer.prepare(picture)
        with self.turns.turn():
            (measured,) = scorer.measure([prepared], picture.size)
        return picture, measured

    def judge(self, picture: Picture, measured: Any) -> Prediction:
        """Heat map, verdict and regions."""
        return make_prediction(self.predictor.scorer, picture, measured)


LoadModel = Callable[[Path], tuple[Predictor, str]]
"""Path to a model and its revision."""


class Slot:
    """One model file or exported folder, and the model that was loaded from it last."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = path.name.removesuffix(".procon")
        self.current: LoadedModel | None = None
        self.error: str | None = None  # why the file, as it is now, is not loaded
        self.stamp: Stamp | None = None  # of what was loaded or refused last
        self.missing, self.failures, self.retry_at = 0, 0, 0.0

    def fill(self, model: LoadedModel) -> None:
        """Begin with a model that was loaded from the path a moment ago."""
        self.current, self.stamp = model, find_stamp(self.path)


class LineModels:
    """All models of a line by path. Stations that name the same path share the model."""

    def __init__(self, load: LoadModel, turns: Turns, *, every: float = 1.0, say: Say = say_nothing) -> None:
        self._load, self._turns, self._every, self._say = load, turns, every, say
        self._slots: dict[Path, Slot] = {}
        self._stop = Event()
        self._thread = Thread(target=self._run, name="procon-models", daemon=True)

    def slot(self, path: Path) -> Slot:
        """The place of a model; it is loaded by the next scan."""
        return self._slots.setdefault(path.absolute(), Slot(path))

    def start(self) -> None:
        """Load models and look for changed files, in a thread: stations go on with what they have."""
        self._thread.start()

    def check(self) -> None:
        """Raise if the thread has ended: a changed model would never be loaded."""
        if not self._thread.is_alive():
            raise ProconError("the thread that loads models has ended; start the line again")

    def stop(self) -> None:
        """End the thread."""
        self._stop.set()

    def scan(self) -> None:
        """Load what is new or has changed. If that fails the earlier model stays; without its file none does."""
        for slot in self._slots.values():
            stamp = find_stamp(slot.path)
            slot.missing = slot.missing + 1 if stamp is None else 0
            if stamp is None:
                if slot.missing >= _GONE_SCANS or slot.current is None:
                    self._give_up(slot)
            elif stamp != slot.stamp or (slot.error and time.monotonic() >= slot.retry_at):
                slot.stamp = stamp
                self._reload(slot)

    def _give_up(self, slot: Slot) -> None:
        if slot.error is None or slot.current is not None:
            self._say(f"the model {show_name(slot.path)} is gone; parts get no verdict until it is back")
        slot.current, slot.stamp, slot.failures = None, None, 0
        slot.error = f"{show_name(slot.path)}: no such model file or folder; check the path"

    def _reload(self, slot: Slot) -> None:
        try:
            model = self.load(slot.path)
        except Exception as error:  # a damaged file raises any kind; so do missing weights and a full disk
            reason = str(error) if isinstance(error, ProconError | OSError) else f"{type(error).__name__}: {error}"
            slot.failures += 1
            wait = min(_MOST_RETRY_SECONDS, _RETRY_SECONDS * 2 ** (slot.failures - 1))
            slot.retry_at = time.monotonic() + wait
            kept = "; the earlier one stays in use" if slot.current else ""
            if slot.error != reason:
                self._say(f"the model {show_name(slot.path)} cannot be loaded: {reason}{kept}")
            slot.error = reason
        else:
            slot.current, slot.error, slot.failures = model, None, 0
            self._say(f"the model {show_name(slot.path)} is loaded, revision {model.revision}")

    def load(self, path: Path) -> LoadedModel:
        """Load a model and score an empty image with it: the first part must not wait for what is set up then."""
        model = LoadedModel(*self._load(path), self._turns)
        height, width = model.predictor.scorer.config.input_size
        model.predict(_empty_picture(height, width))
        return model

    def _run(self) -> None:
        while not self._stop.is_set():
            self.scan()
            self._stop.wait(self._every)


def _empty_picture(height: int, width: int) -> Picture:
    import numpy as np

    return Picture(np.zeros((height, width, 3), np.uint8))


def model_loader(*, weights: str | Path | None = None, device: str = "auto", threads: int | None = None) -> LoadModel:
    """Loads model files and exported folders. Model files share backbones that are equal; exports carry their own."""
    backbones: WeakSet[Backbone] = WeakSet()

    def load(path: Path) -> tuple[Predictor, str]:
        if path.is_dir():
            predictor: Any = load_any(path, weights=weights, device=device, threads=threads)
            return predictor, str(predictor.manifest.entries["checksum"])[:12]
        # Tensors are mapped from the file. If it were overwritten in place, this process would crash: load a copy.
        with tempfile.TemporaryDirectory(prefix="procon-line-") as place:
            copied = Path(place) / path.name
            try:
                shutil.copyfile(path, copied)
                detector: Any = load_any(copied, weights=weights, device=device, threads=threads)
                revision = str(read_metadata(copied)["checksum"])[:12]
            except ProconError as error:
                raise type(error)(str(error).replace(str(copied), str(path))) from None
        detector.reader.extractor.backbone.share(backbones)
        return detector, revision

    return load
