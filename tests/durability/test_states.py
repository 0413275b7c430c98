"""The states of a stored window and of a checkpoint: what may follow what, and what each of them means."""

import itertools

import pytest

from sash.durability.images.checkpoint import Checkpoint, Progress
from sash.durability.images.stored_window import State
from sash.durability.records.commands import BulkInsert, Insert
from sash_engine.errors import DataLoss, OutOfRoom, Unavailable
from tests.support.stored import batch, running, spec

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
WAYS = {
    State.SERVING: [],
    State.SNAPSHOTTING: [State.SNAPSHOTTING],
    State.WRITING: [State.WRITING],
    State.RECOVERING: [State.RECOVERING],
    State.LOST: [State.LOST],
    State.DELETED: [State.DELETED],
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
    for state in WAYS[before]:
        MOVES[state](window)
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


async def test_a_window_that_is_deleted_while_an_image_is_written_waits_for_the_end_of_that(server):
    window, told = stored(server), []
    window.begin_snapshot()
    window.delete(lambda: told.append("deleted"))
    assert not told
    window.end_checkpoint()
    assert told == ["deleted"]


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

    def full(size, reserve=0.0):
        raise OutOfRoom("as told")

    server.tier.check_room = full
    begun = taken(checkpoint(server, ended))
    await server.settled()
    assert (begun.progress, begun.error.message, ended) == (Progress.REFUSED, "as told", [begun])
    assert stored(server).manifest.image == before
    assert stored(server).logged_bytes == logged, "the next one covers it"
    assert not stored(server).checkpointing
    assert not [key for key in server.left if key.startswith(b"image/")]
    del server.tier.check_room
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
