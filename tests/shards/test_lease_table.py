"""The lease table as others leave it: rows that nobody can read, and clocks that jump."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

import pytest

from sash.settings import load_settings
from sash.shards.fair import Member, decide
from sash.shards.layout import places
from sash.shards.lease_table import LeaseTable, Lives
from sash.shards.redis_layout import RedisLayout
from sash.tiers.owner import Owner
from sash_engine.errors import FailedPrecondition
from tests.support.redis_servers import BINARIES, RedisServer, redis_server

HOUR_S = 3600.0


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with redis_server(BINARIES["valkey"], "appendonly no") as server:
        yield server


@pytest.fixture
def table(server: RedisServer) -> Iterator[LeaseTable]:
    server.ask("FLUSHALL")
    table = LeaseTable(server.url, "sash", 10.0)
    yield table
    table.close()


class Seconds:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def edit(server: RedisServer, field: str | bytes, value: str | bytes) -> None:
    server.ask("HSET", "{sash}:table", field, value)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("p:x", "garbage"),
        ("p:x", "99999999999999 1 garbage"),
        ("p:x", "99999999999999 1 []"),
        ("p:x", "99999999999999 1 {}"),
        ("p:x", '99999999999999 1 {"lease_ms": 1000, "address": 5}'),
        ("p:x", '99999999999999 1 {"lease_ms": 1000, "address": "\\ud800"}'),
        ("p:x", '99999999999999 1 {"lease_ms": 1000, "pinned": 5}'),
        ("p:x", '99999999999999 99999999999999 {"lease_ms": 1000}'),
        ("p:me", f"99999999999999 {10**30} " + '{"lease_ms": 1000}'),
        ("p:me", "garbage"),
        ("p:", ""),
        ("s:x", "me"),
        ("s:01", "x"),
        ("s:-1", "x"),
        ("w:x", "me"),
        (b"\xff", b"\xff"),
        ("s:1", b"\xff"),
        ("secret", ""),
        ("secret", "l\n\u00f6"),
        ("other", "x"),
    ],
)
def test_what_nobody_can_read_counts_as_absent(
    server: RedisServer, table: LeaseTable, caplog: pytest.LogCaptureFixture, field: str | bytes, value: str | bytes
) -> None:
    table.beat(Member("me", 0))
    edit(server, field, value)
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            found = table.beat(Member("me", 0))
    assert len(caplog.records) <= 1
    assert found.members == {"me": Member("me", 0, address=found.members["me"].address)}
    assert len(found.secret) == 32
    assert sorted(decide(found, "me", 4).take) == [0, 1, 2, 3]


def test_a_row_that_says_that_it_runs_for_ever_does_not(server: RedisServer, table: LeaseTable) -> None:
    clock = Seconds()
    table._lives = Lives(3.0, clock)
    edit(server, "p:x", '99999999999999 1 {"lease_ms": 1000}')
    edit(server, "s:0", "x")
    assert table.beat(Member("me", 0)).members["x"].alive
    clock.now_s = 2.9
    assert table.beat(Member("me", 0)).members["x"].alive
    clock.now_s = 3.0
    found = table.beat(Member("me", 0))
    assert not found.members["x"].alive
    assert list(decide(found, "me", 1).take) == [0]
    while clock.now_s < 70:
        clock.now_s += 10
        found = table.beat(Member("me", 0))
    assert set(found.members) == {"me"}


def alive(lives: Lives, **rows: tuple[bytes, float]) -> str:
    return "".join(sorted(lives.look(rows)))


@pytest.mark.parametrize("jump_s", [-HOUR_S, HOUR_S])
def test_clocks_of_redis_that_jump_change_nothing(jump_s: float) -> None:
    now_s = 0.0
    lives = Lives(3.0, lambda: now_s)

    def left_s(due_s: float, redis_s: float) -> float:
        return min(max(due_s - redis_s, 0), 3.0)

    assert alive(lives, a=(b"3", 3.0), b=(b"3", 3.0)) == "ab"
    now_s = 1.0  # b's heartbeat has come, before or after the jump
    assert alive(lives, a=(b"3", left_s(3, 1 + jump_s)), b=(b"4", left_s(4, 1))) == "ab"
    now_s = 3.5  # a is gone
    assert alive(lives, a=(b"3", left_s(3, 3.5 + jump_s)), b=(b"4", left_s(4, 3.5 + jump_s))) == "b"
    now_s = 4.0
    assert alive(lives, a=(b"3", left_s(3, 4 + jump_s)), b=(b"jumped", 3.0)) == "b"


def test_who_is_seen_for_the_first_time_behind_a_jump_runs_for_a_lease() -> None:
    now_s = 100.0
    lives = Lives(3.0, lambda: now_s)
    assert alive(lives, b=(b"4", 3.0)) == "b"
    now_s = 102.0
    assert alive(lives, b=(b"5", 0.0), c=(b"2", 0.0)) == "bc"
    now_s = 104.9
    assert alive(lives, b=(b"6", 0.0), c=(b"2", 0.0)) == "bc"
    now_s = 105.0
    assert alive(lives, b=(b"6", 0.0), c=(b"2", 0.0)) == "b"


def test_a_heartbeat_that_came_just_before_the_clock_of_redis_jumped_counts() -> None:
    """Its row is new, and over by that clock. Another process would take its shards while it still answers for them."""
    now_s = 0.0
    lives = Lives(3.0, lambda: now_s)
    assert alive(lives, a=(b"3", 3.0)) == "a"
    now_s = 1.0
    assert alive(lives, a=(b"4", 0.0)) == "a"
    now_s = 3.9
    assert alive(lives, a=(b"4", 0.0)) == "a"
    now_s = 4.1
    assert alive(lives, a=(b"4", 0.0)) == ""


def test_rows_are_forgotten_by_who_has_seen_them_stand_still() -> None:
    now_s = 0.0
    lives = Lives(3.0, lambda: now_s)
    for now_s in range(0, 60, 10):
        alive(lives, a=(b"a", 3.0), b=(b"%d" % now_s, 3.0))
    assert lives.forgotten() == []
    for now_s in range(60, 80, 10):
        alive(lives, a=(b"a", 0.0), b=(b"%d" % now_s, 3.0))
    assert lives.forgotten() == [("a", b"a")]
    now_s = 200.0  # Redis was away: nobody could say anything
    alive(lives, a=(b"a", 0.0), b=(b"70", 0.0))
    assert lives.forgotten() == []


def test_shards_are_taken_from_a_process_only_if_it_is_gone_still(server: RedisServer, table: LeaseTable) -> None:
    other = LeaseTable(server.url, "sash", 10.0)
    try:
        other.beat(Member("other", 0))
        assert table.swap({0: "", 1: "", 2: ""}, "other") == [0, 1, 2]
        table.swap({3: ""}, "long gone")
        seen = table.beat(Member("me", 0))  # by this, it takes the other one for gone
        edit(server, "p:other", server.ask("HGET", "{sash}:table", "p:other") + b" ")  # a heartbeat
        assert table.take({0: "other", 4: ""}, "me", seen) == []
        assert table.take({4: "", 5: ""}, "me", seen) == [4, 5]
        seen = table.beat(Member("me", 0))
        assert table.take({0: "other", 1: "other", 3: "long gone", 4: ""}, "me", seen) == [0, 1, 3]
        edit(server, "p:long gone", "it comes back")
        assert table.take({3: "long gone"}, "me", seen) == []
        assert table.swap({0: "me", 1: "other", 2: "other"}, "") == [0, 2]
        assert {shard: table.beat(Member("me", 0)).owners.get(shard, "") for shard in range(3)} == {
            0: "",
            1: "me",
            2: "",
        }
    finally:
        other.close()


def test_each_heartbeat_changes_its_row_whatever_the_clock_says(server: RedisServer, table: LeaseTable) -> None:
    def row_after(row: bytes) -> bytes:
        edit(server, "p:me", row)
        return table.beat(Member("me", 0)).rows["me"]

    end, rest = table.beat(Member("me", 0)).rows["me"].split(b" ", 1)
    ahead = int(end) + 10**7  # the clock of Redis was set back since
    assert row_after(b"%d %s" % (ahead, rest)) == b"%d %s" % (ahead + 1, rest)
    assert table.beat(Member("me", 0)).rows["me"] == b"%d %s" % (ahead + 2, rest)
    assert int(end) <= int(row_after(b"%s %s" % (b"9" * 16, rest)).split()[0]) < ahead, "nobody means that deadline"


def test_a_shard_is_given_away_only_by_who_describes_itself_so_still(table: LeaseTable) -> None:
    early = Member("me", 0, address="a:1")
    table.beat(early)
    table.swap({0: ""}, "me")
    table.swap({1: ""}, "other")
    late = replace(early, doubts=1)  # it does not know what became of a first attempt
    table.give(0, late)
    assert table.beat(late).owners == {0: "me", 1: "other"}
    table.give(0, early)
    table.give(1, late)
    table.give(0, Member("gone", 1))
    assert table.beat(late).owners == {0: "me", 1: "other"}
    table.give(0, late)
    assert table.beat(late).owners.get(0, "") == ""


def test_answers_to_heartbeats_may_come_in_another_order(server: RedisServer, table: LeaseTable) -> None:
    answers = []
    asked = table._asked

    def keep(command):
        answers.append(asked(command))
        return answers[-1]

    table._asked = keep
    table.beat(Member("me", 0))
    table.swap({0: ""}, "me")
    assert table.beat(Member("me", 0)).owners == {0: "me"}
    early, _, late = answers
    assert table._read(4, 0.0, late).owners == {0: "me"}
    assert table._read(3, 0.0, early).owners == {0: "me"}


def test_a_slow_answer_makes_nobody_gone() -> None:
    now_s = 0.0
    lives = Lives(5.0, lambda: now_s)
    alive(lives, a=(b"1", 5.0))
    now_s = 6.0
    assert lives.look({"a": (b"1", 0.0)}, asked_s=4.9) == {"a"}
    assert lives.look({"a": (b"1", 0.0)}, asked_s=5.0) == set()


def test_who_has_shards_by_the_table_is_known_to_others(server: RedisServer, table: LeaseTable) -> None:
    layout = RedisLayout(load_settings(data=server.url), patience_s=0)
    layout.check_unleased()
    edit(server, "p:odd", "garbage")
    edit(server, "p:over", '1 0 {"lease_ms": 1000, "owner": ""}')
    layout.check_unleased()
    owner = Owner.here()
    table.beat(Member(owner.id, 0, owner=owner.token().decode()))
    with pytest.raises(FailedPrecondition, match=f"process {owner.pid} .*its lease runs out in") as raised:
        layout.check_unleased()
    assert 0 < raised.value.retry_after_s <= 10
    server.ask("SET", "{sash}:shards", "4")
    with pytest.raises(FailedPrecondition, match="has shards of 'sash'"):
        places(load_settings(data=server.url))
    server.ask("HDEL", "{sash}:table", f"p:{owner.id}")
    ended = subprocess.run(
        [sys.executable, "-c", "from sash.tiers.owner import Owner; print(Owner.here().token().decode())"],
        check=True,
        capture_output=True,
        text=True,
    )
    table.beat(Member("ended", 0, owner=ended.stdout.strip()))
    layout.check_unleased()
    assert len(places(load_settings(data=server.url))) == 4


def test_a_process_is_gone_only_if_it_was_when_the_table_was_asked(server: RedisServer, table: LeaseTable) -> None:
    clock = Seconds()
    table._lives = Lives(3.0, clock)
    edit(server, "p:x", '99999999999999 1 {"lease_ms": 1000}')
    assert table.beat(Member("me", 0)).members["x"].alive
    asked = table._asked

    def slowly(command):
        found = asked(command)
        clock.now_s += 5
        return found

    table._asked = slowly
    assert table.beat(Member("me", 0)).members["x"].alive
    assert not table.beat(Member("me", 0)).members["x"].alive
