"""A bounded queue in front of the device, and the one thread that works on it."""

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from procon.server.request_errors import RequestError
from procon.server.threads import OnCrash, guarded_thread

_SMOOTHING = 0.2  # weight of the latest image in the running mean of the seconds per image
_CALM_SECONDS, _CALM_IMAGES = 5.0, 10.0  # an overload ends after so long, or so many images, without a refusal


def _full(seconds: float) -> RequestError:
    """Asks the client to retry after so many seconds."""
    return RequestError(503, "the queue is full; try again shortly", {"retry-after": str(max(1, round(seconds)))})


def _stopping() -> RequestError:
    return RequestError(503, "the server is stopping", {"retry-after": "5"})


class Queue:
    """Counts the images in progress and refuses those beyond its limits.

    Normally all ``images`` places may be used. A refusal means that there are more clients than the device can serve,
    and a long queue would only make all of them wait. From then on, until there was no refusal for a while, the queue
    is only as long as the device can finish in ``most_seconds``; the latest images beyond that are refused too. So the
    first image after an overload is answered within that time, even on a slow machine.
    """

    def __init__(self, images: int, most_bytes: int, most_seconds: float, least: int = 2) -> None:
        self.limit, self._most_bytes, self._most_seconds, self._least = images, most_bytes, most_seconds, least
        self._lock = threading.Lock()
        self._bytes = 0
        self.images = 0  # being decoded, waiting or being scored
        self.refused = 0
        # Cuts the queue of the device to so many places; returns how many images it refused.
        self.shorten: Callable[[int], int] = lambda _places: 0
        self._refused_at = -math.inf
        self.seconds = 0.0  # running mean of the seconds per image on the device; 0 until the first

    @property
    def places(self) -> int:
        """How many images may wait for the device or be on it."""
        calm = max(_CALM_SECONDS, _CALM_IMAGES * self.seconds)
        if self.seconds == 0 or time.monotonic() - self._refused_at > calm:
            return self.limit
        return max(self._least, min(self.limit, int(self._most_seconds / self.seconds)))

    def check(self) -> None:
        """Refuse if there is no place now, before the body of an image is received."""
        with self._lock:
            self._check(0)

    def _check(self, size: int) -> None:
        if self.images < self.places and (not self._bytes or self._bytes + size <= self._most_bytes):
            return  # a single image may have any size
        self._refused_at = time.monotonic()
        late = self.shorten(self.places)
        self.refused += 1 + late
        raise _full((self.images - late) * self.seconds)

    @contextmanager
    def place(self, size: int) -> Iterator[None]:
        """Hold a place for an image with ``size`` bytes of pixels while the block runs."""
        with self._lock:
            self._check(size)
            self.images += 1
            self._bytes += size
        try:
            yield
        finally:
            with self._lock:
                self.images -= 1
                self._bytes -= size

    def record_time(self, seconds: float) -> None:
        """Update the mean with the seconds that an image took."""
        self.seconds += (_SMOOTHING if self.seconds else 1.0) * (seconds - self.seconds)


@dataclass
class Work:
    """Work for the device: items with the same ``key`` may be processed together."""

    key: object
    item: Any
    run: Callable[[Sequence[Any]], Sequence[Any]]  # items to results, in order
    timed: bool = True  # counts in the mean time of an image, and may be refused; not while a model is prepared
    future: "Future[Any]" = field(default_factory=Future)


class DeviceWorker:
    """The thread that owns the device. On a CPU one item at a time; on a GPU those that arrive together."""

    def __init__(self, batch: int, window_seconds: float, queue: Queue, on_crash: OnCrash) -> None:
        self._batch, self._window, self._queue = batch, window_seconds, queue
        self._waiting: deque[Work] = deque()
        self._ready = threading.Condition()
        self._stopping = False
        self._thread = guarded_thread("procon-device", self._loop, on_crash)
        self.start = self._thread.start
        self.batches = 0
        queue.shorten = self._shorten

    def stop(self) -> None:
        """Finish the waiting work, then end the thread."""
        with self._ready:
            self._stopping = True
            self._ready.notify_all()
        self._thread.join()

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def submit(self, work: Work) -> "Future[Any]":
        """Queue ``work``; its future can be cancelled until it starts."""
        with self._ready:
            if self._stopping:
                raise _stopping()
            self._waiting.append(work)
            self._ready.notify_all()
        return work.future

    def _shorten(self, places: int) -> int:
        """Refuse the latest waiting images beyond ``places``; returns how many."""
        with self._ready:
            remaining, late = deque[Work](), list[Work]()
            for work in self._waiting:
                (late if work.timed and len(remaining) >= places else remaining).append(work)
            self._waiting = remaining
        for work in late:
            if work.future.set_running_or_notify_cancel():
                work.future.set_exception(_full(places * self._queue.seconds))
        return len(late)

    def _loop(self) -> None:
        try:
            self._work()
        finally:  # nothing waits for a thread that has ended
            with self._ready:
                self._stopping = True
                for work in self._waiting:
                    if work.future.set_running_or_notify_cancel():
                        work.future.set_exception(_stopping())

    def _work(self) -> None:
        while (group := self._next_group()) is not None:
            running = [work for work in group if work.future.set_running_or_notify_cancel()]
            if not running:
                continue
            self.batches += 1
            started = time.perf_counter()
            try:
                results: Sequence[Any] = running[0].run([work.item for work in running])
            except BaseException as error:
                for work in running:
                    work.future.set_exception(error)
            else:
                for work, result in zip(running, results, strict=True):
                    work.future.set_result(result)
            if running[0].timed:
                self._queue.record_time((time.perf_counter() - started) / len(running))

    def _next_group(self) -> list[Work] | None:
        """The oldest item and, on a GPU, others with its key that arrive within the window; None at the end."""
        with self._ready:
            while not self._waiting:
                if self._stopping:
                    return None
                self._ready.wait()
            until = time.monotonic() + self._window
            # A lone request is not delayed: only images that are on their way are waited for.
            while len(self._waiting) < min(self._batch, self._queue.images) and (left := until - time.monotonic()) > 0:
                self._ready.wait(left)
            first = self._waiting[0]
            group, others = list[Work](), deque[Work]()
            for work in self._waiting:
                (group if work.key == first.key and len(group) < self._batch else others).append(work)
            self._waiting = others
            return group
