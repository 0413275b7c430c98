"""Packets that are dropped between machines, each a network namespace: what was acknowledged is there once.

`make test` has such silences on links between processes, some drawn each time in `test_faults.py`, and in any order in
`tests/simulation`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from tests.support.deployments import Batches, Process, Producer, made, written_and_compared
from tests.support.namespaces import Machines, machines
from tests.support.redis_servers import BINARIES, redis_server, wait_until

COUNT = 3


@pytest.fixture
def network() -> Iterator[Machines]:
    with machines(COUNT) as made:
        yield made


@pytest.mark.soak
def test_partitions(network: Machines) -> None:
    with contextlib.ExitStack() as stack:
        bound = (f"bind 127.0.0.1 {network.redis}", "protected-mode no", "appendfsync no")
        redis = stack.enter_context(redis_server(BINARIES["valkey"], *bound))
        processes = []
        for number in range(COUNT):
            process = Process(
                f"redis://{network.redis}:{redis.port}",
                under=network.on(number),
                SASH_HOST=network.address(number),
                SASH_INSECURE="1",
                SASH_LOG_LEVEL="info",
            )
            stack.callback(process.end)
            processes.append(process)
        alone, other, third = processes
        wait_until(lambda: all(len(each.shards()) == COUNT and each.serves() for each in processes))
        made(alone)
        target = "ipv4:" + ",".join(process.target for process in processes)
        # Through the machine that is alone, keys that were its own are refused as long as it is.
        writers = [
            Producer("any", other.target, timeout_s=5),
            Producer("direct", target, direct=True, timeout_s=5),
            Batches("query", third.target, timeout_s=5),
        ]

        def check(asked: list[Process], what: str) -> None:
            written_and_compared(writers, asked, what)

        check(processes, "at first")

        network.drop(0, network.redis)
        wait_until(lambda: other.shards_at(alone.target) == [] and other.serves() and third.serves())
        check([other, third], "a machine without Redis")
        network.heal(0)
        wait_until(lambda: other.shards_at(alone.target))
        check(processes, "it has Redis again")

        network.drop(0, network.address(1))
        wait_until(lambda: not alone.serves() and not other.serves() and third.serves())
        network.heal(0)
        check(processes, "two machines that did not hear each other")

        for address in (network.redis, network.address(1), network.address(2)):
            network.drop(0, address)
        wait_until(lambda: other.shards_at(alone.target) == [] and other.serves() and third.serves())
        assert not alone.serves()
        check([other, third], "a machine that hears nobody but clients")
        network.heal(0)
        check(processes, "it hears all")
        for writer in writers:
            writer.end()
