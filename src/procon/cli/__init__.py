"""The command line: parse, call one function, print. Heavy imports wait until a command runs."""

import io
import logging
import os
import sys
from collections.abc import Callable

import typer

from procon.cli import data, deploy, evaluation, fit, model, predict, server
from procon.cli.flags import with_settings
from procon.errors import ProconError
from procon.files import describe_os_error

app = typer.Typer(
    name="procon",
    help="Visual anomaly detection from good images alone: fit on a folder of good parts, score and paint new ones.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
_COMMANDS: dict[str, dict[str, Callable[..., None]]] = {
    "Make a detector": {
        "fit": with_settings()(fit.fit),
        "check": predict.check,
        "import": data.import_labels,
        "info": predict.info,
        "demo": predict.demo,
    },
    "Use it": {"predict": predict.predict, "explain": model.explain},
    "Change it": {"threshold": model.threshold, "add": model.add, "forget": model.forget, "merge": model.merge},
    "Put it on the line": {"export": deploy.export, "watch": deploy.watch, "serve": with_settings()(server.serve)},
    "Measure it": {
        "eval": with_settings()(evaluation.evaluate),
        "bench": with_settings()(evaluation.bench),
        "reproduce": with_settings(evaluation.RUN_SETTINGS)(evaluation.reproduce),
        "report": evaluation.report,
        "figures": evaluation.figures,
    },
}
for panel, commands in _COMMANDS.items():
    for name, command in commands.items():
        app.command(name, rich_help_panel=panel)(command)


_INTERRUPTED = 130  # the exit code after Ctrl-C, as in a shell


def main() -> None:
    """Entry point: 0 is success, 2 an error the user can fix, 130 Ctrl-C."""
    # Threads that wait by spinning slow each other down tenfold as soon as anything else wants the cores. Read when
    # torch is loaded, which no command has done yet; a value that the user has set stays.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # names of files may have bytes that are not UTF-8
            stream.reconfigure(errors="backslashreplace")
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    try:
        app()
    except (ProconError, OSError) as error:
        message = error if isinstance(error, ProconError) else describe_os_error(error)
        sys.stderr.write(f"error: {message}\n")
        sys.exit(2)
    except (KeyboardInterrupt, SystemExit) as stop:
        if isinstance(stop, SystemExit) and stop.code != _INTERRUPTED:
            raise
        sys.stderr.write("interrupted: files that were being written are complete or as they were before\n")
        sys.exit(_INTERRUPTED)
