"""Long questions in slices: others run in between, writes wait, and whatever ends a question lets them go on."""

import asyncio
import inspect

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from sash.context import serving
from sash.durability.catalogue import Catalogue
from sash.durability.records.commands import BulkEvict, BulkInsert, Insert
from sash.durability.storage import Storage
from sash.plane import Plane
from sash.runtime import slices
from sash.runtime.metrics import Metrics
from sash.runtime.slices import Slices
from sash_engine.clock import ManualClock
from sash_engine.errors import DataLoss, NotFound, Unavailable
from sash_engine.windows.batches.batch import Origin
from sash_engine.windows.questions import ALL_KEYS, Query, RangeQuery, SeriesQuery
from sash_engine.windows.reading import reader
from tests.support.served import PlaneServer
from tests.support.sharded import in_process
from tests.support.small_steps import small_question_steps
from tests.support.stored import batch
from tests.support.waiting import turns

SECOND = 10**9
NAMES = [f"k{i:02}" for i in range(40)]
LONG = {
    "query": Query(keys=ALL_KEYS),
    "combined": Query(keys=ALL_KEYS, combine=True),
    "lookbacks": Query(keys=ALL_KEYS, combine=True, lookbacks=[5, 50]),
    "range_query": RangeQuery(0, 2000, keys=ALL_KEYS),
    "series": SeriesQuery(0, 2000, 10, 40, keys=ALL_KEYS),
}


@pytest.fixture(autouse=True)
def bit_by_bit(monkeypatch):
    """Each step is a slice, a step is of two keys, and a question about two keys is long."""
    small_question_steps(monkeypatch)


@pytest.fixture(params=["memory", "sync"])
async def server(request):
    """A server of one window with forty keys, small and large, in memory only or stored."""
    server = PlaneServer(request.param)
    await server.start()
    await server.create()
    for count, names, value in ((9, NAMES, 0), (100, NAMES[:5], 1000)):
        entries = batch([(key, time) for time in range(count) for key in names], value)
        await server.storage.write("w", BulkInsert(entries))
    yield server
    await server.storage.stop()


def asked(plane, question):
    """A question, under way."""
    return asyncio.create_task(plane.ask("w", question))


def plain(found):
    """An answer as values that compare."""
    if isinstance(found, list):
        return [plain(each) for each in found]
    aggregates = {name: np.asarray(value).tolist() for name, value in found.aggregates.items()}
    return np.asarray(found.entries).tolist(), aggregates


def at_once(server, question):
    """What the engine answers in one go."""
    found = server.storage.find("w").reader
    kinds = {Query: found.query, RangeQuery: found.range_query, SeriesQuery: found.series}
    return plain(kinds[type(question)](question))


async def begun(server, question):
    """A long question that has had some slices."""
    long = asked(server.plane, question)
    await turns(20)
    assert not long.done(), "it takes more slices than that"
    return long


async def insert(plane, time=10**6, key="k00", sequence=None):
    origin = None if sequence is None else Origin("p", sequence)
    return await plane.write("w", Insert(time, {"value": 1}, key), origin)


async def entries(server):
    """How many entries there are, asked of key after key."""
    return sum([(await server.plane.ask("w", Query(name)))[0].entries for name in NAMES])


@pytest.mark.parametrize("question", LONG.values(), ids=LONG)
async def test_a_small_question_is_answered_between_the_slices_of_a_long_one(server, question):
    expected = at_once(server, question)
    long, small = asked(server.plane, question), 0
    while not long.done():
        assert (await server.plane.ask("w", Query("k03")))[0].entries == 109
        small += 1
        await turns(1)
    assert small > 20
    assert plain(await long) == expected


@pytest.mark.parametrize("question", LONG.values(), ids=LONG)
async def test_a_write_waits_for_a_long_question_and_the_question_does_not_see_it(server, question):
    expected = at_once(server, question)
    long = await begun(server, question)
    writes = [asyncio.create_task(insert(server.plane, sequence=n)) for n in range(1, 10)]
    evict = asyncio.create_task(server.plane.write("w", BulkEvict(10**7)))
    await turns(5)
    assert not long.done()
    assert not any(write.done() for write in (*writes, evict))
    assert plain(await long) == expected
    assert [(await write).inserted for write in writes] == [1] * 9, "in the order in which they came"
    assert (await evict).evicted == 860 + 9


