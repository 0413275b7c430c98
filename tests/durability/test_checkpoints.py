"""Checkpoints step by step: the loop runs, readers read, writers wait; and nothing is lost whatever ends in between."""

import asyncio
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sash.durability import checkpoints, image, stored_window
from sash.durability import formats as values
from sash.durability.records import BulkEvict, BulkInsert, Insert
from sash_engine.errors import DataLoss, NotFound, OutOfRoom, Unavailable
from sash_engine.windows.batch import Batch, Origin
from sash_engine.windows.window import ALL_KEYS
from tests.support.stored import Server, batch, spec
from tests.support.waiting import until

SMALL = {"n": {"function": "count"}, "sum": {"function": "sum"}}
QUIET = {"checkpoint_bytes": 10**9, "store_entries": 10**9, "cache_bytes": 0}
NAMES = [f"k{i:02}" for i in range(40)]


@pytest.fixture(autouse=True)
def bit_by_bit(monkeypatch):
    """An image of forty keys takes dozens of turns."""
    monkeypatch.setattr(checkpoints, "_TURN_S", -1.0)
    monkeypatch.setattr(image, "_KEYS", 2)
    monkeypatch.setattr(image, "_FORESTS", 1)


async def begun(**options):
    """A server of two windows, of whose first, with forty keys small and large, an image is being taken."""
    server = Server(**{**QUIET, **options})
    storage = await server.start()
    for name in ("w", "v"):
        await storage.create(spec(name=name, aggregates=SMALL))
    await storage.write("w", BulkInsert(batch([(key, time) for time in range(9) for key in NAMES], 0)))
    await storage.write("w", BulkInsert(batch([(key, time) for time in range(100) for key in NAMES[:5]], 1000)))
    await server.settled()
    storage._checkpoints.begin(storage._stored["w"])
    assert not storage._stored["w"].still.is_set(), "it takes more than one turn"
    return server, storage


def insert(time, key="k00"):
    return Insert(time, {"value": 1}, key)


def entries(storage, name="w"):
    return sum(answer.entries for answer in storage.find(name).query(None, [], None, ALL_KEYS))


async def test_while_an_image_is_taken_others_write_and_its_readers_read():
    server, storage = await begun()
    still = storage._stored["w"].still
    before = storage.find("w").query(None, [], None, ALL_KEYS)
    writes = []
    while not still.is_set():
        writes.append(asyncio.create_task(storage.write("v", insert(len(writes)))))
        await asyncio.sleep(0)
        assert entries(storage, "v") == len(writes)
        assert storage.find("w").query(None, [], None, ALL_KEYS) == before
        assert storage.find("w").range_query(2, 50, "k03").entries == 56
        storage.trim()
    assert len(writes) > 5
    await asyncio.gather(*writes)
    await server.settled()
    assert storage.status().checkpoints == 1
    storage = await server.crash()
    assert storage.find("w").query(None, [], None, ALL_KEYS) == before
    assert entries(storage, "v") == len(writes)
    await storage.stop()


async def test_its_writers_wait_and_go_on_in_the_order_in_which_they_came():
    server, storage = await begun()
    still = storage._stored["w"].still
    writes = [asyncio.create_task(storage.write("w", insert(n), Origin("p", n))) for n in range(1, 20)]
    evict = asyncio.create_task(storage.write("w", BulkEvict(10**6)))
    last = asyncio.create_task(storage.write("w", insert(7)))
    await asyncio.sleep(0)
    assert not still.is_set()
    assert entries(storage) == 860, "nothing is applied"
    assert all(not result.already_applied for result in await asyncio.gather(*writes))
    assert (await evict).evicted == 879
    assert (await last).inserted == 1
    await server.settled()
    storage = await server.crash()
    assert entries(storage) == 1
    await storage.stop()


