"""What a line writes about a part, a start and a fault: the events that every sink and every protocol shows."""

import math
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from procon.line.outbox import Ending
from procon.line.parts import EventBody, Inspection, verdict_of
from procon.names import show_text


def describe_result(
    station: str, part: Inspection, facts: Mapping[str, Any], *, source: str, seconds: float, model: str
) -> EventBody:
    """The result of a part: ``facts`` are those of a prediction, or the ``error`` why there is none."""
    verdict = verdict_of(facts)
    named = {"station": station} if station else {}
    body = {
        "id": part.event,
        "time": _now(),
        "kind": "result",
        **named,
        "part": part.name,
        "verdict": verdict,
        **facts,
        "source": source,
        "seconds": seconds,
        "model": model,
    }
    if verdict == "none" and "error" not in body:
        reason = "the model has no threshold" if facts.get("is_anomalous") is None else "the score is no number"
        body |= {"error": reason, "cause": "model"}
    if verdict == "none":  # no field may read as good, and JSON has no word for a score that is no number
        body["is_anomalous"] = None
        body |= {name: None for name, value in body.items() if isinstance(value, float) and not math.isfinite(value)}
    return body


def describe_start(station: str, ending: Ending) -> EventBody:
    """The first message of a process: it says whether there was one before, and how that ended."""
    words = {
        "first": "the line started for the first time",
        "stopped": "the line restarted after it was stopped",
        "killed": "the line restarted after it was killed or lost its power",
    }
    return {**_event(station, "started"), "restarted": ending != "first", "after": ending, "message": words[ending]}


def describe_change(station: str, kind: str, reason: str) -> EventBody:
    """A fault that keeps a station from giving verdicts, or its end."""
    return {**_event(station, kind), "message": show_text(reason) or "ready again"}


def _event(station: str, kind: str) -> EventBody:
    return {"id": uuid.uuid4().hex, "time": _now(), "kind": kind, "station": station}


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
