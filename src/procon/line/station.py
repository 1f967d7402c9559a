"""A station: it takes parts from one source, scores them with one model at a time, and says exactly one result of each.

A thread does this work. Two others may settle a part before it: the one of the deadlines, and the one that restarts a
station that is stuck. Whoever settles first decides; a verdict that comes later is dropped.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from threading import Event, RLock, Thread
from typing import Any, Literal, Protocol

from procon.errors import ImageError, ProconError
from procon.files import describe_os_error
from procon.line.arrivals import Source
from procon.line.delivery import Deliveries
from procon.line.models import Slot
from procon.line.outbox import Outbox, OutboxError
from procon.line.parts import Arrival, BusyError, Deadlines, EventBody, Inspection, Trigger, event_id
from procon.line.records import describe_change, describe_result, describe_start
from procon.progress import Say, say_nothing

State = Literal["loading", "ready", "busy", "paused", "error", "stopped"]
_QUEUE_SECONDS = 0.1  # between looks at the model and the source while no trigger comes
_FIRST_RESTART, _LONGEST_RESTART = 1.0, 60.0  # seconds after a failure; doubled with each more in a row
_STUCK_SECONDS = 60.0  # without a sign of life beyond the deadline
_KEPT_RECORDS = 10_000


class Listener(Protocol):
    """A live output: it is told at once, in the thread where it happens, and must not wait."""

    def on_busy(self, station: "Station", part: Inspection) -> None:
        """A part is in work."""

    def on_result(self, station: "Station", body: EventBody) -> None:
        """A part has its result."""

    def on_state(self, station: "Station", state: State, reason: str) -> None:
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


class Station:
    """See the module."""

    def __init__(self, plan: StationPlan, deadlines: Deadlines) -> None:
        self.plan, self.name = plan, plan.name
        self.job = 1
        self.paused = False
        self.fault = ""  # why no verdict can be given now
        self.last: EventBody | None = None  # the latest result
        self.results = 0  # since the start
        self.restarts = 0  # of the thread, since the start
        self.restarted = False  # the process before this one used the same outbox
        self._deadlines = deadlines
        self._lock = RLock()
        self._state: State = "loading"
        self._part: Inspection | None = None
        self._triggers: SimpleQueue[tuple[Inspection, Trigger]] = SimpleQueue()
        self._unstored: deque[Inspection] = deque(maxlen=_KEPT_RECORDS)
        self._source: Source | None = None
        self._stop = Event()
        self._generation, self._failures, self._beat = 0, 0, time.monotonic()
        self._first = True  # no result yet
        self._thread: Thread | None = None

    # --------------------------------------------------------------------------------------------------- from outside

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

    def start(self) -> None:
        """Begin to work. The first message says whether the process before ended as it was told to."""
        ending = self.plan.outbox.begin_run()
        self.restarted = ending != "first"
        if self.plan.announce:
            self._send(describe_start(self.name, ending))
        self._start_thread()
        if self.plan.deliveries is not None:
            self.plan.deliveries.start()

    def stop(self) -> None:
        """Finish; a part in work gets no verdict."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=15)
        self._abandon("the station is stopping")
        self.store_records()
        self._close_source()
        if self.plan.deliveries is not None:
            self.plan.deliveries.stop()
        self.plan.outbox.end_run()
        self._tell()

    def trigger(self, trigger: Trigger) -> Inspection:
        """Begin with a part; its result comes by its deadline. Refused with BusyError while there is another."""
        with self._lock:
            if not self.plan.triggered:
                raise BusyError(f"{self.name}: takes its images by itself; set trigger = true to trigger it")
            if self._stop.is_set():
                raise BusyError(f"{self.name}: is stopping; trigger again when it is ready")
            if self._part is not None:
                raise BusyError(f"{self.name}: is busy with part {self._part.name!r}; trigger again when it is done")
            part = Inspection(trigger.part, event_id(Arrival(None, "")), self.plan.deadline)
            self._begin(part)
            self._triggers.put((part, trigger))
        return part

    def select(self, job: int) -> None:
        """Score the next parts with the model ``job``, from 1."""
        if not 1 <= job <= len(self.plan.slots):
            raise ProconError(f"{self.name}: job must be 1 to {len(self.plan.slots)}, got {job}")
        self.job = job
        self._tell()

    def pause(self) -> None:
        """Take no images, and answer triggers with no verdict, until :meth:`resume`."""
        self.paused = True
        self._tell()

    def resume(self) -> None:
        """Go on after a pause."""
        self.paused = False
        self._tell()

    def restart(self, reason: str) -> None:
        """Leave the thread and what it is stuck in, and work in a new one; its part gets no verdict."""
        self.plan.say(self._named(f"restarted: {reason}"))
        self.restarts += 1
        self._generation += 1  # from here on the old thread changes nothing
        self._abandon(f"the station was restarted: {reason}")
        self._start_thread()

    def check(self) -> None:
        """What the line does now and then: restart a thread that is stuck or has ended, store what was not."""
        self.store_records()
        alive = self._thread is not None and self._thread.is_alive()
        silent = time.monotonic() - self._beat - (self.plan.deadline or 0.0)
        if not self._stop.is_set() and (not alive or silent > self.plan.stuck):
            self.restart(f"no sign of life for {silent:.0f} s" if alive else "its thread had ended")
        if self.plan.deliveries is not None:
            self.plan.deliveries.check()
        self._tell()

    # ---------------------------------------------------------------------------------------------------- the thread

    def _start_thread(self) -> None:
        self._generation += 1
        self._source, self._beat = None, time.monotonic()
        run, name = self._run, f"procon-station-{self.name}"
        self._thread = Thread(target=run, args=(self._generation,), name=name, daemon=True)
        self._thread.start()

    def _run(self, generation: int) -> None:
        while self._is_current(generation):
            self._beat = time.monotonic()
            pause = 0.0 if self.plan.triggered else self.plan.every
            try:
                self.step(generation)
            except (ImageError, OutboxError, OSError) as error:  # no folder, camera or disk space for now
                if not self._is_current(generation):
                    return
                self._set_fault(describe_os_error(error) if isinstance(error, OSError) else str(error))
                pause = self.plan.every
            except Exception as error:
                if not self._is_current(generation):
                    return
                self._close_source()
                pause = min(_FIRST_RESTART * 2.0**self._failures, _LONGEST_RESTART)
                self._failures += 1
                self._set_fault(f"{type(error).__name__}: {error}; the station starts again in {pause:g} s")
            until = time.monotonic() + pause
            while self.plan.triggered and self._is_current(generation) and time.monotonic() < until:
                self._answer_one(generation, min(_QUEUE_SECONDS, until - time.monotonic()))
            if not self.plan.triggered:
                self._stop.wait(pause)

    def _is_current(self, generation: int) -> bool:
        return generation == self._generation and not self._stop.is_set()

    def step(self, generation: int | None = None) -> int:
        """Do what there is to do now; gives how many parts that were."""
        generation = self._generation if generation is None else generation
        if self.slot.current is None:
            if self.slot.error is not None:
                raise ImageError(self.slot.error)
            return self._answer_one(generation, _QUEUE_SECONDS)
        if self._source is None:
            self._source = self.plan.open_source()
        if self.plan.triggered:
            self._clear_fault()
            return self._answer_one(generation, _QUEUE_SECONDS)
        if self.paused:
            return 0
        arrivals = self._source.poll(self.plan.outbox.is_done)
        self._clear_fault()
        done = 0
        for arrival in arrivals:
            if not self._is_current(generation) or self.paused:
                break
            self._beat = time.monotonic()
            part = Inspection("", event_id(arrival), self.plan.deadline, arrival.key)
            with self._lock:
                self._begin(part)
            self._inspect(part, None, arrival, generation)
            done += 1
        return done

    def _answer_one(self, generation: int, seconds: float) -> int:
        """Inspect the part of the next trigger, if one comes in time."""
        if not self.plan.triggered:
            return 0
        self._beat = time.monotonic()
        try:
            part, trigger = self._triggers.get(timeout=max(0.0, seconds))
        except Empty:
            return 0
        if not self._is_current(generation):  # it woke up after it had been given up
            self._triggers.put((part, trigger))
            return 0
        if not part.settled:
            self._inspect(part, trigger, None, generation)
        return 1

    def _inspect(self, part: Inspection, trigger: Trigger | None, arrival: Arrival | None, generation: int) -> None:
        """Score a part and settle it, with a verdict or with the reason why there is none."""
        started, facts, failure = time.perf_counter(), dict[str, Any](), None
        slot = self.slot
        try:
            if trigger is not None:
                slot = self._slot_for(trigger)
                arrival = self._take(trigger, part)
            assert arrival is not None
            if slot.current is None:
                raise ImageError(slot.error or f"{slot.name}: is being loaded; trigger again later")
            facts = slot.current.predict(arrival.image).to_dict()
        except ImageError as error:
            facts = {"error": str(error)}
        except Exception as error:  # of the model or the device: say no verdict first, then start again
            facts, failure = {"error": f"{type(error).__name__}: {error}"}, error
        if not failure:
            self._failures = 0
        first, self._first = self._first, False
        model = "" if slot.current is None else slot.current.revision
        source = arrival.name if arrival is not None else ""
        seconds = round(time.perf_counter() - started, 4)
        body = describe_result(self.name, part, facts, source=source, seconds=seconds, model=model)
        if first and self.restarted:
            body["restarted"] = True
        self._settle(part, body, generation)
        if failure:
            raise failure

    def _slot_for(self, trigger: Trigger) -> Slot:
        if trigger.job is None:
            return self.slot
        if not 1 <= trigger.job <= len(self.plan.slots):
            raise ImageError(f"job must be 1 to {len(self.plan.slots)}, got {trigger.job}; select a job that is there")
        if trigger.job != self.job:
            self.select(trigger.job)
        return self.slot

    def _take(self, trigger: Trigger, part: Inspection) -> Arrival:
        if self.paused:
            raise ImageError("the station is paused; resume it first")
        if self.fault or self._source is None:
            raise ImageError(self.fault or "the station is loading its model; trigger again later")
        return self._source.take(trigger, part.until)

    # ------------------------------------------------------------------------------------------------------- results

    def _begin(self, part: Inspection) -> None:
        self._part = part
        for listener in self.plan.listeners:
            listener.on_busy(self, part)
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
            for listener in self.plan.listeners:
                listener.on_result(self, body)
        part.finish(body)
        return True

    def _give_up(self, part: Inspection, reason: str) -> None:
        """Settle a part without a verdict; it is stored by another thread."""
        seconds = round(time.monotonic() - part.begun, 4)
        body = describe_result(self.name, part, {"error": reason}, source="", seconds=seconds, model="")
        if self._publish(part, body):
            self._unstored.append(part)

    def _miss(self, part: Inspection) -> None:
        self._give_up(part, f"no result within the deadline of {1000 * (self.plan.deadline or 0):.0f} ms")

    def _abandon(self, reason: str) -> None:
        part = self._part
        if part is not None:
            self._give_up(part, reason)

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
        state = self.state
        with self._lock:
            if state == self._state:
                return
            self._state = state
            for listener in self.plan.listeners:
                listener.on_state(self, state, self.fault)

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

    def _close_source(self) -> None:
        source, self._source = self._source, None
        if source is not None:
            source.close()

    def _named(self, message: str) -> str:
        return f"{self.name}: {message}" if self.name else message
