"""JSON from files that anyone may have written: parsed without surprises, and compared with what is expected."""

import hashlib
import json
import math
import os
from collections.abc import Callable, Mapping
from typing import Any

Form = Callable[[Any, str], None]
"""Checks a value of a document. The text is its place, such as ``calibration.scores[3]``; raises a ValueError."""


def parse_json(text: str | bytes) -> Any:
    """The content of a JSON text; a ValueError says what is wrong with it, whatever that is.

    NaN, infinities and integers of more than 64 bits, which Python would accept, are refused.
    """
    try:
        return json.loads(text, parse_constant=_refuse_constant, parse_float=_finite_float, parse_int=_small_integer)
    except RecursionError:
        raise ValueError("its brackets are nested too deeply") from None


def _refuse_constant(text: str) -> float:
    raise ValueError(f"{text} is no JSON number")


def _finite_float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:30]} is too large a number")
    return value


def _small_integer(text: str) -> int:
    value = int(text) if len(text) <= 20 else 2**64
    if not -(2**63) <= value < 2**63:
        raise ValueError(f"{text[:30]} is too large a number")
    return value


def sealed(document: Mapping[str, Any]) -> dict[str, Any]:
    """The document with a checksum over the rest of it."""
    rest = {name: value for name, value in document.items() if name != "checksum"}
    return {**rest, "checksum": hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()}


# -------------------------------------------------------------------------------------------------------------- shapes


def _refuse(place: str, expected: str, value: object) -> ValueError:
    shown = repr(value)
    return ValueError(f"{place} must be {expected}, got {shown if len(shown) <= 60 else shown[:60] + '...'}")


def number(low: float = -1e30, high: float = 1e30, *, whole: bool = False) -> Form:
    """A finite number from ``low`` to ``high``."""
    kinds, noun = ((int,), "an integer") if whole else ((int, float), "a number")

    def check(value: Any, place: str) -> None:
        if type(value) not in kinds or not low <= value <= high:
            raise _refuse(place, f"{noun} from {low:g} to {high:g}", value)

    return check


def text(value: Any, place: str) -> None:
    """Text that can be the name of a file: what Python calls surrogates only as far as they stand for bytes."""
    try:
        if isinstance(value, str) and b"\0" not in os.fsencode(value):
            return
    except UnicodeEncodeError:
        pass
    raise _refuse(place, "text", value)


def choice(*allowed: object) -> Form:
    """One of these values, of the same type."""

    def check(value: Any, place: str) -> None:
        if not any(type(value) is type(other) and value == other for other in allowed):
            raise _refuse(place, "one of " + ", ".join(map(repr, allowed)), value)

    return check


flag = choice(True, False)


def maybe(shape: Form) -> Form:
    """None, or a value of this shape."""

    def check(value: Any, place: str) -> None:
        if value is not None:
            shape(value, place)

    return check


def list_of(shape: Form, least: int = 0, most: float = math.inf) -> Form:
    """A list of values of this shape."""
    wanted = f"a list of {least}" if least == most else f"a list of at least {least}"

    def check(value: Any, place: str) -> None:
        if not isinstance(value, list) or not least <= len(value) <= most:
            raise _refuse(place, wanted, value)
        for index, item in enumerate(value):
            shape(item, f"{place}[{index}]")

    return check


def fields(required: Mapping[str, Form], optional: Mapping[str, Form] | None = None) -> Form:
    """An object with these entries; others are allowed, as later releases may add some."""
    entries = {**required, **(optional or {})}

    def check(value: Any, place: str) -> None:
        if not isinstance(value, dict):
            raise _refuse(place or "the document", "an object", value)
        missing = [name for name in required if name not in value]
        if missing:
            raise ValueError(f"{place or 'the document'} has no {', '.join(missing)}")
        for name, shape in entries.items():
            if name in value:
                shape(value[name], f"{place}.{name}" if place else name)

    return check
