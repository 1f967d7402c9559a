"""Clients that send or read slowly: they are refused in time, and the others do not notice."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.types import Message

from procon import Detector
from procon.server import connections, intake
from procon.server.intake import Body, Intake
from procon.server.request_errors import RequestError
from procon.server.settings import Limits
from tests.server.live import LiveServer, live, post_head, receive_all
from tests.server.process import wait_for
from tests.server.test_api import encoded, png

LIMITS = Limits(
    read_seconds=3.0, header_seconds=1.0, header_bytes=8192, arriving_bodies=64, connections=100, unread_bytes=2**20
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, detector: Detector) -> Path:
    folder = tmp_path_factory.mktemp("models")
    detector.save(folder / "disc.procon")
    return folder


@pytest.fixture
def server(folder: Path, tiny_backbone: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LiveServer]:
    monkeypatch.setattr(connections, "_GRACE_SECONDS", 1.0)
    monkeypatch.setattr(connections, "_CHECK_SECONDS", 0.2)
    monkeypatch.setattr(intake, "_GRACE_SECONDS", 1.0)
    with live(folder, tiny_backbone, limits=LIMITS) as server:
        yield server


@pytest.mark.parametrize("kind", ["raw", "form", "json"])
def test_many_slow_uploads_leave_the_queue_to_others_and_get_408(server: LiveServer, kind: str) -> None:
    """More than the queue has places: none of them takes one before its body has arrived."""
    head = post_head(50_000)
    if kind == "form":
        head = head.replace(b"\r\n\r\n", b"\r\ncontent-type: multipart/form-data; boundary=b\r\n\r\n")
        head += b'--b\r\ncontent-disposition: form-data; name="image"; filename="a.png"\r\n\r\n'
    if kind == "json":
        head = post_head(500).replace(b"POST", b"PUT").replace(b"/predict", b"/threshold")
    slow = [server.connect(head + b"x") for _ in range(40)]
    with server.client() as client:
        answers = [client.post("/v1/models/disc/predict", content=png(seed)) for seed in range(10)]
        assert [answer.status_code for answer in answers] == [200] * 10
    for connection in slow:
        answer = receive_all(connection)
        assert answer.startswith(b"HTTP/1.1 408")
        assert b"the body must arrive within 3 seconds, at 16 KiB per second or more; got" in answer
        assert b"connection: close" in answer.lower()
    assert server.server.service.queue.images == 0


def test_a_body_that_keeps_the_least_rate_is_served(server: LiveServer) -> None:
    data = png(3)
    connection = server.connect(post_head(len(data)))
    for start in range(0, len(data), 2048):
        time.sleep(0.05)
        connection.sendall(data[start : start + 2048])
    assert connection.recv(2**16).startswith(b"HTTP/1.1 200")
    connection.close()


@pytest.mark.parametrize(
    ("sent", "answer"),
    [
        (b"", b""),  # a connection without a request is closed without an answer
        (b"GET /healthz HTTP/1.1\r\nhost: loc", b"HTTP/1.1 408"),
        (b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nx: " + b"y" * 10_000, b"HTTP/1.1 431"),
        (b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n" + b"x: y\r\n" * 2000, b"HTTP/1.1 431"),
    ],
)
def test_headers_must_arrive_in_time_and_be_few(server: LiveServer, sent: bytes, answer: bytes) -> None:
    assert receive_all(server.connect(sent)).startswith(answer)
    # And on a connection that was served before.
    connection = server.connect(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")
    assert connection.recv(2**16).startswith(b"HTTP/1.1 200")
    if sent:
        connection.sendall(sent)
        assert receive_all(connection).startswith(answer)
    connection.close()


def test_readers_that_do_not_read_are_disconnected(server: LiveServer) -> None:
    """Each answer is a float map of several MB; together they may hold 1 MiB of memory."""
    image = encoded(np.random.default_rng(0).integers(0, 255, (1000, 1000, 3), np.uint8), "JPEG")
    slow = [server.connect(post_head(len(image), "?output=map") + image, receive_buffer=4096) for _ in range(4)]
    state = server.server.server_state
    wait_for(lambda: state.total_requests >= len(slow))  # all four are asked before any of them may be gone
    wait_for(lambda: len(state.connections) == 0)
    for connection in slow:
        received = receive_all(connection)
        assert not received or (received.startswith(b"HTTP/1.1 200") and len(received) < 4_000_000)
    with server.client() as client:
        assert len(client.post("/v1/models/disc/predict?output=map", content=image).content) == 4_000_128


def test_beyond_the_limit_of_connections_the_longest_waiting_is_closed(server: LiveServer) -> None:
    waiting = [server.connect(b"G") for _ in range(LIMITS.connections)]
    with server.client() as client:
        assert client.get("/healthz").status_code == 200
    assert receive_all(waiting[0]) == b""
    for connection in waiting:
        connection.close()


async def _never() -> Message:
    await asyncio.sleep(60)
    raise AssertionError


def chunk(size: int) -> Any:
    async def receive() -> Message:
        return {"type": "http.request", "body": b"x" * size, "more_body": True}

    return receive


def test_where_too_many_bodies_arrive_the_slowest_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake, "_SETTLED_SECONDS", 0.05)

    async def run() -> None:
        room = Intake(Limits(arriving_bodies=3))
        bodies = [Body(chunk(1000 * (number + 1)), 10**6, room) for number in (1, 0, 2)]
        for body in bodies:
            await body()
        await asyncio.sleep(0.1)
        bodies[1]._receive = _never
        slowest = asyncio.ensure_future(bodies[1]())
        await asyncio.sleep(0)
        newcomer = Body(chunk(5), 10**6, room)
        await newcomer()
        with pytest.raises(RequestError, match="got 1,000 bytes") as error:
            await slowest
        assert error.value.status_code == 408
        assert room.arriving == {bodies[0], bodies[2], newcomer}
        for body in (*bodies, newcomer):
            body.close()
        assert room.bytes == 0 and not room.arriving

    asyncio.run(run())


def test_bytes_in_flight_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        room = Intake(Limits(arriving_bytes=2500))
        first, second = Body(chunk(1000), 10**6, room), Body(chunk(1000), 10**6, room)
        await first()
        await second()
        with pytest.raises(RequestError, match="too many requests are arriving") as error:
            await second()  # all are young: nobody is known to be slow
        assert error.value.status_code == 503
        second.close()
        monkeypatch.setattr(intake, "_SETTLED_SECONDS", -1.0)
        await first()
        third = Body(chunk(800), 10**6, room)
        await third()  # the slowest, now known, is interrupted: its next part is refused
        with pytest.raises(RequestError) as error:
            await min((first, third), key=lambda body: body in room.arriving)()
        assert error.value.status_code == 408

    asyncio.run(run())
