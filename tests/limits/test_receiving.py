"""Places for messages that are received: who gets the next one, and that none is lost."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from sash.limits import receiving
from sash.limits.receiving import Receiving
from sash_engine.errors import ResourceExhausted
from tests.support.virtual_time import passes, virtual


class Messages:
    """Messages that arrive when they are told to."""

    def __init__(self, places):
        self.receiving = Receiving(places, 1000.0)
        self.begun = []
        self.next = lambda: None
        """Runs when a message is there, before anybody who waits for its place."""
        self.arrived = {}

    def ask(self, caller, name):
        """Begin to receive a message; return the task."""

        async def read():
            self.begun.append(name)
            await self.arrived.setdefault(name, asyncio.Event()).wait()
            asyncio.get_running_loop().call_soon(self.next)
            return name

        return asyncio.create_task(self.receiving.message(caller, read))

    async def arrive(self, name):
        self.arrived[name].set()
        await passes(0.1)


@virtual
async def test_a_free_place_is_not_for_one_who_has_a_quarter_of_them():
    messages = Messages(8)
    tasks = [messages.ask("ann", f"a{i}") for i in range(4)]
    tasks += [messages.ask("bob", f"b{i}") for i in range(3)]
    await passes(0.1)
    assert messages.begun == ["a0", "a1", "b0", "b1"]
    await messages.arrive("b0")
    assert messages.begun == ["a0", "a1", "b0", "b1", "b2"]
    await messages.arrive("b1")  # a place is free, and those who wait are all ann's
    assert messages.begun == ["a0", "a1", "b0", "b1", "b2"]
    await messages.arrive("a0")
    assert messages.begun == ["a0", "a1", "b0", "b1", "b2", "a2"]
    for name in ("a1", "a2", "b2"):
        await messages.arrive(name)
    await messages.arrive("a3")
    assert await asyncio.gather(*tasks) == ["a0", "a1", "a2", "a3", "b0", "b1", "b2"]


@virtual
async def test_one_who_has_all_slots_does_not_have_all_places():
    """With half of the places beside the slots it had them all, and others waited for half a minute."""
    messages = Messages(16)
    slots = [messages.receiving.slot() for _ in range(9)]
    assert [slot is not None for slot in slots] == [True] * 8 + [False]
    tasks = [messages.ask("ann", f"a{i}") for i in range(8)]
    tasks += [messages.ask("bob", f"b{i}") for i in range(8)]
    await passes(0.1)
    assert messages.begun == ["a0", "a1", "a2", "a3", "b0", "b1", "b2", "b3"]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@virtual
async def test_who_is_called_off_just_when_there_is_a_place_gives_it_back():
    messages = Messages(1)
    first, second, third = (messages.ask(name, name) for name in ("ann", "bob", "carl"))
    await passes(0.1)
    messages.next = second.cancel
    await messages.arrive("ann")
    assert await first == "ann"
    with contextlib.suppress(asyncio.CancelledError):
        await second
    assert messages.begun == ["ann", "carl"]
    await messages.arrive("carl")
    assert await third == "carl"


@virtual
async def test_only_so_many_wait_for_a_place(monkeypatch):
    monkeypatch.setattr(receiving, "WAITING_MAX", 2)
    messages = Messages(1)
    tasks = [messages.ask("ann", f"a{i}") for i in range(4)]
    await passes(0.1)
    assert [task.done() for task in tasks] == [False, False, False, True]
    with pytest.raises(ResourceExhausted, match="too many messages"):
        await tasks.pop()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
