"""Nobody writes to a window that home does not have: whatever fails while it is created, restored or deleted.

No shard keeps fewer aggregates than home, and none gets more, whatever fails while they are added.

A call to a shard fails before it is made, or its answer is lost; or the process that makes the calls ends, or home has
another owner meanwhile. Each call of each operation does so once.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from sash.durability.records.commands import (
    BulkEvict,
    BulkInsert,
    Commit,
    Insert,
    Punctuate,
    Retract,
    StageBatch,
    Update,
)
from sash.shards.host import Host
from sash.shards.hosted import HostedShard
from sash.shards.lifecycle import Lifecycle
from sash_engine.errors import (
    AlreadyExists,
    FailedPrecondition,
    NotFound,
    ResourceExhausted,
    SashError,
    Unavailable,
)
from sash_engine.windows.questions import ALL_KEYS, EntriesQuery, Grouped, KeysQuery, Query, RangeQuery, SeriesQuery
from sash_wire.placement import shard_of
from tests.shards.test_sharded_plane import KEYS, bulk, spec
from tests.shards.test_views import SOURCE, VIEW
from tests.support.sharded import ShardedPlane, file_of, hosts, in_process, pieces, without
from tests.support.waiting import turns, until

SHARDS = 3
ROWS = [(key, time, 1) for time, key in enumerate(KEYS)]
KEY_OF = {shard_of("w", key, SHARDS): key for key in KEYS}
OTHERS = range(1, SHARDS)


class Ended(BaseException):
    """The process that makes the calls ends."""


class Calls:
    """Calls from home's process to other shards, one of which fails."""

    def __init__(self, plane: ShardedPlane) -> None:
        self.made = 0
        self._fails, self._how = -1, ""
        self._shards = plane.shards
        self._administered = plane.shards.administered
        plane.shards.administered = self.to

    def fail(self, number: int, how: str) -> None:
        """Have the call of a number fail: before it is made, after it, or for ever."""
        self.made, self._fails, self._how = 0, number, how

    def to(self, shard: int) -> Any:
        return _Watched(self, self._administered(shard))

    async def make(self, call: Callable[..., Any], *args: Any, **named: Any) -> Any:
        number, self.made = self.made, self.made + 1
        if number == self._fails and self._how == "before":
            raise Unavailable("it was not sent")
        if number == self._fails and self._how == "end":
            raise Ended
        found = await call(*args, **named)
        if number == self._fails and self._how == "after":
            raise Unavailable("the answer is lost")
        if number == self._fails and self._how == "end after":
            raise Ended
        return found


class _Watched:
    def __init__(self, calls: Calls, plane: Any) -> None:
        self._calls, self._plane = calls, plane

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._plane, name)
        return lambda *args, **named: self._calls.make(call, *args, **named)


async def writable(hosted: HostedShard, key: str) -> bool:
    try:
        await hosted.local.write("w", Insert(1000, {"v": 0}, key))
    except (NotFound, Unavailable):
        return False
    return True


async def check(plane: ShardedPlane) -> None:
    """Check that who takes a write to the window is not alone with it."""
    shards = plane.shards.hosted
    listed = "w" in shards[0].catalogue
    for shard in OTHERS:
        assert listed or not await writable(shards[shard], KEY_OF[shard]), f"shard {shard} has it, and home has not"


async def settled(plane: ShardedPlane) -> bool:
    """Have all shards made alike, and return whether the window is there: on all shards, or on none."""
    for shard in range(SHARDS):
        await plane.deployment.lifecycle.reconcile_one(shard)
    shards = plane.shards.hosted
    there = {"w" in hosted.catalogue for hosted in shards.values()}
    assert len(there) == 1
    assert not any([await hosted.local.closed() for hosted in shards.values()])
    takes = {await writable(hosted, KEY_OF[shard]) for shard, hosted in shards.items()}
    assert takes == there
    return there.pop()


def restarted(plane: ShardedPlane) -> None:
    """Home has another owner, in another process: it knows what is stored."""
    old = plane.shards.hosted[0]
    plane.shards.hosted[0] = HostedShard(old.storage, plane.held)
    plane.deployment.lifecycle = Lifecycle(plane.shards)


