"""One SQLite file: jobs, verdicts and feedback. What was accepted is on the disk before the answer leaves."""

import json
import sqlite3
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from procon.errors import ModelFileError

_SCHEMA = """
CREATE TABLE IF NOT EXISTS verdicts (
    id INTEGER PRIMARY KEY AUTOINCREMENT, model TEXT NOT NULL, revision TEXT NOT NULL, at REAL NOT NULL,
    name TEXT NOT NULL, digest TEXT NOT NULL, width INTEGER NOT NULL, height INTEGER NOT NULL, score REAL NOT NULL,
    p_value REAL, threshold REAL, is_anomalous INTEGER, regions TEXT NOT NULL, thumbnail BLOB NOT NULL);
CREATE INDEX IF NOT EXISTS verdicts_by_model ON verdicts (model, id);
CREATE TABLE IF NOT EXISTS parts (
    digest TEXT PRIMARY KEY, ending TEXT NOT NULL, bytes INTEGER NOT NULL, at REAL NOT NULL);
CREATE TABLE IF NOT EXISTS feedback (
    id INTEGER PRIMARY KEY AUTOINCREMENT, model TEXT NOT NULL, verdict INTEGER, label TEXT NOT NULL,
    digest TEXT NOT NULL, file TEXT, at REAL NOT NULL, state TEXT NOT NULL, reason TEXT,
    score_before REAL, score_after REAL, UNIQUE (model, digest));
CREATE INDEX IF NOT EXISTS feedback_by_verdict ON feedback (verdict);
CREATE TABLE IF NOT EXISTS jobs (
    id INTEGER PRIMARY KEY AUTOINCREMENT, kind TEXT NOT NULL, model TEXT NOT NULL, state TEXT NOT NULL,
    at REAL NOT NULL, finished REAL, attempts INTEGER NOT NULL DEFAULT 0, reason TEXT, settings TEXT NOT NULL);
"""
_VERSION = 1

LIVE = ("queued", "running", "finishing")
"""States of a job that is not over."""


@dataclass(frozen=True)
class Scored:
    """What is kept of one scored image."""

    model: str
    revision: str
    name: str
    digest: str
    width: int
    height: int
    score: float
    p_value: float | None
    threshold: float | None
    is_anomalous: bool | None
    regions: Sequence[dict[str, Any]]
    thumbnail: bytes


