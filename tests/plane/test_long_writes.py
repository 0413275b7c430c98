"""Long writes in slices: others run in between, and those who use the window see all of the write or nothing."""

import asyncio

import pytest

from sash import calls
from sash.durability import storage as storing
from sash.durability.records.commands import BulkInsert, Commit, Insert, StageBatch
from sash_engine.errors import NotFound, Unavailable
from sash_engine.windows.batches import rows
from sash_engine.windows.batches.batch import Origin
from sash_engine.windows.keys import keys as engine_keys
from sash_engine.windows.questions import ALL_KEYS, EntriesQuery, KeysQuery, Query, RangeQuery
from sash_engine.windows.writing import writer
from tests.support.served import PlaneServer
from tests.support.small_steps import small_write_steps
from tests.support.stored import batch
from tests.support.waiting import turns, until

NAMES = [f"k{i:02}" for i in range(40)]
LONG = [(key, time) for time in range(3) for key in NAMES] + [("large", time) for time in range(150)]
ALL = Query(keys=ALL_KEYS, combine=True)


@pytest.fixture(autouse=True)
def bit_by_bit(monkeypatch):
    """Each step is a slice, a step is of two keys or four rows, and a bulk of a hundred entries is long."""
    small_write_steps(monkeypatch)
    monkeypatch.setattr(writer, "_ROWS", 4)
    monkeypatch.setattr(writer, "_PANES", 4)
    monkeypatch.setattr(rows, "_NAMES", 2)


@pytest.fixture(params=["memory", "sync"])
async def server(request):
    server = PlaneServer(request.param)
    await server.start()
    await server.create("w", "other")
    await server.plane.write("w", Insert(5, {"value": 1}, "k07"))
    yield server
    await server.storage.stop()


STORED = pytest.mark.parametrize("server", ["sync"], indirect=True)


async def begun(server, origin=None):
    """A long write that has had some slices."""
    write = asyncio.create_task(server.plane.write("w", BulkInsert(batch(LONG, 0)), origin))
    await until(lambda: len(server.storage.find("w").keys) > 10)
    assert not write.done()
    return write


async def count(server, name="w"):
    (answer,) = await server.plane.ask(name, ALL)  # all keys together
    return answer.entries


async def test_others_run_in_between(server):
    write = await begun(server)
    insert = asyncio.create_task(server.plane.write("other", Insert(1, {"value": 1}, "a")))
    answered = 0
    while not write.done():
        await turns(1)
        assert await count(server, "other") == 1  # in memory at once; durable when the tier has it
        answered += 1
    assert answered > 3
    await insert
    assert (await write).inserted == 270


async def test_it_is_what_a_bulk_in_one_go_is(server, monkeypatch):
    await begun(server)
    found = await server.plane.ask("w", Query(keys=ALL_KEYS))
    monkeypatch.setattr(storing, "_LONG_BYTES", 10**9)
    await server.plane.write("other", Insert(5, {"value": 1}, "k07"))
    await server.plane.write("other", BulkInsert(batch(LONG, 0)))
    expected = await server.plane.ask("other", Query(keys=ALL_KEYS))
    assert found == expected
    server.storage.find("w").check_invariants()


async def answered(plane, question):
    """How many entries an answer is about."""
    found = await plane.ask("w", question)
    if isinstance(question, EntriesQuery):
        return sum(len(bulk.times) for bulk in found)
    return sum(answer.entries for answer in ([found] if isinstance(question, RangeQuery) else found))


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        (Query("k07"), 4),
        (Query("k39"), 3),
        (ALL, 271),
        (Query(keys=["k00", "large"]), 153),
        (RangeQuery(0, 10, key="large"), 11),
        (EntriesQuery(keys=ALL_KEYS), 271),
    ],
    ids=["a key", "its last key", "all together", "some keys", "a range", "entries"],
)
async def test_a_question_sees_all_of_it(server, question, expected):
    await begun(server)
    assert await answered(server.plane, question) == expected


async def test_an_export_has_all_of_it(server):
    await begun(server)
    parts = b"".join(await server.plane.export("w"))
    assert parts == b"".join(await server.plane.export("w")), "nothing has come since"
    assert (await server.plane.window("w")).entries == 271


async def test_the_list_of_keys_has_all_of_it(server):
    await begun(server)
    names, _ = await calls.key_names(server.plane, "w", KeysQuery())
    assert sorted(names) == [*NAMES, "large"]


