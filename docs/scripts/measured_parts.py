"""Pages with measured parts: a script writes the parts between two comments, and the rest is written by hand."""

import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path


def fill(page: Path, script: str, names: Sequence[str], section: Callable[[str], str]) -> str:
    """The text of ``page`` with the parts ``names`` from ``section``; the markers name the ``script``."""
    text = page.read_text(encoding="utf-8")
    for name in names:
        begin, end = f"<!-- {name}: written by docs/scripts/{script} -->", f"<!-- end of {name} -->"
        before, _, rest = text.partition(begin)
        _, found, after = rest.partition(end)
        if not found:
            raise ValueError(f"{page.name} must have the lines {begin} and {end}")
        text = f"{before}{begin}\n{section(name)}\n{end}{after}"
    return text


def wrap(text: str, width: int, subsequent_indent: str = "") -> str:
    """A paragraph of lines of at most ``width`` characters, those after the first indented."""
    return textwrap.fill(
        text, width, break_long_words=False, break_on_hyphens=False, subsequent_indent=subsequent_indent
    )
