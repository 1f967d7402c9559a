"""Error responses: one shape for all of them, without paths of this machine."""

import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from fastapi import HTTPException

_T = TypeVar("_T")


class RequestError(HTTPException):
    """A request that cannot be served: the status, and a message for the person who sent it."""

    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(status, message, dict(headers) if headers else None)


def require_existing(value: _T | None, what: str) -> _T:
    """``value``; if it is None, refuse the request for something that does not exist."""
    if value is None:
        raise RequestError(404, f"no such {what}")
    return value


# A path that begins at the root or at a Windows drive; its last part is kept.
_PATH = re.compile(r"(?<![\w/.])(?:[A-Za-z]:\\|/)(?:[^\s'\"`:;,()<>|/\\]+[/\\])*([^\s'\"`:;,()<>|/\\]*)")


class Redactor:
    """Removes folders of the host from messages; the last part of a path stays."""

    def __init__(self, roots: Sequence[Path]) -> None:
        folders = {str(root) for root in (*roots, Path.home(), Path.cwd(), Path(tempfile.gettempdir()))}
        # Longest first, each as a whole: a folder name may contain spaces, which no pattern can tell from prose.
        self._roots = sorted((folder for folder in folders if len(folder) > 1), key=len, reverse=True)

    def __call__(self, text: str) -> str:
        """``text`` without folders, and without bytes of file names that no response can hold."""
        text = text.encode("utf-8", "backslashreplace").decode()
        for root in self._roots:
            text = text.replace(root, "")
        return _PATH.sub(lambda match: match[1], text)
