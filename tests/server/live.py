"""A server on a real socket in this process, with limits that no flag sets, and clients that are slow on purpose."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from procon.server.app import Server
from tests.server.process import wait_for
from tests.server.test_api import settings


class LiveServer:
    """A :class:`Server` in a thread."""

    def __init__(self, models: Path, weights: Path, **changes: Any) -> None:
        urls: list[str] = []
        self.server = Server(settings(models, weights, port=0, **changes), urls.append)
        self.thread = threading.Thread(target=self.server.run, daemon=True)
        self.thread.start()
        self.url = wait_for(lambda: urls and urls[0])
        self.port = int(self.url.rsplit(":", 1)[1])
        with self.client() as client:
            wait_for(lambda: client.get("/readyz").status_code == 200)

    def client(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=30)

    def connect(self, sent: bytes = b"", receive_buffer: int | None = None) -> socket.socket:
        """A raw connection on which ``sent`` has left."""
        connection = socket.socket()
        if receive_buffer is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        connection.connect(("127.0.0.1", self.port))
        connection.settimeout(20)
        connection.sendall(sent)
        return connection


@contextmanager
def live(models: Path, weights: Path, **changes: Any) -> Iterator[LiveServer]:
    """A server that is ready, and gone afterwards."""
    running = LiveServer(models, weights, **changes)
    try:
        yield running
    finally:
        running.server.service.stopping = running.server.should_exit = True
        running.thread.join(30)
        assert not running.thread.is_alive()


def post_head(length: int, query: str = "") -> bytes:
    """The headers of a prediction whose body has ``length`` bytes."""
    path = f"/v1/models/disc/predict{query}"
    return f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {length}\r\n\r\n".encode()


def receive_all(connection: socket.socket) -> bytes:
    """Everything until the server closes the connection, or resets it."""
    received = b""
    try:
        while chunk := connection.recv(2**16):
            received += chunk
    except ConnectionResetError:
        pass
    return received


def seconds_of(work: Any) -> float:
    """How long a call took."""
    started = time.monotonic()
    work()
    return time.monotonic() - started
