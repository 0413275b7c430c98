"""Processes that share a prefix of Redis: shards move between them, and what was acknowledged is there once."""

from __future__ import annotations

import contextlib
import os
import re
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from sash.shards.fair import Member, Table
from sash.shards.lease_table import LeaseTable
from sash_client import Client, DataLoss, InvalidArgument
from sash_client import Unavailable as ClientUnavailable
from sash_engine.errors import Unavailable
from sash_wire.placement import shard_of
from tests.support.deployments import KEYS, SHARDS, Callers, Deployment, Process, Producer, check, made
from tests.support.links import links
from tests.support.redis_servers import BINARIES, RedisServer, redis_server
from tests.support.servers import PLAIN, WAIT_S, running_service
from tests.support.waiting import wait_until

ONE_OF_EACH = {shard_of("w", key, SHARDS): key for key in KEYS}.values()
"""A key of each shard."""


@pytest.fixture
def deployment() -> Iterator[Deployment]:
    with redis_server(BINARIES["valkey"], "appendfsync no") as redis, contextlib.ExitStack() as stack:
        yield Deployment(redis, stack)


def test_a_shard_moves_where_it_is_told_to(deployment: Deployment) -> None:
    first, second = deployment.add(), deployment.add()
    deployment.settle(4, 4)
    made(first)
    producer = Producer("p", second.target)
    producer.rounds(1)
    with Client(first.target, timeout_s=WAIT_S) as client:
        before = client.topology()
        assert [process.up for process in before.processes] == [True, True]
        assert {process.address for process in before.processes} == {first.target, second.target}
        shard = before.processes[0].shards[0]
        after = client.move_shard(shard, 1)
        assert shard in after.processes[1].shards
        deployment.settle(4, 4)
        wrote = producer.end()
        found = client.topology()
        assert shard in found.processes[1].shards
        sizes = [size for process in found.processes for size in process.sizes]
        assert {size.shard for size in sizes} == set(range(SHARDS))
        assert sum(size.entries for size in sizes) == sum(wrote.values())
        for wrong in ((8, 1), (-1, 1), (0, 2)):
            with pytest.raises(InvalidArgument, match="there is no"):
                client.move_shard(*wrong)
    check(second, wrote)


def test_shards_move_when_processes_come_and_go_while_producers_write(deployment: Deployment) -> None:
    first = deployment.add()
    made(first)
    deployment.settle(8)
    producer = Producer("p", first.target)
    producer.rounds(2)
    second = deployment.add()
    deployment.settle(4, 4)
    producer.rounds(2)
    third = deployment.add()
    deployment.settle(2, 3, 3)
    producer.rounds(2)
    second.process.send_signal(signal.SIGTERM)
    assert second.process.wait(WAIT_S) == 0
    deployment.settle(4, 4)
    producer.rounds(2)
    producers = [producer, Producer("direct", third.target, direct=True)]
    producers[1].rounds(1)
    with Client(first.target, timeout_s=WAIT_S) as client:
        processes = client.topology().processes
        (number,) = [process.number for process in processes if process.address == third.target]
        (shard, *_) = [shard for process in processes if process.address == first.target for shard in process.shards]
        third.process.send_signal(signal.SIGSTOP)
        with pytest.raises(
            (ClientUnavailable, InvalidArgument), match=r"has ended, or stands still|there is no process"
        ):
            client.move_shard(shard, number)
    third.kill()
    deployment.settle(8)
    for producer in producers:  # the direct one asks others than the process that it was given
        producer.rounds(2)
    check(first, *[producer.end() for producer in producers])


def test_a_restart_of_a_process_fails_no_call_that_can_be_made_again(deployment: Deployment) -> None:
    """Writes without numbers are sent again where nothing was changed, and reads wherever they fail."""
    first, second = deployment.add(), deployment.add()
    deployment.settle(4, 4)
    made(first)
    with Callers(first.target) as callers:
        callers.more()
        second.process.send_signal(signal.SIGTERM)
        assert second.process.wait(WAIT_S) == 0
        second = deployment.add()
        deployment.settle(4, 4)
        callers.more()
    assert callers.failed == []
    for key, (entries, _) in first.answers().items():
        assert callers.applied[key] <= entries <= callers.applied[key] + callers.perhaps[key]


