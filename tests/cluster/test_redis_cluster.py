"""Processes over a Redis cluster of three: shards lie in slots of several nodes, which move while producers write."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

import pytest
from redis.crc import key_slot

from tests.support.deployments import SHARDS, Batches, Deployment, Producer, made, written_and_compared
from tests.support.redis_servers import BINARIES, RedisCluster, redis_cluster, wait_until


@pytest.fixture
def cluster() -> Iterator[RedisCluster]:
    with redis_cluster(BINARIES["valkey"]) as running:
        yield running


def test_nothing_acknowledged_is_lost_while_nodes_and_slots_change(cluster: RedisCluster) -> None:
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
        with cluster.owner(slots[0]).frozen():
            time.sleep(1.5)  # longer than a lease
        check("a node stands still")
        node = cluster.owner(slots[-1])
        node.kill()
        node.start()
        wait_until(lambda: all(b"cluster_state:ok" in each.ask("CLUSTER", "INFO") for each in cluster.nodes), 60)
        check("a node is killed, and started again")
        second.kill()
        deployment.settle(8)
        second = deployment.add()
        deployment.settle(4, 4)
        check("a process is killed, and another one comes")
        for writer in writers:
            writer.end()
