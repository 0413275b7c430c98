"""How long operations hold the loop: every stretch between two awaits is counted, and long ones are logged."""

import asyncio
import logging

import pytest
from prometheus_client import CollectorRegistry

from sash.durability.catalogue import Catalogue
from sash.durability.records.commands import Insert
from sash.durability.storage import Storage
from sash.limits.loop_time import LoopTime
from sash.limits.turns import Turns
from sash.plane import Plane
from sash.runtime.metrics import Metrics
from sash_engine.clock import ManualClock
from sash_engine.errors import NotFound
from sash_engine.windows.questions import Query, RangeQuery, SeriesQuery
from sash_engine.windows.spec.window import WindowSpec
from tests.support.waiting import turns

MS = 1_000_000


def held():
    clock, slices = ManualClock(), []
    return LoopTime(clock, lambda *slice_: slices.append(slice_), Turns()), clock, slices


async def test_every_stretch_between_two_awaits_is_a_slice():
    watch, clock, slices = held()

    async def work():
        clock.advance(3 * MS)
        await turns(1)
        clock.advance(7 * MS)
        return "done"

    task = asyncio.ensure_future(asyncio.wait_for(_awaited(watch.timed("insert", "w", work())), 60))
    await turns(1)
    assert await task == "done"
    assert slices == [("insert", 0.003), ("insert", pytest.approx(0.007))]


async def _awaited(timed):
    return await timed


async def test_what_waits_is_not_held():
    watch, clock, slices = held()
    gate = asyncio.Event()
    task = asyncio.create_task(_awaited(watch.timed("insert", "w", gate.wait())))
    await turns(1)
    clock.advance(10_000 * MS)
    gate.set()
    assert await task is True
    assert [seconds for _, seconds in slices] == [0.0, 0.0]


async def test_errors_and_cancellation_pass_through():
    watch, _, slices = held()
    seen = []

    async def refused():
        await turns(1)
        raise NotFound("there is none")

    with pytest.raises(NotFound):
        await watch.timed("query", "w", refused())

    async def stays():
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    task = asyncio.create_task(_awaited(watch.timed("query", "w", stays())))
    await turns(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert seen == ["cancelled"]
    assert len(slices) == 4


async def test_a_long_slice_is_logged_once_a_second(caplog):
    watch, clock, _ = held()
    with caplog.at_level(logging.WARNING, "sash.limits.loop_time"):
        watch.note("query", "flights", 0.05)
        assert not caplog.messages
        for _ in range(5):
            watch.note("series", "flights", 0.0731)
            clock.advance(100 * MS)
        assert caplog.messages == ["series of window 'flights' held the event loop for 73 ms"]
        clock.advance(500 * MS)
        watch.note("query", "trains", 1.5)
        clock.advance(1000 * MS)
        watch.note("query", "trains", 0.06)
    assert caplog.messages[1:] == [
        "query of window 'trains' held the event loop for 1500 ms; 4 more since the last such line",
        "query of window 'trains' held the event loop for 60 ms",
    ]


async def test_each_operation_of_the_plane_is_measured():
    registry, clock = CollectorRegistry(), ManualClock()
    plane = Plane.of(Storage(Catalogue(), clock), Metrics(registry), clock)
    await plane.create(WindowSpec.parse({"name": "w", "aggregates": {"n": {"function": "count"}}}))
    await plane.write("w", Insert(1, {"value": 1.0}))
    await plane.ask("w", Query())
    await plane.ask("w", RangeQuery(0, 1))
    await plane.ask("w", SeriesQuery(0, 2, 1))
    (await plane.window("w"))
    await plane.delete("w")
    for operation in ("insert", "query", "range_query", "series", "describe", "delete"):
        found = registry.get_sample_value("sash_loop_held_seconds_count", {"operation": operation})
        assert found == 1, operation


async def test_what_follows_a_call_is_done_also_where_it_fails():
    watch, _, _ = held()
    done = []

    async def refused():
        raise NotFound("there is none")

    with pytest.raises(NotFound):
        await watch.timed("query", "w", refused(), lambda: done.append("trimmed"))
    assert done == ["trimmed"]
