"""JSON that anyone may have written: parsed or refused with a ValueError, never anything else."""

import math
from typing import Any

import pytest

from procon.documents import choice, fields, flag, list_of, maybe, number, parse_json, text


def test_plain_json_is_parsed() -> None:
    content = '{"a": [1, -2.5e3, true, null, "\\u00fc"], "b": -9223372036854775808}'
    assert parse_json(content) == parse_json(content.encode()) == {"a": [1, -2500.0, True, None, "ü"], "b": -(2**63)}


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[1,]",
        "NaN",
        "[Infinity]",
        "[-Infinity]",
        "[1e400]",
        "[9223372036854775808]",
        "1" * 5000,
        b"\xff\xfe\xfa",
    ],
)
def test_what_is_no_json_is_refused(content: str | bytes) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        parse_json(content)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("bracket", ["[", '{"a":'])
def test_brackets_without_end_are_refused(bracket: str) -> None:
    with pytest.raises(ValueError, match=r"nested too deeply"):
        parse_json(bracket * 200_000)


SHAPE = fields(
    {"name": text, "size": list_of(number(1, 100, whole=True), 2, 2)},
    {"rate": maybe(number(0, 1)), "rule": choice("robust", "guarantee"), "on": flag},
)
GOOD: dict[str, Any] = {"name": "a\udcff.png", "size": [1, 100], "rate": 0.5, "rule": "robust", "on": False}


def test_what_has_the_shape_passes() -> None:
    for value in (GOOD, {**GOOD, "rate": None, "more": 1}, {"name": "", "size": [2, 3]}):
        SHAPE(value, "entry")


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"name": 1}, "entry.name must be text, got 1"),
        ({"name": "a\0b"}, "entry.name must be text"),
        ({"name": "\ud800"}, "entry.name must be text"),
        ({"size": [1]}, "entry.size must be a list of 2, got"),
        ({"size": "12"}, "entry.size must be a list of 2, got '12'"),
        ({"size": [1, 101]}, r"entry.size\[1\] must be an integer from 1 to 100, got 101"),
        ({"size": [True, 1]}, r"entry.size\[0\] must be an integer from 1 to 100, got True"),
        ({"size": [1.0, 1]}, r"entry.size\[0\] must be an integer from 1 to 100, got 1.0"),
        ({"rate": math.nan}, "entry.rate must be a number from 0 to 1, got nan"),
        ({"rate": math.inf}, "entry.rate must be a number from 0 to 1, got inf"),
        ({"rate": "x" * 500}, r"entry.rate must be a number from 0 to 1, got 'x{59}\.\.\.$"),
        ({"rule": "other"}, "entry.rule must be one of 'robust', 'guarantee', got 'other'"),
        ({"on": 1}, "entry.on must be one of True, False, got 1"),
    ],
)
def test_what_has_another_shape_is_refused(change: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        SHAPE({**GOOD, **change}, "entry")


def test_what_is_missing_is_named() -> None:
    with pytest.raises(ValueError, match=r"^entry has no name, size$"):
        SHAPE({}, "entry")
    with pytest.raises(ValueError, match=r"^entry must be an object, got \[\]$"):
        SHAPE([], "entry")
