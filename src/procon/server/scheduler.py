"""A bounded queue in front of the device, and the one thread that works it off."""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from procon.server.refusal import Refusal

_SMOOTHING = 0.1  # weight of the latest image in the running mean of the time one takes


class Ticket:
    """A place in the queue, from before an image is received until its answer is ready."""

    def __init__(self, queue: "Queue") -> None:
        self._queue = queue
        self.bytes = 0

    def claim(self, size: int) -> None:
        """Ask for ``size`` bytes of memory, or be refused."""
        self._queue.claim(self, size)


class Queue:
    """Counts what is being worked on; beyond its limits it refuses, so that nothing ever piles up."""

    def __init__(self, images: int, most_bytes: int) -> None:
        self.limit, self._most_bytes = images, most_bytes
        self._lock = threading.Lock()
        self._images = self._bytes = 0
        self.refused = 0
        self.seconds = 0.1
        """Running mean of the time the device takes for an image."""

    @property
    def images(self) -> int:
        """Images received, waiting or being scored."""
        return self._images

    @contextmanager
    def ticket(self) -> Iterator[Ticket]:
        """A place in the queue while the block runs."""
        with self._lock:
            if self._images >= self.limit:
                raise self._refuse()
            self._images += 1
        ticket = Ticket(self)
        try:
            yield ticket
        finally:
            with self._lock:
                self._images -= 1
                self._bytes -= ticket.bytes

    def claim(self, ticket: Ticket, size: int) -> None:
        """Give ``ticket`` so many bytes; the first to ask always gets them."""
        with self._lock:
            if self._bytes and self._bytes + size > self._most_bytes:
                raise self._refuse()
            self._bytes += size
            ticket.bytes += size

    def _refuse(self) -> Refusal:
        self.refused += 1
        wait = max(1, round(self._images * self.seconds / 2))
        return Refusal(503, "the queue is full; try again shortly", {"retry-after": str(wait)})

    def took(self, seconds: float) -> None:
        """Learn how long an image took."""
        self.seconds += _SMOOTHING * (seconds - self.seconds)


@dataclass
class Work:
    """Something for the device: items with the same ``key`` may be done together."""

    key: object
    item: Any
    run: Callable[[Sequence[Any]], Sequence[Any]]
    """Items to results, in order."""
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
