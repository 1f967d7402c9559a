"""Run a task in a separate process, which ends with the server."""

import asyncio
import contextlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple


class JobProgress(NamedTuple):
    """The progress of a job."""

    stage: str | None = None
    done: int = 0
    total: int = 0


class JobError(Exception):
    """Why a task failed, as its process reported it."""


class JobProcess:
    """Runs :mod:`procon.server.worker` on one task at a time."""

    def __init__(self, on_change: Callable[[], None]) -> None:
        self._on_change = on_change
        self._process: asyncio.subprocess.Process | None = None
        self.progress = JobProgress()

    async def run(self, task: dict[str, Any], log: Path) -> None:
        """Run a task; if it fails, its last message becomes a :class:`JobError`."""
        error = "the process ended without a message; its log is in the state folder"
        pipe = asyncio.subprocess.PIPE
        with log.open("wb") as stderr:
            self._process = process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "procon.server.worker", stdin=pipe, stdout=pipe, stderr=stderr, limit=2**24
            )
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(task).encode() + b"\n")
            async for line in process.stdout:
                message = json.loads(line)
                if "stage" in message:
                    self.progress = JobProgress(**message)
                    self._on_change()
                error = message.get("error", error)
            if await process.wait() != 0:
                raise JobError(error)
        finally:
            self.kill()
            await process.wait()
            self._process, self.progress = None, JobProgress()

    def kill(self) -> None:
        """End the process, if there is one."""
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
