"""Where results go: a CSV file, a webhook, an MQTT broker. Each takes one event at a time and raises if it did not."""

import csv
import json
import os
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from procon.errors import ConfigError, MissingExtraError, ProconError

TIMEOUT = 10.0  # seconds that a receiver has to answer

CSV_COLUMNS = ("id", "time", "source", "score", "is_anomalous", "p_value", "threshold", "regions", "seconds", "error")


class SinkError(ProconError):
    """A receiver did not take an event; it will be tried again."""


class Sink(Protocol):
    """A receiver of events."""

    @property
    def name(self) -> str:
        """Its name in the outbox: the same after a restart."""

    def send(self, body: Mapping[str, Any]) -> None:
        """Hand over one event, or raise :class:`SinkError`."""

    def close(self) -> None:
        """Close connections."""


class CsvSink:
    """Appends a line for each event and waits until it is on disk."""

    def __init__(self, path: Path) -> None:
        if path.is_dir():
            raise ConfigError(f"--csv must be a file, got the folder {path}")
        self._path = path
        self.name = f"csv:{path.absolute()}"

    def send(self, body: Mapping[str, Any]) -> None:
        """Append one line; the file begins with the names of the columns."""
        line = {name: body.get(name) for name in CSV_COLUMNS} | {"regions": len(body.get("regions", ()))}
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a", newline="", encoding="utf-8") as stream:
                writer = csv.DictWriter(stream, CSV_COLUMNS)
                if stream.tell() == 0:
                    writer.writeheader()
                writer.writerow(line)
                stream.flush()
                os.fsync(stream.fileno())
        except OSError as error:
            raise SinkError(f"{self._path}: {error.strerror or error}") from None

    def close(self) -> None:
        """Nothing is held open."""


class WebhookSink:
    """Posts each event as JSON; any 2xx answer means that it was taken."""

    def __init__(self, url: str) -> None:
        if urllib.parse.urlsplit(url).scheme not in ("http", "https") or not urllib.parse.urlsplit(url).hostname:
            raise ConfigError(f"--webhook must be a URL that begins with http:// or https://, got {url!r}")
        self._url = url
        self.name = f"webhook:{url}"

    def send(self, body: Mapping[str, Any]) -> None:
        """POST one event; ``Idempotency-Key`` is its id."""
        headers = {"Content-Type": "application/json", "Idempotency-Key": str(body["id"]), "User-Agent": "procon"}
        request = urllib.request.Request(self._url, json.dumps(body).encode(), headers, method="POST")
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
                answer.read()
        except urllib.error.HTTPError as error:
            error.close()
            raise SinkError(f"{self._url}: answered {error.code} {error.reason}") from None
        except (OSError, ValueError) as error:  # URLError, timeouts and broken answers are OSErrors
            raise SinkError(f"{self._url}: {getattr(error, 'reason', error)}") from None

    def close(self) -> None:
        """Nothing is held open."""


class MqttSink:
    """Publishes each event with quality of service 1 and waits for the broker to confirm it."""

    def __init__(self, url: str) -> None:
        """``mqtt://[user:password@]host[:port]/topic``; ``mqtts`` for TLS."""
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("mqtt", "mqtts") or not parts.hostname or not parts.path.strip("/"):
            raise ConfigError(f"--mqtt must be mqtt://HOST/TOPIC or mqtts://HOST/TOPIC, got {url!r}")
        try:
            from paho.mqtt import client as paho
        except ImportError:
            raise MissingExtraError("--mqtt needs paho-mqtt; install it with: pip install 'procon[mqtt]'") from None
        self._paho = paho
        self._place = parts.hostname, parts.port or (8883 if parts.scheme == "mqtts" else 1883)
        self._topic = parts.path.strip("/")
        self._login = parts.username, parts.password
        self._secure = parts.scheme == "mqtts"
        self._client: Any = None
        self.name = f"mqtt://{parts.hostname}:{self._place[1]}/{self._topic}"

    def send(self, body: Mapping[str, Any]) -> None:
        """Publish one event; a lost connection is opened again."""
        try:
            client = self._connected()
            message = client.publish(self._topic, json.dumps(body), qos=1)
            message.wait_for_publish(TIMEOUT)
            if not message.is_published():
                raise SinkError(f"{self.name}: the broker did not confirm within {TIMEOUT:g} seconds")
        except (OSError, ValueError, RuntimeError) as error:
            self.close()
            raise SinkError(f"{self.name}: {error}") from None
        except SinkError:
            self.close()
            raise

    def _connected(self) -> Any:
        if self._client is not None and self._client.is_connected():
            return self._client
        self.close()
        client = self._paho.Client(self._paho.CallbackAPIVersion.VERSION2)
        if self._login[0]:
            client.username_pw_set(*self._login)
        if self._secure:
            client.tls_set()
        client.connect_timeout = TIMEOUT
        client.connect(*self._place)
        client.loop_start()
        self._client = client
        return client

    def close(self) -> None:
        """Disconnect."""
        if self._client is not None:
            self._client.disconnect()
            self._client.loop_stop()
            self._client = None