async def test_questions_share_a_window_until_a_write_waits(server):
    first = await begun(server, LONG["query"])
    second = asked(server.plane, LONG["combined"])
    await turns(5)
    write = asyncio.create_task(insert(server.plane))
    await turns(1)
    third = asked(server.plane, LONG["combined"])
    assert (await second)[0].entries == 860
    assert sum(answer.entries for answer in await first) == 860
    assert (await third)[0].entries == 861, "it came after the write"
    assert (await write).inserted == 1


async def test_all_writes_that_wait_go_before_a_later_question(server):
    long = await begun(server, LONG["query"])
    writes = [asyncio.create_task(insert(server.plane)) for _ in range(30)]
    await turns(1)
    later = asked(server.plane, LONG["combined"])
    await long
    assert (await later)[0].entries == 890
    await asyncio.gather(*writes)


async def test_a_question_that_is_cancelled_lets_writers_go_on(server):
    long = await begun(server, LONG["series"])
    write = asyncio.create_task(insert(server.plane))
    await turns(5)
    long.cancel()
    assert (await write).inserted == 1
    assert long.cancelled()


async def test_those_who_wait_may_leave(server):
    long = await begun(server, LONG["query"])
    waiting = [asyncio.create_task(insert(server.plane)), asked(server.plane, LONG["combined"])]
    last = asyncio.create_task(insert(server.plane))
    await turns(5)
    for each in waiting:
        each.cancel()
    await long
    assert (await last).inserted == 1
    assert await entries(server) == 861


async def test_an_error_in_the_middle_lets_writers_go_on(server, monkeypatch):
    long = await begun(server, LONG["query"])
    write = asyncio.create_task(insert(server.plane))

    def lost(*args):
        raise DataLoss("a block is damaged")

    with monkeypatch.context() as patch:
        patch.setattr(reader.Reader, "_answers", lost)
        with pytest.raises(DataLoss):
            await long
    assert (await write).inserted == 1


async def test_a_question_ends_when_its_window_is_deleted(server):
    long = await begun(server, LONG["query"])
    write = asyncio.create_task(insert(server.plane))
    await turns(5)
    assert await server.plane.delete("w") == 860
    for gone in (long, write):
        with pytest.raises(NotFound):
            await gone


async def test_a_question_ends_when_there_is_another_window_of_that_name(server):
    long = await begun(server, LONG["query"])
    await server.plane.delete("w")
    await server.create()
    with pytest.raises((Unavailable, NotFound)):
        await long
    assert (await insert(server.plane)).inserted == 1


async def test_time_brings_nothing_to_a_window_while_it_is_asked(server):
    plane, clock = server.plane, server.clock
    clock.advance(100 * SECOND)
    await server.create("wall", time_unit="s", slide={"max_age": "100s", "clock": "wall"})
    await plane.write("wall", BulkInsert(batch([(key, time) for time in range(1, 100) for key in NAMES], 0)))
    expected = [(key, 99) for key in NAMES]
    long = asyncio.create_task(plane.ask("wall", Query(keys=ALL_KEYS)))
    await turns(5)
    while not long.done():
        clock.advance(SECOND)
        plane.tidy()
        await plane.ask("wall", Query("k07"))
        await turns(1)
    assert [(answer.key, answer.entries) for answer in await long] == expected
    assert (await plane.ask("wall", Query("k07")))[0].entries < 99, "time goes on"


async def test_questions_that_overlap_do_not_stop_time_for_ever(server):
    """The first call of `tidy` lets no further question begin before those that run have ended."""
    plane = server.plane
    first = await begun(server, LONG["query"])
    plane.tidy()
    second = asked(plane, LONG["query"])
    await turns(5)
    order = []
    for name, task in (("first", first), ("second", second)):
        task.add_done_callback(lambda _, name=name: order.append(name))
    started = server.storage.store.lock("w")
    assert started._questions == 1
    await asyncio.gather(first, second)
    assert order == ["first", "second"]
    assert (await insert(plane)).inserted == 1


