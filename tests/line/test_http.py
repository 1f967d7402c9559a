"""HTTP of a line: clients that are slow, forged or broken, while a PLC wants its verdicts."""

import http.client
import json
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from procon.errors import ConfigError
from procon.line import clients
from procon.line import http as line_http
from procon.line.arrivals import Pushed
from procon.line.clients import Client, Clients
from procon.line.http import HttpServer, read_token
from procon.line.station import Station
from tests.line.stand_in import StandIn, score_of
from tests.line.test_settings import call
from tests.line.test_station import Rig, named, parts, rig
from tests.line.test_watch import eventually, free_port

__all__ = ["parts", "rig"]  # fixtures


@pytest.fixture
def pushed(rig: Rig) -> Iterator[tuple[Station, int]]:
    """A station that images are pushed to, and the port of its server."""
    station, _, _ = rig.add(Pushed, StandIn())
    port = free_port()
    server = HttpServer("127.0.0.1", port, [station], None, 100_000)
    rig.start()
    server.start()
    yield station, port
    server.check()
    server.stop()


def send(port: int, *lines: str, body: bytes = b"") -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), timeout=20)
    connection.sendall("\r\n".join([*lines, "", ""]).encode() + body)
    return connection


def receive(connection: socket.socket) -> tuple[int, Any]:
    """Status and content of an answer."""
    answer = http.client.HTTPResponse(connection)
    answer.begin()
    return answer.status, json.loads(answer.read())


REQUESTS = {
    "length of 5,000 digits": (["POST /top HTTP/1.1", f"Content-Length: {'9' * 5000}"], 411),
    "negative length": (["POST /top HTTP/1.1", "Content-Length: -1"], 411),
    "two lengths": (["POST /top HTTP/1.1", "Content-Length: 3", "Content-Length: 50"], 411),
    "chunks": (["POST /top HTTP/1.1", "Transfer-Encoding: chunked"], 411),
    "too large": (["POST /top HTTP/1.1", "Content-Length: 100001"], 413),
    "no address": (["POST http://[::1/top HTTP/1.1"], 400),
    "job of 5,000 digits": ([f"POST /top?job={'9' * 5000} HTTP/1.1"], 422),
    "number of 5,000 digits": ([f"POST /top/job?number={'9' * 5000} HTTP/1.1"], 422),
    "part of 201 characters": ([f"POST /top?part={'x' * 201} HTTP/1.1"], 422),
    "part with a newline": (["POST /top?part=a%0Ab HTTP/1.1"], 422),
    "part to the left": (["POST /top?part=%E2%80%AE HTTP/1.1"], 422),
    "host of another site": (["POST /top/pause HTTP/1.1", "Host: evil.example"], 403),
    "host with a user": (["POST /top/pause HTTP/1.1", "Host: localhost:8600@evil.example"], 403),
    "host after brackets": (["GET / HTTP/1.1", "Host: [::1].evil.example"], 403),
    "two hosts": (["GET / HTTP/1.1", "Host: localhost", "Host: localhost"], 403),
    "another page": (["POST /top/pause HTTP/1.1", "Host: localhost", "Origin: http://evil.example"], 403),
    "another port": (["POST /top/pause HTTP/1.1", "Host: localhost:1", "Origin: http://localhost:2"], 403),
    "a frame": (["POST /top/pause HTTP/1.1", "Host: localhost", "Sec-Fetch-Site: cross-site"], 403),
    "another method": (["DELETE /top HTTP/1.1"], 501),
    "a line too long": ([f"GET /{'x' * 70_000} HTTP/1.1"], 414),
    "no HTTP": (["NONSENSE"], 400),
}


@pytest.mark.parametrize("request_name", REQUESTS)
def test_a_broken_or_forged_request_is_refused_in_json_and_nothing_happens(
    request_name: str, pushed: tuple[Station, int], caplog: pytest.LogCaptureFixture
) -> None:
    station, port = pushed
    lines, status = REQUESTS[request_name]
    with send(port, *lines) as connection:
        assert receive(connection)[0] == status
    assert station.state == "ready" and station.results == 0
    assert call(port, "/")[0] == 200 and not caplog.records


