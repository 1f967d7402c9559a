"""A small file system that a test can fill: a real tmpfs."""

import contextlib
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@contextlib.contextmanager
def small_disk(size: str = "1m") -> Iterator[Path]:
    """The folder of a file system of ``size``; the test is skipped where mounting is not allowed."""
    with tempfile.TemporaryDirectory() as name:
        command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", name]
        try:
            mounted = subprocess.run(command, capture_output=True, text=True, check=False)
        except FileNotFoundError:
            pytest.skip("there is no command to mount a tmpfs")
        if mounted.returncode:
            pytest.skip(f"a tmpfs cannot be mounted here: {mounted.stderr.strip()}")
        try:
            yield Path(name)
        finally:
            subprocess.run(["umount", "-l", name], check=True)


def fill_disk(folder: Path) -> Path:
    """Fill the file system of ``folder`` to the last byte; gives the file to remove."""
    path = folder / "filler"
    with path.open("wb", buffering=0) as stream, contextlib.suppress(OSError):
        while True:
            stream.write(b"0" * 4096)
    return path
