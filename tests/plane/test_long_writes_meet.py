"""Long writes that meet: each other, questions, checkpoints, windows that go, and a service that stops."""

import asyncio
import itertools

import pytest
from prometheus_client import CollectorRegistry

from sash import calls
from sash.durability.catalogue import Catalogue
from sash.durability.images.footprint import footprint
from sash.durability.records.commands import BulkInsert, Insert, StageBatch
from sash.durability.storage import Storage
from sash.limits.memory import MemoryBudget
from sash.plane import Plane
from sash.runtime.metrics import Metrics
from sash_engine.errors import NotFound, OutOfRoom, ResourceExhausted, SashError, Unavailable
from sash_engine.windows.batches import ledger
from sash_engine.windows.batches.batch import Origin
from sash_engine.windows.questions import ALL_KEYS, KeysQuery, Query, SeriesQuery
from sash_engine.windows.reading import conditions
from tests.support.served import SMALL, PlaneServer
from tests.support.small_steps import small_question_steps, small_write_steps
from tests.support.stored import batch, spec
from tests.support.waiting import turns

NAMES = [f"k{i:02}" for i in range(40)]
BULK = [(key, time) for time in range(3) for key in NAMES]
N = len(BULK)


@pytest.fixture(autouse=True)
def bit_by_bit(monkeypatch):
    """Each step is a slice, a step is of two keys, and a bulk of a hundred entries is long."""
    small_write_steps(monkeypatch)
    small_question_steps(monkeypatch)


@pytest.fixture(params=["memory", "sync"])
async def server(request):
    server = PlaneServer(request.param)
    await server.start()
    await server.create("w", "other")
    for name in ("w", "other"):
        await server.plane.write(name, BulkInsert(batch(BULK, 0)))
    yield server
    await server.storage.stop()


STORED = pytest.mark.parametrize("server", ["sync"], indirect=True)


async def empty(kind="sync", **options):
    """A server of two windows that have nothing."""
    server = PlaneServer(kind, **options)
    await server.start()
    await server.create("w", "other")
    return server


def bulk(server, name="w", origin=None):
    return asyncio.create_task(server.plane.write(name, BulkInsert(batch(BULK, 0)), origin))


def asked(server, name="w"):
    return asyncio.create_task(server.entries(name))


async def short(server, name="w"):
    """How many entries one key has, asked at once; the last key is written last."""
    return [(await server.plane.ask(name, Query(key)))[0].entries for key in (NAMES[0], NAMES[-1])]


async def test_writes_and_questions_that_wait_for_a_question_have_turns_one_after_the_other(server):
    first = asked(server)
    await turns(5)
    waiting = []
    for _ in range(3):
        waiting += [bulk(server), bulk(server), asked(server)]
        await turns(1)
    assert await first == N
    found = await asyncio.gather(*waiting)
    assert found[2::3] == [3 * N, 5 * N, 7 * N]
    server.storage.find("w").check_invariants()


async def test_a_small_write_behind_two_long_ones_does_not_come_between(server):
    first = asked(server)
    await turns(5)
    one, two = bulk(server), bulk(server)
    small = asyncio.create_task(server.plane.write("w", Insert(10**6, {"value": 1}, NAMES[-1])))
    await asyncio.gather(first, one, two, small)
    assert await server.entries() == 3 * N + 1
    server.storage.find("w").check_invariants()


async def test_short_questions_between_long_writes_see_whole_writes(server):
    first = asked(server)
    await turns(5)
    writes, found = [bulk(server) for _ in range(3)], []
    while not all(write.done() for write in writes):
        found.append(await short(server))
        await turns(1)
    await first
    assert all(one == other for one, other in found)
    assert (await short(server)) == [12, 12]


async def test_a_short_question_does_not_wait_for_a_long_one_behind_a_long_write(server):
    write = bulk(server)
    await turns(5)
    assert not write.done()
    long = asked(server)
    await turns(1)
    assert await short(server) == [6, 6]
    assert not long.done()
    assert await long == 2 * N


@STORED
async def test_a_write_that_waited_for_a_checkpoint_waits_for_a_question_that_began_meanwhile(server):
    window = server.storage.store.windows["w"]
    window.begin_snapshot()
    write = asyncio.create_task(server.plane.write("w", Insert(10**6, {"value": 1}, NAMES[-1])))
    await turns(5)
    question = asked(server)
    await turns(5)
    window.end_snapshot()
    window.end_checkpoint()
    await turns(5)
    assert not question.done()
    assert await question == N
    assert (await write).inserted == 1


