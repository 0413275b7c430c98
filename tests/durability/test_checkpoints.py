"""Checkpoints step by step, and their states: the loop runs, readers read, writers wait, and nothing is lost."""

import asyncio
import itertools

import pytest

from sash.durability.images import checkpoints, image
from sash.durability.images.blocks import BlockStore
from sash.durability.images.checkpoint import Checkpoint, Progress
from sash.durability.images.checkpoints import Checkpoints
from sash.durability.images.stored_window import State
from sash.durability.records.commands import BulkEvict, BulkInsert, Insert
from sash_engine.errors import DataLoss, NotFound, OutOfRoom, Unavailable
from sash_engine.windows.batches.batch import Origin
from sash_engine.windows.window import ALL_KEYS
from tests.support.stored import batch, running, spec

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
    server, storage = await running(*[spec(name=name, aggregates=SMALL) for name in ("w", "v")], **{**QUIET, **options})
    await storage.write("w", BulkInsert(batch([(key, time) for time in range(9) for key in NAMES], 0)))
    await storage.write("w", BulkInsert(batch([(key, time) for time in range(100) for key in NAMES[:5]], 1000)))
    await server.settled()
    storage.store.checkpoints.begin(storage.store.windows["w"])
    assert not storage.store.windows["w"].writable.is_set(), "it takes more than one turn"
    return server, storage


def insert(time, key="k00"):
    return Insert(time, {"value": 1}, key)


def entries(storage, name="w"):
    return sum(answer.entries for answer in storage.find(name).query(None, [], None, ALL_KEYS))


async def test_while_an_image_is_taken_others_write_and_its_readers_read():
    server, storage = await begun()
    still = storage.store.windows["w"].writable
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


async def test_its_writers_wait_and_go_on_in_the_order_in_which_they_came():
    server, storage = await begun()
    still = storage.store.windows["w"].writable
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


async def test_what_time_brings_waits_too_and_comes_later():
    server, storage = await begun()
    window = storage.find("w")
    released = len(window.cold.released)
    await storage.create(spec(name="idle", idle_expiry="10s"))
    await storage.write("idle", insert(1))
    server.clock.advance(11 * 10**9)
    storage.store.checkpoints.begin(storage.store.windows["w"])
    storage.tidy()
    assert len(window.cold.released) == released
    assert entries(storage, "idle") == 0, "the others are tidied"


@pytest.mark.parametrize("end", ["crash", "restart"])
async def test_on_wall_time_a_question_evicts_nothing_while_an_image_is_taken(end):
    server, storage = await running(
        spec(time_unit="s", slide={"max_age": "100s", "clock": "wall"}, aggregates=SMALL), **QUIET
    )
    server.clock.advance(100 * 10**9)
    await storage.write("w", BulkInsert(batch([(key, time) for time in range(1, 100, 3) for key in NAMES], 0)))
    await server.settled()
    server.clock.advance(20 * 10**9)
    stored = storage.store.windows["w"]
    storage.store.checkpoints.begin(stored)
    found = set()
    while not stored.writable.is_set():
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


@pytest.mark.parametrize("end", ["stop", "crash"])
async def test_a_service_that_ends_while_an_image_is_taken_loses_nothing(end):
    server, storage = await begun()
    storage = await (server.restart() if end == "stop" else server.crash())
    assert storage.status().journal_groups == (0 if end == "stop" else 2)
    assert entries(storage) == 860


# ---------------------------------------------------------------- when


def pauses(stored):
    return stored.backoff.turns_left, stored.backoff.pause


async def beside(monkeypatch, idle_rows, busy_rows, checkpoint_bytes):
    """A window that was written to first, and another one; and those of which a checkpoint is begun."""
    names = ("idle", "busy")
    server, storage = await running(*[spec(name=name, aggregates=SMALL) for name in names], **QUIET)
    for name, count in zip(names, (idle_rows, busy_rows), strict=True):
        for time in range(count):
            await storage.write(name, insert(time, "k"))  # a record of 106 bytes, in a group of its own
    await server.settled()
    begun = []
    checkpoints = Checkpoints(storage.store.session, storage.store.windows, server.clock, checkpoint_bytes, 4)
    monkeypatch.setattr(checkpoints, "begin", lambda stored: begun.append(stored.name))
    return storage, checkpoints, begun


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
    _, checkpoints, begun = await beside(monkeypatch, idle_rows, busy_rows, checkpoint_bytes)
    checkpoints.shorten_journal()
    assert begun == expected