class Store:
    """The database. Methods may be called from any thread."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Verdicts may be lost when the power fails, though not when the process dies; jobs and feedback never.
        self._lock = threading.Lock()
        self._safe, self._quick = _connect(path, "FULL"), _connect(path, "NORMAL")
        (found,) = self._safe.execute("PRAGMA user_version").fetchone()
        if found not in (0, _VERSION):
            raise ModelFileError(f"{path}: was written by another release (format {found}); move it away")
        self._safe.executescript(f"BEGIN; {_SCHEMA} PRAGMA user_version = {_VERSION}; COMMIT;")

    def close(self) -> None:
        """Write what is left in the log into the file."""
        with self._lock:
            self._quick.close()
            self._safe.close()

    def _write(self, connection: sqlite3.Connection, sql: str, values: Sequence[Any] = ()) -> int:
        with self._lock, connection:
            cursor = connection.execute(sql, values)
            return int(cursor.lastrowid or 0) if sql.startswith("INSERT") else cursor.rowcount

    def _rows(self, sql: str, values: Sequence[Any] = ()) -> list[dict[str, Any]]:
        with self._lock:
            return [dict(row) for row in self._quick.execute(sql, values)]

    # --------------------------------------------------------------------------------------------------- verdicts

    def add_verdict(self, scored: Scored, kept: tuple[str, int] | None = None) -> int:
        """Keep a verdict; its number. ``kept`` is the ending and the size in bytes of its image, where that is kept."""
        now = time.time()
        values = {**vars(scored), "regions": json.dumps(list(scored.regions)), "at": now}
        names = ", ".join(values)
        marks = ", ".join("?" * len(values))
        with self._lock, self._quick as connection:
            cursor = connection.execute(f"INSERT INTO verdicts ({names}) VALUES ({marks})", list(values.values()))
            if kept is not None:
                connection.execute(
                    "INSERT INTO parts (digest, ending, bytes, at) VALUES (?, ?, ?, ?) "
                    "ON CONFLICT (digest) DO UPDATE SET at = excluded.at",
                    [scored.digest, *kept, now],
                )
        return int(cursor.lastrowid or 0)

    def verdicts(
        self, model: str, limit: int, before: int | None = None, above: float | None = None, unseen: bool = False
    ) -> list[dict[str, Any]]:
        """Verdicts of a model, latest first; ``above`` a score, or ``unseen`` by a person."""
        where, values = ["v.model = ?"], [model]
        if before is not None:
            where, values = [*where, "v.id < ?"], [*values, before]  # type: ignore[list-item]
        if above is not None:
            where, values = [*where, "v.score > ?"], [*values, above]  # type: ignore[list-item]
        if unseen:
            where.append("f.id IS NULL")
        rows = self._rows(f"{_VERDICTS} WHERE {' AND '.join(where)} ORDER BY v.id DESC LIMIT ?", [*values, limit])
        return [_verdict(row) for row in rows]

    def verdict(self, number: int) -> dict[str, Any] | None:
        """One verdict."""
        rows = self._rows(f"{_VERDICTS} WHERE v.id = ?", [number])
        return _verdict(rows[0]) if rows else None

    def thumbnail(self, number: int) -> bytes | None:
        """The small picture of a verdict."""
        rows = self._rows("SELECT thumbnail FROM verdicts WHERE id = ?", [number])
        return bytes(rows[0]["thumbnail"]) if rows else None

    def counts(self, model: str, threshold: float | None) -> tuple[int, int]:
        """How many verdicts a model has, and how many above the threshold wait for a person."""
        sql = (
            "SELECT COUNT(*) AS every, COALESCE(SUM(v.score > ? AND f.id IS NULL), 0) AS waiting FROM verdicts v "
            "LEFT JOIN feedback f ON f.model = v.model AND f.digest = v.digest WHERE v.model = ?"
        )
        row = self._rows(sql, [threshold if threshold is not None else 1e300, model])[0]
        return int(row["every"]), int(row["waiting"])

    def part(self, digest: str) -> str | None:
        """The ending of a kept image."""
        rows = self._rows("SELECT ending FROM parts WHERE digest = ?", [digest])
        return str(rows[0]["ending"]) if rows else None

    def prune(self, most_bytes: int, most_verdicts: int) -> list[tuple[str, str]]:
        """Forget the oldest beyond these limits; (digest, ending) of image files that are then not needed."""
        gone: list[tuple[str, str]] = []
        total = int(self._rows("SELECT COALESCE(SUM(bytes), 0) AS total FROM parts")[0]["total"])
        if total > most_bytes:
            for row in self._rows("SELECT digest, ending, bytes FROM parts ORDER BY at"):
                gone.append((row["digest"], row["ending"]))
                self._write(self._quick, "DELETE FROM parts WHERE digest = ?", [row["digest"]])
                total -= row["bytes"]
                if total <= most_bytes:
                    break
        self._write(
            self._quick,
            "DELETE FROM verdicts WHERE id <= (SELECT id FROM verdicts ORDER BY id DESC LIMIT 1 OFFSET ?)",
            [most_verdicts],
        )
        return gone

    # --------------------------------------------------------------------------------------------------- feedback

    def add_feedback(
        self, model: str, label: str, digest: str, file: Path | None, verdict: int | None, score: float | None
    ) -> int:
        """Keep what a person said about an image, on the disk; saying it again changes nothing.

        With a ``file`` it is to be learned.
        """
        state = "noted" if file is None else "pending"
        self._write(
            self._safe,
            "INSERT INTO feedback (model, verdict, label, digest, file, at, state, score_before) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (model, digest) DO UPDATE SET label = excluded.label, "
            "file = excluded.file, at = excluded.at, state = excluded.state, reason = NULL, "
            "verdict = COALESCE(excluded.verdict, verdict) WHERE label != excluded.label OR state = 'failed'",
            [model, verdict, label, digest, str(file) if file else None, time.time(), state, score],
        )
        row = self._rows("SELECT id FROM feedback WHERE model = ? AND digest = ?", [model, digest])[0]
        return int(row["id"])

    def feedback(self, number: int) -> dict[str, Any] | None:
        """One piece of feedback."""
        rows = self._rows("SELECT * FROM feedback WHERE id = ?", [number])
        return rows[0] if rows else None

    def feedback_in(self, states: Sequence[str], model: str | None = None) -> list[dict[str, Any]]:
        """Feedback in some states, of one model or of all."""
        marks = ", ".join("?" * len(states))
        where, values = ("", [*states]) if model is None else (" AND model = ?", [*states, model])
        return self._rows(f"SELECT * FROM feedback WHERE state IN ({marks}){where} ORDER BY id", values)

    def settle_feedback(
        self, number: int, state: str, reason: str | None = None, score: float | None = None, *, only: str
    ) -> None:
        """What became of a piece of feedback that is ``only`` in this state: it may have been taken back meanwhile."""
        self._write(
            self._safe,
            "UPDATE feedback SET state = ?, reason = ?, score_after = ? WHERE id = ? AND state = ?",
            [state, reason, score, number, only],
        )

    def drop_feedback(self, number: int, states: Sequence[str]) -> None:
        """Forget that something was said, if it is in one of ``states``."""
        marks = ", ".join("?" * len(states))
        self._write(self._safe, f"DELETE FROM feedback WHERE id = ? AND state IN ({marks})", [number, *states])

    # ------------------------------------------------------------------------------------------------------- jobs

    def add_job(self, kind: str, model: str, settings: dict[str, Any]) -> int:
        """Keep a job, on the disk."""
        return self._write(
            self._safe,
            "INSERT INTO jobs (kind, model, state, at, settings) VALUES (?, ?, 'queued', ?, ?)",
            [kind, model, time.time(), json.dumps(settings)],
        )

    def job(self, number: int) -> dict[str, Any] | None:
        """One job."""
        rows = self._rows("SELECT * FROM jobs WHERE id = ?", [number])
        return {**rows[0], "settings": json.loads(rows[0]["settings"])} if rows else None

    def jobs(self, limit: int = 100, states: Sequence[str] = ()) -> list[dict[str, Any]]:
        """Jobs, latest first; only those in ``states`` if any are named."""
        where = f"WHERE state IN ({', '.join('?' * len(states))})" if states else ""
        rows = self._rows(f"SELECT * FROM jobs {where} ORDER BY id DESC LIMIT ?", [*states, limit])
        return [{**row, "settings": json.loads(row["settings"])} for row in rows]

    def move_job(
        self, number: int, state: str, reason: str | None = None, *, attempt: bool = False, only: Sequence[str] = ()
    ) -> bool:
        """Put a job into another state, where ``only`` names states only from those; whether it was."""
        finished = None if state in LIVE else time.time()
        where = f" AND state IN ({', '.join('?' * len(only))})" if only else ""
        moved = self._write(
            self._safe,
            f"UPDATE jobs SET state = ?, reason = ?, finished = ?, attempts = attempts + ? WHERE id = ?{where}",
            [state, reason, finished, int(attempt), number, *only],
        )
        return moved > 0


_VERDICTS = (
    "SELECT v.id, v.model, v.revision, v.at, v.name, v.digest, v.width, v.height, v.score, v.p_value, v.threshold, "
    "v.is_anomalous, v.regions, p.digest IS NOT NULL AS has_image, f.id AS feedback, f.label AS label, "
    "f.state AS feedback_state, f.reason AS feedback_reason, f.score_after AS score_after FROM verdicts v "
    "LEFT JOIN parts p ON p.digest = v.digest LEFT JOIN feedback f ON f.model = v.model AND f.digest = v.digest"
)


def _verdict(row: dict[str, Any]) -> dict[str, Any]:
    flagged = row["is_anomalous"]
    return {
        **row,
        "regions": json.loads(row["regions"]),
        "is_anomalous": None if flagged is None else bool(flagged),
        "has_image": bool(row["has_image"]),
    }


def _connect(path: Path, synchronous: str) -> sqlite3.Connection:
    connection = sqlite3.connect(path, check_same_thread=False, timeout=10)
    connection.row_factory = sqlite3.Row
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute(f"PRAGMA synchronous = {synchronous}")
    return connection
