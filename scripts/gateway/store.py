"""Durable record of trials: which were taken, and how they ended. SQLite (WAL) in one file.

Guarantees:
- Once `insert` or `finish` has returned, its record survives the process.
- No credential is ever written. A payload is kept as a salted hash; of a task only a trajectory is kept, if it was
  asked for.
- A trajectory is there no later than the end it belongs to, and is dropped with its record.
- One thread does all the work, so that the event loop never waits for a disk, and writes keep their order.
"""

import asyncio
import json
import os
import secrets
import sqlite3
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

if TYPE_CHECKING:
    from gateway.trial_request import Snapshot

SCHEMA = """
CREATE TABLE IF NOT EXISTS trials (
    request_id TEXT PRIMARY KEY, digest TEXT NOT NULL, rollout_id TEXT NOT NULL,
    created REAL NOT NULL, ended REAL, snapshot TEXT);
CREATE INDEX IF NOT EXISTS by_end ON trials (ended);
CREATE TABLE IF NOT EXISTS trajectories (
    request_id TEXT PRIMARY KEY REFERENCES trials ON DELETE CASCADE, packed BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value BLOB NOT NULL);
"""


class Unreadable(Exception):
    """The file is damaged, or no trial store. It is left unchanged: the results in it are somebody's."""


def keep_private(path: Path) -> None:
    """Create the file before SQLite does, and close an existing one to others; they can never read it."""
    os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
    for name in (path, f"{path}-wal", f"{path}-shm"):
        if os.path.exists(name):
            os.chmod(name, 0o600)


class Store:
    """Trials by request id. `ended` and `created` are seconds since the epoch. Raises Unreadable."""

    def __init__(self, path: Path) -> None:
        keep_private(path)
        self._thread = ThreadPoolExecutor(1, "store")
        self._db = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        try:
            self._open()
        except sqlite3.DatabaseError as error:
            self.close()
            raise Unreadable(f"{path} is no trial store that can be used: {error}") from None

    def _open(self) -> None:
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=NORMAL")
        self._db.execute("PRAGMA foreign_keys=ON")
        if (result := self._db.execute("PRAGMA quick_check(1)").fetchone()[0]) != "ok":
            raise sqlite3.DatabaseError(result)
        self._db.executescript(SCHEMA)
        self._db.execute("INSERT OR IGNORE INTO meta VALUES ('salt', ?)", (secrets.token_bytes(32),))
        self.salt: bytes = self._db.execute("SELECT value FROM meta WHERE name = 'salt'").fetchone()[0]

    async def _run(self, sql: str, *values: Any) -> list[Any]:
        """Run one statement in the store's thread; its rows. Raises sqlite3.Error."""
        return await self._in_thread(lambda: self._db.execute(sql, values).fetchall())

    async def _in_thread(self, work: Callable[[], Any]) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    async def insert(self, request_id: str, digest: str, rollout_id: str, created: float) -> None:
        """Record a trial that was taken. Raises sqlite3.IntegrityError for a known id."""
        await self._run(
            "INSERT INTO trials (request_id, digest, rollout_id, created) VALUES (?, ?, ?, ?)",
            request_id, digest, rollout_id, created,
        )  # fmt: skip

    async def finish(self, request_id: str, snapshot: "Snapshot", ended: float) -> None:
        """Record how a trial ended; the first record stays."""
        await self._run(
            "UPDATE trials SET snapshot = ?, ended = ? WHERE request_id = ? AND snapshot IS NULL",
            json.dumps(snapshot), ended, request_id,
        )  # fmt: skip

    async def keep_trajectory(self, request_id: str, trajectory: dict[str, Any]) -> None:
        """Keep a trial's trajectory (JSON) for as long as its record; the first one stays."""
        await self._in_thread(
            lambda: self._db.execute(
                "INSERT OR IGNORE INTO trajectories VALUES (?, ?)",
                (request_id, zlib.compress(orjson.dumps(trajectory))),
            )
        )

    async def trajectory(self, request_id: str) -> dict[str, Any] | None:
        """The trajectory that was kept, or None."""
        rows = await self._run("SELECT packed FROM trajectories WHERE request_id = ?", request_id)
        return orjson.loads(zlib.decompress(rows[0][0])) if rows else None

    async def find(self, request_id: str) -> "tuple[str, Snapshot | None] | None":
        """(digest, snapshot or None) of a trial, or None."""
        rows = await self._run("SELECT digest, snapshot FROM trials WHERE request_id = ?", request_id)
        return (rows[0][0], json.loads(rows[0][1]) if rows[0][1] else None) if rows else None

    async def unfinished(self) -> list[tuple[str, str]]:
        """[(request id, rollout id)] of trials without an end."""
        return await self._run("SELECT request_id, rollout_id FROM trials WHERE snapshot IS NULL")

    async def count(self) -> int:
        """Number of ended trials on record."""
        return (await self._run("SELECT count(*) FROM trials WHERE snapshot IS NOT NULL"))[0][0]

    async def drop_before(self, moment: float) -> int:
        """Forget trials that ended before `moment`. Returns how many."""
        rows = await self._run("DELETE FROM trials WHERE ended < ? RETURNING 1", moment)
        return len(rows)

    def close(self) -> None:
        self._thread.shutdown()
        self._db.close()
