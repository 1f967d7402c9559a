"""Names of files as text: any name can be printed, written to a file, and turned back into the name."""

import os
import re
import unicodedata

_ESCAPE = re.compile(r"\\(?:x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8})")


def show_name(name: str | os.PathLike[str]) -> str:
    r"""The name of a file, safe to print and to write anywhere; :func:`original_name` is the inverse.

    Bytes that are not UTF-8 and control characters become ``\xNN``, other invisible characters, such as those that
    change the direction of writing, ``\uNNNN`` or ``\UNNNNNNNN``. A backslash before such a sequence becomes ``\x5c``.
    """
    text = _ESCAPE.sub(lambda match: r"\x5c" + match[0][1:], os.fspath(name))
    return "".join(map(_show_character, text))


def show_text(text: str) -> str:
    """Text that may hold names, safe to print: as :func:`show_name`, but lines and backslashes stay as they are."""
    return "\n".join("".join(map(_show_character, line)) for line in text.split("\n"))


def _show_character(character: str) -> str:
    if character.isprintable() or unicodedata.category(character) == "Zs":  # spaces of all widths are part of names
        return character
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:  # how Python holds a byte that is not UTF-8
        return f"\\x{code - 0xDC00:02x}"
    return f"\\x{code:02x}" if code < 0x80 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def original_name(shown: str) -> str:
    """The name of the file that :func:`show_name` showed as ``shown``."""

    def unescape(match: re.Match[str]) -> str:
        code = int(match[0][2:], 16)
        return chr(code + 0xDC00 if match[0][1] == "x" and code >= 0x80 else code)

    return _ESCAPE.sub(unescape, shown)
