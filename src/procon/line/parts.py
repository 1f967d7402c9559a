"""A part on its way through a station: it gets exactly one result, and without a verdict that is never "good"."""

import hashlib
import heapq
import itertools
import math
import os
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from threading import Condition, Event, Thread
from typing import Any, Literal

from procon.errors import ProconError
from procon.line.outbox import Key
from procon.vision.images import ImageLike

Verdict = Literal["good", "anomalous", "none"]
EventBody = dict[str, Any]
"""An event as the sinks get it, JSON-ready."""


CAUSES = ("", "image", "model", "deadline", "paused", "fault", "busy", "restart", "internal")
"""Why there is no verdict: the image or camera; no model or threshold; too late; paused; the station cannot work; it
has another part; it was restarted; an error of ProCon or the device. The place in this list is the number for a PLC."""


_MOST_PART = 200  # characters of the name of a part


class NoVerdictError(ProconError):
    """A part cannot get a verdict; ``cause`` is one of CAUSES."""

    def __init__(self, message: str, cause: str) -> None:
        super().__init__(message)
        self.cause = cause


class BusyError(ProconError):
    """A station has a part already; it takes the next one when that has its result."""


@dataclass(frozen=True)
class Arrival:
    """An image to score. A frame of a camera has no key."""

    image: ImageLike
    name: str  # its path or that of the camera, safe to show
    key: Key | None = None


@dataclass(frozen=True)
class Trigger:
    """The order to inspect a part now."""

    part: str = ""  # what the sender calls the part; may be empty
    image: str | bytes | None = None  # the name of an image, or the bytes of one; None where the source knows
    job: int | None = None  # number of the model, from 1; None for the one that is selected
    sender: str = ""  # protocol, for messages


def check_part(name: str) -> None:
    """Refuse what cannot be the name of a part: it is shown, stored and delivered."""
    if len(name) > _MOST_PART or not name.isprintable():
        shown = repr(name[:20]) + ("..." if len(name) > 20 else "")
        raise ProconError(f"part must be up to {_MOST_PART} printable characters, got {shown}; shorten it")


def verdict_of(facts: Mapping[str, Any]) -> Verdict:
    """Good and anomalous only where a finite score was compared with a threshold; everything else is no verdict."""
    score, is_anomalous = facts.get("score"), facts.get("is_anomalous")
    if facts.get("error") or facts.get("cause") or not isinstance(score, float | int) or not math.isfinite(score):
        return "none"
    return "anomalous" if is_anomalous is True else "good" if is_anomalous is False else "none"


def event_id(arrival: Arrival) -> str:
    """32 hexadecimal digits: of path, size and time of a file, the same after a restart; random for a frame."""
    if arrival.key is None:
        return uuid.uuid4().hex
    return hashlib.sha256(os.fsencode("\0".join(map(str, arrival.key)))).hexdigest()[:32]


class Inspection:
    """One part. Whoever settles it first decides its result; what comes later is dropped."""

    def __init__(self, name: str, event: str, deadline: float | None, key: Key | None = None) -> None:
        self.name, self.event, self.key = name, event, key
        self.begun = time.monotonic()
        self.until = math.inf if deadline is None else self.begun + deadline  # of time.monotonic()
        self.settled = False  # written under the lock of the station
        self.body: EventBody | None = None
        self._done = Event()

    def is_settled(self) -> bool:
        """Whether it has its result."""
        return self.settled

    def finish(self, body: EventBody) -> None:
        """Hand the result to who waits."""
        self.body = body
        self._done.set()

    def wait(self, seconds: float | None = None) -> EventBody | None:
        """The result, or None if it is not there in time."""
        self._done.wait(seconds)
        return self.body


class Deadlines:
    """The thread that settles parts whose time is over."""

    def __init__(self) -> None:
        self._waiting: list[tuple[float, int, Inspection, Callable[[Inspection], None]]] = []
        self._changed = Condition()
        self._numbers = itertools.count()
        self._stopping = False
        self._thread = Thread(target=self._run, name="procon-deadlines", daemon=True)

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    def add(self, part: Inspection, on_miss: Callable[[Inspection], None]) -> None:
        """Call ``on_miss`` if the part has no result at its deadline; it must be quick, as it delays the others."""
        if part.until == math.inf:
            return
        with self._changed:
            first = self._waiting[0][0] if self._waiting else math.inf
            heapq.heappush(self._waiting, (part.until, next(self._numbers), part, on_miss))
            if part.until < first:
                self._changed.notify()

    def check(self) -> None:
        """Raise if the thread has ended: no part would have a deadline any more."""
        if not self._thread.is_alive():
            raise ProconError("the thread of the deadlines has ended; start the line again")

    def stop(self) -> None:
        """End the thread."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                while self._waiting and self._waiting[0][2].settled:
                    heapq.heappop(self._waiting)
                now = time.monotonic()
                due = []
                while self._waiting and self._waiting[0][0] <= now:
                    due.append(heapq.heappop(self._waiting))
                if self._stopping:
                    return
                if not due:
                    self._changed.wait(self._waiting[0][0] - now if self._waiting else None)
            for _, _, part, on_miss in due:
                on_miss(part)
