"""Background threads; an error that ends one stops the server."""

import logging
import threading
from collections.abc import Callable

from procon.errors import ProconError

_log = logging.getLogger(__name__)

OnCrash = Callable[[ProconError], None]
"""Called with what ended a thread or a task, so that the process ends too."""


def crash_error(name: str, error: BaseException | None) -> ProconError:
    """The error that ends the process, because a thread or task has ended."""
    _log.critical("%s ended", name, exc_info=error)
    cause = "without an error" if error is None else f"with {type(error).__name__}: {error}"
    return ProconError(f"{name} ended {cause}, so the server stopped; start it again and report this")


def guarded_thread(name: str, run: Callable[[], None], on_crash: OnCrash) -> threading.Thread:
    """A thread for ``run``; if ``run`` raises, ``on_crash`` is called."""

    def run_guarded() -> None:
        try:
            run()
        except BaseException as error:
            on_crash(crash_error(f"the thread {name}", error))

    return threading.Thread(target=run_guarded, name=name, daemon=True)
