"""Processes over a Redis cluster of three: shards lie in slots of several nodes, which move while producers write."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
from redis.crc import key_slot

from tests.support.deployments import SHARDS, Batches, Deployment, Producer, made, written_and_compared
from tests.support.redis_servers import BINARIES, RedisCluster, redis_cluster


@pytest.fixture
def cluster() -> Iterator[RedisCluster]:
    with redis_cluster(BINARIES["valkey"]) as running:
        yield running


def test_nothing_acknowledged_is_lost_while_slots_move(cluster: RedisCluster) -> None:
    with contextlib.ExitStack() as stack:
        deployment = Deployment(cluster.nodes[0], stack)
        first, second = deployment.add(), deployment.add()
        deployment.settle(4, 4)
        made(first)
        slots = [key_slot(f"sash/{shard}".encode()) for shard in range(SHARDS)]
        assert len({cluster.owner(slot).port for slot in slots}) > 1, "the shards lie on one node"
        writers = [
            Producer("any", first.target),
            Producer("direct", first.target, direct=True),
            Batches("query", first.target),
        ]

        def check(what: str) -> None:
            written_and_compared(writers, (first, second), what)

        check("at first")
        for slot in (key_slot(b"sash"), slots[0]):
            cluster.move(slot)
            check(f"slot {slot} moves")
        for writer in writers:
            writer.end()
