"""Where results go: a CSV file, a webhook, an MQTT broker. Each takes one event at a time and raises if it did not."""

import base64
import csv
import http.client
import io
import json
import os
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Timer
from typing import Any, Protocol
from urllib.parse import SplitResult, unquote, urlsplit

from procon.errors import ConfigError, MissingExtraError, ProconError
from procon.names import show_name

TIMEOUT = 10.0  # seconds that a receiver has to answer

CSV_COLUMNS = ("id", "time", "source", "score", "is_anomalous", "p_value", "threshold", "regions", "seconds", "error")
LINE_COLUMNS = (*CSV_COLUMNS, "kind", "station", "part", "verdict", "model")


class SinkError(ProconError):
    """A receiver did not take an event; it will be tried again."""


class Sink(Protocol):
    """A receiver of events."""

    @property
    def name(self) -> str:
        """Its name in the outbox: the same after a restart."""

    def send(self, body: Mapping[str, Any]) -> None:
        """Hand over one event; any exception means that it was not taken."""

    def close(self) -> None:
        """Close connections."""


class CsvSink:
    """Appends a line for each event and waits until it is on disk."""

    def __init__(self, path: Path, columns: Sequence[str] = CSV_COLUMNS, *, label: str = "--csv") -> None:
        if path.is_dir():
            raise ConfigError(f"{label} must be a file, got the folder {show_name(path)}")
        if path.exists() and not path.is_file():
            raise ConfigError(f"{label} must be a file, got {show_name(path)}, which is a pipe or a device")
        self._path, self._columns = path, columns
        self.name = f"csv:{show_name(path.absolute())}"

    def send(self, body: Mapping[str, Any]) -> None:
        """Append one line, or nothing; the file begins with the names of the columns."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a+b", buffering=0) as stream:
                size = stream.seek(0, os.SEEK_END)
                text = io.StringIO(newline="")
                writer = csv.DictWriter(text, self._columns, extrasaction="ignore")
                if size == 0:
                    writer.writeheader()
                elif not _ends_with_newline(stream, size):  # a line that a power cut left incomplete
                    text.write("\r\n")
                error = body.get("error", body.get("message"))  # of what is no result
                writer.writerow({**body, "error": error, "regions": len(body.get("regions", ()))})
                try:
                    _write_all(stream, text.getvalue().encode())
                    os.fsync(stream.fileno())
                except OSError:
                    stream.truncate(size)  # a full disk takes part of a line
                    raise
        except OSError as error:
            raise SinkError(f"{show_name(self._path)}: {error.strerror or error}") from None

    def close(self) -> None:
        """Nothing is held open."""


def _ends_with_newline(stream: io.FileIO, size: int) -> bool:
    stream.seek(size - 1)
    return stream.read(1) == b"\n"


def _write_all(stream: io.FileIO, data: bytes) -> None:
    while data:
        data = data[stream.write(data) :]


class WebhookSink:
    """Posts each event as JSON; any 2xx answer means that it was taken."""

    def __init__(self, url: str, *, label: str = "--webhook") -> None:
        self._parts, self._port = _parse_address(label, url, {"http": 80, "https": 443}, "PATH")
        login, at, _ = self._parts.netloc.rpartition("@")
        self._url = url.replace(login + at, "", 1)  # what the log and the outbox show: no password
        self.name = f"webhook:{self._url}"

    def send(self, body: Mapping[str, Any]) -> None:
        """POST one event; ``Idempotency-Key`` is its id. The answer must be complete within :data:`TIMEOUT`."""
        headers = {"Content-Type": "application/json", "Idempotency-Key": str(body["id"]), "User-Agent": "procon"}
        if self._parts.username is not None:
            login = f"{unquote(self._parts.username)}:{unquote(self._parts.password or '')}"
            headers["Authorization"] = f"Basic {base64.b64encode(login.encode()).decode()}"
        secure = self._parts.scheme == "https"
        opened = http.client.HTTPSConnection if secure else http.client.HTTPConnection
        connection = opened(str(self._parts.hostname), self._port, timeout=TIMEOUT)
        target = (self._parts.path or "/") + (f"?{self._parts.query}" if self._parts.query else "")
        deadline = Timer(TIMEOUT, _disconnect, (connection,))  # the timeout of a socket restarts with every byte
        deadline.daemon = True
        try:
            connection.connect()
            deadline.start()
            connection.request("POST", target, json.dumps(body).encode(), headers)
            answer = connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            reason = str(error) or type(error).__name__
            raise SinkError(f"{self._url}: no answer that is HTTP within {TIMEOUT:g} seconds ({reason})") from None
        finally:
            deadline.cancel()
            connection.close()
        if not 200 <= answer.status < 300:
            hint = "; redirects are not followed" if 300 <= answer.status < 400 else ""
            raise SinkError(f"{self._url}: answered {answer.status} {answer.reason}{hint}")

    def close(self) -> None:
        """Nothing is held open."""


def _disconnect(connection: http.client.HTTPConnection) -> None:
    with suppress(OSError, AttributeError):  # closed in the meantime
        connection.sock.shutdown(socket.SHUT_RDWR)


class MqttSink:
    """Publishes each event with quality of service 1 and waits for the broker to confirm it."""

    def __init__(self, url: str, *, label: str = "--mqtt") -> None:
        """``mqtt://[user:password@]host[:port]/topic``; ``mqtts`` for TLS."""
        self._parts, self._port = _parse_address(label, url, {"mqtt": 1883, "mqtts": 8883}, "TOPIC")
        self._topic = self._parts.path.strip("/")
        try:
            from paho.mqtt import client as paho
        except ImportError:
            raise MissingExtraError(f"{label} needs paho-mqtt; install it with: pip install 'procon[mqtt]'") from None
        self._paho = paho
        self._client: Any = None
        self.name = f"mqtt://{self._parts.hostname}:{self._port}/{self._topic}"

    def send(self, body: Mapping[str, Any]) -> None:
        """Publish one event; a lost connection is opened again."""
        try:
            message = self._connected().publish(self._topic, json.dumps(body), qos=1)
            message.wait_for_publish(TIMEOUT)
            if not message.is_published():
                raise TimeoutError(f"the broker did not confirm within {TIMEOUT:g} seconds")
        except Exception as error:
            self.close()
            raise SinkError(f"{self.name}: {error}") from None

    def _connected(self) -> Any:
        if self._client is not None and self._client.is_connected():
            return self._client
        self.close()
        client = self._paho.Client(self._paho.CallbackAPIVersion.VERSION2)
        if self._parts.username is not None:
            client.username_pw_set(unquote(self._parts.username), unquote(self._parts.password or ""))
        if self._parts.scheme == "mqtts":
            client.tls_set()
        client.connect_timeout = TIMEOUT
        client.connect(self._parts.hostname, self._port)
        client.loop_start()
        self._client = client
        return client

    def close(self) -> None:
        """Disconnect."""
        client, self._client = self._client, None
        if client is not None:
            client.disconnect()
            client.loop_stop()


def _parse_address(flag: str, url: str, ports: Mapping[str, int], path: str) -> tuple[SplitResult, int]:
    """The parts of an address and its port; ``ports`` are those of the schemes that it may have."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
        problems = {
            "it has spaces or characters other than ASCII": " " in url or not (url.isascii() and url.isprintable()),
            f"its scheme is {parts.scheme!r}": parts.scheme not in ports,
            "it has no host": not host,
            "port 0 cannot be reached": port == 0,
            "it has no topic": path == "TOPIC" and not parts.path.strip("/"),
            "a topic has no '+', '#' and '?'": path == "TOPIC" and bool(set("+#?") & set(url)),
        }
        for problem, applies in problems.items():
            if applies:
                raise ValueError(problem)
        str(host).encode("idna")  # refuses empty and overlong labels, as a connection would
    except ValueError as error:
        expected = " or ".join(f"{scheme}://HOST/{path}" for scheme in ports)
        raise ConfigError(f"{flag} must be {expected}, got {url!r}: {error}") from None
    return parts, port or ports[parts.scheme]
