"""A dictionary as cold tier, for tests.

    MemoryStore      values and the tier that has them, like the disk or the server of other tiers
    MemoryTier       one server's access to a store

A store survives the end of a `MemoryTier`, but not the end of the process. The tier checks everything that the protocol
demands, so a test with it fails where a real tier would fail.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence

from sash.tiers.capacity import ceiling
from sash_engine.errors import FailedPrecondition, OutOfRoom, Unavailable

_KEY_BYTES_MAX = 200
_VALUE_BYTES_MAX = 64 * 2**20


class MemoryStore:
    """Values that outlive a `MemoryTier`.

    Args:
        max_bytes: most bytes of keys and values; None for no limit.

    Attributes:
        values: the values by key.
        owner: the tier that has acquired it. Set it to None as if the owner's process had ended.
    """

    def __init__(self, max_bytes: int | None = None) -> None:
        self.max_bytes = max_bytes
        self.values: dict[bytes, bytes] = {}
        self.owner: MemoryTier | None = None
        self.lock = threading.Lock()

    @property
    def used_bytes(self) -> int:
        """How many bytes keys and values have."""
        return sum(len(key) + len(value) for key, value in list(self.values.items()))


class MemoryTier:
    """A `ColdTier` on a store in this process.

    Args:
        store: the store; tiers on the same store see the same values.
    """

    name = "memory"
    healthy = True

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self._acquired = False

    def acquire(self) -> None:
        """Become the only server of the store, see `ColdTier`."""
        with self._store.lock:
            if self._store.owner is not None:
                raise FailedPrecondition("another tier of this process has the store", field="data")
            self._store.owner = self
            self._acquired = True

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return values by key, see `ColdTier`."""
        _check_keys(keys)
        with self._store.lock:
            self._check_owner()
            return [self._store.values.get(key) for key in keys]

    def commit(self, puts: Mapping[bytes, bytes], deletes: Iterable[bytes] = ()) -> None:
        """Put and delete, all or nothing, see `ColdTier`."""
        deletes = list(deletes)
        _check_keys([*puts, *deletes])
        assert all(len(value) <= _VALUE_BYTES_MAX for value in puts.values()), "a value is too long"
        assert puts.keys().isdisjoint(deletes), "a key is both put and deleted"
        with self._store.lock:
            self._check_owner()
            gone = dict.fromkeys([*puts, *deletes], b"")
            grown = sum(len(value) - len(self._store.values.get(key, b"")) for key, value in {**gone, **puts}.items())
            if grown > 0:
                self.check_room(grown, 1.0)
            for key in deletes:
                self._store.values.pop(key, None)
            self._store.values.update(puts)

    @property
    def used_bytes(self) -> int:
        """Bytes in the store, see `ColdTier`."""
        return self._store.used_bytes

    @property
    def limit_bytes(self) -> int | None:
        """With how many bytes in use new entries are refused, see `ColdTier`."""
        limit = self._store.max_bytes
        return None if limit is None else ceiling(limit, 0.0)

    def check_room(self, size: int, reserve: float = 0.0) -> None:
        """Check that so many bytes fit, see `ColdTier`."""
        limit = self._store.max_bytes
        if limit is not None and self._store.used_bytes + size > ceiling(limit, reserve):
            raise OutOfRoom("the store is full", field="data", limit=f"{limit:,} bytes")

    def close(self) -> None:
        """Release the store, see `ColdTier`."""
        with self._store.lock:
            if self._store.owner is self:
                self._store.owner = None

    def _check_owner(self) -> None:
        if not self._acquired:
            raise Unavailable("the store has not been acquired yet")
        if self._store.owner is not self:
            raise FailedPrecondition("this tier is closed, or another one has taken the store over")


def _check_keys(keys: Sequence[bytes]) -> None:
    assert all(1 <= len(key) <= _KEY_BYTES_MAX for key in keys), "a key is empty or too long"
