"""A server with an event loop in a thread of its own: what OPC UA and Modbus share."""

import asyncio
from abc import ABC, abstractmethod
from threading import Event, Thread

from procon.errors import ConfigError, OutputError, ProconError

_START_SECONDS = 60.0
_TICK_SECONDS = 0.1


class LoopServer(ABC):
    """Opens, ticks ten times a second until it is stopped, and closes."""

    name: str

    def __init__(self) -> None:
        self._ready = Event()
        self._failure: BaseException | None = None
        self._thread: Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None

    @abstractmethod
    async def open(self) -> None:
        """Begin to listen."""

    @abstractmethod
    async def tick(self) -> None:
        """What is to do ten times a second."""

    @abstractmethod
    async def close(self) -> None:
        """Close connections."""

    def start(self) -> None:
        """Listen, or raise if that is not possible."""
        self._thread = Thread(target=self._run, name=f"procon-{self.name}", daemon=True)
        self._thread.start()
        self._ready.wait(_START_SECONDS)
        if self._failure is not None or not self._ready.is_set():
            if isinstance(self._failure, ConfigError | OutputError):  # which say what to do
                raise ProconError(f"[{self.name}] {self._failure}")
            reason = self._failure or f"it did not start within {_START_SECONDS:g} s"
            raise ProconError(f"[{self.name}] cannot be served: {reason}; check the address and its port")

    def check(self) -> None:
        """Raise if it has ended by itself: without it a PLC would wait for ever."""
        if self._thread is not None and not self._thread.is_alive():
            raise ProconError(f"[{self.name}] has ended: {self._failure}; start the line again")

    def stop(self) -> None:
        """Close, and wait for that."""
        if self._loop is not None and self._stop is not None and self._thread is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(timeout=15)

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            self._failure = error
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        try:
            await self.open()
            self._ready.set()
            while not self._stop.is_set():
                await self.tick()
                try:
                    await asyncio.wait_for(self._stop.wait(), _TICK_SECONDS)
                except TimeoutError:
                    continue
        finally:
            await self.close()
