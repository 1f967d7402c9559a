"""Images, triggers and control by HTTP, with the standard library: no extra is needed.

===========================================  ==========================================================
``GET /``                                    the stations, their states and counts, as JSON
``POST /STATION?part=ID`` with an image      inspect it; the answer is the result
``POST /STATION/trigger?part=ID&image=NAME``  inspect what the source of the station has
``POST /STATION/pause``, ``resume``, ``restart``  and ``POST /STATION/job?number=N``
===========================================  ==========================================================

A result with a verdict answers 200. No verdict answers 503, so that a client that only looks at the status never takes
such a part for good.
"""

import hmac
import json
import logging
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import BoundedSemaphore, Thread
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from procon.errors import ConfigError, ProconError
from procon.line.parts import BusyError, Trigger
from procon.line.station import Station
from procon.names import show_name

_log = logging.getLogger(__name__)
_SECONDS = 30.0  # that a client has for its request
_MOST_CLIENTS = 64
_MARGIN = 1.0  # seconds beyond the deadline, in which a result always comes
_MOST_PART = 200  # characters of the name of a part


def read_token(path: Path) -> str:
    """The token in a file."""
    token = path.read_text(encoding="utf-8").strip()
    if len(token) < 16 or not token.isascii():
        raise ConfigError(f"{show_name(path)}: must hold a token of 16 ASCII characters or more; write a longer one")
    return token


class HttpServer:
    """Serves in threads; one for each client."""

    def __init__(self, host: str, port: int, stations: Sequence[Station], token: str | None, most_bytes: int) -> None:
        self._address = (host, port)
        self._settings: dict[str, Any] = {
            "stations": {station.name: station for station in stations},
            "token": token,
            "most_bytes": most_bytes,
            "places": BoundedSemaphore(_MOST_CLIENTS),
        }
        self._server: ThreadingHTTPServer | None = None
        self._thread: Thread | None = None

    def start(self) -> None:
        """Listen."""
        handler = type("LineHandler", (_Handler,), self._settings)
        try:
            self._server = ThreadingHTTPServer(self._address, handler)
        except OSError as error:
            host, port = self._address
            raise ProconError(f"[http] cannot listen at {host}:{port}: {error.strerror}; choose another port") from None
        self._server.daemon_threads = True
        self._thread = Thread(target=self._server.serve_forever, args=(0.1,), name="procon-http", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raise if it has ended by itself."""
        if self._thread is not None and not self._thread.is_alive():
            raise ProconError("[http] has ended; start the line again")

    def stop(self) -> None:
        """Close."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    stations: dict[str, Station]
    token: str | None
    most_bytes: int
    places: BoundedSemaphore
    timeout = _SECONDS
    wbufsize = 65_536  # head and body in one piece: in two, the second waits for the client to confirm the first
    disable_nagle_algorithm = True
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "procon", ""

    def do_GET(self) -> None:
        """The states."""
        if self._refused():
            return
        if urlsplit(self.path).path != "/":
            self._answer(404, {"error": "no such address; GET / lists the stations"})
            return
        self._answer(200, {"stations": [describe_station(station) for station in self.stations.values()]})

    def do_POST(self) -> None:
        """An image, a trigger or control."""
        body = b"" if self._refused() else self._read()
        if body is None or self._sent:
            return
        parts = urlsplit(self.path)
        name, _, action = unquote(parts.path).strip("/").partition("/")
        station = self.stations.get(name)
        query = {key: values[0] for key, values in parse_qs(parts.query).items()}
        if station is None or action not in ("", "trigger", "pause", "resume", "restart", "job"):
            self._answer(404, {"error": "no such station or action; GET / lists the stations"})
        elif action in ("", "trigger"):
            self._inspect(station, query, body if action == "" else None)
        else:
            self._control(station, action, query)

    def _inspect(self, station: Station, query: dict[str, str], image: bytes | None) -> None:
        part, job = query.get("part", ""), query.get("job", "")
        if len(part) > _MOST_PART or not part.isprintable() or (job and not job.isdecimal()):
            words = f"part must be up to {_MOST_PART} printable characters, and job a number; change the address"
            self._answer(422, {"error": words, "verdict": "none"})
            return
        sender = self.client_address[0]
        trigger = Trigger(part, query.get("image") if image is None else image, int(job) if job else None, sender)
        try:
            waiting = station.trigger(trigger)
        except BusyError as error:
            self._answer(503, {"error": str(error), "verdict": "none", "cause": "busy"}, {"Retry-After": "1"})
            return
        result = waiting.wait((station.plan.deadline or 0.0) + _MARGIN)
        if result is None:
            result = {"error": "no result within the deadline", "verdict": "none", "cause": "deadline"}
        self._answer(200 if result["verdict"] in ("good", "anomalous") else 503, result)

    def _control(self, station: Station, action: str, query: dict[str, str]) -> None:
        try:
            if action == "pause":
                station.pause()
            elif action == "resume":
                station.resume()
            elif action == "restart":
                station.restart("a client asked for it by HTTP")
            else:
                station.select(int(query.get("number", "")))
        except (ProconError, ValueError) as error:
            self._answer(422, {"error": f"{error}; write /{station.name}/job?number=1"})
            return
        self._answer(200, describe_station(station))

    # ------------------------------------------------------------------------------------------------------ plumbing

    _sent = False

    def _refused(self) -> bool:
        if self.token is not None:
            given = (self.headers.get("Authorization") or "").removeprefix("Bearer ").encode()
            if not hmac.compare_digest(given, self.token.encode()):
                self._answer(401, {"error": "send Authorization: Bearer TOKEN, with the token of token_file"})
                return True
        return False

    def _read(self) -> bytes | None:
        """The body; None if it has been refused, or was cut off."""
        length = self.headers.get("Content-Length", "0")
        if not length.isdecimal() or int(length) > self.most_bytes:
            self._answer(413, {"error": f"an image must have at most {self.most_bytes:,} bytes, with Content-Length"})
            return None
        data = self.rfile.read(int(length))
        if len(data) < int(length):  # the client died: nothing is inspected
            self.close_connection = True
            return None
        return data

    def _answer(self, status: int, content: dict[str, Any], headers: dict[str, str] | None = None) -> None:
        data = json.dumps(content).encode()
        self._sent = True
        if status in (401, 413):
            self.close_connection = True  # the body has not been read
        self.send_response(status)
        for key, value in {"Content-Type": "application/json", **(headers or {})}.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def handle_one_request(self) -> None:
        """One request; clients that die in the middle leave no trace in the log."""
        self._sent = False
        try:
            super().handle_one_request()
        except OSError:
            self.close_connection = True

    def handle(self) -> None:
        """A connection, if there are not too many."""
        if not self.places.acquire(blocking=False):
            return
        try:
            super().handle()
        finally:
            self.places.release()

    def log_message(self, *arguments: Any) -> None:
        """To the log of the package, where it is asked for."""
        _log.debug(*arguments)


def describe_station(station: Station) -> dict[str, Any]:
    """The state of a station, JSON-ready."""
    current = station.slot.current
    return {
        "station": station.name,
        "state": station.state,
        "fault": station.fault,
        "job": station.job,
        "model": current.revision if current else "",
        "results": station.results,
        "restarts": station.restarts,
        "restarted": station.restarted,
        "last": station.last,
    }
