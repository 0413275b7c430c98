"""Cascades of stored windows: in the same commit as their source, also after restarts and crashes on each tier."""

import numpy as np
import pytest

from sash.durability.images.export import export
from sash.durability.records.commands import BulkEvict, BulkInsert, Commit, Insert, StageBatch
from sash.limits.memory import MemoryBudget
from sash_engine.clock import ManualClock
from sash_engine.errors import AlreadyExists, FailedPrecondition, InvalidArgument, NotFound, OutOfRoom, TooLarge
from sash_engine.windows.batches.batch import Batch, Coded, Origin
from sash_engine.windows.spec.window import WindowSpec
from sash_engine.windows.window import Window
from tests.support.exports import imported
from tests.support.stored import running, spec, write_both
from tests.support.tiers import kinds
from tests.windows.test_cascades import same_answers

AGGREGATES = {
    "n": {"function": "count"},
    "sum": {"function": "sum", "field": "v"},
    "users": {"function": "distinct_count", "field": "user"},
}


def fed(name, **parts):
    return spec(name=name, fields={"v": "int64", "user": "string"}, aggregates=AGGREGATES, **parts)


SOURCE = fed("requests", slide={"max_age": 30})
MINUTES = fed("minutes", slide={"max_age": 60}, **{"from": {"window": "requests", "granularity": 5}})
HOURS = fed("hours", rollups=[[]], **{"from": {"window": "minutes", "granularity": 20}})
ALL = SOURCE, MINUTES, HOURS


def bulk(random, step, n=60):
    keys = [f"k{i}" for i in random.integers(0, 9, n)] if step % 3 else ["k1"] * n
    users = Coded.of([f"u{i}" for i in random.integers(0, 40, n)])
    return Batch(
        25 * step + random.integers(-50, 25, n), {"v": random.integers(-9, 9, n), "user": users}, Coded.of(keys)
    )


def models():
    """Windows that are written to by themselves."""
    made = {}
    for each in ALL:
        document = {name: value for name, value in each.document().items() if name != "from"}
        made[each.name] = Window(WindowSpec.parse(document), block=4, clock=ManualClock())
    return made


def compare(storage, expected):
    for name, model in expected.items():
        window = storage.find(name)
        same_answers(window, model)
        assert window.counts.document() == model.counts.document(), name
    storage.find("requests").check_invariants(lambda monoid, a, b: monoid.lower(a) == monoid.lower(b))


@pytest.mark.parametrize("place", kinds("lmdb"), indirect=True)
async def test_cascades_survive_restarts_and_crashes_on_each_tier(place):
    random = np.random.default_rng(11)
    server, storage = await running(*ALL, place=place, cache_bytes=0, checkpoint_bytes=3000, store_entries=4)
    expected = models()
    for step in range(9):
        batch = bulk(random, step)
        await write_both(storage, "requests", expected.values(), BulkInsert(batch))
        if step == 4:
            await write_both(storage, "requests", [expected["requests"]], BulkEvict(70, None))
            await write_both(storage, "requests", expected.values(), Insert(90, {"v": 5, "user": "ü"}, "k1"))
        await server.spilled()
        if step % 3 == 2:
            storage = await (server.restart() if step % 2 else server.crash())
        compare(storage, expected)


async def test_a_write_that_is_sent_again_reaches_all_windows_once():
    server, storage = await running(*ALL)
    batch = bulk(np.random.default_rng(1), 3)
    await storage.write("requests", BulkInsert(batch), Origin("p", 1))
    counts = {name: storage.find(name).counts.document() for name in ("requests", "minutes", "hours")}
    for _ in range(2):
        storage = await server.crash()
        assert (await storage.write("requests", BulkInsert(batch), Origin("p", 1))).already_applied
        assert {name: storage.find(name).counts.document() for name in counts} == counts
    assert counts["hours"]["inserted"] == 60


