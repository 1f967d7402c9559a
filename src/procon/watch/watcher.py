"""The loop: score what has arrived, store the result, deliver it until every receiver has it."""

import hashlib
import os
import time
import uuid
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from threading import Event, Thread
from typing import Any

from procon.errors import ImageError
from procon.files import describe_os_error
from procon.model.verdict import Predictor
from procon.progress import Say, say_nothing
from procon.watch.arrivals import Arrival, Camera, Folder
from procon.watch.outbox import Outbox, OutboxError
from procon.watch.sinks import Sink, SinkError

FIRST_DELAY, LONGEST_DELAY = 1.0, 60.0  # seconds between attempts: doubled each time, up to the longest


class Delivery:
    """Takes events from the outbox to one sink, in order; an event that fails is tried again, later and later."""

    def __init__(
        self,
        outbox: Outbox,
        sink: Sink,
        *,
        first: float = FIRST_DELAY,
        longest: float = LONGEST_DELAY,
        clock: Callable[[], float] = time.time,
        say: Say = say_nothing,
    ) -> None:
        self._outbox, self._sink, self._clock = outbox, sink, clock
        self._first, self._longest, self._say = first, longest, say
        self._down = False
        self._sent = 0  # the number of the last event that the sink took

    def step(self) -> float | None:
        """Send what is due; gives the seconds until the next attempt, or None if nothing is left."""
        name = self._sink.name
        while (event := self._outbox.next_event(name)) is not None:
            # A clock that was set back must not hold an event for longer than it would ever wait.
            wait = min(event.due - self._clock(), self._longest)
            if wait > 0:
                return wait
            try:
                if event.number != self._sent:  # else it was sent, and the outbox could not be written
                    self._sink.send(event.body)
            except Exception as error:  # no answer of a receiver, however odd, may end the delivery
                delay = min(self._first * 2.0 ** min(event.attempts, 30), self._longest)
                reason = str(error) if isinstance(error, SinkError) else f"{name}: {type(error).__name__}: {error}"
                self._report(f"not delivered, stored and tried again: {reason}")
                self._outbox.mark_failed(name, event.number, self._clock() + delay, reason)
                return delay
            self._sent = event.number
            self._outbox.mark_delivered(name, event.number)
            if self._down:
                self._say(f"{name}: takes events again")
            self._down = False
        return None

    def _report(self, problem: str) -> None:
        """Say what is wrong once, until an event is delivered again."""
        if not self._down:
            self._say(problem)
        self._down = True

    def run(self, stop: Event, news: Event) -> None:
        """Deliver until ``stop``; ``news`` says that there is something to do."""
        while not stop.is_set():
            try:
                wait = self.step()
            except OutboxError as error:
                self._report(f"not delivered, tried again: {error}")
                wait = self._longest
            # News must not shorten the back-off of a receiver that is down.
            if wait is None:
                news.wait(1.0)
                news.clear()
            else:
                stop.wait(wait)


class Watcher:
    """Scores what arrives at a folder or camera and leaves an event for every sink in the outbox."""

    def __init__(
        self,
        source: Folder | Camera,
        scorer: Predictor,
        outbox: Outbox,
        sinks: Sequence[Sink],
        on_event: Callable[[dict[str, Any]], None] = lambda _body: None,
    ) -> None:
        self._source, self._scorer, self._outbox = source, scorer, outbox
        self._sinks = [sink.name for sink in sinks]
        self._on_event = on_event

    def step(self) -> int:
        """Score what has arrived by now; gives how many images that were."""
        arrivals = self._source.poll(self._outbox.is_done)
        for arrival in arrivals:
            body = self._score(arrival)
            self._outbox.add(body, self._sinks, arrival.key)
            self._on_event(body)
        return len(arrivals)

    def _score(self, arrival: Arrival) -> dict[str, Any]:
        started = time.perf_counter()
        (result,) = self._scorer.predict_each([arrival.image])
        head = {"id": event_id(arrival), "time": datetime.now(UTC).isoformat(timespec="milliseconds")}
        facts = {"error": str(result)} if isinstance(result, ImageError) else result.to_dict()
        return {**head, **facts, "source": arrival.name, "seconds": round(time.perf_counter() - started, 4)}


def event_id(arrival: Arrival) -> str:
    """32 hexadecimal digits: of path, size and time of a file, the same after a restart; random for a frame."""
    if arrival.key is None:
        return uuid.uuid4().hex
    return hashlib.sha256(os.fsencode("\0".join(map(str, arrival.key)))).hexdigest()[:32]


def watch(
    watcher: Watcher,
    outbox: Outbox,
    sinks: Sequence[Sink],
    *,
    every: float,
    stop: Event,
    say: Say = say_nothing,
    first: float = FIRST_DELAY,
    longest: float = LONGEST_DELAY,
) -> None:
    """Look every ``every`` seconds until ``stop``. Results are stored first; each sink has a thread that delivers."""
    news = [Event() for _ in sinks]
    deliveries = [Delivery(outbox, sink, first=first, longest=longest, say=say) for sink in sinks]
    threads = [
        Thread(target=delivery.run, args=(stop, own_news), daemon=True)
        for delivery, own_news in zip(deliveries, news, strict=True)
    ]
    for thread in threads:
        thread.start()
    waiting = False
    try:
        while not stop.is_set():
            try:
                if watcher.step():
                    for own_news in news:
                        own_news.set()
                waiting = False
            except (ImageError, OutboxError, OSError) as error:  # no folder, camera or disk space for now
                if not waiting:
                    say(f"waiting: {describe_os_error(error) if isinstance(error, OSError) else error}")
                waiting = True
            for thread, sink in zip(threads, sinks, strict=True):
                if not thread.is_alive() and not stop.is_set():
                    raise SinkError(f"the delivery to {sink.name} has ended; start procon watch again")
            stop.wait(every)
    finally:
        stop.set()
        for own_news in news:
            own_news.set()
        for thread in threads:
            thread.join(timeout=15)
        for sink in sinks:
            sink.close()
