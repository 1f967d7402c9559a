"""What commands show while they work, on stderr."""

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from procon.files import show_name

if TYPE_CHECKING:
    from rich.console import Console
    from rich.status import Status

    from procon.progress import Progress

_LONGEST_NAME = 500  # characters that are shown
_REMEDIES = {
    errno.ENOSPC: "the disk is full; free some space or choose another place",
    errno.EDQUOT: "the disk quota is used up; free some space or choose another place",
    errno.EACCES: "permission denied; check the permissions or choose another place",
    errno.EPERM: "permission denied; check the permissions or choose another place",
    errno.EROFS: "is on a disk that cannot be written to; choose another place",
    errno.ENAMETOOLONG: "the name is too long; most disks allow 255 bytes for a name and 4,096 for a path",
    errno.ENOENT: "no such file or folder; check the path",
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


def stderr_console() -> "Console":
    """Where messages for people go while a command runs."""
    from rich.console import Console

    return Console(stderr=True, soft_wrap=True, highlight=False, markup=False, emoji=False)


def show_status(message: str) -> "Status":
    """A spinner with a message while the block runs."""
    from rich.markup import escape

    return stderr_console().status(escape(message))


@contextmanager
def show_progress() -> Iterator["Progress"]:
    """A progress bar for each stage."""
    with show_bars() as update:
        yield lambda stage, done, total: update(stage, stage, done, total)


@contextmanager
def show_bars(width: int = 18) -> Iterator[Callable[[str, str, int, int], None]]:
    """Progress bars with the time left; the function takes the name of a bar, its text, steps done and in total."""
    from rich import progress

    columns = (
        progress.TextColumn(f"{{task.description:<{width}}}", markup=False),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TimeElapsedColumn(),
        progress.TextColumn("left"),
        progress.TimeRemainingColumn(),
    )
    with progress.Progress(*columns, console=stderr_console()) as display:
        bars: dict[str, Any] = {}

        def update(name: str, text: str, done: int, total: int) -> None:
            if name not in bars:
                bars[name] = display.add_task(text, total=total)
            display.update(bars[name], description=text, completed=done, total=total)

        yield update