async def created(plane: ShardedPlane) -> None:
    await plane.create(spec())


async def deleted(plane: ShardedPlane) -> None:
    await plane.delete("w")


async def restored(plane: ShardedPlane) -> None:
    await plane.restore(pieces(plane.file), "w")


async def left_over(plane: ShardedPlane) -> None:
    """Make the window anew where one shard has kept the last one."""
    await plane.create(spec())


HOW = ("before", "after", "end", "end after")


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("operation", [created, deleted, restored, left_over])
async def test_whatever_fails_nobody_writes_to_what_home_does_not_have(operation: Any, how: str) -> None:
    number, done = 0, False
    while not done:
        plane = in_process(SHARDS)
        await plane.create(spec())
        await plane.write("w", BulkInsert(bulk(ROWS)))
        plane.file = await file_of(plane)
        if operation in (created, restored):
            await plane.delete("w")
        elif operation is left_over:
            for shard in (0, 1):
                await plane.shards.hosted[shard].local.delete("w")
        calls = Calls(plane)
        calls.fail(number, how)
        failed = None
        try:
            await operation(plane)
        except (SashError, Ended) as error:
            failed = error
        done = calls.made <= number
        calls.fail(-1, "")
        assert done or failed is not None or operation is not deleted, "it says that it is done"
        if operation is not left_over:
            await check(plane)
        if isinstance(failed, Ended):
            restarted(plane)
            if operation is not left_over:
                await check(plane)
        there = await settled(plane)
        if operation is deleted and not isinstance(failed, Ended):
            assert not there, "its deletion goes on until it is done"
        if operation is not deleted:
            assert there or failed is not None
            if there and failed is not None:
                info = await plane.window("w")  # with the entries that `settled` has inserted
                assert info.entries == SHARDS + (len(ROWS) if operation is restored else 0)
        number += 1
    assert number > 2 * len(OTHERS)


@pytest.fixture
async def plane() -> ShardedPlane:
    made = in_process(SHARDS)
    await made.create(spec())
    await made.write("w", BulkInsert(bulk(ROWS)))
    return made


async def test_a_deletion_that_waits_for_a_shard_says_so_and_goes_on(plane: ShardedPlane) -> None:
    with without(plane, 2) as away:
        with pytest.raises(Unavailable, match=r"not deleted yet.*until shards 2 confirm") as raised:
            await plane.delete("w")
        assert raised.value.retry_after_s
        assert [info.spec.name for info in await plane.shards.hosted[0].local.windows()] == ["w"]
        for shard in (0, 1):
            with pytest.raises(Unavailable, match="being created or deleted; nothing was changed"):
                await plane.write("w", Insert(1, {"v": 1}, KEY_OF[shard]))
        await away.local.write("w", Insert(1, {"v": 1}, KEY_OF[2]))  # it has heard nothing
        for call in (plane.create(spec()), plane.add_aggregates("w", {"min": {"function": "min"}}), plane.delete("w")):
            with pytest.raises(Unavailable, match="not deleted yet"):
                await call
    assert await plane.delete("w") == len(ROWS) + 1
    assert not await settled(plane)
    with pytest.raises(NotFound):
        await plane.delete("w")


async def test_a_shard_that_comes_back_ends_the_deletion_that_waits_for_it(plane: ShardedPlane) -> None:
    with without(plane, 2), pytest.raises(Unavailable):
        await plane.delete("w")
    await plane.deployment.lifecycle.reconcile_one(2)
    assert not any("w" in hosted.catalogue for hosted in plane.shards.hosted.values())


