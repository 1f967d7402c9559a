"""How long work reports: callbacks that a caller may pass, and those that stay silent."""

from collections.abc import Callable

Progress = Callable[[str, int, int], None]
"""Called with a stage, the steps done and the steps in total."""
Say = Callable[[str], None]
"""Called with a sentence for the person who waits."""


def no_progress(_stage: str, _done: int, _total: int) -> None:
    """Report nothing."""


def say_nothing(_message: str) -> None:
    """Report nothing."""
