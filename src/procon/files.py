"""Names of files as text, and atomic writes: a crash or a full disk leaves the old file intact."""

import contextlib
import os
import re
import tempfile
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import IO


def show_name(name: str | os.PathLike[str]) -> str:
    r"""The name of a file, safe to print and to write anywhere: different names give different texts.

    Bytes that are not UTF-8 and control characters become ``\xNN``, other invisible characters, such as those that
    change the direction of writing, ``\uNNNN`` or ``\UNNNNNNNN``. A name that already has such a sequence has its
    backslash escaped.
    """
    text = re.sub(r"\\(?=x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8})", r"\\x5c", os.fspath(name))
    return "".join(map(_show_character, text))


def _show_character(character: str) -> str:
    if character.isprintable() or unicodedata.category(character) == "Zs":  # spaces of all widths are part of names
        return character
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:  # how Python holds a byte that is not UTF-8
        return f"\\x{code - 0xDC00:02x}"
    return f"\\x{code:02x}" if code < 0x80 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


@contextlib.contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """A temporary name beside ``path`` that becomes ``path`` on success and vanishes on any failure or Ctrl-C."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".partial")
    except OSError as error:
        error.filename = str(path)
        raise
    os.close(descriptor)
    temporary = Path(name)
    try:
        yield temporary
        with temporary.open("rb+") as stream:
            os.fsync(stream.fileno())
        temporary.chmod(0o666 & ~_umask())  # mkstemp makes private files; a model is an ordinary one
        temporary.replace(path)
    except OSError as error:
        if error.filename in (None, str(temporary)):  # a full disk has no name, and nobody knows the temporary one
            error.filename = str(path)
        raise
    finally:
        temporary.unlink(missing_ok=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


@contextlib.contextmanager
def atomic_text(path: Path) -> Iterator[IO[str]]:
    """A text stream whose content appears at ``path`` all at once when the block ends."""
    with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as stream:
        yield stream
