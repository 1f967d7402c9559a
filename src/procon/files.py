"""Folders, and atomic writes: a crash or a full disk leaves the old file intact."""

import contextlib
import errno
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from procon.errors import OutputError
from procon.names import show_name

try:
    import fcntl
except ImportError:  # Windows: nothing is locked there
    fcntl = None  # type: ignore[assignment]

_LONGEST_NAME = 500  # characters that are shown
_REMEDIES = {
    errno.ENOSPC: "the disk is full; free some space or choose another place",
    errno.EDQUOT: "the disk quota is used up; free some space or choose another place",
    errno.EACCES: "permission denied; check the permissions or choose another place",
    errno.EPERM: "permission denied; check the permissions or choose another place",
    errno.EROFS: "is on a disk that cannot be written to; choose another place",
    errno.ENAMETOOLONG: "the name is too long; most disks allow 255 bytes for a name and 4,096 for a path",
    errno.ENOENT: "no such file or folder; check the path",
    errno.EEXIST: "part of this path is a file where a folder was expected; check the path",
    errno.ENOTDIR: "part of this path is a file where a folder was expected; check the path",
    errno.EISDIR: "is a folder where a file was expected; check the path",
    errno.ELOOP: "is a link that leads to itself; check the path",
}


def describe_os_error(error: OSError) -> str:
    """An error of the system as a sentence: the file, what is wrong with it, and what to do."""
    reason = _REMEDIES.get(error.errno or 0) or error.strerror
    if error.filename is None:
        return reason or str(error)
    name = show_name(os.fsdecode(error.filename))
    return f"{name if len(name) <= _LONGEST_NAME else f'{name[:_LONGEST_NAME]}...'}: {reason}"


def is_folder(path: str | Path) -> bool:
    """Whether ``path`` is a folder; a path that the system refuses, such as one that is too long, is none."""
    try:
        return Path(path).is_dir()
    except OSError:
        return False


def is_file(path: str | Path) -> bool:
    """Whether ``path`` is a regular file; a path that the system refuses is none."""
    try:
        return Path(path).is_file()
    except OSError:
        return False


def sha256_of(path: Path) -> str:
    """The sha256 of the bytes of a file."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


Stamp = tuple[int, int, int]
"""Inode, size and modification time: another file at the same path has another stamp. For a folder: of all files."""


def read_stamp(path: Path) -> Stamp:
    """The stamp of a file or folder."""
    stats = [file.stat() for file in (path.iterdir() if path.is_dir() else (path,))]
    return sum(s.st_ino for s in stats), sum(s.st_size for s in stats), max(s.st_mtime_ns for s in stats)


def find_stamp(path: Path) -> Stamp | None:
    """The stamp, or None for a missing file or an empty folder."""
    try:
        return read_stamp(path)
    except (OSError, ValueError):
        return None


@contextlib.contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """A temporary file in the folder of ``path`` that becomes ``path`` on success and is removed on any failure.

    Only a kill leaves it, see :func:`find_partial_files`. An error of the system is raised as :class:`OutputError`,
    which names ``path`` and a remedy.
    """
    temporary = descriptor = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Its name does not depend on that of the target, which may be as long as the system allows.
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".procon.", suffix=".partial")
        temporary = Path(name)
        if fcntl is not None:
            with contextlib.suppress(OSError):  # a disk without locks
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield temporary
        with temporary.open("rb+") as stream:
            os.fsync(stream.fileno())
        temporary.chmod(0o666 & ~_umask())  # mkstemp makes private files; a model is an ordinary one
        temporary.replace(path)
    except OSError as error:
        of_another_file = error.filename is not None and Path(error.filename) not in (temporary, path, path.parent)
        if error.errno is None or isinstance(error, OutputError) or (temporary is not None and of_another_file):
            raise
        system_error = OSError(error.errno, os.strerror(error.errno), str(path))
        raise OutputError(error.errno, describe_os_error(system_error)) from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
        if descriptor is not None:
            os.close(descriptor)


def find_partial_files(folder: Path) -> list[Path]:
    """What killed processes left below ``folder``: temporary files that nobody is writing now."""
    return [path for path in sorted(folder.rglob(".*.partial")) if not is_locked(path)]


def remove_partial_files(folder: Path) -> None:
    """Remove what :func:`find_partial_files` finds; what cannot be removed stays."""
    for path in find_partial_files(folder):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):
                path.unlink()


def is_locked(path: Path) -> bool:
    """Whether a process that is still there holds the lock of a file or folder; False where locks are unknown."""
    if fcntl is None:
        return False
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:  # gone a moment ago, or not ours
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


@contextlib.contextmanager
def temporary_folder(parent: Path) -> Iterator[Path]:
    """A folder in ``parent`` for the block, which only this user can read; a kill leaves it as a partial file."""
    with tempfile.TemporaryDirectory(dir=parent, prefix=".procon.", suffix=".partial") as name:
        descriptor = None if fcntl is None else os.open(name, os.O_RDONLY)
        try:
            if descriptor is not None:
                with contextlib.suppress(OSError):  # a disk without locks
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield Path(name)
        finally:
            if descriptor is not None:
                os.close(descriptor)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


@contextlib.contextmanager
def atomic_text(path: Path) -> Iterator[IO[str]]:
    """A UTF-8 stream whose content appears at ``path`` all at once when the block ends.

    What UTF-8 cannot encode is escaped.
    """
    with (
        atomic_path(path) as temporary,
        temporary.open("w", encoding="utf-8", errors="backslashreplace", newline="") as stream,
    ):
        yield stream


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file all at once."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(content)


def write_text(path: Path, text: str) -> None:
    """Write a file of text all at once, as :func:`atomic_text` does."""
    with atomic_text(path) as stream:
        stream.write(text)
