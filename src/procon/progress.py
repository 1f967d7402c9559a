"""How long work reports: bars in terminals and notebooks, callbacks of a caller, and those that stay silent."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

Progress = Callable[[str, int, int], None]
"""Called with a stage, the steps done and the steps in total."""
ShowProgress = Progress | bool | None
"""What a user passes as ``progress``: True for a bar, a callback, or False or None for silence."""
Say = Callable[[str], None]
"""Called with a sentence for the person who waits."""


def no_progress(_stage: str, _done: int, _total: int) -> None:
    """Report nothing."""


def say_nothing(_message: str) -> None:
    """Report nothing."""


@contextmanager
def reporting(progress: ShowProgress) -> Iterator[Progress]:
    """The callback behind what a user passed as ``progress``; True shows a bar for each stage while the block runs."""
    if progress is True:
        with show_bars() as update:
            yield lambda stage, done, total: update(stage, stage, done, total)
    else:
        yield progress or no_progress


@contextmanager
def show_bars(width: int = 18, console: "Console | None" = None) -> Iterator[Callable[[str, str, int, int], None]]:
    """Progress bars with the time left; the function takes the name of a bar, its text, steps done and in total.

    They are drawn on ``console``: by default on stderr, or in the output of a notebook.
    """
    from rich import progress
    from rich.console import Console

    if console is None:
        console = Console()
        console.stderr = not console.is_jupyter
    columns = (
        progress.TextColumn(f"{{task.description:<{width}}}", markup=False),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TimeElapsedColumn(),
        progress.TextColumn("left"),
        progress.TimeRemainingColumn(),
    )
    with progress.Progress(*columns, console=console) as display:
        bars: dict[str, Any] = {}

        def update(name: str, text: str, done: int, total: int) -> None:
            if name not in bars:
                bars[name] = display.add_task(text, total=total)
            display.update(bars[name], description=text, completed=done, total=total)

        yield update