async def test_what_time_brings_waits_too_and_comes_later():
    server, storage = await begun()
    window = storage.find("w")
    released = len(window.cold.released)
    await storage.create(spec(name="idle", idle_expiry="10s"))
    await storage.write("idle", insert(1))
    server.clock.advance(11 * 10**9)
    storage._checkpoints.begin(storage._stored["w"])
    storage.tidy()
    assert len(window.cold.released) == released
    assert entries(storage, "idle") == 0, "the others are tidied"
    await storage.stop()


@pytest.mark.parametrize("end", ["crash", "restart"])
async def test_on_wall_time_a_question_evicts_nothing_while_an_image_is_taken(end):
    server = Server(**QUIET)
    storage = await server.start()
    await storage.create(spec(time_unit="s", slide={"max_age": "100s", "clock": "wall"}, aggregates=SMALL))
    server.clock.advance(100 * 10**9)
    await storage.write("w", BulkInsert(batch([(key, time) for time in range(1, 100, 3) for key in NAMES], 0)))
    await server.settled()
    server.clock.advance(20 * 10**9)
    stored = storage._stored["w"]
    storage._checkpoints.begin(stored)
    found = set()
    while not stored.still.is_set():
        server.clock.advance(2 * 10**9)
        found.add(entries(storage))
        storage.trim()
        await asyncio.sleep(0)
    assert found == {26 * len(NAMES)}, "those of 20 s and older have left"
    await server.settled()
    left = entries(storage)
    assert left < 26 * len(NAMES), "time goes on"
    storage = await getattr(server, end)()
    storage.find("w").check_invariants()
    assert entries(storage) == left
    storage.find("w").check_invariants()
    await storage.stop()


async def test_a_window_that_is_deleted_while_its_image_is_taken_is_gone():
    server, storage = await begun()
    write = asyncio.create_task(storage.write("w", insert(1)))
    await asyncio.sleep(0)
    assert await storage.delete("w") == 860
    with pytest.raises(NotFound):
        await write
    await storage.create(spec(aggregates=SMALL))
    await storage.write("w", insert(1))
    storage = await server.crash()
    assert entries(storage) == 1
    await storage.delete("w")
    await storage.delete("v")
    await server.settled()
    assert not {key for key in server.left if not key.startswith(b"journal/")}
    await storage.stop()


@pytest.mark.parametrize("end", ["stop", "crash"])
async def test_a_service_that_ends_while_an_image_is_taken_loses_nothing(end):
    server, storage = await begun()
    storage = await (server.restart() if end == "stop" else server.crash())
    assert storage.status().journal_groups == (0 if end == "stop" else 2)
    assert entries(storage) == 860
    await storage.stop()


async def test_where_an_image_cannot_be_taken_its_writers_go_on_and_it_is_tried_again():
    server = Server(checkpoint_bytes=10**9, store_entries=4, cache_bytes=0)
    storage = await server.start()
    await storage.create(spec(aggregates=SMALL))
    await storage.write("w", BulkInsert(batch([("a", time) for time in range(400)], 0)))
    await server.settled()
    storage.trim()
    stored = storage._stored["w"]
    stored.resting = 1  # or the blocks are stored right after the write
    late = [("a", time) for time in range(0, 390, 5)]
    await storage.write("w", BulkInsert(batch(late, 0)))
    storage.trim()
    stored.resting = 0
    server.tier.fail_reads = 1
    storage._checkpoints.begin(stored)
    write = asyncio.create_task(storage.write("w", insert(500)))
    await asyncio.wait_for(write, 5)
    assert server.tier.fail_reads == 0, "a block had to be read"
    assert stored.resting
    assert not stored.checkpointing
    storage.tidy()
    storage._checkpoints.begin(stored)
    await stored.still.wait()
    await server.settled()
    assert storage.status().checkpoints == 1
    for again in (server.crash, server.restart):
        storage = await again()
        assert entries(storage) == 400 + len(late) + 1
    await storage.stop()


# ---------------------------------------------------------------- when


