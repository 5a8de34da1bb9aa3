"""Judgements that were paid for once: a sqlite file keyed by judge, prompt version and content."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path

from tasks.judges.base import JudgeError

_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS replies (key TEXT PRIMARY KEY, judge TEXT NOT NULL, reply TEXT NOT NULL)"
)
WAIT_SECONDS = 30.0


class ReplyCache:
    """Replies by key; shared by threads and processes. Only replies that were understood are kept."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._lock = threading.Lock()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._connection = sqlite3.connect(self.path, timeout=WAIT_SECONDS, check_same_thread=False)
            self._connection.execute("PRAGMA journal_mode=WAL")
            self._connection.execute(_SCHEMA)
            self._connection.commit()
        except (OSError, sqlite3.Error) as error:
            raise JudgeError(
                f"judge.cache={str(path)!r} cannot be used ({error}): name a writable file, or none"
            ) from error

    def get(self, key: str) -> str | None:
        """The reply under a key, if there is one."""
        with self._lock:
            row = self._connection.execute("SELECT reply FROM replies WHERE key = ?", (key,)).fetchone()
        return None if row is None else str(row[0])

    def put(self, key: str, judge: str, reply: str) -> None:
        """Keeps a reply; the first one stays."""
        with self._lock, self._connection:
            self._connection.execute("INSERT OR IGNORE INTO replies VALUES (?, ?, ?)", (key, judge, reply))

    def close(self) -> None:
        """Closes the file."""
        with self._lock:
            self._connection.close()
