"""A task in a process of its own, which ends with the server."""

import asyncio
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class JobProgress:
    """How far a job is."""

    stage: str | None = None
    done: int = 0
    total: int = 0


class JobError(Exception):
    """Why a task failed, as its process reported it."""


async def run_task(
    task: dict[str, Any],
    log: Path,
    on_start: Callable[[asyncio.subprocess.Process], None],
    on_progress: Callable[[JobProgress], None],
) -> None:
    """Run :mod:`procon.server.worker` on ``task``; if it fails, its last message becomes a :class:`JobError`."""
    error = "the process ended without a message; its log is in the state folder"
    pipe = asyncio.subprocess.PIPE
    with log.open("wb") as stderr:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "procon.server.worker", stdin=pipe, stdout=pipe, stderr=stderr, limit=2**24
        )
    on_start(process)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(json.dumps(task).encode() + b"\n")
        async for line in process.stdout:
            message = json.loads(line)
            if "stage" in message:
                on_progress(JobProgress(message["stage"], message["done"], message["total"]))
            error = message.get("error", error)
        if await process.wait() != 0:
            raise JobError(error)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
