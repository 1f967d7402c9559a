"""What a station does: it takes parts from one source and scores them with one model at a time, in a thread."""

import time
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any

from procon.errors import ImageError, ProconError
from procon.files import describe_os_error
from procon.line.arrivals import Source
from procon.line.models import Slot
from procon.line.outbox import OutboxError
from procon.line.parts import Arrival, BusyError, Deadlines, Inspection, NoVerdictError, Trigger, event_id
from procon.line.records import describe_result, describe_start
from procon.line.reporting import Reporter, StationPlan

_QUEUE_SECONDS = 0.1  # between looks at the model and the source while no trigger comes
_FIRST_RESTART, _LONGEST_RESTART = 1.0, 60.0  # seconds after a failure; doubled with each more in a row


class Station(Reporter):
    """See the module."""

    def __init__(self, plan: StationPlan, deadlines: Deadlines) -> None:
        super().__init__(plan, deadlines)
        self.restarts = 0  # of the thread, since the start
        self._triggers: SimpleQueue[tuple[Inspection, Trigger]] = SimpleQueue()
        self._source: Source | None = None
        self._failures = 0  # in a row
        self._first = True  # no result yet
        self._thread: Thread | None = None

    # --------------------------------------------------------------------------------------------------- from outside

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
        if self._unstored:
            lost = f"{len(self._unstored)} results without a verdict, which were shown, could not be stored"
            self.plan.say(self._named(f"{lost}: {self.fault}"))
        try:
            if self.plan.deliveries is not None:
                self.plan.deliveries.stop()
        finally:
            self._tell()
            self.plan.outbox.end_run()

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
        loaded = None  # read once: the model may be replaced meanwhile
        try:
            slot = self.slot if trigger is None else self._slot_for(trigger)
            loaded = slot.current
            if loaded is None:
                raise NoVerdictError(slot.error or f"{slot.name}: is being loaded; trigger again later", "model")
            if trigger is not None:
                arrival = self._take(trigger, part)
            assert arrival is not None
            facts = loaded.predict(arrival.image).to_dict()
        except NoVerdictError as error:
            facts = {"error": str(error), "cause": error.cause}
        except ImageError as error:
            facts = {"error": str(error), "cause": "image"}
        except Exception as error:  # of the model or the device: say no verdict first, then start again
            facts, failure = {"error": f"{type(error).__name__}: {error}", "cause": "internal"}, error
        if not failure:
            self._failures = 0
        first, self._first = self._first, False
        model = "" if loaded is None else loaded.revision
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
            jobs = len(self.plan.slots)
            raise NoVerdictError(f"job must be 1 to {jobs}, got {trigger.job}; select a job that is there", "model")
        if trigger.job != self.job:
            self.select(trigger.job)
        return self.slot

    def _take(self, trigger: Trigger, part: Inspection) -> Arrival:
        if self.paused:
            raise NoVerdictError("the station is paused; resume it first", "paused")
        if self.fault:
            raise NoVerdictError(self.fault, "fault")
        if self._source is None:  # the model was loaded a moment ago
            self._source = self.plan.open_source()
        return self._source.take(trigger, part.until)

    def _close_source(self) -> None:
        source, self._source = self._source, None
        if source is not None:
            source.close()
