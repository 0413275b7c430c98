"""The Redis tier on a cluster, and with replicas: the loss of one node loses nothing that was answered."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
from redis.crc import key_slot

from sash.tiers.redis import RedisTier
from sash_engine.errors import Unavailable
from tests.support.redis_servers import (
    BINARIES,
    RedisServer,
    redis_cluster,
    redis_server,
    wait_until,
)
from tests.support.redis_tiers import patiently

# A cluster


@pytest.fixture(scope="module")
def cluster():
    with redis_cluster(BINARIES["valkey"]) as running:
        yield running


@pytest.mark.parametrize("prefix", ["a", "b", "c", "d"])
def test_any_node_will_do(cluster, tiers, prefix):
    tier = tiers(cluster.url, prefix)
    puts = {b"%d" % i: b"v" for i in range(50)}
    tier.commit(puts)
    tier.commit({b"1": b"w"}, [b"0"])
    assert tier.get_many(list(puts)) == [None, b"w"] + [b"v"] * 48
    (owner,) = (node for node in cluster.nodes if node.ask("CLUSTER COUNTKEYSINSLOT", key_slot(prefix.encode())))
    assert owner is cluster.owner(key_slot(prefix.encode()))


def test_slot_moves(cluster, tiers):
    tier = tiers(cluster.url)
    for round_ in range(2):
        tier.commit({b"k": b"%d" % round_, b"l": b"x" * 100_000})
        cluster.move(key_slot(b"t"))
        patiently(lambda: tier.commit({b"m": b"x"}))
        assert tier.get_many([b"k", b"l", b"m"]) == [b"%d" % round_, b"x" * 100_000, b"x"]


def test_node_killed_and_restarted(cluster, tiers):
    tier = tiers(cluster.url, "n")
    tier.commit({b"k": b"1"})
    owner = cluster.owner(key_slot(b"n"))
    owner.kill()
    with pytest.raises(Unavailable):
        tier.commit({b"k": b"2"})
    owner.start()
    patiently(lambda: tier.commit({b"l": b"3"}))
    assert tier.get_many([b"l"]) == [b"3"]
    assert tier.get_many([b"k"])[0] in (b"1", b"2")


@pytest.fixture
def pair() -> Iterator[tuple[RedisServer, RedisServer]]:
    """A server and its replica, both with a file that each write reaches."""
    with (
        redis_server(BINARIES["valkey"], "repl-diskless-sync-delay 0") as primary,
        redis_server(BINARIES["valkey"], f"replicaof 127.0.0.1 {primary.port}", "repl-timeout 2") as replica,
    ):
        wait_until(lambda: b"master_link_status:up" in replica.ask("INFO", "replication"))
        yield primary, replica


@contextlib.contextmanager
def tier(server: RedisServer, replicas: int = 1) -> Iterator[RedisTier]:
    made = RedisTier(server.url, replicas=replicas, timeout_s=1.0)
    made.acquire()
    try:
        yield made
    finally:
        made.close()


def promoted(primary: RedisServer, replica: RedisServer) -> None:
    primary.kill()
    replica.ask("REPLICAOF", "NO", "ONE")


def test_what_was_answered_is_on_the_replica_when_the_primary_is_lost(
    pair: tuple[RedisServer, RedisServer],
) -> None:
    primary, replica = pair
    with tier(primary) as written:
        for number in range(50):
            committed(written, {b"k%d" % number: b"v%d" % number})
        promoted(primary, replica)
    replica.ask("DEL", "{sash}:owner")
    with tier(replica, 0) as read:
        assert read.get_many([b"k%d" % number for number in range(50)]) == [b"v%d" % number for number in range(50)]


def test_a_commit_that_no_replica_has_is_not_answered(pair: tuple[RedisServer, RedisServer]) -> None:
    primary, replica = pair
    with tier(primary) as written, tier_of_another_prefix(primary) as careless:
        committed(written, {b"a": b"1"})
        with replica.frozen():
            with pytest.raises(Unavailable, match="0 of the 1 replicas"):
                written.commit({b"b": b"2"})
            careless.commit({b"b": b"2"})
            assert written.healthy  # reads go on
            assert written.get_many([b"a"]) == [b"1"]
        committed(written, {b"b": b"2"})
        assert written.get_many([b"a", b"b"]) == [b"1", b"2"]


def test_a_server_without_a_file_of_its_own_refuses() -> None:
    with (
        redis_server(BINARIES["valkey"], "appendonly no") as server,
        tier(server) as written,
        pytest.raises(Unavailable, match="WAITAOF"),
    ):
        written.commit({b"a": b"1"})


def tier_of_another_prefix(server: RedisServer) -> contextlib.AbstractContextManager[RedisTier]:
    made = RedisTier(server.url, "other")
    made.acquire()
    return contextlib.closing(made)


def committed(written: RedisTier, puts: dict[bytes, bytes]) -> None:
    """Commit, again while it is refused, as the journal does."""

    def done() -> bool:
        with contextlib.suppress(Unavailable):
            written.commit(puts)
            return True
        return False

    wait_until(done)
