"""A bounded queue in front of the device, and the one thread that works it off."""

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from procon.server.refusal import Refusal

_SMOOTHING = 0.2  # weight of the latest image in the running mean of the time one takes
_CALM_SECONDS, _CALM_IMAGES = 5.0, 10.0  # a rush is over when nobody was refused for so long, or for so many images


def _full(seconds: float) -> Refusal:
    """For whoever is to come back after so many seconds."""
    return Refusal(503, "the queue is full; try again shortly", {"retry-after": str(max(1, round(seconds)))})


class Ticket:
    """A place in the queue, from before an image is received until its answer is ready."""

    def __init__(self, queue: "Queue") -> None:
        self._queue = queue
        self.bytes = 0
        self.waits = False
        """Whether it has a place in the line for the device."""

    def claim(self, size: int) -> None:
        """Now that the image is here: ask for ``size`` bytes of memory and a place in the line, or be refused."""
        self._queue.claim(self, size)


class Queue:
    """Counts what is being worked on; beyond its limits it refuses, so that nothing ever piles up.

    A few clients that ask again and again all find a place. Once it has had to refuse somebody there are more of them
    than the device can serve, and a long line would only make everybody wait: until nobody has been refused for a
    while, the line is as long as the device can work off in ``most_seconds``, and whoever came last of those beyond
    that is refused too. So when a rush is over the next image is answered within that time, on a slow machine too.
    """

    def __init__(self, images: int, most_bytes: int, most_seconds: float, least: int = 2) -> None:
        self.limit, self._most_bytes, self._most_seconds, self._least = images, most_bytes, most_seconds, least
        self._lock = threading.Lock()
        self._images = self._bytes = self._line = 0
        self.refused = 0
        self.shorten: Callable[[int], int] = lambda _places: 0
        """Cuts the line in front of the device to so many places; how many that cost theirs."""
        self._refused_at = -math.inf
        self.seconds = 0.0
        """Running mean of the time the device takes for an image; 0 until the first."""

    @property
    def images(self) -> int:
        """Images received, waiting or being scored."""
        return self._images

    @property
    def places(self) -> int:
        """How many images may wait for the device or be on it."""
        calm = max(_CALM_SECONDS, _CALM_IMAGES * self.seconds)
        if self.seconds == 0 or time.monotonic() - self._refused_at > calm:
            return self.limit
        return max(self._least, min(self.limit, int(self._most_seconds / self.seconds)))

    @contextmanager
    def ticket(self) -> Iterator[Ticket]:
        """A place in the queue while the block runs."""
        with self._lock:
            if self._images >= self.limit or self._line >= self.places:
                raise self._refuse()
            self._images += 1
        ticket = Ticket(self)
        try:
            yield ticket
        finally:
            with self._lock:
                self._images -= 1
                self._bytes -= ticket.bytes
                self._line -= ticket.waits

    def claim(self, ticket: Ticket, size: int) -> None:
        """Give ``ticket`` so many bytes and a place in the line; the first to ask always gets the bytes."""
        with self._lock:
            if (self._bytes and self._bytes + size > self._most_bytes) or self._line >= self.places:
                raise self._refuse()
            self._bytes += size
            self._line += 1
            ticket.bytes, ticket.waits = size, True

    def _refuse(self) -> Refusal:
        self._refused_at = time.monotonic()
        late = self.shorten(self.places)
        self.refused += 1 + late
        return _full((self._line - late) * self.seconds)

    def took(self, seconds: float) -> None:
        """Learn how long an image took."""
        self.seconds += (_SMOOTHING if self.seconds else 1.0) * (seconds - self.seconds)


@dataclass
class Work:
    """Something for the device: items with the same ``key`` may be done together."""

    key: object
    item: Any
    run: Callable[[Sequence[Any]], Sequence[Any]]
    """Items to results, in order."""
    timed: bool = True
    """Whether it says how long an image takes; the first of a new model does not."""
    future: "Future[Any]" = field(default_factory=Future)


class Worker:
    """The thread that owns the device. On a CPU one item at a time; on a GPU those that arrive together."""

    def __init__(self, batch: int, window_seconds: float, queue: Queue) -> None:
        self._batch, self._window, self._queue = batch, window_seconds, queue
        self._waiting: deque[Work] = deque()
        self._ready = threading.Condition()
        self._stopping = False
        self._thread = threading.Thread(target=self._loop, name="procon-device", daemon=True)
        self.batches = 0
        queue.shorten = self._shorten

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """Finish what waits, then end."""
        with self._ready:
            self._stopping = True
            self._ready.notify_all()
        self._thread.join()

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def submit(self, work: Work) -> "Future[Any]":
        """Queue ``work``; the future can be cancelled until its turn comes."""
        with self._ready:
            if self._stopping:
                raise Refusal(503, "the server is stopping", {"retry-after": "5"})
            self._waiting.append(work)
            self._ready.notify_all()
        return work.future

    def _shorten(self, places: int) -> int:
        """Refuse the images that came last of those that wait, beyond ``places``; how many."""
        with self._ready:
            kept, late = deque[Work](), list[Work]()
            for work in self._waiting:
                (late if work.timed and len(kept) >= places else kept).append(work)
            self._waiting = kept
        for work in late:
            if work.future.set_running_or_notify_cancel():
                work.future.set_exception(_full(places * self._queue.seconds))
        return len(late)

    def _loop(self) -> None:
        while (group := self._next()) is not None:
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
                self._queue.took((time.perf_counter() - started) / len(running))

    def _more_may_come(self) -> bool:
        """Whether others are on their way: who is alone does not wait."""
        return len(self._waiting) < min(self._batch, self._queue.images)

    def _next(self) -> list[Work] | None:
        """The next group: the oldest item and, on a GPU, others like it that came within the window."""
        with self._ready:
            while not self._waiting:
                if self._stopping:
                    return None
                self._ready.wait()
            if self._batch > 1:
                until = time.monotonic() + self._window
                while self._more_may_come() and (left := until - time.monotonic()) > 0:
                    self._ready.wait(left)
            first = self._waiting.popleft()
            group, others = [first], deque[Work]()
            while self._waiting:
                work = self._waiting.popleft()
                same = work.key == first.key and len(group) < self._batch
                (group if same else others).append(work)
            self._waiting = others
            return group
