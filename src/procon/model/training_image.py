"""What a model stores of one good image."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class TrainingImage:
    """One good image as a model remembers it."""

    name: str  # its path as it was given, or "image N"
    size: tuple[int, int]  # (height, width) in pixels
    digest: str  # "file:" and the sha256 of the file, or "pixels:" and that of the pixels where there was none
    thumbnail: bytes = field(default=b"", repr=False)  # a small JPEG, or nothing

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready, without the thumbnail."""
        return {"name": self.name, "size": list(self.size), "digest": self.digest}

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any], thumbnail: bytes = b"") -> "TrainingImage":
        """The inverse of :meth:`to_dict`; a KeyError, TypeError or ValueError says what does not fit."""
        height, width = stored["size"]
        return cls(str(stored["name"]), (int(height), int(width)), str(stored["digest"]), thumbnail)
