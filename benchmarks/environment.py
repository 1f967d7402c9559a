"""What every row of a results file says about where it was measured."""

import csv
import os
import platform
import subprocess
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

RESULTS = Path(__file__).parent / "results"


def environment() -> dict[str, str]:
    """Hardware, versions, threads and commit, the same keys in every file."""
    commit, changed = (
        subprocess.run(["git", *words], capture_output=True, text=True, check=False, cwd=Path(__file__).parent).stdout
        for words in (["rev-parse", "--short", "HEAD"], ["status", "--porcelain", "--", "../src"])
    )
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    return {
        "device": device,
        "cpu": _cpu(),
        "threads": str(torch.get_num_threads()),
        "torch": torch.__version__,
        "transformers": version("transformers"),
        "python": platform.python_version(),
        # "+": with changes that no commit has. A copy without its history is told the commit it was made from.
        "commit": commit.strip() + ("+" if changed else "") or os.environ.get("PROCON_COMMIT", "unknown"),
    }


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.machine()} x{len(names)}"


def read_rows(name: str) -> list[dict[str, str]]:
    """The rows of ``results/<name>.csv``, none where it is not there."""
    path = RESULTS / f"{name}.csv"
    if not path.is_file():
        return []
    with path.open(newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def write_rows(name: str, rows: Iterable[Mapping[str, Any]]) -> Path:
    """Write ``results/<name>.csv``, each row with the environment behind its own columns; one that has it keeps it."""
    here = environment()
    complete = [{**row, **{key: row.get(key, value) for key, value in here.items()}} for row in rows]
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.csv"
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, list(complete[0]))
        writer.writeheader()
        writer.writerows(complete)
    return path
