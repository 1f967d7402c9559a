"""Images as they arrive: files of a folder once they are completely written, or frames of a camera."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from procon.errors import ConfigError, ImageError, MissingExtraError
from procon.names import show_name
from procon.vision.folders import list_images
from procon.vision.images import ImageLike
from procon.watch.outbox import Key


@dataclass(frozen=True)
class Arrival:
    """An image to score. A frame of a camera has no key."""

    image: ImageLike
    name: str  # its path or that of the camera, safe to show
    key: Key | None = None


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
        number = source.removeprefix("/dev/video")
        self._capture = cv2.VideoCapture(int(number) if number.isdecimal() else source)
        if not self._capture.isOpened():
            raise ImageError(f"{source}: cannot be opened; check the address and that no one else uses the camera")

    def poll(self, _is_done: Callable[[Key], bool]) -> list[Arrival]:
        """The picture that the camera sees now."""
        self._capture.grab()  # a buffered one may be old
        good, pixels = self._capture.read()
        if not good:
            raise ImageError(f"{self._source}: gave no picture; check the camera and its cable")
        return [Arrival(self._cv2.cvtColor(pixels, self._cv2.COLOR_BGR2RGB), self._source)]


def is_camera(source: str) -> bool:
    """Whether ``source`` names a camera and not a folder."""
    return source.startswith(("rtsp://", "rtsps://", "http://", "https://", "/dev/video"))


def check_seconds(name: str, value: float) -> None:
    """Refuse times that cannot be waited for."""
    if not 0 < value <= 86_400:
        raise ConfigError(f"{name} must be a number of seconds above 0 and at most a day, got {value!r}")
