"""A store of nodes in a SQLite file, for aggregators whose nodes are not in memory."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path

from sash_engine.aggregators.level_queues import Chunk, Key

__all__ = ["SqliteStore"]


class SqliteStore:
    """The middle of the level queues in a file: a row per chunk, its nodes as JSON.

    Args:
        path: the file; it must not exist.
    """

    def __init__(self, path: Path) -> None:
        self._rows = sqlite3.connect(path, isolation_level=None)
        self._rows.execute("PRAGMA synchronous = OFF")  # what is measured here is memory, not durability
        self._rows.execute("PRAGMA journal_mode = OFF")
        self._rows.execute("CREATE TABLE chunks (level INT, number INT, nodes TEXT, PRIMARY KEY (level, number))")

    def __len__(self) -> int:
        (count,) = self._rows.execute("SELECT count(*) FROM chunks").fetchone()
        return int(count)

    def get_many(self, keys: Sequence[Key]) -> list[Chunk]:
        """Read chunks."""
        found = []
        for key in keys:
            (text,) = self._rows.execute("SELECT nodes FROM chunks WHERE level = ? AND number = ?", key).fetchone()
            found.append(tuple(None if node is None else (node[0], node[1]) for node in json.loads(text)))
        return found

    def put_many(self, chunks: Mapping[Key, Chunk]) -> None:
        """Write chunks."""
        rows = [(*key, json.dumps(chunk)) for key, chunk in chunks.items()]
        self._rows.executemany("INSERT INTO chunks VALUES (?, ?, ?)", rows)

    def delete_range(self, level: int, first: int, last: int) -> None:
        """Delete chunks."""
        sql = "DELETE FROM chunks WHERE level = ? AND number >= ? AND number < ?"
        self._rows.execute(sql, (level, first, last))

    def close(self) -> None:
        """Let go of the file."""
        self._rows.close()
