"""Files that survive a power failure, and the lock on a state folder."""

import errno
import fcntl
import os
import shutil
import sqlite3
import threading
from pathlib import Path
from typing import IO

from procon.errors import ConfigError
from procon.files import atomic_path


def write_durable(path: Path, data: bytes) -> None:
    """Write a file atomically; it is on disk when this returns."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(data)
    _sync_folder(path.parent)


def write_quick(path: Path, data: bytes) -> None:
    """Write a file atomically; a power failure may still lose it. A write that fails leaves no file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{threading.get_ident()}.partial")
    try:
        draft.write_bytes(data)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def is_disk_full(error: BaseException) -> bool:
    """Whether there is no space for a file or for the database."""
    if isinstance(error, sqlite3.Error):
        return getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def describe_storage_error(error: Exception) -> str:
    """Why something cannot be stored, and what to do."""
    if is_disk_full(error):
        return "the disk of the state folder is full; free some space"
    return f"the state folder cannot be written ({error}); check its disk"


def install(source: Path, target: Path) -> None:
    """Move a finished model file to ``target``, atomically; it is on disk when this returns."""
    _sync_file(source)
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


def _sync_file(path: Path) -> None:
    with path.open("rb+") as stream:
        os.fsync(stream.fileno())


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
