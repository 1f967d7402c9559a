"""The log of a model: what was added, removed and set since the fit."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any


@dataclass(frozen=True)
class Change:
    """One entry of the log of a model. The fit has no entry, so that the same images always give the same file."""

    when: str  # UTC, ISO 8601, to the second
    what: str  # "added", "forgot", "merged", "taught" or "threshold"
    images: tuple[str, ...] = ()  # names of the images added or removed
    note: str = ""

    @property
    def count(self) -> int:
        """How many images were added or removed."""
        return len(self.images)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        note = {"note": self.note} if self.note else {}
        return {"when": self.when, "what": self.what, "images": list(self.images), "count": self.count, **note}

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> "Change":
        """The inverse of :meth:`to_dict`; a KeyError or TypeError says what does not fit."""
        return cls(str(stored["when"]), str(stored["what"]), tuple(map(str, stored["images"])), stored.get("note", ""))

    def __str__(self) -> str:
        images = f"{self.count} image{'s' if self.count > 1 else ''}" if self.images else ""
        shown = ", ".join(self.images[:3]) + (", ..." if self.count > 3 else "")
        parts = [part for part in (images, self.note, f"({shown})" if shown else "") if part]
        return " ".join([self.when, self.what, *parts])


def utc() -> str:
    """The time, as an entry writes it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def describe_lesson(stored: Mapping[str, Any]) -> str:
    """A lesson, as a model file lists it, in a line for people."""
    left, top, right, bottom = stored["box"]
    count = len(stored["patches"])
    place = f"columns {left} to {right - 1}, rows {top} to {bottom - 1}"
    return f"{stored['name']}: {count} patch{'es' * (count != 1)} of {stored['image']['name']}, {place}"