@pytest.mark.parametrize("tier", [True, False])
async def test_only_the_source_is_written_to(tier):
    source = SOURCE if tier else WindowSpec.parse({**SOURCE.document(), "durability": "memory"})
    _, storage = await running(source, MINUTES, HOURS)
    batch = bulk(np.random.default_rng(3), 3)
    for write in (
        storage.write("hours", BulkInsert(batch)),
        storage.write("minutes", Insert(1, {"v": 1, "user": ""}, "k")),
        storage.write("hours", BulkEvict(1, None)),
        storage.write("hours", StageBatch(batch, "q", 1)),
        storage.write("hours", Commit("q", 1, ["a"])),
    ):
        with pytest.raises(FailedPrecondition, match="is fed by"):
            await write
    assert storage.find("hours").counts.inserted == 0
    await storage.write("requests", BulkInsert(batch))
    assert storage.find("hours").counts.inserted == 60
    async with storage.shared("hours") as window:
        assert window is storage.find("hours")
    storage.tidy()


async def test_windows_go_in_the_order_of_what_they_feed():
    server, storage = await running(*ALL)
    await storage.write("requests", BulkInsert(bulk(np.random.default_rng(4), 3)))
    for name in ("requests", "minutes"):
        with pytest.raises(FailedPrecondition, match=f"'{name}' feeds another window: delete what it feeds first"):
            await storage.delete(name)
    with pytest.raises(AlreadyExists):
        await storage.create(WindowSpec.parse({**HOURS.document(), "slide": {"max_age": 9}}))
    assert (await storage.create(HOURS))[1] is False
    assert await storage.delete("hours") == 60
    storage = await server.crash()
    with pytest.raises(NotFound):
        storage.find("hours")
    assert (await storage.create(HOURS))[1] is True
    assert storage.find("hours").counts.inserted == 0, "it is fed from now on"
    await storage.delete("hours")
    await storage.delete("minutes")
    await storage.delete("requests")
    storage = await server.restart()
    assert storage.all() == []


async def test_a_cascade_of_nothing_is_refused():
    server, storage = await running()
    with pytest.raises(NotFound, match="'requests'"):
        await storage.create(MINUTES)
    await storage.create(SOURCE)
    with pytest.raises(InvalidArgument, match="is not that of 'requests'"):
        await storage.create(WindowSpec.parse({**MINUTES.document(), "time_unit": "s"}))
    storage = await server.restart()
    assert [info.spec.name for info in storage.all()] == ["requests"]


async def test_what_wall_time_brings_to_a_cascade_is_journalled():
    """A key that a cascade forgets is forgotten after a crash, too."""
    server, storage = await running(
        SOURCE, WindowSpec.parse({**MINUTES.document(), "idle_expiry": "10s"}), checkpoint_bytes=10**9
    )
    await storage.write("requests", BulkInsert(bulk(np.random.default_rng(5), 3)))
    server.clock.advance(11 * 10**9)
    storage.tidy()
    await server.settled()
    assert len(storage.find("minutes").keys) == 0
    server.clock.advance(-5 * 10**9)
    storage = await server.crash()
    assert len(storage.find("minutes").keys) == 0


def test_an_export_of_a_cascade_is_a_window_of_its_own():
    window = Window(SOURCE, block=4)
    minutes = window.derive(MINUTES)
    window.bulk_insert(bulk(np.random.default_rng(6), 3))
    found = imported(b"".join(export(minutes)))
    assert found.spec.source is None
    same_answers(found, minutes)
    whole = imported(b"".join(export(window)))
    assert (len(whole.derived.fed), whole.counts.present) == (0, window.counts.present)


@pytest.mark.parametrize("staged", [False, True])
async def test_a_write_without_room_for_what_the_cascades_make_of_it_changes_nothing(staged):
    """60 entries are few bytes, and up to 60 panes with a sketch in each cascade."""
    budget = MemoryBudget(100_000, {"staged": (10**6, "")}, used=lambda: 0, monotonic_s=lambda: 0.0)
    _, storage = await running(*ALL, memory=budget)
    batch = bulk(np.random.default_rng(3), 4)

    def write():
        return (
            storage.write("requests", Commit("q", 1, [part]))
            if staged
            else storage.write("requests", BulkInsert(batch))
        )

    part = (await storage.write("requests", StageBatch(batch, "q", 1))).stage if staged else ""
    with pytest.raises((OutOfRoom, TooLarge)):
        await write()
    assert [storage.find(name).counts.inserted for name in ("requests", "minutes", "hours")] == [0, 0, 0]
    budget.limit_bytes = 10**9
    budget._full_bytes = 10**9
    assert (await write()).inserted == 60
