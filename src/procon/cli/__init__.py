"""The command line: parse, call one function, print. Heavy imports wait until a command runs."""

import logging
import os
import sys

import typer

from procon.cli import deploy, evaluation, fit, model, predict, server
from procon.errors import ProconError

app = typer.Typer(
    name="procon",
    help="Visual anomaly detection from good images alone: fit on a folder of good parts, score and paint new ones.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
for group in (fit, predict, model, deploy, server, evaluation):
    group.register(app)


def main() -> None:
    """Entry point: 0 is success, 2 an error the user can fix, 130 Ctrl-C."""
    # Threads that wait by spinning slow each other down tenfold as soon as anything else wants the cores. Read when
    # torch is loaded, which no command has done yet; a value that the user has set stays.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    try:
        app()
    except (ProconError, OSError) as error:  # OSError: a full disk, a folder that may not be written to
        sys.stderr.write(f"error: {error}\n")
        sys.exit(2)
