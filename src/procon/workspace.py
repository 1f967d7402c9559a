"""Atomic folders: made next to their place, locked meanwhile, and removed at a failure or by the next one there."""

import ctypes
import errno
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from procon.errors import OutputError
from procon.files import describe_os_error, is_locked

try:
    import fcntl
except ImportError:  # Windows: work folders are not locked, and those of killed processes stay
    fcntl = None  # type: ignore[assignment]

_PREFIX = ".procon-work-"
_HERE, _SWAP = -100, 2  # AT_FDCWD and RENAME_EXCHANGE of Linux
_REPLACED = "replaced"  # holds the earlier folder while the new one takes its name


@contextmanager
def atomic_folder(target: Path) -> Iterator[Path]:
    """A new folder that becomes ``target``, in place of an earlier one, on success and is removed on any failure.

    A full disk is raised as :class:`OutputError`, which names ``target`` and a remedy.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        with _lock(target.parent):  # one process at a time removes what others left, and makes its folder
            for leftover in find_leftovers(target.parent):
                _remove_leftover(leftover)
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=target.parent, prefix=_PREFIX)))
            stack.enter_context(_lock(folder))
        work = folder / "model"
        work.mkdir(mode=0o755)
        try:
            yield work
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            if isinstance(error, OutputError) or error.errno is None or (error.filename is not None and not full):
                raise
            named = OSError(error.errno, error.strerror, str(target))
            raise OutputError(error.errno, describe_os_error(named)) from error
        _move_into_place(work, target)


def _move_into_place(work: Path, target: Path) -> None:
    """Give a finished folder its name; an earlier one there is replaced as a whole, on Linux in one step."""
    if target.is_dir():
        if _exchange(work, target):
            return  # the earlier folder is in the work folder now, and removed with it
        (work.parent / _REPLACED).mkdir()
        target.rename(work.parent / _REPLACED / target.name)
    work.rename(target)


def _exchange(first: Path, second: Path) -> bool:
    """Let two folders swap their names at once; False where the system or the disk cannot."""
    renameat2 = getattr(ctypes.CDLL(None), "renameat2", None) if sys.platform == "linux" else None
    if renameat2 is None:
        return False
    names = os.fsencode(first.absolute()), os.fsencode(second.absolute())
    return bool(renameat2(_HERE, names[0], _HERE, names[1], _SWAP) == 0)


def find_leftovers(folder: Path) -> list[Path]:
    """Work folders directly in ``folder`` whose process was killed."""
    if fcntl is None:
        return []
    return [path for path in sorted(folder.glob(f"{_PREFIX}*")) if path.is_dir() and not is_locked(path)]


def _remove_leftover(leftover: Path) -> None:
    for earlier in leftover.glob(f"{_REPLACED}/*"):  # killed between the two renames of _move_into_place
        if not (leftover.parent / earlier.name).exists():
            earlier.rename(leftover.parent / earlier.name)
    shutil.rmtree(leftover, ignore_errors=True)


@contextmanager
def _lock(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder; the system releases it when the process ends in any way."""
    descriptor = os.open(folder, os.O_RDONLY) if fcntl is not None else None
    try:
        if descriptor is not None:
            with suppress(OSError):  # a disk without locks
                fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)
