"""Cold tiers for tests: what each kind stores, kept between opens, and a tier that fails when it is told to.

KINDS["lmdb"](folder)     one store, as a context manager: open() -> a tier on it, unacquired, as often as you like
Faulty(tier)              a tier around another one: the next commits fail, before or after they took place, …
"""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from sash.durability.tier import ColdTier
from sash.tiers.lmdb import LmdbTier
from sash.tiers.memory import MemoryStore, MemoryTier
from sash.tiers.redis import RedisTier
from sash_engine.errors import SashError, Unavailable
from tests.support.redis_servers import BINARIES, shared_redis


class Stored(contextlib.ExitStack):
    """What a kind of tier keeps; leaving it ends whatever was started for it.

    Args:
        folder: an empty one of its own.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def open(self) -> ColdTier:
        """A tier on what is stored, not acquired."""
        raise NotImplementedError


class MemoryStored(Stored):
    """Values in this process."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.store = MemoryStore()

    def open(self) -> MemoryTier:
        return MemoryTier(self.store)


class LmdbStored(Stored):
    """Values in a directory."""

    def open(self) -> LmdbTier:
        return LmdbTier(self.folder / "data")


class RedisStored(Stored):
    """Values under a prefix of their own, on a server that all tests of this process share."""

    program = next(iter(BINARIES), "")

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.prefix = f"test-{uuid.uuid4().hex}"

    def open(self) -> RedisTier:
        return RedisTier(shared_redis(self.program), self.prefix, timeout_s=60)


class InstalledRedisStored(RedisStored):
    """The same on the Redis that is installed on this machine."""

    program = "redis"


class RedisClusterStored(RedisStored):
    """The same on a cluster of three servers."""

    program = "cluster"


KINDS: dict[str, type[Stored]] = {"memory": MemoryStored, "lmdb": LmdbStored}
if BINARIES:
    KINDS |= {"redis": RedisStored, "redis cluster": RedisClusterStored}

EVERY_KIND = KINDS | ({"redis installed": InstalledRedisStored} if len(BINARIES) > 1 else {})
"""For the suite of tiers. What is above them finds both Redis servers the same."""


def kinds(*often: str) -> list[Any]:
    """The kinds as parameters of tests: these, and in a soak all of them."""
    some = set(often) & KINDS.keys() or {"lmdb"}
    return [
        pytest.param(kind, marks=() if kind in some else pytest.mark.soak, id=kind.replace(" ", "-")) for kind in KINDS
    ]


class Faulty:
    """A tier that does what another one does, unless it is told to fail.

    Set the attributes at any time and from any thread; each is off at first.

    Attributes:
        fail_before: so many commits fail, and nothing changes.
        fail_after: so many commits take place and fail nevertheless, as when the answer is lost. They come after those
            of `fail_before`.
        fail_reads: so many calls of `get_many` fail.
        unreachable: while True, every commit and read fails.
        error: makes the exception to fail with.
        open_gate: while cleared, commits wait here before anything else: a slow tier that is never a matter of luck.
        arrived: set when a commit waits at the gate.
        commits: number of commits that took place.
        reads: keys of each call of `get_many` that was answered.
    """

    def __init__(self, tier: ColdTier) -> None:
        self.tier = tier
        self.name = tier.name
        self.healthy = True
        self.fail_before = 0
        self.fail_after = 0
        self.fail_reads = 0
        self.unreachable = False
        self.error: Callable[[], SashError] = lambda: Unavailable("the tier fails as told", retry_after_s=0.01)
        self.open_gate = threading.Event()
        self.open_gate.set()
        self.arrived = threading.Event()
        self.commits = 0
        self.reads: list[list[bytes]] = []

    def acquire(self) -> None:
        if self.unreachable:
            raise self.error()
        self.tier.acquire()

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        if self.unreachable or self._take("fail_reads"):
            raise self.error()
        values = self.tier.get_many(keys)
        self.reads.append(list(keys))
        return values

    @property
    def used_bytes(self) -> int | None:
        return self.tier.used_bytes

    @property
    def limit_bytes(self) -> int | None:
        return self.tier.limit_bytes

    def check_room(self, size: int, reserve: float = 0.0) -> None:
        self.tier.check_room(size, reserve)

    def commit(self, puts: Mapping[bytes, bytes], deletes: Iterable[bytes] = ()) -> None:
        if not self.open_gate.is_set():
            self.arrived.set()
            assert self.open_gate.wait(120), "nobody opened the gate"
            self.arrived.clear()
        if self.unreachable or self._take("fail_before"):
            raise self.error()
        self.tier.commit(puts, deletes)
        self.commits += 1
        if self._take("fail_after"):
            raise self.error()

    def close(self) -> None:
        self.tier.close()

    def _take(self, count: str) -> bool:
        left = getattr(self, count)
        if left:
            setattr(self, count, left - 1)
        return left > 0
