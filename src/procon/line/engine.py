"""A line: its stations, what they share, and the loop that looks after them."""

from collections.abc import Sequence
from threading import Event
from typing import Protocol

from procon.errors import ProconError
from procon.line.models import LineModels
from procon.line.parts import Deadlines
from procon.line.station import Station
from procon.progress import Say, say_nothing

_CHECK_SECONDS = 0.1


class LineServer(Protocol):
    """A protocol that the line speaks in threads of its own."""

    def start(self) -> None:
        """Listen, or raise if that is not possible."""

    def check(self) -> None:
        """Raise if it has ended by itself."""

    def stop(self) -> None:
        """Close connections."""


class ProductionLine:
    """Starts everything in the order in which it is needed, and stops it in the other."""

    def __init__(
        self,
        stations: Sequence[Station],
        deadlines: Deadlines,
        *,
        models: LineModels | None = None,
        servers: Sequence[LineServer] = (),
        say: Say = say_nothing,
    ) -> None:
        self.stations, self.servers = stations, servers
        self._deadlines, self._models, self._say = deadlines, models, say

    def run(self, stop: Event) -> None:
        """Work until ``stop`` is set."""
        started: list[LineServer] = []
        self._deadlines.start()
        if self._models is not None:
            self._models.start()
        try:
            for station in self.stations:
                station.start()
            for server in self.servers:
                server.start()
                started.append(server)
            while not stop.wait(_CHECK_SECONDS):
                for station in self.stations:
                    station.check()
                for server in started:
                    server.check()
                self._deadlines.check()
                if self._models is not None:
                    self._models.check()
        finally:
            stop.set()
            self._stop_all(started)

    def _stop_all(self, started: Sequence[LineServer]) -> None:
        """Stop everything; what cannot stop in order, such as on a full disk, must not keep the rest from it."""
        steps = [] if self._models is None else [self._models.stop]
        steps += [station.stop for station in self.stations]
        steps += [self._deadlines.stop, *(server.stop for server in reversed(started))]
        for step in steps:
            try:
                step()
            except Exception as error:
                reason = str(error) if isinstance(error, ProconError) else f"{type(error).__name__}: {error}"
                self._say(f"not stopped in order: {reason}")