async def test_no_checkpoint_is_begun_for_a_long_journal_while_the_tier_fails(monkeypatch):
    storage, checkpoints, begun = await beside(monkeypatch, 1, 20, 500)
    storage.store.session.tier.fail_before = 10**9
    with pytest.raises(Unavailable):
        await storage.write("busy", insert(99))
    checkpoints.shorten_journal()
    assert begun == []


async def test_a_window_that_cannot_be_recovered_has_no_checkpoint_for_a_long_journal(monkeypatch):
    storage, checkpoints, begun = await beside(monkeypatch, 1, 20, 500)
    storage.store.windows["idle"].lose(DataLoss("as told"))
    checkpoints.shorten_journal()
    assert begun == [], "and the next one has all of it"


async def test_what_does_not_fit_rests_longer_each_time_and_what_fails_a_turn():
    server, storage = await begun()
    stored = storage.store.windows["w"]
    await stored.writable.wait()
    await server.settled()
    rests = []
    for _ in range(9):
        stored.backoff.fail(OutOfRoom("full"))
        rests.append(stored.backoff.turns_left)
    assert rests == [1, 2, 4, 8, 16, 32, 64, 64, 64]
    stored.backoff.fail(Unavailable("away"))
    assert stored.backoff.turns_left == 64
    for left in range(63, -1, -1):
        storage.store.checkpoints.begin(stored)
        assert not stored.checkpointing, "it rests"
        storage.tidy()
        assert stored.backoff.turns_left == left
    storage.tidy()
    assert not stored.backoff.waiting
    storage.store.checkpoints.begin(stored)
    await stored.writable.wait()
    await server.settled()
    stored.backoff.fail(Unavailable("away"))
    assert pauses(stored) == (1, 1), "a checkpoint that counts begins anew, and a failure does not double it"