@STORED
async def test_a_question_behind_writes_that_waited_for_a_checkpoint_sees_whole_writes(server):
    """They have had their turns already when the question comes, and wait for something else."""
    window = server.storage.store.windows["w"]
    window.begin_snapshot()
    one, two = bulk(server), bulk(server)
    await turns(5)
    window.end_snapshot()
    window.end_checkpoint()
    await turns(5)
    assert not one.done()
    found = await server.plane.ask("w", SeriesQuery(0, 2, 1, 3, keys=ALL_KEYS))
    assert found.entries.max() == 3 * N
    await asyncio.gather(one, two)
    assert await server.entries() == 3 * N


async def test_a_window_of_the_same_name_is_asked_while_the_write_to_the_old_one_ends(server):
    write = bulk(server)
    await turns(5)
    await server.plane.delete("w")
    await server.create()
    assert (await server.plane.ask("w", Query(NAMES[0])))[0].entries == 0
    with pytest.raises((NotFound, Unavailable)):
        await write


async def test_the_end_of_a_write_to_an_old_window_does_not_show_half_of_one_to_the_new(server):
    others = [asked(server, "other") for _ in range(9)]
    await turns(3)
    old = bulk(server)
    await turns(30)
    await server.plane.delete("w")
    await server.create()
    new = bulk(server)
    while not new.done():
        assert await short(server) in ([0, 0], [3, 3])
        await turns(1)
    with pytest.raises((NotFound, Unavailable)):
        await old
    await asyncio.gather(new, *others)


@pytest.mark.parametrize("kind", ["memory", "sync"])
async def test_a_write_that_waited_is_not_applied_in_the_middle_of_one_to_a_window_that_came_later(server, kind):
    """The window that it waited for was deleted, and another one of its name has the durability of `kind`."""
    first = asked(server)
    await turns(5)
    waiting = [bulk(server) for _ in range(2)]
    await turns(3)
    await server.plane.delete("w")
    server.kind = kind
    await server.create()
    new = bulk(server)
    await asyncio.gather(first, *waiting, new, return_exceptions=True)
    failed = [each.exception() for each in (*waiting, new) if each.exception() is not None]
    assert all(isinstance(error, NotFound) for error in failed)
    assert await server.entries() == (3 - len(failed)) * N
    server.storage.find("w").check_invariants()


async def test_a_write_that_waited_takes_a_turn_of_a_window_that_came_later_where_there_is_no_tier():
    server = PlaneServer("memory")
    server.plane = Plane.of(
        Storage(Catalogue(clock=server.clock), server.clock), Metrics(CollectorRegistry()), server.clock
    )
    await server.create()
    await server.plane.write("w", BulkInsert(batch(BULK, 0)))
    first = asked(server)
    await turns(5)
    waiting = bulk(server)
    await turns(3)
    await server.plane.delete("w")
    await server.create()
    new = bulk(server)
    with pytest.raises(Unavailable):
        await first
    await asyncio.gather(waiting, new)
    assert await server.entries() == 2 * N


@STORED
async def test_a_checkpoint_that_makes_room_comes_after_a_long_write(server):
    window = server.storage.store.windows["w"]
    await server.settled()
    write = bulk(server)
    await turns(5)
    await server.storage.store.checkpoints.take(window)
    assert (await write).inserted == N
    await server.settled()
    assert server.storage.status().checkpoints == 1


async def test_a_long_write_of_one_producer_too_many_is_refused(server, monkeypatch):
    monkeypatch.setattr(ledger, "MAX_WRITERS", 1)
    await bulk(server, origin=Origin("p", 1))
    with pytest.raises(ResourceExhausted):
        await bulk(server, origin=Origin("q", 1))
    assert await server.entries() == 2 * N


@pytest.mark.parametrize("after", range(0, 150, 13))
async def test_a_write_to_a_window_that_was_deleted_is_not_answered(server, after):
    """At every point: while it has a slice, and while it waits for one behind a question to another window."""
    others = [asked(server, "other") for _ in range(2)]
    write = bulk(server)
    await turns(after)
    ended = write.done()
    await server.plane.delete("w")
    if not ended:
        with pytest.raises(NotFound):
            await write
    await asyncio.gather(*others)
    await server.create()
    assert await server.entries() == 0
    if server.kind == "sync":
        await server.settled()
        await server.restart()
        assert await server.entries() == 0


