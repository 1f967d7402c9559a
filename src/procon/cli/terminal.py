"""What commands print, and the progress that they show on stderr."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

from procon.names import show_text
from procon.progress import show_bars

if TYPE_CHECKING:
    from rich.console import Console
    from rich.status import Status

    from procon.progress import Progress


def stderr_console() -> "Console":
    """The console for messages to people while a command runs."""
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
    with show_bars(console=stderr_console()) as update:
        yield lambda stage, done, total: update(stage, stage, done, total)
