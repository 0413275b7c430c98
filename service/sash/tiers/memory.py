"""A dictionary as cold tier: what tests hold other tiers against, and restart services on.

    MemoryStore      values, and which tier has them: what a disk or a server is to the other tiers
    MemoryTier       one server's hold on it

It survives the end of a `MemoryTier`, and no more. It is exact about the protocol's terms, so that a test on it fails
where a real tier would.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence

from sash.errors import FailedPrecondition, Unavailable

__all__ = ["MemoryStore", "MemoryTier"]

_KEY_BYTES_MAX = 200
_VALUE_BYTES_MAX = 64 * 2**20


class MemoryStore:
    """What outlives a `MemoryTier`.

    Attributes:
        values: by key.
        owner: the tier that has acquired it. None lets the next one in, as the end of the owner's process would.
    """

    def __init__(self) -> None:
        self.values: dict[bytes, bytes] = {}
        self.owner: MemoryTier | None = None
        self.lock = threading.Lock()


class MemoryTier:
    """A `ColdTier` on a store in this process.

    Args:
        store: shared by all tiers that are to see the same values.
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
        """Values by key, see `ColdTier`."""
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
            for key in deletes:
                self._store.values.pop(key, None)
            self._store.values.update(puts)

    def close(self) -> None:
        """Let go of the store, see `ColdTier`."""
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
