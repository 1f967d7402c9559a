"""The HTTP application."""

import logging
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
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
from procon.errors import ProconError
from procon.server import routes_jobs, routes_models, routes_review
from procon.server.openapi import PROBLEMS, content
from procon.server.schemas import Status
from procon.server.security import Guard
from procon.server.service import Service
from procon.server.settings import Settings

_STATIC = Path(__file__).parent / "static"
_DISCONNECTED = 499  # nobody receives it; it is only counted

_log = logging.getLogger(__name__)


def create_app(settings: Settings) -> FastAPI:
    """The application; it locks its state folder until it is shut down."""
    service = Service(settings)

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        try:
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
    for module in (routes_jobs, routes_review, routes_models):
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
        """Whether requests are served: models are loaded, the device thread runs, and the server is not stopping."""
        word = "ready" if service.models.ready else "loading models"
        if service.stopping or not service.worker.alive:
            word = "stopping" if service.stopping else "the device thread has ended"
        return JSONResponse({"status": word}, 200 if word == "ready" else 503)

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
    """uvicorn that tells the application immediately when it must stop, so that event streams end."""

    def __init__(self, config: uvicorn.Config, service: Service, announce: Callable[[str], None]) -> None:
        super().__init__(config)
        self._service, self._announce = service, announce

    async def startup(self, sockets: Any = None) -> None:
        """Listen, and announce the address."""
        await super().startup(sockets)
        if self._service.failure is not None:
            self.should_exit = True
        elif self.started:
            host, port = self.servers[0].sockets[0].getsockname()[:2]
            self._announce(f"http://{f'[{host}]' if ':' in host else host}:{port}")

    def handle_exit(self, sig: int, frame: Any) -> None:
        """Handle a signal."""
        self._service.stopping = True
        super().handle_exit(sig, frame)


def serve(settings: Settings, announce: Callable[[str], None]) -> None:
    """Run until a signal arrives, then finish the requests in progress; ``announce`` is called with the address."""
    app = create_app(settings)
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=60,
        timeout_keep_alive=30,
        backlog=512,
    )
    service: Service = app.state.service
    Server(config, service, announce).run()
    if service.failure is not None:
        raise service.failure