async def beside(monkeypatch, idle_rows, busy_rows, checkpoint_bytes):
    """A window that was written to first, and another one; and those of which a checkpoint is begun."""
    names = ("idle", "busy")
    server = Server(**QUIET)
    storage = await server.start()
    for name in names:
        await storage.create(spec(name=name, aggregates=SMALL))
    for name, count in zip(names, (idle_rows, busy_rows), strict=True):
        for time in range(count):
            await storage.write(name, insert(time, "k"))  # a record of 106 bytes, in a group of its own
    await server.settled()
    begun = []
    storage._checkpoints._checkpoint_bytes = checkpoint_bytes
    monkeypatch.setattr(storage._checkpoints, "begin", lambda stored: begun.append(stored.name))
    return server, storage, begun


@pytest.mark.parametrize(
    ("idle_rows", "busy_rows", "checkpoint_bytes", "expected"),
    [
        (1, 20, 500, ["idle"]),
        (1, 11, 500, ["idle"]),
        (1, 11, 584, []),  # 1,166 bytes are behind the first group: less than twice as many
        (1, 11, 583, ["idle"]),
        (8, 13, 500, ["idle"]),  # 20 records are behind its first one, and 8 are its own
        (10, 11, 500, []),  # half of it, and it has a checkpoint of its own soon
        (20, 1, 500, []),
        (0, 20, 500, []),  # the oldest group is that of the busy one
    ],
)
async def test_a_long_journal_that_one_window_alone_needs_has_it_checkpointed(
    monkeypatch, idle_rows, busy_rows, checkpoint_bytes, expected
):
    server, storage, begun = await beside(monkeypatch, idle_rows, busy_rows, checkpoint_bytes)
    storage._checkpoints.shorten_journal()
    assert begun == expected
    await server.die()


async def test_no_checkpoint_is_begun_for_a_long_journal_while_the_tier_fails(monkeypatch):
    server, storage, begun = await beside(monkeypatch, 1, 20, 500)
    server.tier.fail_before = 10**9
    with pytest.raises(Unavailable):
        await storage.write("busy", insert(99))
    begun.clear()  # of the write itself
    storage._checkpoints.shorten_journal()
    assert begun == []
    await server.die()


async def test_a_window_that_cannot_be_recovered_has_no_checkpoint_for_a_long_journal(monkeypatch):
    server, storage, begun = await beside(monkeypatch, 1, 20, 500)
    storage._stored["idle"].lost = True
    storage._checkpoints.shorten_journal()
    assert begun == [], "and the next one has all of it"
    await server.die()


async def test_what_does_not_fit_rests_longer_each_time_and_what_fails_a_turn():
    server, storage = await begun()
    stored = storage._stored["w"]
    await stored.still.wait()
    await server.settled()
    rests = []
    for _ in range(9):
        storage._checkpoints._rest(stored, OutOfRoom("full"))
        rests.append(stored.resting)
    assert rests == [1, 2, 4, 8, 16, 32, 64, 64, 64]
    storage._checkpoints._rest(stored, Unavailable("away"))
    assert stored.resting == 64
    for left in range(63, -1, -1):
        storage._checkpoints.begin(stored)
        assert not stored.checkpointing, "it rests"
        storage.tidy()
        assert stored.resting == left
    storage.tidy()
    assert stored.resting == 0
    storage._checkpoints.begin(stored)
    await stored.still.wait()
    await server.settled()
    storage._checkpoints._rest(stored, Unavailable("away"))
    assert (stored.resting, stored.pause) == (1, 1), (
        "a checkpoint that counts begins anew, and a failure does not double it"
    )
    await storage.stop()


