"""Results that have not reached their receivers yet, on disk: written with the image, removed when all have them."""

import json
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import RLock
from typing import Any, Literal

from procon.errors import ConfigError, ProconError
from procon.names import show_name

_TABLES = """
CREATE TABLE IF NOT EXISTS events (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT UNIQUE NOT NULL,
    body TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS deliveries (
    event INTEGER NOT NULL REFERENCES events (number),
    sink TEXT NOT NULL,
    attempts INTEGER NOT NULL DEFAULT 0,
    due REAL NOT NULL DEFAULT 0,
    error TEXT,
    PRIMARY KEY (sink, event)
);
CREATE TABLE IF NOT EXISTS seen (path TEXT NOT NULL, size INTEGER, mtime INTEGER, PRIMARY KEY (path, size, mtime));
CREATE TABLE IF NOT EXISTS runs (number INTEGER PRIMARY KEY, ended INTEGER NOT NULL);
"""
_REMEMBER = "INSERT OR IGNORE INTO seen VALUES (?, ?, ?)"

Ending = Literal["first", "stopped", "killed"]
"""Of the run before this one: there was none, it was stopped, or it was killed or lost its power."""
Key = tuple[str, int, int]
"""Path, size and modification time (nanoseconds) of an image that was scored."""


@dataclass(frozen=True)
class Pending:
    """An event that a receiver does not have yet."""

    number: int
    body: Mapping[str, Any]
    attempts: int
    due: float  # seconds since the epoch before which it is not tried again


class OutboxError(ProconError):
    """The outbox cannot be read or written now, for example because the disk is full."""


class Outbox:
    """An SQLite file (write-ahead log, synchronous) that any thread of one process may use."""

    def __init__(self, path: Path) -> None:
        self.is_new = not path.exists()
        self._path, self._lock = path, RLock()
        self._held: set[str] = set()  # ids of events that no sink may have yet
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._base = sqlite3.connect(path, check_same_thread=False, isolation_level=None, timeout=1)
            self._base.execute("PRAGMA journal_mode = WAL")
            self._base.execute("PRAGMA synchronous = FULL")  # a result survives a power cut
            # One watcher per file: two would deliver everything twice.
            self._base.execute("PRAGMA locking_mode = EXCLUSIVE")
            self._base.executescript(_TABLES)
            self._base.execute("BEGIN IMMEDIATE")
            self._base.execute("COMMIT")
        except sqlite3.OperationalError as error:
            remedy = "is another watcher using it?" if "locked" in str(error) else "check the path and the free space"
            raise ConfigError(f"{show_name(path)}: cannot be used as an outbox ({error}); {remedy}") from None
        except sqlite3.DatabaseError as error:
            raise ConfigError(f"{show_name(path)}: is no outbox ({error}); name another file with --outbox") from None

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """All statements of the block take effect, or none."""
        try:
            with self._lock, self._base:
                self._base.execute("BEGIN IMMEDIATE")
                yield self._base
        except sqlite3.Error as error:
            raise OutboxError(f"{show_name(self._path)}: {error}; check the disk and its free space") from None

    def add(
        self,
        body: Mapping[str, Any],
        sinks: Sequence[str],
        key: Key | None = None,
        *,
        hold: bool = False,
        unless: Callable[[], bool] = lambda: False,
    ) -> None:
        """Store an event for ``sinks`` and that its image is done, both or neither; an id is stored once.

        With ``hold`` it is on disk, and waits for :meth:`release`; until then it may be stored again with another body.
        ``unless`` is asked while nobody else can write; if it is true, nothing is stored.
        """
        event_id, text = str(body["id"]), json.dumps(body)
        with self._lock:
            if unless():
                return
            with self._transaction() as base:
                inserted = base.execute("INSERT OR IGNORE INTO events (id, body) VALUES (?, ?)", (event_id, text))
                if inserted.rowcount:
                    rows = [(inserted.lastrowid, sink) for sink in sinks]
                    base.executemany("INSERT INTO deliveries (event, sink) VALUES (?, ?)", rows)
                elif event_id in self._held:
                    base.execute("UPDATE events SET body = ? WHERE id = ?", (text, event_id))
                if key is not None:
                    base.execute(_REMEMBER, _to_row(key))
                if hold and inserted.rowcount:
                    self._held.add(event_id)
            if not hold:
                self._held.discard(event_id)

    def release(self, event_id: str) -> None:
        """Let the sinks have an event that was held. A process that ends before this has released it, too."""
        with self._lock:
            self._held.discard(event_id)

    def remember(self, keys: Iterable[Key]) -> None:
        """Store that these images are done, without an event."""
        with self._transaction() as base:
            base.executemany(_REMEMBER, map(_to_row, keys))

    def is_done(self, key: Key) -> bool:
        """Whether this image is done."""
        query = "SELECT 1 FROM seen WHERE path = ? AND size = ? AND mtime = ?"
        with self._transaction() as base:
            return base.execute(query, _to_row(key)).fetchone() is not None

    def next_event(self, sink: str) -> Pending | None:
        """The oldest event that ``sink`` does not have: events go out in the order they came in."""
        query = (
            "SELECT event, body, attempts, due, id FROM deliveries JOIN events ON number = event "
            "WHERE sink = ? ORDER BY event LIMIT 1"
        )
        with self._transaction() as base:
            row = base.execute(query, (sink,)).fetchone()
            if row is None or row[4] in self._held:  # the order is kept: what is behind it waits as well
                return None
        return Pending(row[0], json.loads(row[1]), row[2], row[3])

    def mark_delivered(self, sink: str, number: int) -> None:
        """Note that ``sink`` has the event; once all have, the event is removed."""
        with self._transaction() as base:
            base.execute("DELETE FROM deliveries WHERE sink = ? AND event = ?", (sink, number))
            query = "DELETE FROM events WHERE number = ? AND number NOT IN (SELECT event FROM deliveries)"
            base.execute(query, (number,))

    def mark_failed(self, sink: str, number: int, due: float, error: str) -> None:
        """Note that ``sink`` did not take the event; it is tried again when it is ``due``."""
        query = "UPDATE deliveries SET attempts = attempts + 1, due = ?, error = ? WHERE sink = ? AND event = ?"
        with self._transaction() as base:
            base.execute(query, (due, error, sink, number))

    def pending(self) -> dict[str, int]:
        """How many events each sink does not have yet."""
        with self._transaction() as base:
            return dict(base.execute("SELECT sink, COUNT(*) FROM deliveries GROUP BY sink").fetchall())

    def begin_run(self) -> Ending:
        """Note that a process works with this file; gives how the one before it ended."""
        with self._transaction() as base:
            last = base.execute("SELECT ended FROM runs ORDER BY number DESC LIMIT 1").fetchone()
            base.execute("DELETE FROM runs")
            base.execute("INSERT INTO runs (ended) VALUES (0)")
        return "first" if last is None else "stopped" if last[0] else "killed"

    def end_run(self) -> None:
        """Note that the process stopped as it was told to."""
        with self._transaction() as base:
            base.execute("UPDATE runs SET ended = 1")

    def close(self) -> None:
        """Close the file; nothing is lost by not doing so."""
        with self._lock:
            self._base.close()


def _to_row(key: Key) -> tuple[str | bytes, int, int]:
    """The key as it is stored: a path that is not UTF-8 as its bytes."""
    path = os.fsencode(key[0])
    try:
        return (path.decode(), *key[1:])
    except UnicodeDecodeError:
        return (path, *key[1:])
