"""From the outbox to the sinks: each event until every receiver has it."""

import time
from collections.abc import Callable, Sequence
from threading import Event, Thread

from procon.line.outbox import Outbox, OutboxError
from procon.line.sinks import Sink, SinkError
from procon.progress import Say, say_nothing

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


class Deliveries:
    """A thread for each sink of a station."""

    def __init__(self, outbox: Outbox, sinks: Sequence[Sink], *, first: float, longest: float, say: Say) -> None:
        self._sinks, self._stop = sinks, Event()
        self._news = [Event() for _ in sinks]
        deliveries = [Delivery(outbox, sink, first=first, longest=longest, say=say) for sink in sinks]
        self._threads = [
            Thread(target=delivery.run, args=(self._stop, news), name=f"procon-to-{sink.name}", daemon=True)
            for delivery, sink, news in zip(deliveries, sinks, self._news, strict=True)
        ]

    def start(self) -> None:
        """Begin to deliver."""
        for thread in self._threads:
            thread.start()

    def notify(self) -> None:
        """There is something to deliver."""
        for news in self._news:
            news.set()

    def check(self) -> None:
        """Raise if a thread has ended: what it leaves would wait for ever."""
        for thread, sink in zip(self._threads, self._sinks, strict=True):
            if thread.ident is not None and not thread.is_alive() and not self._stop.is_set():
                raise SinkError(f"the delivery to {sink.name} has ended; start the line again")

    def stop(self) -> None:
        """End the threads and close the sinks; what was not delivered stays in the outbox."""
        self._stop.set()
        self.notify()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(timeout=15)
        for sink in self._sinks:
            sink.close()
