"""One SQLite file with jobs, verdicts and feedback; accepted data is on disk before the response is sent."""

import json
import sqlite3
import threading
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from procon.errors import ModelFileError

StoreRow = dict[str, Any]
LIVE = ("queued", "running", "finishing")  # states of a job that has not ended

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
_VERDICTS = (
    "SELECT v.id, v.model, v.revision, v.at, v.name, v.digest, v.width, v.height, v.score, v.p_value, v.threshold, "
    "v.is_anomalous, v.regions, p.digest IS NOT NULL AS has_image, f.id AS feedback, f.label AS label, "
    "f.state AS feedback_state, f.reason AS feedback_reason, f.score_after AS score_after FROM verdicts v "
    "LEFT JOIN parts p ON p.digest = v.digest LEFT JOIN feedback f ON f.model = v.model AND f.digest = v.digest"
)


class Store:
    """The database. Methods may be called from any thread."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = threading.Lock()
        # A power failure may lose verdicts (a crash of the process does not), but never jobs and feedback.
        self._safe, self._quick = _connect(path, "FULL"), _connect(path, "NORMAL")
        (version,) = self._safe.execute("PRAGMA user_version").fetchone()
        if version not in (0, _VERSION):
            raise ModelFileError(f"{path}: was written by another release (format {version}); move it away")
        if version == 0:  # a disk may be full when the server starts again
            self._safe.executescript(f"BEGIN; {_SCHEMA} PRAGMA user_version = {_VERSION}; COMMIT;")

    def close(self) -> None:
        """Write the log into the file and close it."""
        with self._lock:
            self._quick.close()
            self._safe.close()

    def check_writable(self) -> None:
        """Write into the database, as a test; an sqlite3.Error says why that fails."""
        with self._lock, self._safe as connection:
            connection.execute("BEGIN IMMEDIATE")  # so that nothing is left of a write that fails
            connection.execute("CREATE TABLE probe (bytes BLOB)")
            connection.execute("INSERT INTO probe VALUES (zeroblob(65536))")
            connection.execute("DROP TABLE probe")

    def _write(self, sql: str, *values: Any, connection: sqlite3.Connection | None = None) -> sqlite3.Cursor:
        """Run a statement; it is on disk when this returns, unless another connection is given."""
        with self._lock, connection or self._safe as chosen:
            return chosen.execute(sql, values)

    def _rows(self, sql: str, *values: Any) -> list[StoreRow]:
        with self._lock:
            return [_decode_row(row) for row in self._quick.execute(sql, values)]

    def _row(self, sql: str, *values: Any) -> StoreRow | None:
        return next(iter(self._rows(sql, *values)), None)

    # --------------------------------------------------------------------------------------------------- verdicts

    def add_verdict(self, verdict: StoreRow, image: tuple[str, int] | None = None) -> int:
        """Store a verdict, given by column, and return its number.

        ``image`` is the ending and the size in bytes of its image file, if that is stored.
        """
        row = {**verdict, "regions": json.dumps(verdict["regions"]), "at": time.time()}
        with self._lock, self._quick as connection:
            sql = f"INSERT INTO verdicts ({', '.join(row)}) VALUES ({_marks(row)})"
            cursor = connection.execute(sql, list(row.values()))
            if image is not None:
                connection.execute(
                    "INSERT INTO parts (digest, ending, bytes, at) VALUES (?, ?, ?, ?) "
                    "ON CONFLICT (digest) DO UPDATE SET at = excluded.at",
                    [row["digest"], *image, row["at"]],
                )
        return int(cursor.lastrowid or 0)

    def verdicts(
        self, model: str, limit: int, before: int | None = None, above: float = -1e300, unseen: bool = False
    ) -> list[StoreRow]:
        """Verdicts of a model, latest first; only those ``above`` a score, or ``unseen`` by a person."""
        where = "v.model = ? AND v.id < ? AND v.score > ? AND (f.id IS NULL OR NOT ?)"
        sql = f"{_VERDICTS} WHERE {where} ORDER BY v.id DESC LIMIT ?"
        return self._rows(sql, model, before or 2**62, above, unseen, limit)

    def verdict(self, number: int) -> StoreRow | None:
        """One verdict."""
        return self._row(f"{_VERDICTS} WHERE v.id = ?", number)

    def thumbnail(self, number: int) -> bytes | None:
        """The small picture of a verdict."""
        row = self._row("SELECT thumbnail FROM verdicts WHERE id = ?", number)
        return bytes(row["thumbnail"]) if row else None

    def counts(self, model: str, threshold: float | None) -> tuple[int, int]:
        """How many verdicts a model has, and how many of those above the threshold wait for a person."""
        sql = (
            "SELECT COUNT(*) AS total, COALESCE(SUM(v.score > ? AND f.id IS NULL), 0) AS waiting FROM verdicts v "
            "LEFT JOIN feedback f ON f.model = v.model AND f.digest = v.digest WHERE v.model = ?"
        )
        (row,) = self._rows(sql, threshold if threshold is not None else 1e300, model)
        return int(row["total"]), int(row["waiting"])

    def image_ending(self, digest: str) -> str | None:
        """The file ending of a stored image."""
        row = self._row("SELECT ending FROM parts WHERE digest = ?", digest)
        return str(row["ending"]) if row else None

    def prune(self, most_bytes: int, most_verdicts: int) -> list[tuple[str, str]]:
        """Delete the oldest rows beyond these limits; returns (digest, ending) of image files no longer needed."""
        unused: list[tuple[str, str]] = []
        images = self._rows("SELECT digest, ending, bytes FROM parts ORDER BY at")
        total = sum(row["bytes"] for row in images)
        for row in images:
            if total <= most_bytes:
                break
            unused.append((row["digest"], row["ending"]))
            self._write("DELETE FROM parts WHERE digest = ?", row["digest"], connection=self._quick)
            total -= row["bytes"]
        oldest = "SELECT id FROM verdicts ORDER BY id DESC LIMIT 1 OFFSET ?"
        self._write(f"DELETE FROM verdicts WHERE id <= ({oldest})", most_verdicts, connection=self._quick)
        return unused

    # ------------------------------------------------------------------------------------------------- whole models

    def knows(self, model: str) -> bool:
        """Whether there are verdicts or feedback of a model."""
        sql = "SELECT 1 FROM verdicts WHERE model = ? UNION ALL SELECT 1 FROM feedback WHERE model = ? LIMIT 1"
        return self._row(sql, model, model) is not None

    def is_busy(self, model: str) -> bool:
        """Whether a job of a model, or feedback that its memory has yet to take in, is waiting."""
        waiting = any(self.feedback_in(state, model) for state in ("pending", "forgetting"))
        return waiting or any(job["model"] == model for job in self.jobs(limit=1000, states=LIVE))

    def rename_model(self, old: str, new: str, training: Path) -> None:
        """Give everything of a model to the name ``new``; ``training`` is the folder of all training images."""
        prefix, target = f"{training / old}/", f"{training / new}/"
        with self._lock, self._safe as connection:
            connection.execute("UPDATE verdicts SET model = ? WHERE model = ?", (new, old))
            connection.execute(
                "UPDATE feedback SET model = ?, file = CASE WHEN substr(file, 1, ?) = ? "
                "THEN ? || substr(file, ?) ELSE file END WHERE model = ?",
                (new, len(prefix), prefix, target, len(prefix) + 1, old),
            )
            for row in connection.execute("SELECT id, settings FROM jobs WHERE model = ?", (old,)).fetchall():
                settings = json.loads(row["settings"])
                if "folder" in settings:
                    settings["folder"] = f"{new}/{Path(settings['folder']).name}"
                update = "UPDATE jobs SET model = ?, settings = ? WHERE id = ?"
                connection.execute(update, (new, json.dumps(settings), row["id"]))

    def drop_model(self, model: str) -> list[tuple[str, str]]:
        """Delete verdicts and feedback of a model; returns (digest, ending) of image files no longer needed."""
        unused = "digest NOT IN (SELECT digest FROM verdicts)"
        with self._lock, self._safe as connection:
            connection.execute("DELETE FROM verdicts WHERE model = ?", (model,))
            connection.execute("DELETE FROM feedback WHERE model = ?", (model,))
            rows = connection.execute(f"SELECT digest, ending FROM parts WHERE {unused}").fetchall()
            connection.execute(f"DELETE FROM parts WHERE {unused}")
        return [(row["digest"], row["ending"]) for row in rows]

    # --------------------------------------------------------------------------------------------------- feedback

    def add_feedback(
        self, model: str, label: str, digest: str, file: Path | None, verdict: int | None, score: float | None
    ) -> int:
        """Store what a person said about an image and return its number; the same label again changes nothing.

        With a ``file``, the image is to be learned.
        """
        sql = (
            "INSERT INTO feedback (model, verdict, label, digest, file, at, state, score_before) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (model, digest) DO UPDATE SET label = excluded.label, "
            "file = excluded.file, at = excluded.at, state = excluded.state, reason = NULL, "
            "verdict = COALESCE(excluded.verdict, verdict) WHERE label != excluded.label OR state = 'failed'"
        )
        state = "pending" if file else "noted"
        self._write(sql, model, verdict, label, digest, file and str(file), time.time(), state, score)
        (row,) = self._rows("SELECT id FROM feedback WHERE model = ? AND digest = ?", model, digest)
        return int(row["id"])

    def feedback(self, number: int) -> StoreRow | None:
        """One piece of feedback."""
        return self._row("SELECT * FROM feedback WHERE id = ?", number)

    def feedback_in(self, state: str, model: str | None = None) -> list[StoreRow]:
        """Feedback in a state, of one model or of all."""
        sql = "SELECT * FROM feedback WHERE state = ? AND model = COALESCE(?, model) ORDER BY id"
        return self._rows(sql, state, model)

    def settle_feedback(
        self, number: int, state: str, reason: str | None = None, score: float | None = None, *, only: str
    ) -> None:
        """Move feedback to another state if it is still in state ``only``: it may have been withdrawn meanwhile."""
        sql = "UPDATE feedback SET state = ?, reason = ?, score_after = ? WHERE id = ? AND state = ?"
        self._write(sql, state, reason, score, number, only)

    def drop_feedback(self, number: int, only: str) -> None:
        """Delete feedback if it is in state ``only``."""
        self._write("DELETE FROM feedback WHERE id = ? AND state = ?", number, only)

    # ------------------------------------------------------------------------------------------------------- jobs

    def add_job(self, kind: str, model: str, settings: dict[str, Any]) -> int:
        """Store a job and return its number."""
        sql = "INSERT INTO jobs (kind, model, state, at, settings) VALUES (?, ?, 'queued', ?, ?)"
        return int(self._write(sql, kind, model, time.time(), json.dumps(settings)).lastrowid or 0)

    def job(self, number: int) -> StoreRow | None:
        """One job."""
        return self._row("SELECT * FROM jobs WHERE id = ?", number)

    def jobs(self, limit: int = 100, states: Sequence[str] = ()) -> list[StoreRow]:
        """Jobs, latest first; only those in ``states`` if any are given."""
        where = f"WHERE state IN ({_marks(states)})" if states else ""
        return self._rows(f"SELECT * FROM jobs {where} ORDER BY id DESC LIMIT ?", *states, limit)

    def move_job(
        self, number: int, state: str, reason: str | None = None, *, attempt: bool = False, only: Sequence[str] = LIVE
    ) -> bool:
        """Move a job to another state if it is in one of the states ``only``; returns whether it was."""
        finished = None if state in LIVE else time.time()
        sql = (
            "UPDATE jobs SET state = ?, reason = ?, finished = ?, attempts = attempts + ? "
            f"WHERE id = ? AND state IN ({_marks(only)})"
        )
        return self._write(sql, state, reason, finished, int(attempt), number, *only).rowcount > 0


def _marks(values: Collection[Any]) -> str:
    return ", ".join("?" * len(values))


def _decode_row(row: sqlite3.Row) -> StoreRow:
    """A row with JSON columns parsed and flags as booleans."""
    values = dict(row)
    for name, decode in (
        ("regions", json.loads),
        ("settings", json.loads),
        ("is_anomalous", bool),
        ("has_image", bool),
    ):
        if values.get(name) is not None:
            values[name] = decode(values[name])
    return values


def _connect(path: Path, synchronous: str) -> sqlite3.Connection:
    connection = sqlite3.connect(path, check_same_thread=False, timeout=10)
    connection.row_factory = sqlite3.Row
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute(f"PRAGMA synchronous = {synchronous}")
    return connection
