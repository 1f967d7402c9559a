"""Commands that inspect parts as they come: line, and what it shares with watch."""

import signal
from contextlib import suppress
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from procon.amounts import count_of
from procon.cli.terminal import echo
from procon.errors import ConfigError
from procon.files import write_text
from procon.names import show_name

if TYPE_CHECKING:
    from procon.line.engine import ProductionLine
    from procon.line.parts import EventBody, Inspection
    from procon.line.reporting import State
    from procon.line.station import Station


def line(
    settings: Annotated[Path, Argument(metavar="SETTINGS", help="Settings of the line, a TOML file.")] = Path(
        "line.toml"
    ),
    check: Annotated[bool, Option("--check", help="Say what is wrong with the file, and start nothing.")] = False,
    init: Annotated[bool, Option("--init", help="Write a commented example to the file, and start nothing.")] = False,
) -> None:
    """Run a line: several stations with cameras, triggers and models, and the protocols of the plant floor."""
    from procon.line.build import make_line
    from procon.line.check import check_line
    from procon.line.settings import example_text, read_settings

    if init:
        if settings.exists():
            raise ConfigError(f"{show_name(settings)}: is there already; name another file, or remove it first")
        write_text(settings, example_text())
        echo(f"wrote {show_name(settings)}; change it, then: procon line {show_name(settings)} --check")
        return
    read = read_settings(settings)
    problems = check_line(read, settings, places=check)
    if problems:
        raise ConfigError("\n".join(problems))
    if check:
        echo(f"{show_name(settings)}: {count_of(len(read.stations), 'station')}, nothing is wrong with it")
        return
    made = make_line(read, settings.parent, say=say)
    for station in made.stations:
        station.plan.listeners.append(PrintResults())
    stations, outbox = count_of(len(made.stations), "station"), show_name(read.outbox)
    say(f"line with {stations}; results are kept in {outbox} until they are delivered")
    try:
        interrupted = run_until_signal(made)
        say("stopped")
    finally:
        for station in made.stations:
            station.plan.outbox.close()
    if interrupted:
        raise typer.Exit(128 + signal.SIGINT)


def say(text: str) -> None:
    """A line for the log; that nobody reads it any more must not end the work."""
    with suppress(OSError):
        echo(text, err=True)


class PrintResults:
    """Prints a line for each result; the result itself is in the outbox."""

    def on_busy(self, _station: "Station", _part: "Inspection") -> None:
        """Nothing to print."""

    def on_result(self, station: "Station", body: "EventBody") -> None:
        """One line."""
        verdict = {"anomalous": "ANOMALOUS", "good": "good"}.get(body["verdict"], "-")
        score: Any = body.get("score")
        shown = body.get("error") if score is None else format(score, ".4f")
        named = f"{station.name}  " if station.name else ""
        part = body["part"] or body["source"]
        with suppress(OSError):
            echo(f"{named}{part}  {shown}  {verdict}")

    def on_state(self, _station: "Station", _state: "State", _reason: str) -> None:
        """Nothing to print: the log says it."""


def run_until_signal(line: "ProductionLine") -> bool:
    """Work until SIGINT or SIGTERM; gives whether it was SIGINT. A second one does not wait for receivers."""
    stop, received = Event(), list[int]()

    def on_signal(number: int, _frame: object) -> None:
        received.append(number)
        stop.set()
        signal.signal(number, signal.SIG_DFL)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, on_signal)
    line.run(stop)
    return signal.SIGINT in received
