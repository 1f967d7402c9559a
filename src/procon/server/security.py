"""Token, origin and body size of a request, checked before any handler runs."""

import hmac
import json
from collections.abc import Callable

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from procon.hosts import is_local_host, is_same_origin
from procon.server.intake import Body, Intake, too_many_bytes
from procon.server.request_errors import RequestError
from procon.server.settings import Limits

_OPEN = ("/", "/healthz", "/readyz")  # the page asks the operator for the token
_READ = ("GET", "HEAD", "OPTIONS")
_SMALL_BODY = 64 * 1024

_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; media-src 'self' blob:; "
        "connect-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "permissions-policy": "camera=(self), microphone=(), geolocation=()",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "cross-origin-resource-policy": "same-origin",
}


class Guard:
    """Token, origin, body size and headers, for every request."""

    def __init__(self, app: ASGIApp, token: str | None, limits: Limits, count: Callable[[int], None]) -> None:
        self._app, self._token, self._limits, self._count = app, token, limits, count
        self._intake = Intake(limits)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        limit = self._body_limit(scope["path"], headers.get("content-type", ""))
        body = Body(receive, limit, self._intake)

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._count(message["status"])
                if message["status"] >= 400:
                    await body.drain()
                body.close()
                added = [(name.encode(), value.encode()) for name, value in _HEADERS.items()]
                message["headers"] = [*message["headers"], *added]
            await send(message)

        try:
            length = headers.get("content-length", "")
            error = self._check(scope, headers)
            if error is None and length.isdecimal() and int(length) > limit:
                error = too_many_bytes(limit)
            if error is not None:
                await _respond(error, send_guarded)
            else:
                await self._app(scope, body, send_guarded)
        finally:
            body.close()

    def _check(self, scope: Scope, headers: Headers) -> RequestError | None:
        path, method = scope["path"], scope["method"]
        if self._token is None and not is_local_host(headers.getlist("host")):
            # The name of another site may resolve to this machine.
            return RequestError(403, "this server answers to localhost only; set a token to use another name")
        if method not in _READ and not is_same_origin(headers.get):
            return RequestError(403, "a page of another origin may not change anything here")
        if self._token is None or path in _OPEN or path.startswith("/static/"):
            return None
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), self._token.encode()):
            return None
        return RequestError(
            401, "a token is needed: Authorization: Bearer TOKEN", {"www-authenticate": 'Bearer realm="procon"'}
        )

    def _body_limit(self, path: str, kind: str) -> int:
        """Bytes that a route accepts; a form is written to disk file by file, any other body is held in memory."""
        if path.startswith("/v1/models/") and path.endswith("/file"):
            return self._limits.fit_bytes  # a model, written to disk while it arrives
        if path == "/v1/models" or path.endswith("/partial_fit"):
            return self._limits.fit_bytes if kind.strip().lower().startswith("multipart/") else self._limits.body_bytes
        return self._limits.body_bytes if path.endswith(("/predict", "/explain")) else _SMALL_BODY


async def _respond(error: RequestError, send: Send) -> None:
    content = json.dumps({"error": error.detail}).encode()
    headers = {
        **(error.headers or {}),
        "content-type": "application/json",
        "content-length": str(len(content)),
        "connection": "close",
    }
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": error.status_code, "headers": raw})
    await send({"type": "http.response.body", "body": content})
