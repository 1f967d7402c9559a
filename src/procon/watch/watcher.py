"""The loop: score what has arrived, store the result, deliver it until every receiver has it."""

import hashlib
import time
import uuid
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from threading import Event, Thread
from typing import Any

from procon.errors import ImageError
from procon.model.verdict import Predictor
from procon.progress import Say, say_nothing
from procon.watch.arrivals import Arrival, Camera, Folder, arrivals
from procon.watch.outbox import Outbox
from procon.watch.sinks import Sink, SinkError

FIRST_DELAY, LONGEST_DELAY = 1.0, 60.0  # seconds between attempts: doubled each time, up to the longest


class Delivery:
    """Takes events from the outbox to one sink, in order; what fails is tried again, later and later."""

    def __init__(
        self,
        outbox: Outbox,
        sink: Sink,
        *,
        first: float = FIRST_DELAY,
        longest: float = LONGEST_DELAY,
        clock: Callable[[], float] = time.time,
        say: Say | None = None,
    ) -> None:
        self._outbox, self._sink, self._clock = outbox, sink, clock
        self._first, self._longest, self._say = first, longest, say or say_nothing
        self._down = False

    def step(self) -> float | None:
        """Send what is due; gives the seconds until the next attempt, or None if nothing is left."""
        name = self._sink.name
        while (event := self._outbox.next(name)) is not None:
            # A clock that was set back must not hold an event for longer than it would ever wait.
            wait = min(event.due - self._clock(), self._longest)
            if wait > 0:
                return wait
            try:
                self._sink.send(event.body)
            except SinkError as error:
                delay = min(self._first * 2.0 ** min(event.attempts, 30), self._longest)
                self._outbox.failed(name, event.number, self._clock() + delay, str(error))
                if not self._down:
                    self._say(f"not delivered, kept and tried again: {error}")
                self._down = True
                return delay
            self._outbox.delivered(name, event.number)
            if self._down:
                self._say(f"{name}: takes events again")
            self._down = False
        return None

    def run(self, stop: Event, news: Event) -> None:
        """Deliver until ``stop``; ``news`` says that there is something to do."""
        while not stop.is_set():
            wait = self.step()
            # News must not shorten the back-off of a receiver that is down.
            if wait is None:
                news.wait(1.0)
                news.clear()
            else:
                stop.wait(wait)


class Watcher:
    """Scores what arrives at a folder or camera and leaves an event for every sink in the outbox."""

    def __init__(
        self, source: Folder | Camera, scorer: Predictor, outbox: Outbox, sinks: Sequence[Sink], on_event: Any = None
    ) -> None:
        self._source, self._scorer, self._outbox = source, scorer, outbox
        self._sinks = [sink.name for sink in sinks]
        self._on_event = on_event

    def step(self) -> int:
        """Score what has arrived by now; gives how many images that were."""
        count = 0
        for arrival in arrivals(self._source, self._outbox.knows):
            body = self.event(arrival)
            self._outbox.add(body, self._sinks, arrival.key)
            count += 1
            if self._on_event is not None:
                self._on_event(body)
        return count

    def event(self, arrival: Arrival) -> dict[str, Any]:
        """Score one image. The id of a file is the same whenever it is scored, so that receivers can drop repeats."""
        started = time.perf_counter()
        (result,) = self._scorer.predict_each([arrival.image])
        head = {"id": event_id(arrival), "time": datetime.now(UTC).isoformat(timespec="milliseconds")}
        seconds = round(time.perf_counter() - started, 4)
        if isinstance(result, ImageError):
            return {**head, "source": arrival.name, "error": str(result), "seconds": seconds}
        return {**head, **result.to_dict(), "source": arrival.name, "seconds": seconds}


def event_id(arrival: Arrival) -> str:
    """32 hexadecimal digits: of path, size and time of a file; random for a frame."""
    if arrival.key is None:
        return uuid.uuid4().hex
    return hashlib.sha256("\0".join(map(str, arrival.key)).encode()).hexdigest()[:32]


def watch(
    watcher: Watcher,
    outbox: Outbox,
    sinks: Sequence[Sink],
    *,
    every: float,
    stop: Event,
    say: Say | None = None,
    first: float = FIRST_DELAY,
    longest: float = LONGEST_DELAY,
) -> None:
    """Look every ``every`` seconds until ``stop``. Results are stored first; each sink has a thread that delivers."""
    report = say or say_nothing
    bells = [Event() for _ in sinks]
    threads = [
        Thread(
            target=Delivery(outbox, sink, first=first, longest=longest, say=report).run,
            args=(stop, bell),
            name=f"procon-deliver-{sink.name}",
            daemon=True,
        )
        for sink, bell in zip(sinks, bells, strict=True)
    ]
    for thread in threads:
        thread.start()
    lost = False
    try:
        while not stop.is_set():
            try:
                count = watcher.step()
                lost = False
            except ImageError as error:  # the folder or the camera is gone for now
                count = 0
                if not lost:
                    report(f"waiting: {error}")
                lost = True
            for bell in bells if count else ():
                bell.set()
            stop.wait(every)
    finally:
        stop.set()
        for bell in bells:
            bell.set()
        for thread in threads:
            thread.join(timeout=15)
        for sink in sinks:
            sink.close()