@pytest.mark.parametrize("after", range(6))
async def test_nothing_is_logged_of_a_write_whose_caller_goes_after_its_window(server, after):
    await server.settled()
    records = server.storage.status().records
    write = bulk(server)
    await turns(5 + after)
    delete = asyncio.create_task(server.plane.delete("w"))
    await turns(1)
    write.cancel()
    with pytest.raises((asyncio.CancelledError, NotFound)):
        await write
    await delete
    await server.settled()
    listings = 2 if server.kind == "sync" else 0
    assert server.storage.status().records == records + listings


async def test_a_service_that_stops_waits_for_all_long_writes(server):
    writes = [bulk(server, origin=Origin(name, 1)) for name in "abc"]
    await turns(5)
    assert not any(write.done() for write in writes)
    await server.storage.stop()
    done = await asyncio.gather(*writes, return_exceptions=True)
    assert all(isinstance(each, SashError) or each.inserted == N for each in done)
    await server.start()
    if server.kind == "sync":
        answered = sum(not isinstance(each, SashError) for each in done)
        found = await server.entries()
        assert found % N == 0
        assert found >= (1 + answered) * N
        for name in "abc":
            await server.plane.write("w", BulkInsert(batch(BULK, 0)), Origin(name, 1))
        assert await server.entries() == 4 * N


@pytest.mark.parametrize("kind", ["memory", "sync"])
async def test_memory_of_a_long_write_is_promised_until_it_is_applied(kind):
    """The second one does not fit beside the first one, which has hardly begun to take what it needs."""
    entries = batch(BULK, 0)
    needed = footprint(spec(aggregates=SMALL), [entries], BulkInsert(entries).size)
    memory = MemoryBudget(2 * needed, used=lambda: 0, monotonic_s=itertools.count().__next__)
    server = await empty(kind, memory=memory)
    write = bulk(server)
    await turns(5)
    with pytest.raises(OutOfRoom, match="promised"):
        await bulk(server, "other")
    assert not write.done()
    assert (await write).inserted == N
    assert (await bulk(server, "other")).inserted == N
    await server.storage.stop()


async def test_space_of_a_long_write_is_taken_until_it_is_logged():
    """The tier has space for one of two."""
    server = await empty()
    rows = batch([(key, time) for time in range(100) for key in NAMES], 0)
    server.store.max_bytes = 20 * (server.store.used_bytes + 3 * BulkInsert(rows).size) // 16
    first, second = (asyncio.create_task(server.plane.write(name, BulkInsert(rows))) for name in ("w", "other"))
    with pytest.raises(OutOfRoom):
        await second
    assert not first.done()
    assert (await first).inserted == 100 * len(NAMES)
    server.store.max_bytes = None
    await server.storage.stop()


async def test_parts_of_a_window_are_not_counted_when_it_is_gone_and_the_tier_fails():
    memory = MemoryBudget(10**9, {"staged": (10**9, "")}, used=lambda: 0)
    server = await empty(memory=memory)
    await server.plane.write("w", StageBatch(batch(BULK, 0), "q", 0))
    assert memory.parts()["staged"] > 0
    server.tier.fail_before = 1
    with pytest.raises(Unavailable, match="may be applied"):
        await server.plane.delete("w")
    assert memory.parts()["staged"] == 0
    await server.storage.stop()


async def test_a_list_of_keys_that_is_taken_page_by_page_shows_no_half_of_a_write(server, monkeypatch):
    """The write begins between two pages, and brings new keys."""
    monkeypatch.setattr(conditions, "PAGE_NAMES", 4)
    new = [f"new{i:02}" for i in range(40)]
    pages = []
    ask = server.plane.ask
    monkeypatch.setattr(server.plane, "ask", lambda *question: pages.append(question) or ask(*question))
    listed = asyncio.create_task(calls.key_names(server.plane, "w", KeysQuery()))
    await turns(1)
    write = asyncio.create_task(server.plane.write("w", BulkInsert(batch([(key, 1) for key in new], 0))))
    names, _ = await listed
    assert len(pages) > 2
    assert names == NAMES + new
    assert (await write).inserted == len(new)


async def test_wall_time_stands_still_while_a_write_is_applied(server):
    """Else the keys that it writes last were older than those that it wrote first."""
    server.clock.advance(100 * 10**9)
    slide = {"max_age": "10s", "clock": "wall"}
    await server.create("wall", time_unit="s", slide=slide)
    write = asyncio.create_task(server.plane.write("wall", BulkInsert(batch([(key, 99) for key in NAMES], 0))))
    while not write.done():
        server.clock.advance(10**9)
        await turns(1)
    assert ((await write).inserted, (await write).evicted) == (len(NAMES), 0)
    assert await server.entries("wall") == 0, "time has gone on"
