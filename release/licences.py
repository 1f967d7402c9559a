"""A table of the licences of everything that an installed ProCon depends on, from the metadata in its environment.

python release/licences.py SITE_PACKAGES > licences.md
"""

import sys
from collections.abc import Iterable
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import NamedTuple

NOT_STATED = "not stated"
_TOOLS = {"pip", "procon", "setuptools", "wheel"}  # they come with the environment, or are the package itself


class Licence(NamedTuple):
    """One row of the table."""

    name: str
    version: str
    licence: str


def read_licence(distribution: Distribution) -> str:
    """The licence that a package states: its expression, else its classifiers, else a short text in its field."""
    metadata = distribution.metadata
    if expression := metadata.get("License-Expression"):
        return str(expression)
    classifiers = [text.split(" :: ") for text in metadata.get_all("Classifier") or []]
    # "OSI Approved" alone names no licence.
    named = sorted({parts[-1] for parts in classifiers if parts[0] == "License" and parts[-1] != "OSI Approved"})
    text = " ".join((metadata.get("License") or "").split())
    if named:
        return ", ".join(named)
    return text if 0 < len(text) <= 80 and text.upper() != "UNKNOWN" else NOT_STATED


def list_licences(site_packages: Path) -> list[Licence]:
    """A row per installed package, by name, without the package itself and the installer."""
    found = distributions(path=[str(site_packages)])
    rows = {Licence(it.metadata["Name"], it.version, read_licence(it)) for it in found}
    return sorted((row for row in rows if row.name.lower() not in _TOOLS), key=lambda row: row.name.lower())


def render(rows: Iterable[Licence]) -> str:
    """The table in Markdown, and the packages that state no licence."""
    rows = list(rows)
    lines = ["| package | version | licence |", "|---|---|---|"]
    lines += [f"| {row.name} | {row.version} | {row.licence.replace('|', '/')} |" for row in rows]
    silent = [row.name for row in rows if row.licence == NOT_STATED]
    if silent:
        lines += ["", f"No licence in the metadata, so look at the source: {', '.join(silent)}."]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(render(list_licences(Path(sys.argv[1]))))
