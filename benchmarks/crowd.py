"""Clients that are slow on purpose: uploads and headers of a byte per second, and readers that hardly read.

    python benchmarks/crowd.py PORT COUNT PATH

opens COUNT connections of each kind; readers ask for PATH, which should be a large answer. A client whose connection
the server ends begins again. When stdin closes, the program prints how often each kind of client was answered what.
"""

import asyncio
import json
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_UPLOAD = b"POST /v1/models/flange/predict HTTP/1.1\r\nhost: localhost\r\ncontent-length: 5000000\r\n\r\n"
_HEADERS = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n" + b"x: y\r\n" * 1000


async def _connect(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.setblocking(False)
    await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", port))
    return await asyncio.open_connection(sock=connection, limit=2048)


async def _send_slowly(port: int, head: bytes, slow: bytes) -> str:
    """Send ``head`` at once and ``slow`` a byte per second; returns the status of the answer."""
    reader, writer = await _connect(port)
    answer = asyncio.ensure_future(reader.readline())
    writer.write(head)
    try:
        for position in range(len(slow)):
            writer.write(slow[position : position + 1])
            if (await asyncio.wait({answer}, timeout=1.0))[0]:
                break
        return (await answer).decode().split(" ")[1] if await answer else "closed"
    finally:
        answer.cancel()
        writer.transport.abort()


async def _read_slowly(port: int, path: str) -> str:
    reader, writer = await _connect(port)
    writer.write(f"GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
    received = 0
    try:
        while data := await reader.read(100):
            received += len(data)
            await asyncio.sleep(1.0)
        return "closed" if received else "no answer"
    finally:
        writer.transport.abort()


async def run_crowd(port: int, count: int, path: str) -> Counter[str]:
    """All clients, until stdin closes."""
    counts: Counter[str] = Counter()

    async def repeat(kind: str, number: int) -> None:
        await asyncio.sleep(number / count)  # they do not arrive in one instant
        while True:
            try:
                if kind == "reader":
                    outcome = await _read_slowly(port, path)
                else:
                    upload = kind == "upload"
                    outcome = await _send_slowly(port, *((_UPLOAD, b"x" * 5000) if upload else (b"", _HEADERS)))
            except OSError:
                outcome = "reset"
                await asyncio.sleep(1.0)
            counts[f"{kind} {outcome}"] += 1

    kinds = [(kind, number) for kind in ("upload", "headers", "reader") for number in range(count)]
    tasks = [asyncio.ensure_future(repeat(*kind)) for kind in kinds]
    await asyncio.to_thread(sys.stdin.read)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return counts


@contextmanager
def slow_crowd(port: int, count: int, path: str) -> Iterator[Counter[str]]:
    """``count`` slow clients of each kind in a process of their own; the counter is filled at the end."""
    counts: Counter[str] = Counter()
    command = [sys.executable, str(Path(__file__)), str(port), str(count), path]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield counts
    finally:
        output, _ = process.communicate("")
        with suppress(ValueError):
            counts.update(json.loads(output))


if __name__ == "__main__":
    print(json.dumps(asyncio.run(run_crowd(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]))))
