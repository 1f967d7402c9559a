"""Images as they arrive: files of a folder once they are completely written, or frames of a camera."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from procon.errors import ConfigError, ImageError, MissingExtraError
from procon.line.outbox import Key
from procon.line.parts import Arrival, Trigger
from procon.names import show_name
from procon.vision.folders import list_images
from procon.vision.images import open_bytes


class Source(Protocol):
    """Where images come from: by themselves, or one for each trigger."""

    def poll(self, is_done: Callable[[Key], bool]) -> list[Arrival]:
        """What has arrived by itself and is not done."""

    def take(self, trigger: Trigger, until: float) -> Arrival:
        """The image of a part, by ``until`` of time.monotonic(); an ImageError says why there is none."""

    def close(self) -> None:
        """Give up what is held open."""


class Folder:
    """A folder below which images appear.

    A file is complete when its size and time of modification have stayed as they are for ``settle`` seconds. One that
    is renamed into place is complete from the start and waits as long. A file that changes later is a new image.
    """

    def __init__(self, folder: Path, settle: float, clock: Callable[[], float] = time.monotonic) -> None:
        if not folder.is_dir():
            raise ImageError(f"{show_name(folder)}: no such folder to watch; check the path")
        self._folder, self._settle, self._clock = folder, settle, clock
        self._since: dict[Key, float] = {}

    def files(self) -> list[Key]:
        """All images that are there now."""
        keys = []
        for path in list_images(self._folder, recursive=True):
            try:
                status = path.stat()
            except OSError:  # gone since the folder was listed, or a link that leads to itself
                continue
            keys.append((str(path), status.st_size, status.st_mtime_ns))
        return keys

    def poll(self, is_done: Callable[[Key], bool]) -> list[Arrival]:
        """Complete images that are not done yet, in natural order."""
        now = self._clock()
        waiting = [key for key in self.files() if not is_done(key)]
        self._since = {key: self._since.get(key, now) for key in waiting}
        ready = [key for key in waiting if key[1] > 0 and now - self._since[key] >= self._settle]
        return [Arrival(Path(key[0]), show_name(key[0]), key) for key in ready]

    def take(self, trigger: Trigger, until: float) -> Arrival:
        """Refused: images of a watched folder arrive by themselves."""
        raise ImageError(f'{show_name(self._folder)}: is watched; set image = "{{part}}.png" to name images by trigger')

    def close(self) -> None:
        """Nothing is held open."""


class NamedImages:
    """Images of a folder that triggers name: by the name they carry, or by ``pattern`` with their part in it."""

    def __init__(self, folder: Path, pattern: str, settle: float) -> None:
        if not folder.is_dir():
            raise ImageError(f"{show_name(folder)}: no such folder; check the path")
        self._folder, self._pattern, self._settle = folder, pattern, settle

    def poll(self, is_done: Callable[[Key], bool]) -> list[Arrival]:
        """Nothing: images are taken by trigger."""
        return []

    def take(self, trigger: Trigger, until: float) -> Arrival:
        """Wait for the image to be there, and unchanged for the time to settle; a name must stay in the folder."""
        _refuse_bytes(trigger, show_name(self._folder))
        name = trigger.image if isinstance(trigger.image, str) else self._pattern.replace("{part}", trigger.part)
        if not name.isprintable() or {"..", "", "."} & set(name.replace("\\", "/").split("/")):
            raise ImageError(
                f"{name!r}: must name an image in {show_name(self._folder)}; leave out '..' and '/' at its ends"
            )
        path, seen, since = self._folder / name, None, time.monotonic()
        while True:
            try:
                status = path.stat()
                now = (status.st_size, status.st_mtime_ns)
            except OSError:
                now = None
            if now is None or now != seen:
                seen, since = now, time.monotonic()
            if now is not None and now[0] > 0 and time.monotonic() - since >= self._settle:
                return Arrival(path, show_name(path))
            if time.monotonic() >= until:
                raise ImageError(f"{show_name(path)}: no such image by the deadline; check the camera that writes it")
            time.sleep(_LOOK_SECONDS)

    def close(self) -> None:
        """Nothing is held open."""


class Pushed:
    """Images that come with their triggers."""

    def poll(self, is_done: Callable[[Key], bool]) -> list[Arrival]:
        """Nothing: images come by trigger."""
        return []

    def take(self, trigger: Trigger, until: float) -> Arrival:
        """Decode the bytes."""
        if not isinstance(trigger.image, bytes):
            raise ImageError(
                "expected the bytes of an image with the trigger, got none; post the image to this station"
            )
        name = f"image from {trigger.sender}"
        return Arrival(open_bytes(trigger.image, name), trigger.part or name)

    def close(self) -> None:
        """Nothing is held open."""


class Camera:
    """Frames of a camera by OpenCV: ``rtsp://...``, ``http://...`` or ``/dev/videoN``.

    Tested with a stand-in for OpenCV only, not with cameras.
    """

    def __init__(self, source: str) -> None:
        try:
            import cv2
        except ImportError:
            raise MissingExtraError(
                f"{source}: a camera needs OpenCV; install it with: pip install 'procon[camera]'"
            ) from None
        self._cv2: Any = cv2
        self._source = source
        self._capture: Any = self._open()

    def _open(self) -> Any:
        number = self._source.removeprefix("/dev/video")
        capture = self._cv2.VideoCapture(int(number) if number.isdecimal() else self._source)
        if not capture.isOpened():
            raise ImageError(
                f"{self._source}: cannot be opened; check the address and that no one else uses the camera"
            )
        return capture

    def poll(self, _is_done: Callable[[Key], bool]) -> list[Arrival]:
        """The picture that the camera sees now; one that gave none is opened again."""
        if self._capture is None:
            self._capture = self._open()
        self._capture.grab()  # a buffered one may be old
        good, pixels = self._capture.read()
        if not good:
            self.close()
            raise ImageError(f"{self._source}: gave no picture; check the camera and its cable")
        return [Arrival(self._cv2.cvtColor(pixels, self._cv2.COLOR_BGR2RGB), self._source)]

    def take(self, trigger: Trigger, until: float) -> Arrival:
        """The picture that the camera sees now."""
        _refuse_bytes(trigger, self._source)
        return self.poll(lambda _key: False)[0]

    def close(self) -> None:
        """Let others use the camera."""
        capture, self._capture = self._capture, None
        if capture is not None:
            capture.release()


def _refuse_bytes(trigger: Trigger, source: str) -> None:
    """The verdict of another image must not pass for that of the one that was sent."""
    if isinstance(trigger.image, bytes):
        raise ImageError(f"this station takes its images from {source}; post its triggers to /STATION/trigger")


_LOOK_SECONDS = 0.002  # between looks for an image that a trigger named


def is_camera(source: str) -> bool:
    """Whether ``source`` names a camera and not a folder."""
    return source.startswith(("rtsp://", "rtsps://", "http://", "https://", "/dev/video"))


def check_seconds(name: str, value: float) -> None:
    """Refuse times that cannot be waited for."""
    if not 0 < value <= 86_400:
        raise ConfigError(f"{name} must be a number of seconds above 0 and at most a day, got {value!r}")
