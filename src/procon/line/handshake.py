"""The handshake with a PLC: what a station shows in its registers, and what it does when they are written.

Every way out is a defined state: a part that has no verdict by its deadline is done with ``no_verdict``, a result that
nobody acknowledges is withdrawn, and a trigger that cannot be taken is counted, or done with ``no_verdict``.
"""

import math
import time
from collections.abc import Callable, Sequence
from threading import Lock

from procon.line.parts import CAUSES, BusyError, EventBody, Inspection, Trigger
from procon.line.registers import BY_NAME, LAYOUT, SCORE_SCALE, STATES, STATUS, decode_register, encode_status
from procon.line.reporting import State
from procon.line.station import Station

_IDLE = {"done": 0, "pass": 0, "fail": 0, "no_verdict": 0}
_NO_RESULT = dict.fromkeys(
    ("result_part", "score", "regions", "region_left", "region_top", "region_right", "region_bottom", "milliseconds"), 0
) | {"cause": 0, "model": 0}


class Handshake:
    """The registers of one station. Calls come from the server, and from the station as a listener."""

    def __init__(self, station: Station, acknowledge: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._station, self._acknowledge, self._clock = station, acknowledge, clock
        self._lock = Lock()  # never held while the station is called: it calls back under its own
        self._commands = [0] * STATUS
        self._shown = {**_IDLE, **_NO_RESULT, "overruns": 0, "heartbeat": 0, "withdrawn": 0, "restarted": 0}
        self._triggering = False  # a call of station.trigger runs
        self._own: str | None = None  # id of the part that was triggered here and has no result yet
        self._done_at = math.inf
        self._triggered = False  # since the start

    # ------------------------------------------------------------------------------------------------- from the PLC

    def write(self, offset: int, values: Sequence[int]) -> None:
        """Registers were written, all at once."""
        with self._lock:
            before = list(self._commands)
            self._commands[offset : offset + len(values)] = values
            now = list(self._commands)
        for name, act in (("pause", self._pause), ("restart", self._restart), ("trigger", self._change_trigger)):
            if decode_register(before, name) != decode_register(now, name):
                act(decode_register(now, name) != 0)

    def _pause(self, on: bool) -> None:
        (self._station.pause if on else self._station.resume)()

    def _restart(self, on: bool) -> None:
        if on:
            self._station.restart("the PLC asked for it")

    def _change_trigger(self, on: bool) -> None:
        with self._lock:
            if not on:
                if self._shown["done"]:
                    self._withdraw()
                return
            if self._own is not None:  # a trigger while busy changes nothing of the part in work
                self._shown["overruns"] += 1
                return
            self._withdraw()
            self._triggering = self._triggered = True
            part, job = str(decode_register(self._commands, "part")), decode_register(self._commands, "job")
        try:
            self._station.trigger(Trigger(part, None, job or None, "Modbus"))
        except BusyError:  # somebody else triggered it, or it takes images by itself
            with self._lock:
                self._shown["overruns"] += 1
                self._show({"part": part, "verdict": "none", "cause": "busy"})
        finally:
            with self._lock:
                self._triggering = False

    def tick(self) -> None:
        """Called every 100 ms: the heartbeat, and results that nobody acknowledges."""
        with self._lock:
            self._shown["heartbeat"] = (self._shown["heartbeat"] + 1) % 65_536
            if self._clock() - self._done_at > self._acknowledge:
                self._withdraw()
                self._shown["withdrawn"] += 1

    def status(self) -> list[int]:
        """The registers that the line writes, as they are now."""
        station = self._station
        state = station.state
        with self._lock:
            busy = self._own is not None or state == "busy"
            return encode_status(
                {
                    **self._shown,
                    "state": STATES.index("busy" if busy and state == "ready" else state),
                    "ready": int(state == "ready" and not busy and not self._shown["done"]),
                    "busy": int(busy),
                    "error": int(state == "error"),
                    "job_in_use": station.job,
                    "result_count": station.results,
                    "restarted": int(station.restarted and not self._triggered),
                    "station_restarts": station.restarts,
                    "deadline": round(1000 * (station.plan.deadline or 0)),
                    "layout": LAYOUT,
                }
            )

    # -------------------------------------------------------------------------------------------- from the station

    def on_busy(self, _station: Station, part: Inspection) -> None:
        """A part is in work: our own if we are just triggering it."""
        with self._lock:
            if self._triggering:
                self._own = part.event

    def on_result(self, station: Station, body: EventBody) -> None:
        """Show the result of our own part, and those of a station that takes its images by itself."""
        with self._lock:
            if body["id"] == self._own:
                self._own = None
                self._show(body)
            elif not station.plan.triggered:
                self._show(body)
                self._shown["done"], self._done_at = 0, math.inf

    def on_state(self, station: Station, state: State, _reason: str) -> None:
        """The state is read when it is asked for; the verdict of an earlier part must not outlast a failure."""
        if state in ("error", "stopped") and not station.plan.triggered:
            with self._lock:
                self._withdraw()

    def _withdraw(self) -> None:
        self._shown |= {**_IDLE, **_NO_RESULT}
        self._done_at = math.inf

    def _show(self, body: EventBody) -> None:
        """A result, complete: exactly one of pass, fail and no_verdict is 1."""
        verdict, boxes = body["verdict"], body.get("regions") or []
        box = [max(0, int(side)) for side in boxes[0]["box"]] if boxes else [0, 0, 0, 0]
        part, relative = str(body["part"]), body.get("relative_score")
        # Rounded up: a score above the threshold must not show as one at it.
        score = math.ceil(SCORE_SCALE * relative) if verdict != "none" and relative is not None else 0
        corners = dict(zip(("region_left", "region_top", "region_right", "region_bottom"), box, strict=True))
        self._shown |= {
            "done": 1,
            "pass": int(verdict == "good"),
            "fail": int(verdict == "anomalous"),
            "no_verdict": int(verdict not in ("good", "anomalous")),
            "cause": CAUSES.index(body.get("cause", "")) if body.get("cause", "") in CAUSES else len(CAUSES),
            "result_part": int(part) if part.isdecimal() else 0,
            "score": score,
            "regions": len(boxes) if verdict != "none" else 0,
            "milliseconds": round(1000 * body.get("seconds", 0.0)),
            "model": int(body["model"][:8], 16) if _is_hex(body.get("model", "")) else 0,
            **(corners if verdict != "none" else {}),
        }
        self._done_at = self._clock()


def _is_hex(text: str) -> bool:
    return bool(text) and all(character in "0123456789abcdef" for character in text[:8])


assert BY_NAME["layout"].offset + 1 == STATUS + len(encode_status({}))
