"""Two services on one prefix of a Redis: the standby takes over, and the old owner writes nothing more."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
from collections.abc import Iterator

import httpx
import pytest

from sash.settings import load_settings
from sash.shards.layout import check_standby
from sash_engine.errors import InvalidArgument
from tests.support.deployments import Process
from tests.support.redis_servers import BINARIES, redis_server
from tests.support.servers import PLAIN, WAIT_S, serve
from tests.support.waiting import wait_until

SPEC = {"name": "w", "keyed": True, "aggregates": {"n": {"function": "count"}}}
KEYS = "abcdefgh"


class Served:
    """`sash serve` as a process."""

    def __init__(self, url: str, *arguments: str) -> None:
        piped = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        self.process = serve("--data", url, *arguments, env={"SASH_STANDBY": "1", "SASH_LEASE_S": "3"}, **piped)
        self.url = ""

    def wait(self) -> None:
        """Wait until it serves."""
        line = self.process.stdout.readline()
        found = re.search(r"page on (http://\S+)/", line)
        assert found, line
        self.url = found[1]

    def waits(self) -> None:
        """Wait until it stands by."""
        assert any("standing by" in line for line in self.process.stderr), "it ended"

    def insert(self, time: int, key: str) -> httpx.Response:
        body = {"time": time, "key": key, "value": 1}
        return httpx.post(f"{self.url}/v1/windows/w/insert", json=body, **PLAIN)

    def count(self, key: str) -> int:
        found = httpx.get(f"{self.url}/v1/windows/w/query", params={"key": key}, **PLAIN)
        (answer,) = found.raise_for_status().json()["answers"]
        return answer["entries"]


@contextlib.contextmanager
def two(*arguments: str) -> Iterator[tuple[Served, Served]]:
    with redis_server(BINARIES["valkey"], "appendonly no") as server, contextlib.ExitStack() as ended:
        made = []
        for _ in range(2):
            served = Served(server.url, *arguments)
            ended.callback(served.process.communicate, timeout=WAIT_S)
            ended.callback(served.process.kill)
            made.append(served)
            if len(made) == 1:
                served.wait()
                httpx.post(f"{served.url}/v1/windows", json=SPEC, **PLAIN).raise_for_status()
        made[1].waits()
        yield made[0], made[1]


@pytest.mark.parametrize("shards", ["1", "3"])
def test_a_standby_takes_over_from_a_dead_service(shards: str) -> None:
    with two("--shards", shards) as (owner, standby):
        for time, key in enumerate(KEYS):
            owner.insert(time, key).raise_for_status()
        owner.process.kill()
        standby.wait()
        assert [standby.count(key) for key in KEYS] == [1] * len(KEYS)
        standby.insert(100, "a").raise_for_status()
        assert standby.count("a") == 2


def test_a_stopped_service_that_comes_back_writes_nothing_and_ends() -> None:
    with two("--shards", "2") as (owner, standby):
        owner.insert(1, "a").raise_for_status()
        owner.process.send_signal(signal.SIGSTOP)
        standby.wait()
        standby.insert(2, "a").raise_for_status()
        owner.process.send_signal(signal.SIGCONT)
        with contextlib.suppress(httpx.TransportError):  # it may have ended already
            assert owner.insert(3, "a").status_code != 200
        assert owner.process.wait(WAIT_S) == 1
        assert "another service has taken the store over" in owner.process.stderr.read()
        assert standby.count("a") == 2


def test_a_service_that_ends_gives_its_place_to_the_standby() -> None:
    with two() as (owner, standby):
        owner.insert(1, "a").raise_for_status()
        owner.process.terminate()
        standby.wait()
        assert owner.process.wait(WAIT_S) == 0
        assert standby.count("a") == 1


def test_a_standby_of_all_shards_waits_for_processes_that_have_them_by_the_table() -> None:
    with redis_server(BINARIES["valkey"], "appendonly no") as server, contextlib.ExitStack() as ended:
        process = Process(server.url, "--shards", "3", SASH_LEASE_S="3")
        ended.callback(process.end)
        wait_until(process.serves)
        for shard in range(3):
            server.ask("DEL", f"{{sash/{shard}}}:owner")  # as it runs out: nobody renews it
        standby = Served(server.url, "--shards", "3")
        ended.callback(standby.process.communicate, timeout=WAIT_S)
        ended.callback(standby.process.kill)
        standby.waits()
        assert process.serves()
        process.kill()
        standby.wait()
        assert httpx.get(f"{standby.url}/v1/windows", **PLAIN).status_code == 200


@pytest.mark.parametrize("wrong", [{"data": "memory"}, {"data": "some/where"}, {"data": "redis://h", "processes": 2}])
def test_where_there_are_no_standbys(wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidArgument, match="SASH_STANDBY"):
        check_standby(load_settings(standby=True, **wrong))