async def test_blocks_that_do_not_fit_let_the_window_rest_longer_each_time_and_its_writer_go_on(caplog):
    server = Server(checkpoint_bytes=10**9, store_entries=4)
    storage = await server.start()
    await storage.create(spec(aggregates=SMALL))
    stored = storage._stored["w"]

    def full(size, reserve=0.0):
        if reserve:
            raise OutOfRoom("as told")

    server.tier.check_room = full
    for times, pause in ((range(100), 2), (range(100, 200), 4)):
        stored.resting = 0
        await storage.write("w", BulkInsert(batch([("a", time) for time in times], 0)))
        assert stored.pause == pause
    assert "cannot be stored now: as told" in caplog.text
    assert stored.window.cold.dirty_entries
    await server.die()


async def test_who_waits_for_a_checkpoint_waits_until_it_is_taken():
    server, storage = await begun()
    stored = storage._stored["w"]
    await stored.still.wait()
    await server.settled()
    taking = asyncio.create_task(storage._checkpoints.taken(stored))
    await asyncio.sleep(0)
    assert not stored.still.is_set()
    await taking
    assert stored.still.is_set()
    assert stored.checkpointing, "it is yet to be written"
    await server.settled()
    await storage.stop()


async def test_after_an_eviction_a_window_that_rests_is_tried_again_at_once():
    server, storage = await begun()
    stored = storage._stored["w"]
    await stored.still.wait()
    await server.settled()
    for _ in range(5):
        storage._checkpoints._rest(stored, OutOfRoom("full"))
    await storage.write("w", insert(200))
    assert (stored.resting, stored.pause) == (16, 32)
    await storage.write("w", BulkEvict(3))
    assert (stored.resting, stored.pause) == (0, 1)
    await storage.stop()


async def test_no_image_is_taken_of_a_window_in_doubt_or_of_which_one_is_on_its_way():
    server, storage = await begun()
    stored = storage._stored["w"]
    storage._checkpoints.begin(stored)
    await stored.still.wait()
    server.tier.open_gate.clear()
    storage._checkpoints.begin(stored)
    assert stored.still.is_set(), "it is written still"
    server.tier.open_gate.set()
    await server.settled()
    assert storage.status().checkpoints == 1
    stored.failure = Unavailable("as told")
    storage._checkpoints.begin(stored)
    assert not stored.checkpointing
    stored.failure = None
    await storage.stop()


async def test_at_the_end_only_windows_with_a_journal_are_checkpointed():
    server, storage = await begun()
    await storage._stored["w"].still.wait()
    await server.settled()
    await storage._checkpoints.bring_up_to_date()
    await server.settled()
    assert storage.status().checkpoints == 1, "v was not written to, and w has nothing behind its image"
    await storage.write("v", insert(1))
    storage._checkpoints.begin(storage._stored["w"])
    await storage._checkpoints.bring_up_to_date()
    await server.settled()
    assert storage.status().checkpoints == 3
    assert storage.status().journal_groups == 0
    await storage.stop()


async def test_a_defect_in_taking_an_image_lets_the_window_rest_and_its_writers_go_on(monkeypatch, caplog):
    server, storage = await begun()
    stored = storage._stored["w"]

    def fails(self):
        raise ZeroDivisionError

    monkeypatch.setattr(image.Image, "encode", fails)  # after the last step, in the committer's thread
    monkeypatch.setattr(type(stored), "_flush", fails)  # with the last step
    write = asyncio.create_task(storage.write("w", insert(500)))
    await asyncio.wait_for(write, 5)
    assert (stored.resting, stored.checkpointing) == (1, False)
    assert "ZeroDivisionError" in caplog.text
    await server.die()


# ---------------------------------------------------------------- deleting


@given(st.sets(st.integers(1, 300)), st.integers(2, 6))
def test_ranges_cover_all_numbers_and_leave_the_widest_gaps_out(numbers, most):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stored_window, "_RANGES", most)
        found = stored_window.ranges_of(np.array(sorted(numbers, key=lambda n: n % 7), np.int64))
    covered = [number for first, stop in found for number in range(first, stop)]
    assert numbers <= set(covered)
    assert covered == sorted(set(covered))
    assert len(found) <= most
    ordered = sorted(numbers)
    gaps = sorted((b - a for a, b in itertools.pairwise(ordered)), reverse=True)
    assert len(covered) == (ordered[-1] - ordered[0] + 1 - sum(gap - 1 for gap in gaps[: most - 1]) if ordered else 0)


