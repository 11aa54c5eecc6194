"""What this node has lent and borrowed: seconds of processor by user and node, kept for good.

The counters that it reads begin at nothing with each guest or stay; what was seen of each last is kept beside the sums, so that a new
daemon goes on where the one before it was. One transaction for each look: what is not written is counted again.
"""

from __future__ import annotations

import errno
import logging
import os
import sqlite3
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

LENT, BORROWED = "lent", "borrowed"
BUSY_TIMEOUT = 1.0
_TABLES = (
    "CREATE TABLE IF NOT EXISTS used (direction TEXT, user TEXT, node TEXT, seconds REAL, first REAL, last REAL,"
    " PRIMARY KEY (direction, user, node)) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS seen (direction TEXT, key TEXT, seconds REAL, PRIMARY KEY (direction, key)) WITHOUT ROWID",
)

log = logging.getLogger("mosd.ledger")


@dataclass(frozen=True)
class Reading:
    """Of one counter: seconds that something has used for that user; node: whose guest it is, or where it is."""

    key: str
    user: str
    node: str
    seconds: float


@dataclass(frozen=True)
class Entry:
    """Seconds of processor lent to, or borrowed for, a user; node: their home, or where they were used. first, last: since the epoch."""

    direction: str
    user: str
    node: str
    seconds: float
    first: float
    last: float


class Ledger:
    """See the module. A ledger that cannot be written costs nobody a process: it is logged."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection: sqlite3.Connection | None = None

    def _open(self) -> sqlite3.Connection:
        """Errors: sqlite3.Error, OSError."""
        if self._connection is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._keep_private()
            connection = sqlite3.connect(self._path, timeout=BUSY_TIMEOUT, isolation_level=None)
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")  # no waiting for the disk: a crash of the machine may cost the last looks
            for table in _TABLES:
                connection.execute(table)
            self._connection = connection
        return self._connection

    def _keep_private(self) -> None:
        """Who has lent to whom is root's to read: the file, and those that SQLite makes beside it with the same mode. Errors: OSError."""
        os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        for suffix in ("", "-wal", "-shm", "-journal"):
            path = Path(f"{self._path}{suffix}")
            if path.exists():
                path.chmod(0o600)

    def book(self, direction: str, readings: Iterable[Reading], is_all: bool = True) -> None:
        """Adds what has been used since the check before; is_all: what is not among the readings has gone."""
        readings = list(readings)
        try:
            connection = self._open()
            seen = dict(connection.execute("SELECT key, seconds FROM seen WHERE direction = ?", (direction,)))
            gone = seen.keys() - {reading.key for reading in readings} if is_all else set()
            changed = [reading for reading in readings if reading.seconds != seen.get(reading.key, 0.0)]
            if not gone and not changed:
                return
            connection.execute("BEGIN IMMEDIATE")
            for reading in changed:
                self._add(connection, direction, reading, float(seen.get(reading.key, 0.0)))
            connection.executemany("DELETE FROM seen WHERE direction = ? AND key = ?", [(direction, key) for key in gone])
            connection.execute("COMMIT")
        except (sqlite3.Error, OSError) as error:
            log.error("%s: %s", self._path, error)
            self.close()

    @staticmethod
    def _add(connection: sqlite3.Connection, direction: str, reading: Reading, before: float) -> None:
        # A counter that is less than it was has begun anew.
        seconds = reading.seconds - before if reading.seconds > before else reading.seconds
        now = time.time()
        connection.execute(
            "INSERT INTO used VALUES (?, ?, ?, ?, ?, ?)"
            " ON CONFLICT DO UPDATE SET seconds = seconds + excluded.seconds, last = excluded.last",
            (direction, reading.user, reading.node, seconds, now, now),
        )
        connection.execute("INSERT OR REPLACE INTO seen VALUES (?, ?, ?)", (direction, reading.key, reading.seconds))

    def entries(self) -> list[Entry]:
        """Return all sums, the greatest first. Errors: OSError."""
        try:
            found = self._open().execute("SELECT direction, user, node, seconds, first, last FROM used ORDER BY seconds DESC")
            return [Entry(*row) for row in found]
        except sqlite3.Error as error:
            self.close()
            raise OSError(errno.EIO, str(error), str(self._path)) from None

    def close(self) -> None:
        """Writes what is not in its place yet."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
