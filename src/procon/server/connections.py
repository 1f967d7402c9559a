"""HTTP connections that are closed if the client sends headers, or reads answers, too slowly."""

import asyncio
import json
import time
from dataclasses import dataclass
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from procon.server.settings import Limits

_CHECK_SECONDS = 1.0
_GRACE_SECONDS = 10.0  # before the least rate of a reader counts


@dataclass
class WaitingAnswers:
    """The size of the answers of all connections that wait in memory for their readers."""

    total: int = 0  # bytes


class Connection(HttpToolsProtocol):
    """A connection whose client must send its headers in time and read its answer at the least rate.

    uvicorn itself waits without end for both. Bodies are limited by :class:`procon.server.intake.Body`.
    """

    def __init__(self, *arguments: Any, limits: Limits, waiting: WaitingAnswers, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._limits, self._waiting = limits, waiting
        self._counted = 0  # bytes of this connection in the total
        self.head_since: float | None = None  # when the headers began that have not arrived in full yet
        self._head_bytes = 0
        self._unread_since: float | None = None  # when the answer was first found waiting for its reader
        self._unread_bytes = 0  # the most of it that waited since then
        self._timer: asyncio.TimerHandle | None = None

    @property
    def unread(self) -> int:
        """Bytes of answers that wait in memory for the reader."""
        return self.transport.get_write_buffer_size()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Watch the new connection; if there are too many, close the one that has waited longest for its headers."""
        super().connection_made(transport)
        self.head_since = time.monotonic()
        self._timer = self.loop.call_later(_CHECK_SECONDS, self._check)
        if len(self.connections) > self._limits.connections:
            waiting = [other for other in self.connections if isinstance(other, Connection) and other.head_since]
            min(waiting, key=lambda other: other.head_since or 0.0).transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop watching."""
        self._waiting.total -= self._counted
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Count the bytes of headers, and parse."""
        if self.head_since is None and (self.cycle is None or self.cycle.response_complete):
            self.head_since = time.monotonic()
        super().data_received(data)
        if self.head_since is not None and not self.transport.is_closing():
            self._head_bytes += len(data)
            if self._head_bytes > self._limits.header_bytes:
                self._refuse(431, f"the headers must have at most {self._limits.header_bytes:,} bytes")

    def on_headers_complete(self) -> None:
        """The headers are here: the request begins."""
        self.head_since, self._head_bytes = None, 0
        super().on_headers_complete()

    def resume_writing(self) -> None:
        """The reader has taken nearly everything that waited: its time begins again."""
        self._unread_since, self._unread_bytes = None, 0
        super().resume_writing()

    def _check(self) -> None:
        self._timer = self.loop.call_later(_CHECK_SECONDS, self._check)
        now, limits = time.monotonic(), self._limits
        if self.head_since is not None and now - self.head_since > limits.header_seconds:
            if not self._head_bytes:
                self.transport.abort()
            else:
                self._refuse(408, f"the headers must arrive within {limits.header_seconds:.0f} seconds")
        self._waiting.total += self.unread - self._counted
        self._counted = self.unread
        if not self.unread:
            self._unread_since, self._unread_bytes = None, 0
            return
        self._unread_since = self._unread_since or now
        self._unread_bytes = max(self._unread_bytes, self.unread)
        too_slow = now - self._unread_since > _GRACE_SECONDS + self._unread_bytes / limits.least_rate
        if too_slow or (self._waiting.total > limits.unread_bytes and self._is_largest()):
            self.transport.abort()

    def _is_largest(self) -> bool:
        return self.unread == max(other.unread for other in self.connections if isinstance(other, Connection))

    def _refuse(self, status: int, message: str) -> None:
        content = json.dumps({"error": message})
        head = f"HTTP/1.1 {status} Refused\r\ncontent-type: application/json\r\ncontent-length: {len(content)}\r\n"
        self.transport.write(f"{head}connection: close\r\n\r\n{content}".encode())
        self.transport.close()