async def test_deleting_an_old_window_does_not_try_every_number_that_its_blocks_had():
    server = Server(checkpoint_bytes=2000, store_entries=8)
    storage = await server.start()
    await storage.create(spec(keyed=False, slide={"max_count": 50}, aggregates=SMALL))
    for start in range(0, 5000, 50):
        await storage.write("w", BulkInsert(Batch(np.arange(start, start + 50), {"value": np.arange(50)})))
    await server.settled()
    storage = await server.restart()
    assert storage._stored["w"]._next_block > 1000
    deleted = []
    commit = server.tier.commit
    server.tier.commit = lambda puts, deletes=(): (deleted.extend(deletes), commit(puts, deletes))
    await storage.delete("w")
    await server.settled()
    assert len(deleted) < 100
    assert not {key for key in server.left if not key.startswith(b"journal/")}
    await storage.stop()


async def test_an_export_that_stands_still_keeps_nothing_from_being_deleted_for_ever():
    server = Server(checkpoint_bytes=1500, store_entries=4, cache_bytes=0)
    storage = await server.start()
    await storage.create(spec(slide={"max_count": 10}, aggregates=SMALL))
    await storage.write("w", BulkInsert(batch([("a", time) for time in range(50)], 0)))
    export = storage.export("w")
    next(export)
    for start in range(50, 500, 50):
        await storage.write("w", BulkInsert(batch([("a", time) for time in range(start, start + 50)], 0)))
        await server.settled()
    many = len(server.left)
    server.clock.advance(299 * 10**9)
    storage.tidy()
    await server.settled()
    assert len(server.left) >= many, "it has time"
    server.clock.advance(2 * 10**9)
    storage.tidy()
    await server.settled()
    assert len(server.left) < many / 2
    with pytest.raises(Unavailable, match="begin again"):
        next(export)
    assert list(storage.export("w"))
    await storage.stop()


async def test_an_export_that_goes_on_keeps_what_it_needs_and_nothing_of_other_windows():
    server = Server(checkpoint_bytes=1500, store_entries=4, cache_bytes=0)
    storage = await server.start()
    for name in ("w", "v"):
        await storage.create(spec(name=name, slide={"max_count": 20}, aggregates=SMALL))
        await storage.write(name, BulkInsert(batch([("a", time) for time in range(20)], 0)))
    await server.settled()
    parts = list(storage.export("w"))
    export = storage.export("w")
    assert next(export) == parts[0]
    for start, part in zip(range(50, 500, 50), parts[1:], strict=False):
        for name in ("w", "v"):
            await storage.write(name, BulkInsert(batch([("a", time) for time in range(start, start + 50)], 0)))
        server.clock.advance(200 * 10**9)
        storage.tidy()
        await server.settled()
        storage.trim()
        held, free = (sum(key.startswith(b"block/%08x/" % number) for key in server.left) for number in (1, 2))
        assert next(export) == part
    assert free < held / 2
    assert list(export) == []
    await storage.stop()


# ---------------------------------------------------------------- a window in doubt


async def failing():
    """A server of two windows, one of which has failed in the middle of a write; reads of its pointer wait."""
    server = Server(cache_bytes=0, checkpoint_bytes=10**6, store_entries=4)
    storage = await server.start()
    for name in ("w", "v"):
        await storage.create(spec(name=name, aggregates=SMALL))
    await storage.write("w", BulkInsert(batch([("a", time) for time in range(100)], 0)))
    storage._checkpoints.begin(storage._stored["w"])
    await storage._stored["w"].still.wait()
    await server.settled()
    storage.trim()
    server.tier.fail_reads, server.tier.hold_reads = 1, b"pointer/"
    with pytest.raises(Unavailable):
        await storage.write("w", BulkEvict(17))  # cuts a block that is not in memory
    await until(server.tier.reading.is_set)
    return server, storage


