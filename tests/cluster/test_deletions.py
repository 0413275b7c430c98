"""A window is deleted while the network between two processes is cut: real processes, and a Redis that both reach."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import httpx
import pytest

from tests.support.deployments import KEYS, SHARDS, SPEC, Process, made
from tests.support.links import Link, links
from tests.support.ports import free_port
from tests.support.redis_servers import BINARIES, redis_server, wait_until
from tests.support.servers import PLAIN


class Pair:
    """Two processes, each of which the other one reaches by a link."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        redis = stack.enter_context(redis_server(BINARIES["valkey"], "appendfsync no"))
        network = stack.enter_context(links())
        self.links: list[Link] = []
        self.processes: list[Process] = []
        self._ports: list[int] = []
        for place in range(2):
            host = f"127.0.0.{21 + place}"
            port = free_port(host)
            self.links.append(network.made(port, host, port))
            self._ports.append(port)
            process = Process(redis.url, SASH_ADDRESS=host, SASH_PEER_PORT=str(port), SASH_LEASE_S="3")
            stack.callback(process.end)
            self.processes.append(process)
        wait_until(lambda: all(sorted(map(len, each.shards().values())) == [SHARDS / 2] * 2 for each in self.processes))
        wait_until(lambda: all(each.serves() for each in self.processes))
        home = next(i for i, each in enumerate(self.processes) if 0 in self._own(each, i))
        self.home, self.other = self.processes[home], self.processes[1 - home]

    def _own(self, process: Process, place: int) -> list[int]:
        found = process._processes() or []
        return [
            shard for each in found if each["address"].startswith(f"127.0.0.{21 + place}") for shard in each["shards"]
        ]

    def cut(self) -> None:
        for link in self.links:
            link.lead_to(9)  # nobody listens there

    def mend(self) -> None:
        for link, port in zip(self.links, self._ports, strict=True):
            link.lead_to(port)


@pytest.fixture
def pair() -> Iterator[Pair]:
    with contextlib.ExitStack() as stack:
        yield Pair(stack)


def asked(process: Process, method: str, path: str, **options: object) -> httpx.Response:
    return httpx.request(method, f"{process.url}/v1/windows{path}", **PLAIN, **options)


def insert(process: Process, key: str) -> int:
    return asked(process, "POST", "/w/insert", json={"time": 1, "key": key, "value": 1}).status_code


def gone(process: Process) -> bool:
    """Whether a process takes no write of any key, as there is no such window."""
    return all(insert(process, key) == 404 for key in KEYS)


def test_a_deletion_that_does_not_reach_a_process_goes_on_until_it_does(pair: Pair) -> None:
    made(pair.home)
    pair.cut()
    wait_until(lambda: asked(pair.home, "DELETE", "/w").status_code == 503)
    taken = [key for key in KEYS if insert(pair.other, key) == 200]
    assert taken, "it has heard nothing of it"
    assert not [key for key in KEYS if insert(pair.home, key) == 200], "it is closed"
    pair.mend()
    for process in (pair.home, pair.other):
        wait_until(lambda process=process: gone(process), look_s=0.1)
    wait_until(lambda: asked(pair.other, "POST", "", json=SPEC | {"granularity": 5}).status_code == 201, look_s=0.1)
    assert asked(pair.home, "GET", "/w").json()["entries"] == 0
    assert insert(pair.home, KEYS[0]) == insert(pair.other, KEYS[1]) == 200


def test_a_deletion_whose_process_ends_leaves_the_window_as_it_was(pair: Pair) -> None:
    made(pair.home)
    for key in KEYS:
        assert insert(pair.home, key) == 200
    pair.cut()
    wait_until(lambda: asked(pair.home, "DELETE", "/w").status_code == 503)
    pair.home.kill()
    pair.mend()
    wait_until(pair.other.serves)
    assert set(pair.other.answers()) == set(KEYS)
    assert all(insert(pair.other, key) == 200 for key in KEYS)
    assert asked(pair.other, "DELETE", "/w").status_code == 200
    assert gone(pair.other)
