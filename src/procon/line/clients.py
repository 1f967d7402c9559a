"""The HTTP clients of a line: how many there may be at once, and how long each may take for its request.

A slow client must not keep the place of a PLC. If all places are taken, the connection whose client has been waited for
longest is closed.
"""

import io
import socket
import time
from contextlib import suppress
from threading import Lock

REQUEST_SECONDS = 30.0  # for a whole request; a connection without one is closed after so long, too
_SEND_SECONDS = 10.0  # without a byte that the client takes of its answer
_SETTLED_SECONDS = 0.5  # younger connections keep their places: their requests may be on the way


class SlowClientError(Exception):
    """A client has not sent its request in time."""


class Client(io.RawIOBase):
    """A connection that is read until a deadline."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._until = 0.0
        self.waiting_since: float | None = None  # by the monotonic clock; None while the line works for the client
        self.received = 0  # bytes since the request began
        self.ended = False  # the client sends no more
        self.begin_request()

    def begin_request(self) -> None:
        """From now on the client has REQUEST_SECONDS to send a request."""
        self.waiting_since = time.monotonic()
        self._until, self.received = self.waiting_since + REQUEST_SECONDS, 0

    def begin_work(self) -> None:
        """The request has arrived."""
        self.waiting_since = None

    def begin_answer(self) -> None:
        """The client has to take its answer."""
        self.waiting_since = time.monotonic()
        self._connection.settimeout(_SEND_SECONDS)

    def readable(self) -> bool:
        """Yes."""
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]  # any buffer
        """What has arrived, at the latest by the deadline."""
        left = self._until - time.monotonic()
        if left <= 0:
            raise SlowClientError
        self._connection.settimeout(left)
        try:
            count = self._connection.recv_into(buffer)
        except TimeoutError:
            raise SlowClientError from None
        self.received += count
        self.ended = count == 0
        return count

    def disconnect(self) -> None:
        """End the connection; its thread notices that."""
        with suppress(OSError):  # closed in the meantime
            self._connection.shutdown(socket.SHUT_RDWR)


class Clients:
    """All clients that are connected."""

    def __init__(self, most: int) -> None:
        self._most, self._lock = most, Lock()
        self._connected = set[Client]()

    def admit(self, client: Client) -> bool:
        """Give the client a place; False if all are taken by clients that the line works for."""
        with self._lock:
            if len(self._connected) >= self._most:
                now = time.monotonic()
                waits = {other: now - other.waiting_since for other in self._connected if other.waiting_since}
                slowest = max(waits, key=waits.__getitem__, default=None)
                if slowest is None or waits[slowest] < _SETTLED_SECONDS:
                    return False
                slowest.disconnect()
                self._connected.discard(slowest)
            self._connected.add(client)
            return True

    def leave(self, client: Client) -> None:
        """Give the place back."""
        with self._lock:
            self._connected.discard(client)