def test_the_body_of_one_request_is_never_the_next(pushed: tuple[Station, int]) -> None:
    """What a web page can send as a body must not be taken for a request of its own."""
    station, port = pushed
    hidden = b"POST /top/pause HTTP/1.1\r\n\r\n"
    for lines in (["GET / HTTP/1.1"], ["POST /top HTTP/1.1", "Transfer-Encoding: chunked"]):
        with send(port, *lines, f"Content-Length: {len(hidden)}", body=hidden) as connection:
            receive(connection)
            connection.shutdown(socket.SHUT_WR)
            assert connection.recv(1000) == b""
    assert station.state == "ready"


def test_a_client_that_dies_in_its_headers_triggers_nothing(pushed: tuple[Station, int]) -> None:
    station, port = pushed
    for cut in (b"POST /top HTTP/1.1\r\n", b"POST /top HTTP/1.1\r\nContent-Le", b"POST /top HTTP/1.1\r\nX: y\r\n"):
        with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
            connection.sendall(cut)
            connection.shutdown(socket.SHUT_WR)
            assert connection.recv(1000) == b""
    assert station.results == 0 and station.last is None


def test_slow_clients_lose_their_places_to_those_that_come(pushed: tuple[Station, int], parts: Path) -> None:
    station, port = pushed
    image = (parts / "4.png").read_bytes()
    with ExitStack() as stack:
        begun = (b"POST /top HTTP/1.1\r\nContent-Length: 9999\r\n\r\nx", b"POST /top HTTP/1.1\r\nX: ", b"GET / HT")
        slow = [stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(200)]
        for number, connection in enumerate(slow):
            connection.sendall(begun[number % 3])
        time.sleep(2 * clients._SETTLED_SECONDS)
        for number in range(5):
            since = time.monotonic()
            code, body = call(port, f"/top?part={number}", image)
            assert (code, body["part"], body["score"]) == (200, str(number), score_of(4))
            assert time.monotonic() - since < 5
    assert station.results == 5


def test_a_client_that_trickles_gets_408_and_one_that_says_nothing_is_closed(
    pushed: tuple[Station, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, port = pushed
    monkeypatch.setattr(clients, "REQUEST_SECONDS", 1.0)
    silent = socket.create_connection(("127.0.0.1", port), timeout=20)
    body = send(port, "POST /top HTTP/1.1", "Content-Length: 9999")
    head = socket.create_connection(("127.0.0.1", port), timeout=20)
    head.sendall(b"POST /top HTTP/1.1\r\n")
    begun = time.monotonic()
    with silent, body, head:
        for _ in range(4):
            body.sendall(b"x")
            head.sendall(b"X: y\r\n")
            time.sleep(0.2)
        assert receive(body)[0] == receive(head)[0] == 408
        assert silent.recv(10) == b""
    assert time.monotonic() - begun < 15


def test_no_place_is_taken_from_a_client_that_is_being_served() -> None:
    left, right = socket.socketpair()
    with left, right:
        places, working, waiting = Clients(2), Client(left), Client(left)
        assert places.admit(working) and places.admit(waiting)
        working.begin_work()
        assert not places.admit(Client(right))  # the one that waits has just come
        assert waiting.waiting_since is not None
        waiting.waiting_since -= 1
        newcomer = Client(right)
        assert places.admit(newcomer)
        newcomer.begin_work()
        assert not places.admit(Client(right))
        places.leave(newcomer)
        assert places.admit(Client(right))


def test_a_bug_is_answered_and_logged(
    pushed: tuple[Station, int], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    _, port = pushed
    monkeypatch.setattr(line_http, "describe_station", lambda _: 1 / 0)
    code, body = call(port, "/")
    assert code == 500 and "its log says what" in body["error"]
    eventually(lambda: "ZeroDivisionError" in caplog.text)


def test_an_image_for_a_station_that_takes_its_own_is_refused(rig: Rig, parts: Path) -> None:
    """The verdict of the image in the folder would be taken for that of the one that was sent."""
    station, _, _ = rig.add(named(parts), StandIn())
    port = free_port()
    server = HttpServer("127.0.0.1", port, [station], None, 100_000)
    rig.start()
    server.start()
    try:
        code, body = call(port, "/top?part=1", (parts / "4.png").read_bytes())
        assert (code, body["verdict"], body["cause"]) == (503, "none", "image") and "/STATION/trigger" in body["error"]
        assert call(port, "/top/trigger?part=1", b"")[1]["score"] == score_of(1)
    finally:
        server.stop()


@pytest.mark.parametrize(
    "content", [b"\xff" * 40, b"short", b"a token with a\x00control character", b"a token of\nlines, two"]
)
def test_a_token_is_plain_text(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="must hold a token of 16 ASCII characters or more"):
        read_token(path)