async def test_a_window_is_recovered_beside_the_loop():
    server, storage = await failing()
    for time in range(30):
        await asyncio.wait_for(storage.write("v", insert(time)), 5)
    [about] = [info.problem for info in storage.all() if info.spec.name == "w"]
    assert "is being recovered" in about
    server.tier.read_gate.set()
    await until(lambda: storage._stored["w"].failure is None)
    assert [info.problem for info in storage.all()] == [None, None]
    await storage.write("w", BulkEvict(17))
    storage = await server.crash()
    assert entries(storage) == 82
    await storage.stop()


async def test_the_journal_is_not_cut_while_a_window_reads_it():
    server, storage = await failing()
    groups = storage.status().journal_groups
    for time in range(30):
        await storage.write("v", insert(time))
    storage._checkpoints.begin(storage._stored["v"])
    await storage._stored["v"].still.wait()
    await server.settled()
    assert storage.status().journal_groups == groups + 30
    server.tier.read_gate.set()
    await until(lambda: storage._stored["w"].failure is None)
    await storage.write("v", insert(40))
    storage._checkpoints.begin(storage._stored["v"])
    await storage._stored["v"].still.wait()
    await server.settled()
    assert storage.status().journal_groups == 0
    await storage.stop()


async def test_a_service_can_stop_and_a_window_can_go_while_it_is_recovered():
    server, storage = await failing()
    deleted = asyncio.create_task(storage.delete("w"))
    await asyncio.sleep(0)
    server.tier.read_gate.set()
    assert await deleted == 100
    storage = await asyncio.wait_for(server.restart(), 5)
    with pytest.raises(NotFound):
        storage.find("w")
    server.tier.hold_reads = None
    await storage.stop()


async def test_a_damaged_window_says_so_in_the_list():
    server = Server()
    storage = await server.start()
    for name in ("w", "v"):
        await storage.create(spec(name=name))
        await storage.write(name, insert(1))
    await storage.stop()
    server.store.values[values.pointer_key(1)] = b"nonsense"
    storage = await server.start()
    v, w = storage.all()
    assert v.problem is None
    with pytest.raises(DataLoss) as why:
        storage.find("w")
    assert w.problem == why.value.message
    await storage.stop()


async def test_what_was_written_before_blocks_were_told_by_ranges_is_read_and_deleted():
    server = Server(checkpoint_bytes=500, store_entries=4)
    storage = await server.start()
    await storage.create(spec(aggregates=SMALL))
    await storage.write("w", BulkInsert(batch([("a", time) for time in range(100)], 0)))
    await storage.stop()
    key = values.pointer_key(1)
    pointer = values.unseal("pointer", server.store.values[key], key)
    del pointer["blocks"]
    server.store.values[key] = values.seal("pointer", pointer, key)
    storage = await server.start()
    assert entries(storage) == 100
    await storage.delete("w")
    await storage.stop()
    assert not server.left
    assert stored_window.Remains.of(stored_window.Remains().document() | {"blocks": 7}).blocks == [(1, 7)]


async def test_a_lost_window_that_cannot_be_deleted_now_is_there_still():
    server = Server()
    storage = await server.start()
    await storage.create(spec(aggregates=SMALL))
    await storage.write("w", insert(1))
    await storage.stop()
    server.store.values[values.pointer_key(1)] = b"nonsense"
    storage = await server.start()
    server.tier.fail_reads = 1  # what there is of it has to be looked for
    with pytest.raises(Unavailable):
        await storage.delete("w")
    assert [info.spec.name for info in storage.all()] == ["w"]
    assert await storage.delete("w") == 0
    storage = await server.crash()
    assert storage.all() == []
    await storage.stop()
