"""Tiers of every kind, and those of LMDB and Redis alone; all are closed after the test."""

import threading
from collections.abc import Callable, Iterator

import pytest

from sash.durability.tier import ColdTier
from sash.tiers.lmdb import LmdbTier
from tests.support.redis_servers import BINARIES, EVERYSEC, RedisServer, redis_server
from tests.support.redis_tiers import Tiers
from tests.support.tiers import EVERY_KIND


@pytest.fixture(params=sorted(EVERY_KIND))
def make_tier(request, tmp_path) -> Iterator[Callable[[], ColdTier]]:
    """Opens tiers on the same store, not acquired; all are closed in the end."""
    opened: list[ColdTier] = []
    with EVERY_KIND[request.param](tmp_path) as stored:

        def make() -> ColdTier:
            opened.append(stored.open())
            return opened[-1]

        yield make
        for tier in opened:
            tier.close()


@pytest.fixture
def tier(make_tier) -> ColdTier:
    """A tier, acquired."""
    tier = make_tier()
    tier.acquire()
    return tier


@pytest.fixture
def open_tier():
    """Makes tiers that are acquired, and closed in the end."""
    opened = []

    def make(path, **options):
        tier = LmdbTier(path, **options)
        tier.acquire()
        opened.append(tier)
        return tier

    yield make
    for tier in opened:
        tier.close()


@pytest.fixture(scope="module", params=BINARIES)
def running(request) -> Iterator[RedisServer]:
    with redis_server(BINARIES[request.param], EVERYSEC) as server:
        yield server


@pytest.fixture
def server(running) -> Iterator[RedisServer]:
    """An empty server that no other test has left anything on."""
    running.ask("FLUSHALL")
    yield running
    for line in ("maxmemory", "min-replicas-to-write"):
        running.ask("CONFIG", "SET", line, 0)


@pytest.fixture
def own_server() -> Iterator[RedisServer]:
    """A server that may be killed."""
    with redis_server(BINARIES["valkey"]) as server:
        yield server


@pytest.fixture
def tiers() -> Iterator[Tiers]:
    made = Tiers()
    yield made
    for tier in made:
        tier.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("sash-redis")]
