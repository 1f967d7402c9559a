"""What a station says of its parts and of itself: to live outputs at once, to sinks through the outbox.

A part may be settled by the thread of the station, by that of the deadlines, and by the one that restarts a station
that is stuck. Whoever settles first decides; a verdict that comes later is dropped.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from threading import Event, RLock
from typing import Any, Literal, Protocol

from procon.line.arrivals import Source
from procon.line.delivery import Deliveries
from procon.line.models import Slot
from procon.line.outbox import Outbox, OutboxError
from procon.line.parts import Deadlines, EventBody, Inspection
from procon.line.records import describe_change, describe_result
from procon.progress import Say, say_nothing

State = Literal["loading", "ready", "busy", "paused", "error", "stopped"]
_STUCK_SECONDS = 60.0  # without a sign of life beyond the deadline
_KEPT_RECORDS = 10_000


class Listener(Protocol):
    """A live output: it is told at once, in the thread where it happens, and must not wait."""

    def on_busy(self, station: Any, part: Inspection) -> None:
        """A part is in work."""

    def on_result(self, station: Any, body: EventBody) -> None:
        """A part has its result."""

    def on_state(self, station: Any, state: State, reason: str) -> None:
        """The state of the station has changed."""


@dataclass
class StationPlan:
    """What a station does, and what it needs for it."""

    name: str  # empty for the only one of procon watch
    open_source: Callable[[], Source]
    slots: Sequence[Slot]  # the models; a job is its number, from 1
    outbox: Outbox
    sinks: Sequence[str]  # names of those that get events
    deliveries: Deliveries | None = None
    triggered: bool = False
    deadline: float | None = None  # seconds from the trigger, or from the arrival, to the result
    every: float = 1.0  # seconds between looks at a source that is not triggered
    announce: bool = True  # send an event for a start, a fault and its end, not only results
    stuck: float = _STUCK_SECONDS
    listeners: list[Listener] = field(default_factory=list)
    say: Say = say_nothing


class Reporter:
    """The part in work, the fault and the state of a station, and how they are said."""

    def __init__(self, plan: StationPlan, deadlines: Deadlines) -> None:
        self.plan, self.name = plan, plan.name
        self.job = 1
        self.paused = False
        self.fault = ""  # why no verdict can be given now
        self.last: EventBody | None = None  # the latest result
        self.results = 0  # since the start
        self.restarted = False  # the process before this one used the same outbox
        self._deadlines = deadlines
        self._lock = RLock()
        self._state: State = "loading"
        self._part: Inspection | None = None
        self._unstored: deque[Inspection] = deque(maxlen=_KEPT_RECORDS)
        self._stop = Event()
        self._generation, self._beat = 0, time.monotonic()

    @property
    def state(self) -> State:
        """What it does now."""
        if self._stop.is_set():
            return "stopped"
        if self.fault:
            return "error"
        if self.paused:
            return "paused"
        if self._part is not None:
            return "busy"
        return "ready" if self.slot.current is not None else "loading"

    @property
    def slot(self) -> Slot:
        """The model that the next part is scored with."""
        return self.plan.slots[self.job - 1]

    def _is_current(self, generation: int) -> bool:
        return generation == self._generation and not self._stop.is_set()

    # ------------------------------------------------------------------------------------------------------- results

    def _begin(self, part: Inspection) -> None:
        self._part = part
        self._tell_listeners("on_busy", part)
        self._deadlines.add(part, self._miss)

    def _settle(self, part: Inspection, body: EventBody, generation: int) -> None:
        """Store the result, then say it: what an output has heard is on disk."""
        waits = False
        while not part.settled and self._is_current(generation):
            try:
                self._store(part, body, hold=True)
                break
            except OutboxError as error:  # the deadline may pass meanwhile, and then says no verdict
                self._set_fault(str(error))
                waits = True
                self._beat = time.monotonic()
                self._stop.wait(min(self.plan.every, 1.0))
        else:
            return
        if waits:
            self._clear_fault()
        if time.monotonic() > part.until:
            self._miss(part)  # which stores it again, without the verdict
        elif self._publish(part, body):
            self.plan.outbox.release(part.event)
            self._notify()

    def _store(self, part: Inspection, body: EventBody, *, hold: bool) -> None:
        unless = part.is_settled if hold else lambda: False
        if self.plan.sinks:
            self.plan.outbox.add(body, self.plan.sinks, part.key, hold=hold, unless=unless)
        elif part.key is not None and not unless():
            self.plan.outbox.remember([part.key])

    def _publish(self, part: Inspection, body: EventBody) -> bool:
        """Say the result to live outputs and who waits, if the part has none yet."""
        with self._lock:
            if part.settled:
                return False
            part.settled = True
            if self._part is part:
                self._part = None
            self.results += 1
            self.last = body
            self._tell_listeners("on_result", body)
        part.finish(body)
        return True

    def _give_up(self, part: Inspection, reason: str, cause: str) -> None:
        """Settle a part without a verdict; it is stored by another thread."""
        seconds = round(time.monotonic() - part.begun, 4)
        body = describe_result(self.name, part, {"error": reason, "cause": cause}, source="", seconds=seconds, model="")
        if self._publish(part, body):
            self._unstored.append(part)

    def _miss(self, part: Inspection) -> None:
        self._give_up(part, f"no result within the deadline of {1000 * (self.plan.deadline or 0):.0f} ms", "deadline")

    def _abandon(self, reason: str) -> None:
        part = self._part
        if part is not None:
            self._give_up(part, reason, "restart")

    def store_records(self) -> None:
        """Store the results that were said before they could be stored."""
        while self._unstored:
            part = self._unstored[0]
            assert part.body is not None
            try:
                self._store(part, part.body, hold=False)
            except OutboxError as error:
                self._set_fault(str(error))
                return
            self._unstored.popleft()
            self._notify()

    # --------------------------------------------------------------------------------------------------------- state

    def _set_fault(self, reason: str) -> None:
        if not self.fault:
            self.fault = reason
            self.plan.say(self._named(f"waiting: {reason}"))
            if self.plan.announce:
                self._send(describe_change(self.name, "fault", reason))
        self._tell()

    def _clear_fault(self) -> None:
        if self.fault:
            self.fault = ""
            if self.plan.announce:
                self.plan.say(self._named("ready again"))
                self._send(describe_change(self.name, "recovered", ""))
        self._tell()

    def _tell(self) -> None:
        """Tell live outputs of another state; busy and its end they hear as parts."""
        state: State = "ready" if self.state == "busy" else self.state
        with self._lock:
            if state == self._state:
                return
            self._state = state
            self._tell_listeners("on_state", state, self.fault)

    def _tell_listeners(self, event: Literal["on_busy", "on_result", "on_state"], *arguments: Any) -> None:
        """Tell all live outputs; one that fails must not keep the result from the others."""
        for listener in self.plan.listeners:
            try:
                getattr(listener, event)(self, *arguments)
            except Exception as error:
                problem = f"{type(error).__name__}: {error}; report this"
                self.plan.say(self._named(f"{type(listener).__name__} did not take {event}: {problem}"))

    def _send(self, body: EventBody) -> None:
        """An event that is no result; where it cannot be stored, the fault itself is shown by every live output."""
        if self.plan.sinks:
            try:
                self.plan.outbox.add(body, self.plan.sinks)
            except OutboxError as error:
                self.plan.say(self._named(f"not stored: {error}"))
            self._notify()

    def _notify(self) -> None:
        if self.plan.deliveries is not None:
            self.plan.deliveries.notify()

    def _named(self, message: str) -> str:
        return f"{self.name}: {message}" if self.name else message
