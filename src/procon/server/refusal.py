"""Answers that say no: one shape for all of them, and never a path of this machine."""

import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from fastapi import HTTPException


class Refusal(HTTPException):
    """A request that cannot be served: the status, and a sentence for the person who sent it."""

    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(status, message, dict(headers) if headers else None)


# A path that begins at the root, or a Windows drive; what it ends with is worth showing.
_PATH = re.compile(r"(?<![\w/.])(?:[A-Za-z]:\\|/)(?:[^\s'\"`:;,()<>|/\\]+[/\\])*([^\s'\"`:;,()<>|/\\]*)")


class Redactor:
    """Takes folders of the host out of messages; the last part of a path stays."""

    def __init__(self, roots: Sequence[Path]) -> None:
        known = {str(root) for root in (*roots, Path.home(), Path.cwd(), Path(tempfile.gettempdir()))}
        # Longest first, and as wholes: a folder name may hold blanks, which no pattern could tell from prose.
        self._roots = sorted((root for root in known if len(root) > 1), key=len, reverse=True)

    def __call__(self, text: str) -> str:
        """``text`` without folders."""
        for root in self._roots:
            text = text.replace(root, "")
        return _PATH.sub(lambda match: match[1], text)
