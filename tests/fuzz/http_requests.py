"""Requests as bytes on a connection: answered, and never with the words for a fault of the server."""

import asyncio
import io
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn
from PIL import Image
from uvicorn.server import ServerState

from procon import Detector
from procon.server.app import create_app
from procon.server.connections import Connection, WaitingAnswers
from procon.server.request_errors import RequestError
from procon.server.settings import Limits, Settings
from tests.conftest import part_pixels, tiny_config, write_tiny_backbone
from tests.fuzz.targets import Check, Target

LENGTH = b"LENGTH"
"""In the headers, this word becomes the length of the body."""
_LIMITS = Limits(body_bytes=100_000, pixels=100_000, fit_images=5, kept_bytes=1_000_000, kept_verdicts=200)
_SECONDS = 10.0


class _Transport:
    """The other end of a connection, as uvicorn sees it."""

    def __init__(self) -> None:
        self.written, self.closed = bytearray(), False

    def write(self, data: bytes) -> None:
        self.written += data

    def close(self) -> None:
        self.closed = True

    abort = close

    def is_closing(self) -> bool:
        return self.closed

    def get_write_buffer_size(self) -> int:
        return 0

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)}.get(name, default)

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def set_protocol(self, protocol: Any) -> None: ...


class _Faults(logging.Handler):
    """What the server or uvicorn logs as an error."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


def _refuse_job(*_: Any, **__: Any) -> int:
    raise RequestError(503, "no job begins here")


@contextmanager
def _open(folder: Path) -> Iterator[Check]:
    good, models = folder / "good", folder / "models"
    for place in (good, models):
        place.mkdir()
    for number in range(4):
        Image.fromarray(part_pixels(number)).save(good / f"{number}.png")
    config = tiny_config(write_tiny_backbone(folder / "tiny"))
    Detector(config, device="cpu").fit(good).save(models / "disc.procon")
    app = create_app(Settings(models, device="cpu", fit=config, scan_seconds=3600, limits=_LIMITS))
    faults = _Faults()
    logging.getLogger().addHandler(faults)
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    uvicorn_config = uvicorn.Config(app, log_config=None, lifespan="off", access_log=False)
    uvicorn_config.load()
    service = app.state.service
    service.jobs.start = lambda: None
    service.jobs.queue_fit = service.jobs.queue_learning = _refuse_job
    lifespan = app.router.lifespan_context(app)
    loop.run_until_complete(lifespan.__aenter__())
    loop.run_until_complete(_until_ready(service))

    def check(data: bytes) -> None:
        faults.records.clear()
        answer = loop.run_until_complete(_exchange(uvicorn_config, data))
        for record in faults.records:
            raise AssertionError(record.getMessage()) from (record.exc_info or (None, None))[1]
        assert b"something went wrong" not in answer and not re.search(rb"^HTTP/1\.1 500", answer, re.M)

    try:
        yield check
    finally:
        logging.getLogger().removeHandler(faults)
        loop.run_until_complete(lifespan.__aexit__(None, None, None))
        loop.close()


async def _until_ready(service: Any) -> None:
    while not service.models.ready:
        await asyncio.sleep(0.01)


async def _exchange(config: uvicorn.Config, data: bytes) -> bytes:
    """Send ``data`` on a new connection; what came back by the time the server was done with it."""
    head, end, body = data.partition(b"\r\n\r\n")
    data = head.replace(LENGTH, str(len(body)).encode()) + end + body
    state = ServerState()
    connection = Connection(config=config, server_state=state, app_state={}, limits=_LIMITS, waiting=WaitingAnswers())
    transport = _Transport()
    connection.connection_made(transport)  # type: ignore[arg-type]
    for start in range(0, len(data), 5000):
        if not transport.closed:
            connection.data_received(data[start : start + 5000])
    await asyncio.sleep(0)
    if connection.cycle is not None and connection.cycle.more_body:  # the client goes away
        connection.connection_lost(None)
    async with asyncio.timeout(_SECONDS):
        while state.tasks and b"event-stream" not in transport.written:  # a stream of events has no end
            await asyncio.sleep(0)
    connection.connection_lost(None)
    async with asyncio.timeout(_SECONDS):
        while state.tasks:
            await asyncio.sleep(0.001)
    return bytes(transport.written)


def _request(line: str, body: bytes = b"", **headers: str) -> bytes:
    fields = {"host": "localhost", **{name.replace("_", "-"): value for name, value in headers.items()}}
    if body:
        fields["content-length"] = LENGTH.decode()
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"{line} HTTP/1.1\r\n{head}\r\n".encode() + body


def _form(**fields: bytes) -> bytes:
    parts = []
    for name, value in fields.items():
        file = f'; filename="{name}.png"\r\nContent-Type: image/png' if name.startswith("image") else ""
        parts.append(f'--b\r\nContent-Disposition: form-data; name="{name}"{file}\r\n\r\n'.encode() + value + b"\r\n")
    return b"".join(parts) + b"--b--\r\n"


def _seeds() -> dict[str, bytes]:
    buffer = io.BytesIO()
    Image.fromarray(part_pixels(0)[30:50, 20:40]).save(buffer, "PNG")
    png, form, json_type = buffer.getvalue(), "multipart/form-data; boundary=b", "application/json"
    gets = (
        "/",
        "/healthz",
        "/readyz",
        "/metrics",
        "/openapi.json",
        "/static/app.js",
        "/v1/models",
        "/v1/models/disc",
        "/v1/jobs",
        "/v1/jobs/1",
        "/v1/jobs/1/events",
        "/v1/events",
        "/v1/models/disc/good-images",
        "/v1/models/disc/good-images/0/picture",
        "/v1/verdicts/1",
        "/v1/models/disc/verdicts?limit=5&before=9&unseen=true",
        "/v1/verdicts/1/image",
        "/v1/verdicts/1/thumbnail",
        "/v1/feedback/1",
        "/v1/models/%2e%2e%2fx",
    )
    seeds = {f"get{number}": _request(f"GET {path}") for number, path in enumerate(gets)}
    disc = "POST /v1/models/disc"
    fit = _form(name=b"new", images=png, replace=b"true", false_alarm_rate=b"0.02")
    chunks = b"transfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
    return seeds | {
        "predict": _request(f"{disc}/predict", png, content_type="image/png"),
        "predict-form": _request(f"{disc}/predict?map=32", _form(image=png), content_type=form),
        "predict-map": _request(f"{disc}/predict?output=map", png),
        "explain": _request(f"{disc}/explain?x=10&y=12", png),
        "fit": _request("POST /v1/models", fit, content_type=form),
        "learn": _request(f"{disc}/partial_fit", _form(images=png), content_type=form),
        "threshold": _request("PUT /v1/models/disc/threshold", b'{"false_alarm_rate": 0.02}', content_type=json_type),
        "feedback": _request("POST /v1/verdicts/1/feedback", b'{"label": "good"}', content_type=json_type),
        "withdraw": _request("DELETE /v1/feedback/1"),
        "cancel": _request("POST /v1/jobs/1/cancel"),
        "delete": _request("DELETE /v1/models/other"),
        "cross": _request(f"{disc}/predict", png, origin="http://evil.example", sec_fetch_site="cross-site"),
        "options": _request("OPTIONS /v1/models", access_control_request_method="POST"),
        "chunked": f"{disc}/predict HTTP/1.1\r\nhost: [::1]:80\r\n".encode() + chunks,
        "two": _request("GET /healthz") + _request("GET /readyz"),
        "expect": _request(f"{disc}/predict", b"abc", expect="100-continue", authorization="Bearer x"),
    }


TARGET = Target(_open, _seeds, ("starlette", "fastapi", "python_multipart"))
