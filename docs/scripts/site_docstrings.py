"""Docstrings as the site shows them: comments behind fields describe them, and references are plain code.

An extension of griffe, which reads the source without importing it; named in ``mkdocs.yml``.
"""

import re
from typing import Any

from griffe import Attribute, Docstring, Extension, Object

COMMENT = re.compile(r"  # (.+)$")
ROLE = re.compile(r":(?:meth|class|func|mod|attr|data):`~?([\w.]+)`")


class FieldComments(Extension):
    """Fields of dataclasses here have a comment on their line, which is their documentation."""

    def on_attribute_instance(self, *, attr: Attribute, **_: Any) -> None:
        """Take the comment behind a field, and the comment lines that continue it."""
        if attr.docstring is None and attr.lineno is not None:
            text = read_comment(list(attr.parent.module.lines_collection[attr.filepath]), attr.lineno, attr.endlineno)
            if text:
                attr.docstring = Docstring(text, parent=attr)

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Turn references of Sphinx into code, and its two colons before a block into one."""
        if obj.docstring is not None:
            text = ROLE.sub(r"`\1`", obj.docstring.value)
            obj.docstring.value = re.sub(r"(?m)^::$", "", text).replace("::\n\n", ":\n\n")


def read_comment(lines: list[str], first: int, last: int | None) -> str:
    """The comment behind the statement on lines ``first`` to ``last``, counted from 1, as a sentence."""
    end = last or first
    found = COMMENT.search(lines[end - 1])
    if found is None:
        return ""
    words = [found.group(1).strip()]
    for line in lines[end:]:
        if not re.match(r" {8,}# ", line):  # deeper than a field: it continues the comment above
            break
        words.append(line.strip().removeprefix("# "))
    text = " ".join(words)
    return text[0].upper() + text[1:]
