"""The Redis tier on a cluster."""

import pytest
from redis.crc import key_slot

from sash_engine.errors import Unavailable
from tests.support.redis_servers import (
    BINARIES,
    redis_cluster,
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