async def test_a_checkpoint_and_a_question_do_not_disturb_each_other():
    server = PlaneServer()
    storage = await server.start()
    plane = server.plane
    server.clock.advance(100 * SECOND)
    await server.create(time_unit="s", slide={"max_age": "100s", "clock": "wall"})
    await plane.write("w", BulkInsert(batch([(key, time) for time in range(1, 100) for key in NAMES], 0)))
    long = await begun(server, LONG["query"])
    storage.store.checkpoints.begin(storage.store.windows["w"])
    server.clock.advance(50 * SECOND)
    await storage.store.windows["w"].writable.wait()
    assert [answer.entries for answer in await long] == [99] * len(NAMES)
    await server.settled()
    assert storage.status().checkpoints == 1
    assert (await plane.ask("w", Query("k07")))[0].entries == 49
    await storage.stop()


async def test_the_turns_of_the_long_questions_of_two_callers_alternate(monkeypatch):
    """Each slice is as long as one alone would have; they do not add up."""
    monkeypatch.setattr(slices, "_SLICE_S", 0.005)
    log = []

    class Ticking(ManualClock):
        """Each look at it takes 2 ms."""

        def monotonic_s(self):
            self.advance(2_000_000)
            return super().monotonic_s()

    def steps(name):
        for _ in range(9):
            log.append(name)
            yield
        return name

    def ended():
        log.append("|")

    async def asked(name):
        serving().name = name
        return await runner.run(steps(name), ended)

    runner = Slices(Ticking())
    others = asyncio.create_task(_count(log))
    assert await asyncio.gather(*(asked(name) for name in "ab")) == ["a", "b"]
    others.cancel()
    text = "".join(log).replace("|", "")
    assert text.replace(".", "") == "aaabbb" * 3
    assert "ab" not in text.replace("...", "|")
    assert "ba" not in text.replace("...", "|"), "others have several turns between two slices"


async def _count(log):
    while True:
        log.append(".")
        await turns(1)


async def test_a_question_that_ends_in_its_first_slice_waits_for_nothing():
    def steps():
        yield
        return 7

    runner = Slices(ManualClock())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(slices, "_SLICE_S", 1.0)
        with pytest.raises(StopIteration) as end:
            runner.run(steps(), lambda: None).send(None)
    assert end.value.value == 7


async def test_steps_are_closed_when_what_comes_before_a_slice_fails():
    closed = []

    def steps():
        try:
            while True:
                yield
        finally:
            closed.append(True)

    begun = steps()

    def fails():
        if inspect.getgeneratorstate(begun) == inspect.GEN_SUSPENDED:
            raise Unavailable("it is recovered")

    with pytest.raises(Unavailable):
        await Slices(ManualClock()).run(begun, fails)
    assert closed == [True], "at once, although somebody still refers to them"


async def test_a_call_goes_before_the_slices_of_those_who_used_more():
    """Ten long questions of one caller are under way."""
    log, clock = [], ManualClock()
    runner = Slices(clock)

    def steps():
        for _ in range(30):
            log.append("slice")
            clock.advance(5_000_000)
            yield

    async def asked():
        serving().name = "heavy"
        await runner.turns.metered("heavy", runner.run(steps(), lambda: None))

    questions = [asyncio.create_task(asked()) for _ in range(10)]
    await turns(60)
    before = len(log)
    assert before > 10
    if runner.turns.pays("light"):
        await runner.turns.turn("light")
    assert len(log) - before <= 1
    await asyncio.gather(*questions)
    assert log.count("slice") == 300


def test_all_storages_of_a_process_share_the_turns():
    plane = in_process(3)
    assert len(plane.shards.hosted) == 3
    assert all(shard.storage.slices.turns is plane.turns for shard in plane.shards.hosted.values())
    assert plane.deployment.slices.turns is plane.turns
    storage = Storage(Catalogue(), ManualClock())
    assert Plane.of(storage, Metrics(CollectorRegistry()), ManualClock()).turns is storage.slices.turns
