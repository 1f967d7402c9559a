"""Token, origin and body size of a request, checked before any handler runs."""

import asyncio
import contextlib
import hmac
import json
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from procon.server.refusal import Refusal
from procon.server.settings import MIB, Limits, is_loopback

_OPEN = ("/", "/healthz", "/readyz")  # the page asks the operator for the token
_READ = ("GET", "HEAD", "OPTIONS")
_SMALL_BODY = 64 * 1024
_DRAIN = 64 * MIB  # received and dropped, so that a client that is still sending gets to the response

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

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        limit = self._body_limit(scope["path"], headers.get("content-type", ""))
        limited = _LimitedBody(receive, limit)
        refused = self._refused(scope, headers)
        length = headers.get("content-length", "")
        if refused is None and length.isdecimal() and int(length) > limit:
            refused = _too_many_bytes(limit)
        if refused is not None:
            self._count(refused.status_code)
            await limited.drain()
            await _respond(refused, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._count(message["status"])
                if message["status"] >= 400:
                    await limited.drain()
                message["headers"] = [*message["headers"], *_raw(_HEADERS)]
            await send(message)

        await self._app(scope, limited, send_guarded)

    def _refused(self, scope: Scope, headers: Headers) -> Refusal | None:
        path, method = scope["path"], scope["method"]
        if self._token is None and not is_loopback(_host(headers.get("host", ""))):
            # The name of another site may resolve to this machine.
            return Refusal(403, "this server answers to localhost only; set a token to use another name")
        if method not in _READ and not _same_origin(headers):
            return Refusal(403, "a page of another origin may not change anything here")
        if self._token is None or path in _OPEN or path.startswith("/static/"):
            return None
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), self._token.encode()):
            return None
        return Refusal(
            401, "a token is needed: Authorization: Bearer TOKEN", {"www-authenticate": 'Bearer realm="procon"'}
        )

    def _body_limit(self, path: str, kind: str) -> int:
        """Bytes that a route accepts; a form is written to disk file by file, any other body is held in memory."""
        if path == "/v1/models" or path.endswith("/partial_fit"):
            return self._limits.fit_bytes if kind.strip().lower().startswith("multipart/") else self._limits.body_bytes
        if path.endswith(("/predict", "/explain")):
            return self._limits.body_bytes
        return _SMALL_BODY


class _LimitedBody:
    """``receive`` that counts the bytes and refuses a body as soon as it is too large."""

    def __init__(self, receive: Receive, limit: int) -> None:
        self._receive, self._limit = receive, limit
        self._taken, self._ended = 0, False

    async def __call__(self) -> Message:
        message = await self._next()
        if self._taken > self._limit:
            raise _too_many_bytes(self._limit)
        return message

    async def _next(self) -> Message:
        message = await self._receive()
        self._taken += len(message.get("body", b""))
        self._ended = not message.get("more_body", False)  # also when the client disconnects
        return message

    async def drain(self) -> None:
        """Receive the rest of the body and drop it, up to a limit."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(5):
                while not self._ended and self._taken < self._limit + _DRAIN:
                    await self._next()


def _too_many_bytes(limit: int) -> Refusal:
    return Refusal(413, f"the body must have at most {limit:,} bytes")


def _same_origin(headers: Headers) -> bool:
    origin = headers.get("origin")
    if headers.get("sec-fetch-site") in ("cross-site", "same-site"):
        return False
    try:
        return origin is None or urlsplit(origin).netloc == headers.get("host")
    except ValueError:
        return False


def _host(value: str) -> str:
    """The name in a Host header, without the port."""
    return value.rpartition("]")[0].lstrip("[") if value.startswith("[") else value.partition(":")[0]


def _raw(headers: dict[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.encode(), value.encode()) for name, value in headers.items()]


async def _respond(refused: Refusal, send: Send) -> None:
    content = json.dumps({"error": refused.detail}).encode()
    headers: dict[str, Any] = {
        **_HEADERS,
        **(refused.headers or {}),
        "content-type": "application/json",
        "content-length": str(len(content)),
        "connection": "close",
    }
    await send({"type": "http.response.start", "status": refused.status_code, "headers": _raw(headers)})
    await send({"type": "http.response.body", "body": content})
