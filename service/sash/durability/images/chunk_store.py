"""A tier as the key-value store of `KvsAMTA` and `KvsLogMTA`: the middle of a window, in a directory or in Redis.

    queues ── put (level, number) ──▶ pending ── 256 changes ─▶ one commit ──▶ tier      mta/<name>/<level>/<number>
    queues ◀── get ── pending, or one round trip of the tier

A commit waits for a disk, so chunks gather first. A chunk that is deleted before is never written.

This is for windows that are larger than memory, within one process. The ends of the levels are in memory only, so a
window does not survive its process. Windows of the service do; they keep blocks (`durability/blocks.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgpack

from sash.durability.tier import ColdTier
from sash_engine.aggregators.level_queues import Chunk, Key
from sash_engine.errors import DataLoss, OutOfRoom, Unavailable
from sash_engine.monoids import Monoid

_COMMIT_AT = 256
"""With so many changes a commit takes place. At 16 nodes a chunk, that is one for some 1,000 entries."""


class ChunkStore:
    """The chunks of one window. `len` is how many there are.

    Args:
        tier: where they are; acquired.
        monoid: the aggregate, which encodes partials.
        name: of the window; windows on one tier need different names of at most 100 bytes.

    While the tier cannot be reached, changes gather in memory, so that the window stays whole.
    """

    def __init__(self, tier: ColdTier, monoid: Monoid, name: str) -> None:
        self._tier = tier
        self._monoid = monoid
        self._prefix = b"mta/" + name.encode()
        self._pending: dict[bytes, bytes] = {}
        self._gone: list[bytes] = []
        self._commit_at = _COMMIT_AT
        self._stored = 0

    def __len__(self) -> int:
        return self._stored + len(self._pending)

    def get_many(self, keys: Sequence[Key]) -> list[Chunk]:
        """Read chunks, in one round trip at most.

        Raises:
            DataLoss: the tier does not have one of them any more.
            Unavailable: as `ColdTier.get_many`.
        """
        names = [self._name(*key) for key in keys]
        elsewhere = [name for name in names if name not in self._pending]
        found = dict(zip(elsewhere, self._tier.get_many(elsewhere), strict=True)) if elsewhere else {}
        chunks = []
        for name in names:
            data = self._pending.get(name) or found[name]
            if data is None:
                raise DataLoss(f"the tier has lost {name.decode()}")
            chunks.append(self._chunk(data))
        return chunks

    def put_many(self, chunks: Mapping[Key, Chunk]) -> None:
        """Write chunks, some time."""
        encode = self._monoid.encode
        for key, chunk in chunks.items():
            nodes = [None if node is None else (node[0], encode(node[1])) for node in chunk]
            self._pending[self._name(*key)] = msgpack.packb(nodes)
        self._commit_if_many()

    def delete_range(self, level: int, first: int, last: int) -> None:
        """Delete the chunks first <= number < last of a level, some time."""
        names = [self._name(level, number) for number in range(first, last)]
        stored = [name for name in names if self._pending.pop(name, None) is None]
        self._gone += stored
        self._stored -= len(stored)
        self._commit_if_many()

    def flush(self) -> None:
        """Commit what is pending. Raises what `ColdTier.commit` does; then it is still pending."""
        if self._pending or self._gone:
            self._tier.commit(self._pending, self._gone)
            self._stored += len(self._pending)
            self._pending, self._gone = {}, []
        self._commit_at = _COMMIT_AT

    def _commit_if_many(self) -> None:
        pending = len(self._pending) + len(self._gone)
        if pending >= self._commit_at:
            try:
                self.flush()
            except (Unavailable, OutOfRoom):
                self._commit_at = 2 * pending  # not at each of the next changes: an attempt may take a timeout

    def _name(self, level: int, number: int) -> bytes:
        return b"%b/%d/%d" % (self._prefix, level, number)

    def _chunk(self, data: bytes) -> Chunk:
        nodes: list[Any] = msgpack.unpackb(data)
        return tuple(None if node is None else (node[0], self._monoid.restore(node[1])) for node in nodes)
