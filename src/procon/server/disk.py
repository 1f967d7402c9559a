"""Files that survive a power failure, and the lock on a state folder."""

import fcntl
import os
import shutil
from pathlib import Path
from typing import IO

from procon.errors import ConfigError
from procon.files import atomic_path


def write_durable(path: Path, data: bytes) -> None:
    """Write a file atomically; it is on disk when this returns."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(data)
    _sync_folder(path.parent)


def install(source: Path, target: Path) -> None:
    """Move a finished model file to ``target``, atomically; it is on disk when this returns."""
    try:
        source.replace(target)
    except OSError:  # another file system
        with atomic_path(target) as temporary:
            shutil.copyfile(source, temporary)
        source.unlink()
    _sync_folder(target.parent)


def lock_folder(folder: Path) -> IO[str]:
    """Lock a state folder until the stream is closed: two servers would undo each other's work."""
    stream = (folder / "lock").open("w")
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        stream.close()
        raise ConfigError(f"{folder}: another server is using this folder; stop it, or give --state") from None
    return stream


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
