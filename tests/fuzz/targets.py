"""What the fuzzers may assume of any input: an answer, or an error that a user can read. Nothing here needs atheris."""

import json
import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

Check = Callable[[bytes], None]
"""Raises what must not happen."""


class Target(NamedTuple):
    """A parser under test."""

    open: Callable[[Path], AbstractContextManager[Check]]
    """Prepares the check; its files are in the folder given."""
    seeds: Callable[[], dict[str, bytes]]
    """Valid inputs, made when they are needed, by name."""
    instrumented: tuple[str, ...]
    """The packages whose branches guide the fuzzer, besides procon."""


class Source:
    """Bytes that are used up one decision at a time; after the last, every decision is the first choice."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    @property
    def left(self) -> int:
        return len(self._data) - self._at

    def number(self, below: int) -> int:
        """From 0 to ``below`` - 1."""
        size = 1 if below <= 256 else 3
        taken = self._data[self._at : self._at + size]
        self._at += size
        return int.from_bytes(taken, "little") % below if below else 0

    def rest(self) -> bytes:
        taken, self._at = self._data[self._at :], len(self._data)
        return taken


VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 5, 25, 2**31, 2**63, 10**400, 0.0, -0.0, 0.5, 1.5, -1.5, 1e-12, 1e308, 5e-324),
    *(math.nan, math.inf, -math.inf, "", "x", "leave-one-out", "held-out", "robust", "guarantee", "none", "int8"),
    *("\x00", "\ud800", "\u202e", "path:/etc/passwd", "a" * 5000, [], {}, [[]], [0], [1, 1], [-1, -3], [70, 70], ["x"]),
    *([math.nan, 1], [10**30, 1], [None], [{}], {"name": "x"}, {"x": []}, "[" * 3000, [0.1] * 3),
)


def _nodes(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The place of everything in a document."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in inside:
        yield (*path, key)
        yield from _nodes(part, (*path, key))


def change_document(document: Any, source: Source) -> None:
    """Replace, remove, copy or rename one part of the document."""
    nodes = list(_nodes(document))
    if not nodes:
        return
    *above, last = nodes[source.number(len(nodes))]
    parent: Any = document
    for key in above:
        parent = parent[key]
    kind = source.number(6)
    if kind < 3:
        parent[last] = json.loads(json.dumps(VALUES[source.number(len(VALUES))]))
    elif kind == 3:
        del parent[last]
    elif kind == 4:
        *elsewhere, key = nodes[source.number(len(nodes))]
        other: Any = document
        for step in elsewhere:
            other = other[step] if isinstance(other, dict | list) else other
        parent[last] = json.loads(json.dumps(other))
    elif isinstance(parent, list):
        parent.append(parent[last])
    else:
        parent[f"{last}2"] = parent.pop(last)


def find_target(name: str) -> Target:
    """The target of this name."""
    from tests.fuzz import dataset_folders, http_requests, image_files, model_files

    modules = {
        "model": model_files.TARGET,
        "images": image_files.TARGET,
        "datasets": dataset_folders.TARGET,
        "requests": http_requests.TARGET,
    }
    return modules[name]


NAMES = ("model", "images", "datasets", "requests")
CORPUS = Path(__file__).parent / "corpus"


def stored_inputs(name: str) -> Iterator[tuple[str, bytes]]:
    """Inputs that once failed, or that reach a branch of their own."""
    for path in sorted((CORPUS / name).glob("*")):
        yield path.name, path.read_bytes()
