"""What commands show while they work, on stderr."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer

from procon.names import show_text

if TYPE_CHECKING:
    from rich.console import Console
    from rich.status import Status

    from procon.progress import Progress


def stderr_console() -> "Console":
    """Where messages for people go while a command runs."""
    from rich.console import Console

    return Console(stderr=True, soft_wrap=True, highlight=False, markup=False, emoji=False)


def show_status(message: str) -> "Status":
    """A spinner with a message while the block runs."""
    from rich.markup import escape

    return stderr_console().status(escape(message))


def echo(text: object, err: bool = False) -> None:
    """Print on stdout, or on stderr; names of files in the text are safe to print."""
    typer.echo(show_text(str(text)), err=err)


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
