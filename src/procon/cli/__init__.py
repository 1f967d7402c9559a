"""The command line: parse, call one function, print. Heavy imports wait until a command runs."""

import io
import logging
import os
import shutil
import sys
from collections.abc import Callable
from typing import Annotated

import typer

from procon import __version__
from procon.cli import data, deploy, evaluation, fit, limits, line, model, predict, server, teach
from procon.cli.flags import with_settings
from procon.errors import ProconError
from procon.evaluation.runs.settings import SHARED
from procon.files import describe_os_error

_PANELS_NEED = 80  # columns; in fewer, panels would cut words, so help is plain text there

app = typer.Typer(
    name="procon",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich" if shutil.get_terminal_size().columns >= _PANELS_NEED else None,
)
_COMMANDS: dict[str, dict[str, Callable[..., None]]] = {
    "Make a detector": {
        "fit": with_settings()(fit.fit),
        "check": data.check,
        "import": data.import_labels,
        "info": predict.info,
        "demo": predict.demo,
    },
    "Use it": {"predict": predict.predict, "explain": model.explain},
    "Change it": {
        "threshold": model.threshold,
        "teach": teach.teach,
        "add": model.add,
        "forget": model.forget,
        "merge": model.merge,
    },
    "Put it on the line": {
        "export": deploy.export,
        "watch": deploy.watch,
        "line": line.line,
        "serve": with_settings()(server.serve),
    },
    "Measure it": {
        "limits": limits.limits,
        "eval": with_settings()(evaluation.evaluate),
        "bench": with_settings()(evaluation.bench),
        "reproduce": with_settings(SHARED)(evaluation.reproduce),
        "report": evaluation.report,
        "figures": evaluation.figures,
    },
}
for panel, commands in _COMMANDS.items():
    for name, command in commands.items():
        # Without a short help, plain help would cut the sentence.
        summary = " ".join((command.__doc__ or "").split("\n\n")[0].split())
        app.command(name, short_help=summary, rich_help_panel=panel)(command)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"procon {__version__}")
        raise typer.Exit


@app.callback()
def show_version(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_show_version, help="Print the version.")
    ] = False,
) -> None:
    """Visual anomaly detection from good images alone: fit on a folder of good parts, score and paint new ones."""


_INTERRUPTED = 130  # the exit code after Ctrl-C, as in a shell


def main() -> None:
    """Entry point: 0 is success, 2 an error the user can fix, 130 Ctrl-C; 1 a bug, or output that nobody reads."""
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