async def test_entries_for_stored_blocks_wait_for_up_to_four_times_as_many():
    """8,000 entries in 250 blocks of 32; each later bulk brings one entry to each of 40 blocks."""
    server, storage = await running(
        spec(aggregates=SMALL), checkpoint_bytes=10**9, store_entries=100, cache_bytes=10**6, block=32
    )
    cold = storage.store.windows["w"].cold
    await storage.write("w", BulkInsert(batch([("a", 10 * time) for time in range(8000)], 0)))
    gathered, sent = [], 0
    for i in range(40):
        late = [("a", 2000 * j + 320 * (i % 6) + 1 + i // 6) for j in range(40)]
        sent += len(late)
        await storage.write("w", BulkInsert(batch(late, 0)))
        gathered.append(cold.dirty_entries)
        await server.settled()
    assert 360 <= max(gathered) < 400
    assert entries(storage) == 8000 + sent
    storage = await server.crash()
    assert entries(storage) == 8000 + sent


async def test_who_waits_for_a_checkpoint_waits_until_it_is_taken():
    server, storage = await begun()
    stored = storage.store.windows["w"]
    await stored.writable.wait()
    await server.settled()
    taking = asyncio.create_task(storage.store.checkpoints.take(stored))
    await asyncio.sleep(0)
    assert not stored.writable.is_set()
    await taking
    assert stored.writable.is_set()
    assert stored.checkpointing, "it is yet to be written"
    await server.settled()


async def test_after_an_eviction_a_window_that_rests_is_tried_again_at_once():
    server, storage = await begun()
    stored = storage.store.windows["w"]
    await stored.writable.wait()
    await server.settled()
    for _ in range(5):
        stored.backoff.fail(OutOfRoom("full"))
    await storage.write("w", insert(200))
    assert pauses(stored) == (16, 32)
    await storage.write("w", BulkEvict(3))
    assert pauses(stored) == (0, 1)


async def test_no_image_is_taken_of_a_window_that_failed_or_whose_last_one_is_on_its_way():
    server, storage = await begun()
    stored = storage.store.windows["w"]
    storage.store.checkpoints.begin(stored)
    await stored.writable.wait()
    server.tier.open_gate.clear()
    storage.store.checkpoints.begin(stored)
    assert stored.writable.is_set(), "it is written still"
    server.tier.open_gate.set()
    await server.settled()
    assert storage.status().checkpoints == 1
    stored.fail(Unavailable("as told"))
    storage.store.checkpoints.begin(stored)
    assert not stored.checkpointing


async def test_at_the_end_only_windows_with_a_journal_are_checkpointed():
    server, storage = await begun()
    await storage.store.windows["w"].writable.wait()
    await server.settled()
    await storage.store.checkpoints.bring_up_to_date()
    await server.settled()
    assert storage.status().checkpoints == 1, "v was not written to, and w has nothing behind its image"
    await storage.write("v", insert(1))
    storage.store.checkpoints.begin(storage.store.windows["w"])
    await storage.store.checkpoints.bring_up_to_date()
    await server.settled()
    assert storage.status().checkpoints == 3
    assert storage.status().journal_groups == 0


async def test_a_defect_in_taking_an_image_lets_the_window_rest_and_its_writers_go_on(monkeypatch, caplog):
    _, storage = await begun()
    stored = storage.store.windows["w"]

    def fails(self):
        raise ZeroDivisionError

    monkeypatch.setattr(image.Image, "encode", fails)  # after the last step, in the committer's thread
    monkeypatch.setattr(BlockStore, "flush", fails)  # with the last step
    write = asyncio.create_task(storage.write("w", insert(500)))
    await asyncio.wait_for(write, 60)
    assert (stored.backoff.turns_left, stored.checkpointing) == (1, False)
    assert "ZeroDivisionError" in caplog.text


LEGAL = {
    (State.SERVING, State.SNAPSHOTTING),
    (State.SERVING, State.WRITING),
    (State.SERVING, State.RECOVERING),
    (State.SERVING, State.LOST),
    (State.SERVING, State.DELETED),
    (State.SNAPSHOTTING, State.SERVING),
    (State.SNAPSHOTTING, State.DELETED),
    (State.WRITING, State.SERVING),
    (State.WRITING, State.RECOVERING),
    (State.WRITING, State.DELETED),
    (State.RECOVERING, State.DELETED),
    (State.LOST, State.DELETED),
}
MOVES = {
    State.SERVING: lambda stored: stored.end_write() if stored.state is State.WRITING else stored.end_snapshot(),
    State.SNAPSHOTTING: lambda stored: stored.begin_snapshot(),
    State.WRITING: lambda stored: stored.begin_write(),
    State.RECOVERING: lambda stored: stored.fail(Unavailable("as told")),
    State.LOST: lambda stored: stored.lose(DataLoss("as told")),
    State.DELETED: lambda stored: stored.close(),
}


@pytest.fixture
async def server():
    server, _ = await running(spec(), checkpoint_bytes=10**9, store_entries=10**9)
    await server.settled()
    yield server
    await server.die()


def stored(server):
    return server.storage.store.windows["w"]


@pytest.mark.parametrize(("before", "after"), list(itertools.product(State, State)))
async def test_a_window_changes_its_state_as_is_legal_and_never_otherwise(server, before, after):
    window = stored(server)
    if before is not State.SERVING:
        MOVES[before](window)
    assert window.state is before
    if (before, after) in LEGAL:
        MOVES[after](window)
        assert window.state is after
    elif (before, after) == (State.DELETED, State.SERVING):  # a snapshot of a deleted window ends
        MOVES[after](window)
        assert window.state is before
    else:
        with pytest.raises(AssertionError, match=f"is {before.value} and cannot become {after.value}"):
            MOVES[after](window)
        assert window.state is before


async def test_only_a_window_that_failed_or_is_lost_has_a_problem(server):
    window = stored(server)
    assert window.problem() is None
    window.begin_snapshot()
    assert window.problem() is None
    window.end_snapshot()
    window.end_checkpoint()
    window.fail(Unavailable("as told"))
    with pytest.raises(Unavailable, match="'w' is being recovered: as told"):
        server.storage.find("w")
    assert server.storage.all()[0].problem == "window 'w' is being recovered: as told"


async def test_while_an_image_is_taken_time_stands_still_and_nobody_writes(server):
    window = stored(server)
    before = window.clock.now_ns()
    window.begin_snapshot()
    server.clock.advance(10**9)
    assert window.clock.now_ns() == before
    assert not window.writable.is_set()
    window.end_snapshot()
    assert window.clock.now_ns() == before + 10**9
    assert window.writable.is_set()
    assert window.checkpointing, "the image is still to be written"
    window.end_checkpoint()
    assert not window.checkpointing


def checkpoint(server, ended):
    return Checkpoint(server.storage.store.session, stored(server), ended.append)


def taken(checkpoint):
    while checkpoint.step():
        pass
    return checkpoint


async def test_a_checkpoint_is_taken_then_written_then_stored(server):
    ended = []
    begun = checkpoint(server, ended)
    assert begun.progress is Progress.TAKING
    server.tier.open_gate.clear()
    taken(begun)
    assert (begun.progress, stored(server).state) == (Progress.WRITING, State.SERVING)
    with pytest.raises(AssertionError, match="writing takes no step"):
        begun.step()
    with pytest.raises(AssertionError, match="writing cannot be cancelled"):
        begun.cancel()
    server.tier.open_gate.set()
    await server.settled()
    assert (begun.progress, begun.error, ended) == (Progress.STORED, None, [begun])
    assert stored(server).manifest.image.version == 1


async def test_a_checkpoint_that_the_tier_refuses_leaves_nothing(server):
    ended = []
    await server.storage.write("w", Insert(1, {"value": 1}, "a"))
    before, logged = stored(server).manifest.image, stored(server).logged_bytes
    assert logged
    server.tier.full = True
    begun = taken(checkpoint(server, ended))
    await server.settled()
    assert (begun.progress, begun.error.message, ended) == (Progress.REFUSED, "as told", [begun])
    assert stored(server).manifest.image == before
    assert stored(server).logged_bytes == logged, "the next one covers it"
    assert not stored(server).checkpointing
    assert not [key for key in server.left if key.startswith(b"image/")]
    server.tier.full = False
    begun = taken(checkpoint(server, ended))
    await server.settled()
    assert begun.progress is Progress.STORED
    assert not stored(server).logged_bytes
    assert stored(server).manifest.image.version == 1, "the number of the refused one is used again"


async def test_a_checkpoint_of_a_window_that_is_deleted_meanwhile_is_abandoned(server):
    ended = []
    window = stored(server)
    begun = checkpoint(server, ended)
    server.tier.open_gate.clear()
    taken(begun)
    remains = []
    window.delete(lambda: remains.append(window.remains()))
    server.tier.open_gate.set()
    await server.settled()
    assert (begun.progress, ended) == (Progress.ABANDONED, [])
    [found] = remains
    left = {key for key in server.left if not key.startswith(b"journal/")}
    assert left <= set(found.all_keys(window.number)), "everything of it is listed"


async def test_a_checkpoint_that_is_cancelled_has_failed_and_the_window_goes_on(server):
    await server.storage.write("w", Insert(1, {"value": 1}, "a"))
    for steps in (0, 1):
        ended = []
        begun = checkpoint(server, ended)
        for _ in range(steps):
            assert begun.step()
            assert stored(server).state is State.SNAPSHOTTING
        begun.cancel()
        assert (begun.progress, ended) == (Progress.FAILED, [])
        assert stored(server).state is State.SERVING
        assert stored(server).writable.is_set()
        assert not stored(server).checkpointing
    await server.storage.write("w", Insert(2, {"value": 2}, "a"))
    taken(checkpoint(server, []))
    await server.settled()
    assert stored(server).manifest.image.version == 1


ENDS = {
    "stored": lambda server: stored(server).store(),
    "checkpointed": lambda server: taken(checkpoint(server, [])),
    "lost": lambda server: stored(server).lose(DataLoss("as told")),
    "replaced": lambda server: stored(server).close(),
}


@pytest.mark.parametrize("end", ENDS)
async def test_bytes_of_the_journal_count_until_they_are_stored_or_never_will_be(server, end):
    """New entries leave space for the blocks and images that earlier ones still need."""
    pairs = [("a", time) for time in range(100)]
    await server.storage.write("w", BulkInsert(batch(pairs, 0)))
    await server.settled()
    asked = []
    server.tier.check_room = lambda size, reserve=0.0: asked.append(size)
    server.storage.store.session.check_room(0)
    assert asked.pop() > 8 * len(pairs)
    ENDS[end](server)
    await server.settled()
    server.storage.store.session.check_room(0)
    assert asked.pop() == 0