def test_a_table_that_is_lost_is_made_again(deployment: Deployment) -> None:
    first = deployment.add()
    deployment.settle(8)
    made(first)
    producer = Producer("p", first.target)
    producer.rounds(1)
    deployment.redis.ask("DEL", "{sash}:table")
    producer.rounds(1)
    second = deployment.add()  # it knows the new secret only, and calls the first one
    deployment.settle(4, 4)
    producer.rounds(1)
    wrote = producer.end()
    for process in (first, second):
        check(process, wrote)
    # Where all is lost, the processes keep what they have in memory, and nobody serves shards without their entries.
    deployment.redis.ask("FLUSHALL")
    with Client(first.target, timeout_s=WAIT_S) as client:

        def refused() -> bool:
            with contextlib.suppress(ClientUnavailable):
                for key in ONE_OF_EACH:
                    with pytest.raises(DataLoss):
                        client.window("w").insert(0, fields={"value": 0}, key=key)
                return True
            return False

        wait_until(refused)
    for process in (first, second):
        assert {key: total for key, (_, total) in process.answers().items()} == wrote
    # A process that starts now does not begin anew, with any number of shards, and those that run are not ready.
    wait_until(lambda: (deployment.redis.ask("GET", "{sash}:deployment") or b"").endswith(b" lost"), 60)
    for shards in ("8", "4"):
        with pytest.raises(AssertionError, match=r"Redis has lost .* stop all processes, and DEL \{sash\}:deployment"):
            deployment.add("--shards", shards)
    for process in (first, second):
        wait_until(lambda: "Redis was emptied" in ready(process), 60)  # noqa: B023  # it is called in this round only
        assert {key: total for key, (_, total) in process.answers().items()} == wrote
    # Once the operator says so, a new deployment begins.
    for process in (first, second):
        process.kill()
    deployment.redis.ask("DEL", "{sash}:deployment")
    third = deployment.add("--shards", "4")
    wait_until(third.serves, 60)
    made(third)


def test_processes_do_not_serve_beside_another_deployment(deployment: Deployment) -> None:
    first = deployment.add()
    deployment.settle(8)
    made(first)
    wrote = Producer("p", first.target)
    wrote.rounds(1)
    wrote.end()
    # As a process leaves it that starts before the others notice.
    emptied = """
    redis.call('FLUSHALL')
    redis.call('SET', '{sash}:shards', '4')
    redis.call('SET', '{sash}:deployment', '0123456789abcdef')
    """
    deployment.redis.ask("EVAL", emptied, 0)
    wait_until(lambda: "Redis was emptied, and has another deployment now" in ready(first), 60)
    with Client(first.target, timeout_s=WAIT_S) as client:
        for key in ONE_OF_EACH:
            with pytest.raises(DataLoss, match="has another deployment now"):
                client.window("w").insert(0, fields={"value": 0}, key=key)
            with pytest.raises(DataLoss, match="has another deployment now"):
                client.window("w").query(key=key)
        with pytest.raises(DataLoss, match="has another deployment now"):
            client.list_windows()
    second = deployment.add("--shards", "4")
    wait_until(lambda: list(second.shards().values()) == [[0, 1, 2, 3]] and second.serves(), 60)
    made(second)
    assert second.sums() == {}
    first.process.send_signal(signal.SIGTERM)
    assert first.process.wait(WAIT_S) == 0
    assert second.serves()


def test_a_deployment_of_before_ids_gets_one(deployment: Deployment) -> None:
    first = deployment.add()
    made(first)
    producer = Producer("p", first.target)
    producer.rounds(1)
    wrote = producer.end()
    first.kill()
    deployment.redis.ask("DEL", "{sash}:deployment")
    second = deployment.add()
    id = deployment.redis.ask("GET", "{sash}:deployment")
    assert re.fullmatch(rb"[0-9a-f]{16}", id)
    check_soon(second, wrote)
    # An id that alone is lost is written again, by a process that knows it.
    deployment.redis.ask("DEL", "{sash}:deployment")
    wait_until(lambda: deployment.redis.ask("GET", "{sash}:deployment") == id, 60)
    check_soon(second, wrote)


def test_a_process_that_does_not_reach_redis_does_not_say_who_has_what(deployment: Deployment) -> None:
    process = deployment.add()
    deployment.settle(8)
    with Client(process.target, timeout_s=WAIT_S) as client, deployment.redis.frozen():

        def refused() -> bool:
            try:
                client.topology()
            except ClientUnavailable as error:
                return "has not reached Redis" in str(error)
            return False

        wait_until(refused)
    deployment.settle(8)


