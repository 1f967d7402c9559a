"""Request bodies while they arrive: limits on size, time, rate and number, so that slow clients block no others."""

import asyncio
import contextlib
import time

from starlette.types import Message, Receive

from procon.server.request_errors import RequestError
from procon.server.settings import MIB, Limits

_GRACE_SECONDS = 5.0  # before the least rate counts
_SETTLED_SECONDS = 1.0  # a younger body is never refused for another: its rate is not known yet
_DRAIN = 64 * MIB  # received and dropped, so that a client that is still sending gets to the response


class Intake:
    """All bodies that are arriving; if there are too many, the slowest is refused. For use on the event loop only."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.arriving: set[Body] = set()
        self.bytes = 0  # of all bodies whose requests have no response yet

    def make_room(self) -> None:
        """Interrupt the slowest body if a limit is reached; if there is no slow one, refuse the caller."""
        if len(self.arriving) <= self.limits.arriving_bodies and self.bytes <= self.limits.arriving_bytes:
            return
        settled = [body for body in self.arriving if body.age > _SETTLED_SECONDS]
        if not settled:
            raise RequestError(503, "too many requests are arriving; try again shortly", {"retry-after": "1"})
        min(settled, key=lambda body: body.received / body.age).interrupt()


class Body:
    """``receive`` of one request; it refuses a body that is too large or too slow."""

    def __init__(self, receive: Receive, limit: int, intake: Intake) -> None:
        self._receive, self._limit, self._intake = receive, limit, intake
        self._started = time.monotonic()
        self._seconds = intake.limits.read_seconds * (10 if limit > intake.limits.body_bytes else 1)
        self._timer: asyncio.Timeout | None = None  # while it waits for the next part
        self._interrupted = False
        self.received, self._held, self.ended = 0, 0, False

    @property
    def age(self) -> float:
        """Seconds since the request began."""
        return time.monotonic() - self._started

    def interrupt(self) -> None:
        """Refuse the body now, as too slow."""
        self._intake.arriving.discard(self)
        self._interrupted = True
        if self._timer is not None:
            self._timer.reschedule(asyncio.get_running_loop().time())

    async def __call__(self) -> Message:
        """The next part of the body; after its end, the message that the client has disconnected."""
        if self.ended:
            return await self._receive()
        if not self.received:
            self._intake.arriving.add(self)
            self._intake.make_room()
        message = await self._next()
        self._intake.make_room()
        if self.received > self._limit:
            raise too_many_bytes(self._limit)
        return message

    async def _next(self) -> Message:
        seconds = min(self._seconds, _GRACE_SECONDS + self.received / self._intake.limits.least_rate) - self.age
        try:
            async with asyncio.timeout(max(0.0, seconds)) as self._timer:
                if self._interrupted:
                    raise TimeoutError
                message = await self._receive()
        except TimeoutError:
            self._interrupted = True
            raise self._too_slow() from None
        finally:
            self._timer = None
        size = len(message.get("body", b""))
        self.received, self._held = self.received + size, self._held + size
        self._intake.bytes += size
        self.ended = not message.get("more_body", False)  # also when the client disconnects
        if self.ended:
            self._intake.arriving.discard(self)
        return message

    def _too_slow(self) -> RequestError:
        return RequestError(
            408,
            f"the body must arrive within {self._seconds:.0f} seconds, at {self._intake.limits.least_rate // 1024} KiB "
            f"per second or more; got {self.received:,} bytes in {self.age:.0f} seconds; send it again over a faster "
            "connection",
            {"connection": "close"},
        )

    async def drain(self) -> None:
        """Receive the rest of the body and drop it, up to a limit."""
        with contextlib.suppress(TimeoutError, RequestError):
            async with asyncio.timeout(5):
                while not self.ended and self.received < self._limit + _DRAIN:
                    await self._next()

    def close(self) -> None:
        """Leave the intake, when the request has its response."""
        self._intake.arriving.discard(self)
        self._intake.bytes -= self._held
        self._held = 0


def too_many_bytes(limit: int) -> RequestError:
    """The refusal of a body beyond its limit."""
    return RequestError(413, f"the body must have at most {limit:,} bytes")
