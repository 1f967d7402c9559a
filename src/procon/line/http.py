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
import io
import json
import logging
import re
import socket
from collections.abc import Sequence
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from procon.errors import ConfigError, ProconError
from procon.hosts import is_local_host, is_same_origin
from procon.line.clients import REQUEST_SECONDS, Client, Clients, SlowClientError
from procon.line.parts import BusyError, Trigger, check_part
from procon.line.station import Station
from procon.names import show_name

_log = logging.getLogger(__name__)
_MOST_CLIENTS = 64
_MARGIN = 1.0  # seconds beyond the deadline, in which a result always comes
_LENGTH = re.compile(r"[0-9]{1,12}")
_NUMBER = re.compile(r"[0-9]{1,6}")


def read_token(path: Path) -> str:
    """The token in a file."""
    token = path.read_bytes().decode("latin-1").strip()
    if len(token) < 16 or not token.isascii() or not token.isprintable():
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
            "clients": Clients(_MOST_CLIENTS),
        }
        self._server: _Server | None = None
        self._thread: Thread | None = None

    def start(self) -> None:
        """Listen."""
        handler = type("LineHandler", (_Handler,), self._settings)
        try:
            self._server = _Server(self._address, handler)
        except OSError as error:
            host, port = self._address
            raise ProconError(f"[http] cannot listen at {host}:{port}: {error.strerror}; choose another port") from None
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


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """What a connection could not even begin with; the line goes on."""
        _log.warning("a connection of %s failed", client_address, exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    stations: dict[str, Station]
    token: str | None
    most_bytes: int
    clients: Clients
    connection: socket.socket
    requestline = command = ""
    request_version = "HTTP/1.1"
    wbufsize = 65_536  # head and body in one piece: in two, the second waits for the client to confirm the first
    disable_nagle_algorithm = True
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "procon", ""

    def do_GET(self) -> None:
        """The states."""
        if self._receive() is None:
            return
        if self.path.partition("?")[0] != "/":
            self._answer(404, {"error": "no such address; GET / lists the stations"})
            return
        self._answer(200, {"stations": [describe_station(station) for station in self.stations.values()]})

    def do_POST(self) -> None:
        """An image, a trigger or control."""
        body = self._receive()
        if body is None:
            return
        try:
            parts = urlsplit(self.path)
        except ValueError as error:
            self._answer(400, {"error": f"no such address: {error}; GET / lists the stations"})
            return
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
        try:
            check_part(part)
            if job and not _NUMBER.fullmatch(job):
                raise ProconError(f"job must be a number, got {job[:20]!r}; write job=1")
            source = query.get("image") if image is None else image
            waiting = station.trigger(Trigger(part, source, int(job) if job else None, self.client_address[0]))
        except BusyError as error:
            self._answer(503, {"error": str(error), "verdict": "none", "cause": "busy"}, {"Retry-After": "1"})
            return
        except ProconError as error:
            self._answer(422, {"error": str(error), "verdict": "none"})
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
                number = query.get("number", "")
                if not _NUMBER.fullmatch(number):
                    raise ProconError(f"number must be that of a job, got {number[:20]!r}")
                station.select(int(number))
        except ProconError as error:
            self._answer(422, {"error": f"{error}; write /{station.name}/job?number=1"})
            return
        self._answer(200, describe_station(station))

    # ------------------------------------------------------------------------------------------------------ plumbing

    _sent = False

    def setup(self) -> None:
        """Read the connection by its client's deadline."""
        super().setup()
        self.rfile.close()
        self.client = Client(self.connection)
        self.rfile = io.BufferedReader(self.client)

    def handle(self) -> None:
        """The requests of a connection, if there is a place for it."""
        if not self.clients.admit(self.client):
            self.close_connection = True
            busy = {"error": "too many clients; try again shortly", "verdict": "none", "cause": "busy"}
            self._answer(503, busy, {"Retry-After": "1"})
            return
        try:
            super().handle()
        finally:
            self.clients.leave(self.client)

    def finish(self) -> None:
        """Send what is left of an answer, if the client is still there."""
        with suppress(OSError):
            super().finish()

    def handle_one_request(self) -> None:
        """One request. Clients that die in the middle leave no trace in the log; a bug does, and is answered."""
        self._sent = False
        self.client.begin_request()
        try:
            super().handle_one_request()
        except SlowClientError:
            self.close_connection = True
            if self.client.received:
                self._answer(
                    408, {"error": f"a request must arrive within {REQUEST_SECONDS:.0f} seconds; send it again"}
                )
        except OSError:
            self.close_connection = True
        except Exception:
            _log.exception("a request failed")
            self.close_connection = True
            if not self._sent:
                self._answer(500, {"error": "something went wrong in the line; its log says what", "verdict": "none"})

    def _receive(self) -> bytes | None:
        """The body of a request that may be served; None if it was refused, or cut off."""
        if self.client.ended:  # in the middle of the headers: which of them are missing is not known
            self.close_connection = True
            return None
        refusal = self._find_refusal()
        if refusal is not None:
            self.close_connection = True  # its body has not been read, and may look like the next request
            self._answer(*refusal)
            return None
        length = int(self.headers.get("Content-Length", "0"))
        data = self.rfile.read(length)
        if len(data) < length:  # the client died: nothing is inspected
            self.close_connection = True
            return None
        self.client.begin_work()
        return data

    def _find_refusal(self) -> tuple[int, dict[str, Any]] | None:
        """Why the request is refused before its body is read."""
        headers = self.headers
        hosts, lengths = headers.get_all("Host") or [], headers.get_all("Content-Length") or ["0"]
        if self.token is None and hosts and not is_local_host(hosts):  # another site's name may lead to this machine
            return 403, {"error": "without a token_file this line answers to localhost only; name it so, or add one"}
        if self.command == "POST" and not is_same_origin(headers.get):
            return 403, {"error": "a web page of another origin may not trigger or control a line"}
        if self.token is not None:
            given = (headers.get("Authorization") or "").removeprefix("Bearer ").encode()
            if not hmac.compare_digest(given, self.token.encode()):
                return 401, {"error": "send Authorization: Bearer TOKEN, with the token of token_file"}
        if "Transfer-Encoding" in headers or len(lengths) > 1 or not _LENGTH.fullmatch(lengths[0]):
            return 411, {"error": "send the body in one piece, with its Content-Length"}
        if int(lengths[0]) > self.most_bytes:
            return 413, {"error": f"an image must have at most {self.most_bytes:,} bytes"}
        return None

    def _answer(self, status: int, content: dict[str, Any], headers: dict[str, str] | None = None) -> None:
        data = json.dumps(content).encode()
        self._sent = True
        self.client.begin_answer()
        self.send_response(status)
        closing = {"Connection": "close"} if self.close_connection else {}
        for key, value in {"Content-Type": "application/json", **closing, **(headers or {})}.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """What the standard library refuses, such as a line that is too long."""
        self.close_connection, self.request_version = True, "HTTP/1.1"  # or there would be no status
        self._answer(code, {"error": message or "this is no request that the line knows; GET / lists the stations"})

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