async def test_a_refusal_that_shows_that_another_process_has_the_shard_is_told(
    plane: ShardedPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fenced() -> None:
        raise FailedPrecondition("another server has it")

    told: list[int] = []
    plane.shards.on_taken = told.append
    with pytest.raises(FailedPrecondition):
        await plane.shards.guarded(1, fenced())
    assert told == []
    monkeypatch.setattr(type(plane.shards.hosted[1].storage), "taken", True)
    with pytest.raises(Unavailable):
        await plane.shards.guarded(1, fenced())
    assert told == [1]


async def test_a_deletion_whose_process_loses_home_does_not_say_that_nothing_was_changed(plane: ShardedPlane) -> None:
    """It goes on when the process has home again. Seed 6400103 of the simulation."""
    calls = Calls(plane)
    make = calls.make

    async def lose_home(*args: Any, **named: Any) -> Any:
        found = await make(*args, **named)
        plane.shards.valid = lambda: calls.made < len(OTHERS)
        return found

    calls.make = lose_home  # type: ignore[method-assign]
    with pytest.raises(Unavailable, match=r"is closed, and perhaps deleted; its deletion goes on") as raised:
        await plane.delete("w")
    assert not raised.value.unchanged
    calls.make, plane.shards.valid = make, lambda: True  # type: ignore[method-assign]
    assert not await settled(plane)


async def test_who_deletes_what_is_gone_from_home_already_is_told_so(plane: ShardedPlane) -> None:
    """Its deletion goes on, and ends with that. Seed 6418326 of the simulation."""
    calls = Calls(plane)
    calls.fail(len(OTHERS), "before")
    with pytest.raises(Unavailable, match="is deleted, and some shards still store entries"):
        await plane.delete("w")
    with pytest.raises(NotFound, match="no window 'w'"):
        await plane.delete("w")
    assert not any("w" in hosted.catalogue for hosted in plane.shards.hosted.values())
    assert not await settled(plane)


async def test_a_window_that_is_being_deleted_is_created_anew_with_another_spec(plane: ShardedPlane) -> None:
    with without(plane, 1), pytest.raises(Unavailable):
        await plane.delete("w")
    info, is_new = await plane.create(spec(granularity=5))
    assert (is_new, info.entries, info.spec.granularity) == (True, 0, "5")
    assert await settled(plane)


async def test_a_window_that_is_being_deleted_is_restored_anew(plane: ShardedPlane) -> None:
    plane.file = await file_of(plane)
    with without(plane, 1) as away, pytest.raises(Unavailable):
        await plane.delete("w")
    await away.local.write("w", Insert(1, {"v": 1}, KEY_OF[1]))
    await restored(plane)
    assert (await plane.window("w")).entries == len(ROWS)
    assert await settled(plane)


async def test_a_window_is_deleted_that_a_shard_lost(plane: ShardedPlane) -> None:
    await plane.shards.hosted[1].local.delete("w")
    kept = [key for key in KEYS if shard_of("w", key, SHARDS) != 1]
    assert await plane.delete("w") == len(kept)


async def test_a_refused_deletion_changes_nothing(plane: ShardedPlane, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(_: str) -> int:
        raise ResourceExhausted("full")

    with monkeypatch.context() as patched:
        patched.setattr(plane.shards.hosted[0].local, "delete", refuse)
        with pytest.raises(ResourceExhausted):
            await plane.delete("w")
    await plane.write("w", BulkInsert(bulk(ROWS)))
    assert await settled(plane)


async def test_a_window_with_views_is_not_closed() -> None:
    plane = in_process(SHARDS)
    await plane.create(SOURCE)
    await plane.create(VIEW)
    with without(plane, 2), pytest.raises(FailedPrecondition, match="has a view"):
        await plane.delete("requests")
    for hosted in plane.shards.hosted.values():
        assert await hosted.local.closed() == {}


async def test_a_closed_window_answers_nothing(plane: ShardedPlane) -> None:
    shard = plane.shards.hosted[1].local
    await shard.close("w", "a")
    await shard.reopen("w", "b")  # somebody else's
    batch, key = bulk([(KEY_OF[1], 1, 1)]), KEY_OF[1]
    calls = [
        lambda: shard.write("w", Insert(1, {"v": 1}, key)),
        lambda: shard.write("w", BulkInsert(batch)),
        lambda: shard.write("w", BulkEvict(1, key)),
        lambda: shard.write("w", Retract(batch)),
        lambda: shard.write("w", Update(batch)),
        lambda: shard.write("w", Punctuate(1)),
        lambda: shard.write("w", StageBatch(batch, "q", 1)),
        lambda: shard.write("w", Commit("q", 1, [])),
        lambda: shard.ask("w", Query(key)),
        lambda: shard.ask("w", RangeQuery(0, 1, key)),
        lambda: shard.ask("w", RangeQuery(0, 1, selection=Grouped(by=["key"]))),
        lambda: shard.ask("w", SeriesQuery(0, 1, 1, key=key)),
        lambda: shard.ask("w", SeriesQuery(0, 1, 1, selection=Grouped(by=["key"]))),
        lambda: shard.ask("w", EntriesQuery(keys=ALL_KEYS)),
        lambda: shard.export("w"),
        lambda: shard.export_together("w", []),
        lambda: shard.ask("w", KeysQuery()),
    ]
    for call in calls:
        with pytest.raises(Unavailable, match="created or deleted"):
            await call()
    await shard.reopen("w", "a")
    await shard.write("w", Insert(1, {"v": 1}, key))


async def test_what_an_earlier_home_said_and_comes_late_changes_nothing(plane: ShardedPlane) -> None:
    shard = plane.shards.hosted[1].local
    await shard.close("w", "early")
    await shard.close("w", "late")
    for token in ("early", "other"):
        with pytest.raises(Unavailable, match="somebody else"):
            await shard.delete("w", token)
        await shard.reopen("w", token)
    assert await shard.closed() == {"w": "late"}
    await shard.reopen("w", "late")
    with pytest.raises(Unavailable, match="somebody else"):
        await shard.delete("w", "late")
    await shard.close("w", "new")
    assert await shard.delete("w", "new")
    assert await shard.closed() == {}
    assert (await shard.create(spec(), "t"))[1]
    assert not (await shard.create(spec(), "u"))[1]
    assert await shard.closed() == {"w": "t"}
    with pytest.raises(AlreadyExists):
        await shard.create(spec(granularity=5), "v")
    assert await shard.closed() == {"w": "t"}


async def test_a_window_that_cannot_be_made_is_not_closed() -> None:
    shard = in_process(1).shards.hosted[0].local
    with pytest.raises(FailedPrecondition):
        await shard.create(spec(durability="sync"), "t")
    assert await shard.closed() == {}


@pytest.fixture
def lost_home(plane: ShardedPlane, monkeypatch: pytest.MonkeyPatch) -> ShardedPlane:
    """Another process has home; this one does not know it yet, the store does."""

    async def taken() -> None:
        raise Unavailable("another server has it")

    monkeypatch.setattr(plane.shards.hosted[0].storage, "confirm", taken)
    return plane


async def test_a_process_that_lost_home_deletes_and_opens_nothing(lost_home: ShardedPlane) -> None:
    one = lost_home.shards.hosted[1]
    await one.local.close("w", "of the new home")
    with pytest.raises(Unavailable, match="another server"):
        await lost_home.deployment.lifecycle.reconcile_one(1)
    assert await one.local.closed() == {"w": "of the new home"}
    await one.local.reopen("w", "of the new home")
    await lost_home.shards.hosted[0].local.delete("w")  # as it was before the new home created it
    with pytest.raises(Unavailable, match="another server"):
        await lost_home.deployment.lifecycle.reconcile_one(1)
    assert "w" in one.catalogue
    with pytest.raises(NotFound):
        await lost_home.delete("w")
    assert "w" in one.catalogue


async def test_a_process_that_lost_home_makes_nothing_that_takes_writes(lost_home: ShardedPlane) -> None:
    one = lost_home.shards.hosted[1]
    await one.local.delete("w")  # as the new home has said
    with pytest.raises(Unavailable, match="another server"):
        await lost_home.deployment.lifecycle.reconcile_one(1)
    assert not await writable(one, KEY_OF[1])


async def test_a_window_that_a_process_finds_on_a_home_it_lost_is_made_on_no_other_shard(
    lost_home: ShardedPlane,
) -> None:
    """The new home has deleted it everywhere; this one, which slept, has it in memory. Seed 1025 of the simulation."""
    one = lost_home.shards.hosted[1]
    await one.local.delete("w")
    with pytest.raises(Unavailable, match="another server"):
        await lost_home.create(spec())
    assert "w" not in one.catalogue
    assert await one.local.closed() == {}


async def test_an_import_that_its_loop_has_left_is_dropped_and_awaits_nothing_more() -> None:
    plane, waits = in_process(SHARDS), asyncio.Event()
    await plane.create(spec())
    file = await file_of(plane)
    await plane.delete("w")

    async def parts():
        yield file[: len(file) // 2]
        waits.set()
        await asyncio.get_running_loop().create_future()

    importing = asyncio.create_task(plane.deployment.lifecycle.restore(parts(), "w"))
    await waits.wait()
    try:
        importing.get_coro().close()  # as the collector of garbage does; raises RuntimeError where it awaits more
    finally:
        importing.cancel()
        await asyncio.wait([importing])
        assert isinstance(importing.exception(), RuntimeError)


async def test_what_an_earlier_home_restores_stays_closed(plane: ShardedPlane) -> None:
    file = await file_of(plane.shards.hosted[1].local)
    await plane.delete("w")
    one, go_on = plane.shards.hosted[1], asyncio.Event()

    async def parts():
        yield file[:10]
        await go_on.wait()
        yield file[10:]

    restoring = asyncio.create_task(one.local.restore(parts(), "w", token="t"))
    await turns()
    await plane.deployment.lifecycle.reconcile_one(1)  # home does not have it
    go_on.set()
    await restoring
    assert "w" in one.catalogue
    assert not await writable(one, KEY_OF[1])
    assert not await settled(plane)


async def test_what_is_still_being_restored_cannot_be_deleted_and_comes_closed(plane: ShardedPlane) -> None:
    """Who began it gives it up. It was opened by that, and came. Seed 6400638 of the simulation."""
    file = await file_of(plane.shards.hosted[1].local)
    await plane.delete("w")
    one, ends = plane.shards.hosted[1], [asyncio.Event(), asyncio.Event()]

    async def parts(end: asyncio.Event):
        yield file[:10]
        await end.wait()
        yield file[10:]

    restoring = [asyncio.create_task(one.local.restore(parts(end), "w", token="t")) for end in ends]
    await turns()
    for end, restored in zip(ends, restoring, strict=True):
        with pytest.raises(Unavailable, match="somebody else creates or deletes it"):
            await one.local.delete("w", "t")
        end.set()
        with contextlib.suppress(AlreadyExists):
            await restored
    assert not await writable(one, KEY_OF[1])
    assert await one.local.delete("w", "t")
    assert await one.local.closed() == {}


async def test_an_import_that_is_given_up_when_home_has_it_is_whole(plane: ShardedPlane) -> None:
    plane.file = await file_of(plane)
    await plane.delete("w")
    home, has_it = plane.shards.hosted[0].local, asyncio.Event()
    restore = home.restore

    async def restore_and_wait(*args: Any) -> None:
        await restore(*args)
        has_it.set()
        await asyncio.get_running_loop().create_future()

    home.restore = restore_and_wait  # type: ignore[method-assign, assignment]
    importing = asyncio.create_task(restored(plane))
    await has_it.wait()
    importing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await importing
    assert await settled(plane)
    assert (await plane.window("w")).entries == len(ROWS) + SHARDS  # that `settled` has inserted


async def test_a_window_that_another_home_made_meanwhile_is_not_taken_for_a_new_one(
    plane: ShardedPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have entries."""

    async def nothing(*_: Any) -> int:
        return 0

    for shard in (0, 2):
        await plane.shards.hosted[shard].local.delete("w")
    with monkeypatch.context() as patched:
        patched.setattr(plane.deployment.lifecycle, "_remove", nothing)
        with pytest.raises(Unavailable, match="shard 1 has a window"):
            await plane.create(spec())
    assert "w" not in plane.shards.hosted[0].catalogue
    assert "w" not in plane.shards.hosted[2].catalogue
    assert (await plane.create(spec()))[1]
    assert (await plane.window("w")).entries == 0


async def test_a_process_that_has_home_again_does_not_go_on_with_what_it_began_before(plane: ShardedPlane) -> None:
    calls, began = Calls(plane), asyncio.Event()
    go_on = asyncio.Event()

    async def make(call: Callable[..., Any], *args: Any, **named: Any) -> Any:
        found = await call(*args, **named)
        began.set()
        await go_on.wait()
        return found

    calls.make = make
    deletion = asyncio.create_task(plane.delete("w"))
    await began.wait()
    restarted(plane)
    go_on.set()
    with pytest.raises(Unavailable, match="shard 0"):
        await deletion
    assert await settled(plane)


LOW = {"low": {"function": "min", "field": "v"}}


def have_low(plane: ShardedPlane) -> list[int]:
    """The shards whose window has the aggregate that is added."""
    shards = plane.shards.hosted
    return [shard for shard in range(SHARDS) if "low" in shards[shard].local.spec("w").aggregates]


@pytest.mark.parametrize("how", HOW)
async def test_whatever_fails_aggregates_that_home_has_come_to_all_shards(how: str) -> None:
    number, done = 0, False
    while not done:
        plane = in_process(SHARDS)
        await plane.create(spec())
        calls = Calls(plane)
        calls.fail(number, how)
        failed = None
        try:
            await plane.add_aggregates("w", LOW)
        except (SashError, Ended) as error:
            failed = error
        done = calls.made <= number
        calls.fail(-1, "")
        assert 0 in have_low(plane)
        if failed is None:
            assert have_low(plane) == [0, 1, 2], "it says that it is done"
            assert plane.shards.hosted[0].local.is_settled
        elif isinstance(failed, Ended):
            restarted(plane)
        else:
            assert isinstance(failed, Unavailable)
            assert not failed.unchanged, "home has them"
            assert not plane.shards.hosted[0].local.is_settled
            await plane.deployment.lifecycle.reconcile_one(0)  # and no other shard
            assert have_low(plane) == [0, 1, 2]
        assert await settled(plane)
        assert have_low(plane) == [0, 1, 2]
        assert plane.shards.hosted[0].local.is_settled
        number += 1
    assert number > 2 * len(OTHERS)


async def test_aggregates_of_which_home_is_in_doubt_come_to_all_shards_or_to_none(
    plane: ShardedPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = plane.shards.hosted[0].local
    add = home.add_aggregates

    async def applied(*args: Any) -> None:
        await add(*args)
        raise Unavailable("the tier has not confirmed it")

    async def away(*_: Any) -> None:
        raise Unavailable("the tier is away")

    for call in (away, applied):
        monkeypatch.setattr(home, "add_aggregates", call)
        with pytest.raises(Unavailable, match="the tier"):
            await plane.add_aggregates("w", LOW)
        before = have_low(plane)
        assert not home.is_settled
        await plane.deployment.lifecycle.reconcile_one(0)
        assert home.is_settled
        assert have_low(plane) == ([0, 1, 2] if before else [])


async def test_no_shard_gets_aggregates_that_the_store_of_home_may_not_have(
    plane: ShardedPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unconfirmed() -> None:
        raise Unavailable("home is not durable")

    with monkeypatch.context() as patched:
        patched.setattr(plane.shards.hosted[0].storage, "confirm", unconfirmed)
        with pytest.raises(Unavailable, match=r"has changed, and not on all shards.*1, 2 confirm it: home is not"):
            await plane.add_aggregates("w", LOW)
        for shard in range(SHARDS):
            with contextlib.suppress(Unavailable):
                await plane.deployment.lifecycle.reconcile_one(shard)
        assert have_low(plane) == [0]
    await plane.deployment.lifecycle.reconcile_one(0)
    assert have_low(plane) == [0, 1, 2]


async def test_aggregates_that_are_refused_are_not_asked_for_again(plane: ShardedPlane) -> None:
    home = plane.shards.hosted[0].local
    wrong = {"sum": {"function": "min", "field": "v"}}
    with pytest.raises(SashError):
        await plane.add_aggregates("w", wrong)
    assert home.is_settled
    with without(plane, 2):
        with pytest.raises(Unavailable):
            await plane.add_aggregates("w", LOW)
        with pytest.raises(SashError):
            await plane.add_aggregates("w", wrong)
        assert home.changed() == ["w"], "those before are on their way still"
    await plane.deployment.lifecycle.reconcile_one(0)
    assert have_low(plane) == [0, 1, 2]


async def test_a_window_that_goes_needs_its_aggregates_no_more(plane: ShardedPlane) -> None:
    with without(plane, 2), pytest.raises(Unavailable):
        await plane.add_aggregates("w", LOW)
    await plane.delete("w")
    await plane.deployment.lifecycle.reconcile_one(0)
    assert plane.shards.hosted[0].local.is_settled


def cut(one: Any, other: Any) -> Callable[[], None]:
    """Cut the network between two processes; return what mends it."""
    peers = {host: host.serving.peer for host in (one, other)}

    def nobody(_: str) -> Any:
        raise Unavailable("the network is cut")

    for host in peers:
        host.serving.peer = nobody

    def mend() -> None:
        for host, peer in peers.items():
            host.serving.peer = peer

    return mend


@pytest.fixture
async def apart(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Host, Host, Callable[[], None]]]:
    """Two processes of a window that do not reach each other, the first of which has home; and what mends that."""
    monkeypatch.setattr("sash.shards.serving._SETTLE_S", 0.01)
    async with hosts(SHARDS) as (home, other):
        await home.plane.create(spec())
        yield home, other, cut(home, other)


async def test_a_window_goes_from_a_process_that_could_not_be_reached(apart: Any) -> None:
    home, other, mend = apart
    with pytest.raises(Unavailable, match=r"not deleted yet.*the network is cut"):
        await home.plane.delete("w")
    assert "w" in home.shards.hosted[0].catalogue
    await other.plane.write("w", Insert(1, {"v": 1}, KEY_OF[1]))
    mend()
    shards = [hosted for host in (home, other) for hosted in host.shards.hosted.values()]
    await until(lambda: not any("w" in hosted.catalogue for hosted in shards))
    for host in (home, other):
        with pytest.raises(NotFound):
            await host.plane.write("w", Insert(1, {"v": 1}, KEY_OF[1]))
    await home.plane.create(spec(granularity=5))
    assert (await other.plane.write("w", Insert(1, {"v": 1}, KEY_OF[1]))).inserted == 1


async def test_an_aggregate_comes_to_a_process_that_could_not_be_reached(apart: Any) -> None:
    home, other, mend = apart
    with pytest.raises(Unavailable, match=r"has changed, and not on all shards.*the network is cut"):
        await home.plane.add_aggregates("w", LOW)
    assert "low" not in other.shards.hosted[1].local.spec("w").aggregates
    mend()
    await until(lambda: "low" in other.shards.hosted[1].local.spec("w").aggregates)
    await until(lambda: home.shards.hosted[0].local.is_settled)


async def test_what_stays_closed_without_its_coordinator_is_settled(apart: Any) -> None:
    home, other, mend = apart
    mine, theirs = home.shards.hosted[2].local, other.shards.hosted[1].local
    for shard in (theirs, mine):
        await shard.close("w", "of a home that is gone")
    await until(lambda: not mine._closed)
    assert theirs._closed
    mend()
    await until(lambda: not theirs._closed)
    assert (await home.plane.write("w", Insert(1, {"v": 1}, KEY_OF[1]))).inserted == 1


async def test_a_new_owner_of_home_makes_its_own_shards_alike_too() -> None:
    async with hosts(SHARDS) as (home, _):
        await home.plane.create(spec())
        await home.shards.hosted[0].local.delete("w")
        home.serving.spawn(home.serving.reconcile_others())
        await until(lambda: "w" not in home.shards.hosted[2].catalogue)
        with pytest.raises(NotFound):
            await home.plane.window("w")