def test_leases_survive_a_store_that_takes_a_third_of_a_lease_to_answer(deployment: Deployment) -> None:
    redis = deployment.redis
    with links() as network, contextlib.ExitStack() as stack:
        ways = [network.made(redis.port) for _ in range(2)]
        processes = [Process(f"redis://127.0.0.1:{way.port}", SASH_LEASE_S="4") for way in ways]
        for process in processes:
            stack.callback(process.end)
        wait_until(lambda: all(sorted(map(len, process.shards().values())) == [4, 4] for process in processes))

        def table() -> dict[bytes, bytes]:
            found = redis.ask("HGETALL", "{sash}:table")
            return dict(zip(found[::2], found[1::2], strict=True))

        owners = {field: value for field, value in table().items() if field.startswith(b"s:")}
        for way in ways:
            way.delay_s = 0.65
        rows: dict[bytes, set[bytes]] = {}

        def beaten() -> bool:
            """Whether each process has sent some heartbeats; it has its shards all the time, and knows it."""
            for field, value in table().items():
                if field.startswith(b"p:"):
                    rows.setdefault(field, set()).add(value)
            assert {field: value for field, value in table().items() if field.startswith(b"s:")} == owners
            assert all(httpx.get(f"{each.url}/v1/topology", **PLAIN).is_success for each in processes)
            return all(len(seen) > 6 for seen in rows.values())

        wait_until(beaten, look_s=0.1)


def test_what_an_idle_process_asks_of_redis_does_not_grow_with_its_shards(deployment: Deployment) -> None:
    """It renewed a lease for each."""
    shards, redis = 64, deployment.redis
    process = deployment.add("--shards", str(shards))
    wait_until(lambda: process.shards() == {0: [*range(shards)]} and process.serves())
    beats, looks = set[bytes](), 0

    def beaten() -> bool:
        nonlocal looks
        looks += 1
        table = redis.ask("HGETALL", "{sash}:table")
        (row,) = [value for field, value in zip(table[::2], table[1::2], strict=True) if field.startswith(b"p:")]
        beats.add(row)
        return len(beats) > 10

    before = commands(redis)
    wait_until(beaten, look_s=0.01)
    asked = commands(redis) - before - looks
    assert asked / (len(beats) - 1) < shards / 2


def commands(redis: RedisServer) -> int:
    """How many a server has carried out."""
    return int(redis.ask("INFO", "stats").split(b"total_commands_processed:")[1].split()[0])


def ready(process: Process) -> str:
    """What a process says of whether it is ready."""
    return httpx.get(f"{process.url}/readyz", **PLAIN).text


def check_soon(process: Process, wrote: Counter[str]) -> None:
    assert process.answers() == {key: (n, n) for key, n in wrote.items()}


def test_processes_of_one_machine_are_in_the_table_each(deployment: Deployment) -> None:
    both = deployment.add("--processes", "2")
    wait_until(lambda: sorted(map(len, both.shards().values())) == [4, 4] and both.serves())
    made(both)
    producer = Producer("p", both.target)
    producer.rounds(1)
    pid = both.process.pid
    killed = int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])
    os.kill(killed, signal.SIGKILL)
    producer.rounds(2)
    wait_until(lambda: sorted(map(len, both.shards().values())) == [4, 4])
    wrote = producer.end()
    assert both.answers() == {key: (n, n) for key, n in wrote.items()}
    text = httpx.get(f"{both.url}/metrics", **PLAIN).text
    assert text.count('sash_process_up{process="') == 2
    both.process.send_signal(signal.SIGTERM)
    assert both.process.wait(WAIT_S) == 0


@pytest.mark.parametrize("fails", [1, 3])
def test_a_process_starts_although_redis_breaks_its_first_connections(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch, fails: int
) -> None:
    left = [fails]
    beat = LeaseTable.beat

    def broken(self: LeaseTable, member: Member) -> Table:
        left[0] -= 1
        if left[0] >= 0:
            raise Unavailable("the connection is lost")
        return beat(self, member)

    monkeypatch.setattr(LeaseTable, "beat", broken)
    with running_service(data=deployment.redis.url, shards=2) as running:
        assert left[0] < 0
        assert running.http().get("/v1/windows").status_code == 200
