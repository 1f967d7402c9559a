"""The files of a run of :mod:`research.study`."""

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from environment import environment


class Output:
    """The files of a run, written anew after every part and seed."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        names = ("p_auroc", "p_ap", "p_f1", "aupro")
        self._stream = (folder / "maps.csv").open("w", newline="", encoding="utf-8")
        fields = ["part", "seed", "reading", "kind", *names, *(f"drawn_{name}" for name in names)]
        self._writer = csv.DictWriter(self._stream, fields)
        self._writer.writeheader()
        self._arrays: dict[str, dict[str, NDArray[Any]]] = {}
        self.parts: dict[str, Any] = {"environment": environment()}

    def rows(self, part: str, seed: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Add rows of metrics."""
        for row in rows:
            rounded = {name: round(value, 3) if isinstance(value, float) else value for name, value in row.items()}
            self._writer.writerow({"part": part, "seed": seed} | rounded)
        self._stream.flush()

    def array(self, file: str, name: str, values: NDArray[Any]) -> None:
        """Add an array to a file."""
        self._arrays.setdefault(file, {})[name] = values

    def save(self) -> None:
        """Write everything but the rows, which are there already."""
        for file, arrays in self._arrays.items():
            np.savez(self.folder / f"{file}.npz", **arrays)  # type: ignore[arg-type]
        (self.folder / "parts.json").write_text(json.dumps(self.parts, indent=1), encoding="utf-8")
