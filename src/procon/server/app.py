"""The HTTP application."""

import asyncio
import logging
import re
import resource
import signal
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import FileResponse, JSONResponse
from starlette.staticfiles import StaticFiles

import procon
from procon.errors import OutputError, ProconError
from procon.server import routes_files, routes_jobs, routes_lessons, routes_models, routes_review
from procon.server.connections import Connection, WaitingAnswers
from procon.server.disk import describe_storage_error, is_disk_full
from procon.server.model_files import ModelFiles
from procon.server.openapi import PROBLEMS, content
from procon.server.schemas import Status
from procon.server.security import Guard
from procon.server.service import Service
from procon.server.settings import Settings

_STATIC = Path(__file__).parent / "static"
_DISCONNECTED = 499  # no client receives it; it is only counted
_GRACEFUL_SECONDS = 60  # in which requests in progress may finish when the server stops
_OTHER_FILES = 512  # open in addition to connections

_log = logging.getLogger(__name__)


def create_app(settings: Settings) -> FastAPI:
    """The application; it locks its state folder until it is shut down."""
    service = Service(settings)

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        try:
            await asyncio.to_thread(ModelFiles(service).finish_changes)
            await service.start()
        except ProconError as error:  # reported by serve, see Server.startup
            service.failure = error
        try:
            yield
        finally:
            await service.stop()

    app = FastAPI(
        title="ProCon",
        version=procon.__version__,
        description="Visual anomaly detection from good images alone.",
        lifespan=lifespan,
        docs_url=None,  # its page would load scripts from another host
        redoc_url=None,
    )
    app.state.service = service
    app.add_middleware(Guard, token=settings.token, limits=settings.limits, count=service.metrics.count_answer)
    for module in (routes_jobs, routes_review, routes_lessons, routes_files, routes_models):
        app.include_router(module.router(service))
    _add_probes(app, service)
    _add_handlers(app, service)
    return app


def _add_probes(app: FastAPI, service: Service) -> None:
    app.mount("/static", StaticFiles(directory=_STATIC), name="static")

    @app.get("/", include_in_schema=False)
    async def page() -> FileResponse:
        return FileResponse(_STATIC / "index.html", headers={"cache-control": "no-cache"})

    @app.get("/healthz", tags=["probes"])
    async def healthz() -> Status:
        """Whether the process works."""
        return Status(status="ok")

    @app.get("/readyz", tags=["probes"], responses={503: {"model": Status}})
    def readyz() -> Response:
        """Whether requests are served, and current problems, such as a full disk or a missing model."""
        word = "stopping" if service.stopping else "ready" if service.models.ready else "loading models"
        return JSONResponse({"status": word, "problems": service.problems}, 200 if word == "ready" else 503)

    responses = {**content("text/plain", schema={"type": "string"}), **PROBLEMS}

    @app.get("/metrics", tags=["probes"], response_class=Response, responses=responses)
    def metrics() -> Response:
        """Metrics for Prometheus."""
        return Response(service.metrics.render_text(), media_type="text/plain; version=0.0.4; charset=utf-8")


def _add_handlers(app: FastAPI, service: Service) -> None:
    def refuse(status: int, message: str, headers: dict[str, str] | None = None) -> JSONResponse:
        return JSONResponse({"error": message}, status, headers=headers)

    @app.exception_handler(HTTPException)
    async def refused(request: Request, error: HTTPException) -> Response:
        headers = dict(error.headers or {})
        if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
            headers["allow"] = ", ".join(_methods(app, request.url.path)) or headers.get("allow", "")
        return refuse(error.status_code, service.redact(str(error.detail)), headers)

    @app.exception_handler(RequestValidationError)
    async def invalid(_request: Request, error: RequestValidationError) -> Response:
        messages = [f"{'.'.join(map(str, entry['loc']))}: {entry['msg']}" for entry in error.errors()]
        return refuse(422, "; ".join(messages[:5]))

    @app.exception_handler(ProconError)
    async def procon_error(_request: Request, error: ProconError) -> Response:
        return refuse(422, service.redact(str(error)))

    @app.exception_handler(ClientDisconnect)
    async def gone(_request: Request, _error: ClientDisconnect) -> Response:
        return Response(status_code=_DISCONNECTED)

    async def storage_error(_request: Request, error: Exception) -> Response:
        if not is_disk_full(error):
            return await broken(_request, error)
        return refuse(507, f"{describe_storage_error(error)}, then send this again")

    for kind in (OutputError, OSError, sqlite3.Error):
        app.add_exception_handler(kind, storage_error)

    @app.exception_handler(Exception)
    async def broken(_request: Request, error: Exception) -> Response:
        _log.error("a request failed", exc_info=error)
        return refuse(500, "something went wrong in the server; its log says what")


def _methods(app: FastAPI, path: str) -> list[str]:
    """All methods of a path; the framework lists only those of one route."""
    return sorted(
        method.upper()
        for template, methods in app.openapi()["paths"].items()
        if re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", template), path)
        for method in methods
    )


class Server(uvicorn.Server):
    """uvicorn that exits with code 0 on a signal, and with an error when a thread or task of the service has ended."""

    def __init__(self, settings: Settings, announce: Callable[[str], None]) -> None:
        app = create_app(settings)
        config = uvicorn.Config(
            app,
            host=settings.host,
            port=settings.port,
            http=partial(Connection, limits=settings.limits, waiting=WaitingAnswers()),  # type: ignore[arg-type]  # anything that makes one
            log_level="warning",
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=_GRACEFUL_SECONDS,
            timeout_keep_alive=30,
            backlog=512,
        )
        super().__init__(config)
        self.service: Service = app.state.service
        self._announce = announce

    async def startup(self, sockets: Any = None) -> None:
        """Listen, and announce the address."""
        await super().startup(sockets)
        if self.started and self.service.failure is None:
            host, port = self.servers[0].sockets[0].getsockname()[:2]
            self._announce(f"http://{f'[{host}]' if ':' in host else host}:{port}")

    async def on_tick(self, counter: int) -> bool:
        """Whether to stop."""
        self.should_exit = self.should_exit or self.service.failure is not None
        return await super().on_tick(counter)

    def handle_exit(self, sig: int, frame: Any) -> None:
        """Finish the requests in progress on the first signal; stop at once on a second Ctrl-C.

        The signal is not passed on to uvicorn, which would raise it again after the shutdown: the process would end by
        the signal and not with exit code 0.
        """
        self.service.stopping = True  # event streams end
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = True


def serve(settings: Settings, announce: Callable[[str], None]) -> None:
    """Run until a signal arrives, then finish the requests in progress; ``announce`` is called with the address."""
    _raise_file_limit(settings.limits.connections + _OTHER_FILES)
    server = Server(settings, announce)
    server.run()
    if server.service.failure is not None:
        raise server.service.failure


def _raise_file_limit(wanted: int) -> None:
    """Let this process open as many files as its limits on connections need, as far as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))