async def test_what_was_asked_before_sees_nothing_of_it(server, monkeypatch):
    monkeypatch.setattr("sash_engine.windows.reading.costs._STEP_US", 0)
    await server.plane.write("w", BulkInsert(batch([(key, 1) for key in NAMES[:9]], 0)))
    question = asyncio.create_task(server.plane.ask("w", Query(keys=ALL_KEYS)))
    await turns(3)
    write = asyncio.create_task(server.plane.write("w", BulkInsert(batch(LONG, 0))))
    assert sum(answer.entries for answer in await question) == 10
    assert (await write).inserted == 270


async def test_writes_behind_it_keep_their_order(server):
    write = await begun(server, Origin("p", 1))
    later = [
        asyncio.create_task(server.plane.write("w", Insert(10**6 + n, {"value": 1}, "k00"), Origin("p", n)))
        for n in range(2, 9)
    ]
    second = asyncio.create_task(server.plane.write("w", BulkInsert(batch(LONG, 500)), Origin("p", 9)))
    assert (await write).inserted == 270
    assert [(await each).inserted for each in later] == [1] * 7
    assert (await second).inserted == 270
    assert (await server.plane.write("w", BulkInsert(batch(LONG, 0)), Origin("p", 1))).already_applied
    assert await count(server) == 548


async def test_a_caller_who_is_cancelled_leaves_the_whole_write(server):
    write = await begun(server, Origin("p", 1))
    write.cancel()
    with pytest.raises(asyncio.CancelledError):
        await write
    assert await count(server) == 271
    assert (await server.plane.write("w", BulkInsert(batch(LONG, 0)), Origin("p", 1))).already_applied
    if server.kind == "sync":
        await server.settled()
        await server.crash()
        assert await count(server) == 271


async def test_the_window_may_be_deleted_in_the_middle(server):
    write = await begun(server)
    await server.plane.delete("w")
    with pytest.raises(NotFound):
        await write
    await server.create()
    assert await count(server) == 0
    assert (await server.plane.write("w", BulkInsert(batch(LONG, 0)))).inserted == 270


async def test_a_refused_write_frees_the_window(server):
    with pytest.raises(Exception, match="key must not be empty"):
        await server.plane.write("w", BulkInsert(batch([*LONG, ("", 1)], 0)))
    assert await count(server) == 1
    assert (await server.plane.write("w", Insert(6, {"value": 1}, "a"))).inserted == 1


@STORED
async def test_a_crash_in_the_middle_leaves_nothing_of_it(server):
    write = await begun(server)
    await server.crash()
    assert await count(server) == 1
    write.cancel()
    await asyncio.gather(write, return_exceptions=True)


@STORED
async def test_no_image_is_taken_in_the_middle(server):
    write = await begun(server)
    window = server.storage.store.windows["w"]
    server.storage.store.checkpoints.begin(window)
    server.storage.tidy()
    assert not window.checkpointing
    await write
    server.storage.store.checkpoints.begin(window)
    await window.writable.wait()
    await server.settled()
    assert server.storage.status().checkpoints == 1
    await server.crash()
    assert await count(server) == 271


@STORED
async def test_a_failure_in_the_middle_recovers_the_window(server, monkeypatch):
    write = await begun(server, Origin("p", 1))

    def fails(*args):
        raise ZeroDivisionError

    with monkeypatch.context() as patch:
        patch.setattr(engine_keys.Keys, "bulk_insert", fails)
        with pytest.raises(ZeroDivisionError):
            await write
    with pytest.raises(Unavailable, match="recovered"):
        await count(server)
    await until(lambda: server.storage.store.windows["w"].failure is None)
    assert await count(server) == 1
    assert (await server.plane.write("w", BulkInsert(batch(LONG, 0)), Origin("p", 1))).inserted == 270


async def test_a_commit_of_staged_parts_is_one_write(server):
    parts = [await server.plane.write("w", StageBatch(batch(LONG, value), "q", 0)) for value in (0, 500)]
    commit = asyncio.create_task(server.plane.write("w", Commit("q", 0, [part.stage for part in parts])))
    await until(lambda: len(server.storage.find("w").keys) > 10)
    assert not commit.done()
    assert await count(server) == 541
    assert (await commit).inserted == 540


@STORED
async def test_it_is_applied_again_from_the_journal(server):
    await server.storage.write("w", BulkInsert(batch(LONG, 0)))
    await server.settled()
    found = await server.plane.ask("w", Query(keys=ALL_KEYS))
    await server.crash()
    assert await server.plane.ask("w", Query(keys=ALL_KEYS)) == found
