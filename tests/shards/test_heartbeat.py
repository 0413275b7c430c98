"""Heartbeats to a store that is slow: each is sent in its time, and each answer keeps the lease."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable

import pytest

from sash.shards import heartbeat
from sash.shards.fair import Member, Table
from sash.shards.heartbeat import Heartbeat
from sash.shards.lease_table import OtherDeployment
from sash_engine.errors import Unavailable
from tests.support.waiting import until


class Store:
    """A table that answers when it is told to."""

    def __init__(self) -> None:
        self.waiting: list[threading.Event] = []
        self.answers: Callable[[], Table] = Table
        self.slow = False

    def beat(self, _: Member) -> Table:
        if self.slow:
            answer = threading.Event()
            self.waiting.append(answer)
            assert answer.wait(60)
        return self.answers()


class Beats:
    def __init__(self, lease_s: float) -> None:
        self.store, self.told, self.over = Store(), list[float](), list[str]()
        self.beats = Heartbeat(
            self.store,
            lambda: Member("me", 0),
            lease_s,
            lambda _, sent_s, __: self.told.append(sent_s),
            self.over.append,
        )


@pytest.fixture
async def made(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Beats]:
    monkeypatch.setattr(heartbeat, "_EVERY_S", 0.001)
    made = Beats(3600.0)
    yield made
    made.store.slow = False
    stopping = asyncio.create_task(made.beats.stop())
    while not stopping.done():
        for answer in made.store.waiting:
            answer.set()
        await asyncio.sleep(0.001)
    await stopping


async def test_heartbeats_do_not_wait_for_answers(made: Beats) -> None:
    made.beats.confirm((await made.beats.first(0.0))[1])
    assert made.beats.valid()
    made.store.slow = True
    made.beats.start()
    await until(lambda: len(made.store.waiting) == heartbeat._AT_ONCE)
    assert not made.told
    made.store.waiting[2].set()
    await until(lambda: len(made.told) == 1)
    await until(lambda: len(made.store.waiting) == heartbeat._AT_ONCE + 1)
    made.store.waiting[0].set()
    await until(lambda: len(made.told) == 2)
    late, early = made.told
    assert early < late
    assert made.beats._until_s == late + 3600.0, "an earlier heartbeat takes nothing of the lease"


async def test_a_heartbeat_that_is_wanted_while_many_wait_follows(made: Beats, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "_EVERY_S", 3600.0)
    made.store.slow = True
    made.beats.start()
    for sent in range(1, heartbeat._AT_ONCE + 1):
        made.beats.now()
        await until(lambda sent=sent: len(made.store.waiting) == sent)
    made.beats.now()
    await until(lambda: made.beats._wanted)
    made.store.waiting[0].set()
    await until(lambda: len(made.store.waiting) == heartbeat._AT_ONCE + 1)


async def test_a_lease_that_is_over_comes_back_only_when_it_is_confirmed(made: Beats) -> None:
    made.beats.start()
    await until(lambda: made.told)
    assert not made.beats.valid()
    made.beats.confirm(made.told[-1])
    assert made.beats.valid()


async def test_what_fails_is_a_problem_until_it_passes(made: Beats) -> None:
    def fail() -> Table:
        raise Unavailable("it is away")

    made.store.answers = fail
    made.beats._lease_s = 0.01
    made.beats.start()
    await until(lambda: made.beats.problem == "it is away")
    made.store.answers = Table
    await until(lambda: made.beats.problem is None)
    assert made.told


async def test_heartbeats_end_where_there_is_another_deployment(made: Beats) -> None:
    def other() -> Table:
        raise OtherDeployment("another one")

    made.store.slow = True
    made.beats.start()
    await until(lambda: len(made.store.waiting) == heartbeat._AT_ONCE)
    made.store.answers = other
    for answer in made.store.waiting[:]:
        answer.set()
    await until(lambda: made.over)
    await until(lambda: not made.beats._thread.is_alive())
    assert made.over == ["another one"]
