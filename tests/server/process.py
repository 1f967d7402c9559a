"""A real server process for tests: started on a free port, asked over HTTP, stopped or killed."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx

import procon

_PROGRAM = "from procon.cli import main; main()"
_SECONDS = 180  # a busy machine takes long


class ServerProcess:
    """``procon serve`` in a process of its own."""

    def __init__(self, models: Path, *arguments: str, program: str = _PROGRAM) -> None:
        source = str(Path(procon.__file__).parents[1])
        environment = {**os.environ, "PYTHONPATH": source, "OMP_WAIT_POLICY": "PASSIVE"}
        self.process = subprocess.Popen(
            [sys.executable, "-c", program, "serve", str(models), "--port", "0", "--device", "cpu", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self.log: list[str] = []
        threading.Thread(target=self._listen, daemon=True).start()
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if " at http" not in line:
            self.process.wait(_SECONDS)
            raise RuntimeError(f"the server did not start: {line}{''.join(self.log)}")
        self.url = line.rsplit(" at ", 1)[1].strip()

    def _listen(self) -> None:
        assert self.process.stderr is not None
        self.log.extend(self.process.stderr)

    def client(self, **settings: Any) -> httpx.Client:
        """Asks this server."""
        return httpx.Client(base_url=self.url, timeout=_SECONDS, **settings)

    def wait_ready(self) -> "ServerProcess":
        """Until all models are loaded."""
        with self.client() as client:
            wait_for(lambda: client.get("/readyz").status_code == 200)
        return self

    def kill(self) -> None:
        """As the machine would: no goodbye."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def terminate(self) -> int:
        """Ask it to stop; its exit status."""
        self.process.terminate()
        return self.process.wait(_SECONDS)

    def __enter__(self) -> "ServerProcess":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.terminate()


def wait_for(condition: Callable[[], Any], seconds: float = _SECONDS) -> Any:
    """The first true value of ``condition``, or a failure after ``seconds``."""
    until = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < until, "waited too long"
        time.sleep(0.05)
    return value


@contextmanager
def serving(models: Path, *arguments: str) -> Iterator[ServerProcess]:
    """A server that is ready, and gone afterwards."""
    with ServerProcess(models, *arguments) as server:
        yield server.wait_ready()


def tiny_settings(weights: Path) -> Sequence[str]:
    """Flags for fits that take a second; see ``conftest.tiny_config``."""
    return (
        *("--weights", str(weights), "--backbone", "dinov2-custom", "--image-size", "70", "--set", "layers=-1,-3"),
        *("--banks", "2", "--coreset-ratio", "0.3", "--set", "num_neighbors=3"),
    )
