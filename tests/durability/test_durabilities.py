"""What each durability promises, how long parts of batches are kept, when the journal is cut, and what is too large."""

import numpy as np
import pytest

import sash_engine.monoids
from sash.durability import storage as storage_module
from sash.durability.catalogue import Catalogue
from sash.durability.images.export import export
from sash.durability.records.commands import AddAggregates, BulkInsert, Commit, Expire, Insert, Stage, StageBatch
from sash.durability.storage import Storage
from sash_engine.clock import ManualClock
from sash_engine.errors import AlreadyExists, FailedPrecondition, SashError, TooLarge, Unavailable
from sash_engine.monoids import Sum
from sash_engine.windows.batches.batch import Batch, Origin
from sash_engine.windows.spec import aggregates as spec_module
from sash_engine.windows.window import Window
from tests.support.failing import parts_of
from tests.support.stored import batch, running, spec
from tests.support.virtual_time import passes, virtual
from tests.support.waiting import until


@pytest.mark.parametrize("is_imported", [False, True])
async def test_a_window_in_memory_is_gone_after_a_restart_and_says_so_before(is_imported):
    server, storage = await running()
    if is_imported:
        window = await storage.restore(parts_of(export(Window(spec(durability="memory")))), None)
    else:
        window, _ = await storage.create(spec(durability="memory"))
    assert storage.info(window).durability == "memory"
    result = await storage.write("w", Insert(1, {"value": 1}, "a"), Origin("p", 1))
    assert result.durability == "memory"
    assert (await storage.write("w", Insert(1, {"value": 1}, "a"), Origin("p", 1))).already_applied
    staged = await storage.write("w", StageBatch(batch([("a", 5)], 7), "q", 0))
    assert (await storage.write("w", Commit("q", 0, [staged.stage]))).inserted == 1
    storage = await server.restart()
    with pytest.raises(SashError, match="no window"):
        storage.find("w")


async def test_an_algorithm_in_a_spec_is_said_to_be_deprecated_and_changes_nothing(caplog):
    server, storage = await running(spec(name="engine", durability="memory"))
    assert "deprecated" not in caplog.text
    for _ in range(2):
        await storage.create(spec(name="old", algorithm="daba_lite"))
    (said,) = {record.getMessage() for record in caplog.records if record.levelname == "WARNING"}
    assert said.startswith("window 'old': algorithm has no effect in the spec of a window")
    for name, durability in (("engine", "memory"), ("old", "sync")):
        for time in (2, 1):  # an algorithm of before took entries in order only
            assert (await storage.write(name, Insert(time, {"value": time}, "a"))).durability == durability
    expected = storage.find("engine").query("a", [10], None)
    assert storage.find("old").query("a", [10], None) == expected
    await storage.stop()
    storage = await server.start()
    assert storage.find("old").spec.algorithm == "daba_lite"
    assert storage.find("old").query("a", [10], None) == expected


async def test_interval_windows_answer_before_the_commit():
    server, storage = await running(spec(durability="interval"), interval_s=0.02)
    await server.settled()
    server.tier.open_gate.clear()
    commits = storage.status().commits
    for time in range(10):
        assert (await storage.write("w", Insert(time, {"value": 1}, "a"))).durability == "interval"
    await until(server.tier.arrived.is_set)
    assert storage.status().commits == commits
    server.tier.open_gate.set()
    await server.settled()
    storage = await server.crash()
    assert storage.find("w").query("a", [], None)[0].entries == 10


@virtual
async def test_writes_of_an_interval_share_the_commit_at_its_end():
    server, storage = await running(
        *[spec(name=name, durability=durability) for name, durability in (("w", "interval"), ("v", "sync"))],
        interval_s=60.0,
    )
    await server.settled()
    commits = storage.status().commits
    for time in range(3):
        await storage.write("w", Insert(time, {"value": 1}, "a"))
        await passes(10)
    await passes(29)
    assert storage.status().commits == commits
    await passes(2)
    assert storage.status().commits == commits + 1
    await storage.write("w", Insert(4, {"value": 1}, "a"))
    await storage.write("v", Insert(4, {"value": 1}, "a"))
    assert storage.status().commits == commits + 2, "a write that is waited for takes the others along"
    await server.die()
    storage = await server.start()
    assert storage.find("w").query("a", [], None)[0].entries == 4
    await storage.stop()


async def test_an_orderly_stop_commits_what_waits_for_the_interval():
    server, storage = await running(spec(durability="interval"), interval_s=60.0, checkpoint_bytes=10**9)
    await storage.write("w", Insert(1, {"value": 1}, "a"))
    storage.store.windows["w"].backoff.fail(Unavailable("as told"))  # no image of it can be taken now
    storage = await server.restart()
    assert storage.find("w").query("a", [], None)[0].entries == 1


@pytest.mark.parametrize("durability", ["sync", "interval"])
async def test_durability_needs_a_tier(durability):
    storage = Storage(Catalogue(), ManualClock())
    await storage.start()
    for create in (
        lambda of: storage.create(of),
        lambda of: storage.restore(parts_of(export(Window(of))), None),
    ):
        with pytest.raises(FailedPrecondition) as refused:
            await create(spec(durability=durability))
        assert refused.value.field == "durability"
    window, _ = await storage.create(spec())
    assert storage.info(window).durability == "memory"


@pytest.mark.parametrize("earlier", [False, True])
@pytest.mark.parametrize("expires_ns", [10**9, 3_600 * 10**9, 10**15])
async def test_a_version_that_keeps_parts_for_another_time_recovers_the_same_window(monkeypatch, earlier, expires_ns):
    """One part expires, one is committed after that, one is left. Earlier versions did not write when parts expire."""
    if earlier:
        monkeypatch.setattr(Stage, "fields", lambda self: [self.token, self.query, self.batch, self.entries])
        monkeypatch.setattr(Expire, "fields", lambda self: [])
    minute = 60 * 10**9
    server, storage = await running(spec(), checkpoint_bytes=10**9)
    first = await storage.write("w", StageBatch(batch([("a", 1)], 1), "q", 0))
    server.clock.advance(30 * minute)
    second = await storage.write("w", StageBatch(batch([("a", 2)], 2), "q", 1))
    server.clock.advance(29 * minute)
    storage.tidy()
    assert first.stage in storage.find("w").ledger.parts, "it is kept for an hour"
    server.clock.advance(minute)
    storage.tidy()
    assert list(storage.find("w").ledger.parts) == [second.stage]
    server.clock.advance(minute)
    await storage.write("w", Commit("q", 1, [second.stage]))
    third = await storage.write("w", StageBatch(batch([("a", 3)], 3), "q", 2))
    ledger = storage.find("w").ledger.document()
    monkeypatch.setattr(storage_module, "PART_EXPIRES_NS", expires_ns)
    storage = await server.crash()
    assert storage.find("w").query("a", [], None)[0].aggregates["all"] == [2]
    assert storage.find("w").ledger.document() == ledger
    server.clock.advance(59 * minute)
    storage.tidy()
    assert list(storage.find("w").ledger.parts) == [third.stage]
    server.clock.advance(minute)
    storage.tidy()
    assert not storage.find("w").ledger.parts
    await storage.stop()


async def test_a_journal_is_cut_behind_checkpoints_and_blocks_that_nobody_needs_go():
    server, storage = await running(spec(keyed=False, slide={"max_count": 50}), checkpoint_bytes=3000, store_entries=8)
    sizes = []
    for start in range(0, 10_000, 50):
        rows = Batch(np.arange(start, start + 50), {"value": np.arange(50)})
        await storage.write("w", BulkInsert(rows))
        storage.tidy()
        await server.settled()  # or it is a matter of luck how many deletes wait
        sizes.append(len(server.store.values))
    assert max(sizes[100:]) < 1.1 * max(sizes[:100]), "it does not grow with what came and went"
    assert storage.status().checkpoints > 5


async def test_an_idle_window_does_not_keep_the_journal_of_a_busy_one():
    server, storage = await running(spec(name="idle"), spec(), checkpoint_bytes=2000)
    await storage.write("idle", Insert(1, {"value": 1}, "a"))
    for time in range(200):
        await storage.write("w", Insert(time, {"value": 1}, "a"))
        storage.tidy()
    await storage.store.session.journal.drained()
    assert storage.status().journal_groups < 80
    storage = await server.crash()
    assert storage.find("idle").query("a", [], None)[0].entries == 1


async def test_a_write_that_is_no_value_of_a_tier_is_refused_and_changes_nothing():
    server, storage = await running(
        spec(keyed=False, aggregates={"n": {"function": "count"}}),
        spec(name="texts", fields={"value": "string"}, aggregates={"n": {"function": "count"}}),
    )
    n = 17 * 2**18
    large = Batch(np.zeros(n, np.int64), {"value": np.zeros(n, np.int64)})
    for refused in (
        lambda: storage.write("w", BulkInsert(large), Origin("p", 1)),
        lambda: storage.write("w", StageBatch(large, "q", 0)),
        lambda: storage.write("texts", Insert(1, {"value": "x" * 2**26}, "a")),
        lambda: storage.write("texts", Insert(1, {"value": "ß" * 2**25}, "a")),
    ):
        with pytest.raises(TooLarge, match="in parts") as error:
            await refused()
        assert (error.value.field, error.value.limit) == ("time", "63 MiB")
    assert (await storage.write("w", Insert(1, {"value": 1}, None), Origin("p", 1))).inserted == 1
    storage = await server.crash()
    assert storage.find("w").query(None, [], None)[0].entries == 1


async def test_where_nothing_is_kept_a_write_may_have_any_size():
    _, storage = await running(
        spec(durability="memory", fields={"value": "string"}, aggregates={"n": {"function": "count"}})
    )
    assert (await storage.write("w", Insert(1, {"value": "x" * 2**26}, "a"))).inserted == 1


class Mine(Sum):
    """An aggregate of another package."""

    function = "mine"


@pytest.fixture
def installed(monkeypatch):
    """Installs the package; what it returns removes it, or installs it again."""

    def switch(there):
        known = sash_engine.monoids.catalogue() | ({"mine": Mine} if there else {})
        monkeypatch.setattr(spec_module, "catalogue", lambda: known)

    switch(True)
    return switch


@pytest.mark.parametrize("end", ["stop", "crash"])
@pytest.mark.parametrize(("added", "when"), [(False, None), (True, None), (False, "total.own > 10000")])
async def test_a_window_whose_aggregate_is_not_installed_is_kept_as_it_is(installed, end, added, when):
    """A predicate is of what there is from the beginning."""
    server, storage = await running(checkpoint_bytes=500, store_entries=4)
    own = {"own": {"function": "mine"}}
    one = {"n": {"function": "count"}}
    document = spec(aggregates=one if added else one | own, slide={"when": when} if when else {})
    await storage.create(document)
    await storage.create(spec(name="v", aggregates=one))
    for start in range(0, 60, 20):
        await storage.write("w", BulkInsert(batch([("a", start + i) for i in range(20)], start)))
        await server.settled()
    if added:
        await storage.write("w", AddAggregates(own))
    await storage.write("w", Insert(70, {"value": 100}, "a"))
    expected = sum(range(60)) + 100
    assert storage.find("w").query("a", [], None)[0].aggregates["own"] == expected

    installed(False)
    storage = await (server.restart() if end == "stop" else server.crash())
    mine = {key: value for key, value in server.store.values.items() if b"/00000001" in key}
    for refused in (
        lambda: storage.write("w", Insert(71, {"value": 1}, "a")),
        lambda: storage.write("w", StageBatch(batch([("a", 1)], 0), "q", 0)),
        lambda: storage.write("w", Commit("q", 0, [])),
    ):
        with pytest.raises(FailedPrecondition, match=r"mine.*install"):
            await refused()
    with pytest.raises(FailedPrecondition, match=r"mine.*install"):
        storage.find("w")
    with pytest.raises(AlreadyExists):
        await storage.create(spec(slide={"max_count": 3}))
    v, w = storage.all()
    assert (v.problem, "mine" in w.problem, w.spec.name) == (None, True, "w")
    for time in range(50):
        await storage.write("v", Insert(time, {"value": 1}, "a"))
        storage.tidy()
    await storage.create(spec(name="u"))
    assert storage.status().damaged == 0

    storage = await server.crash()
    with pytest.raises(FailedPrecondition, match="mine"):
        storage.find("w")
    await storage.stop()
    assert {key: server.store.values.get(key) for key in mine} == mine, "nothing of it was changed"
    installed(True)
    storage = await server.start()
    assert storage.find("w").query("a", [], None)[0].aggregates["own"] == expected
    assert [info.problem for info in storage.all()] == [None] * 3
    installed(False)
    storage = await server.crash()
    await storage.delete("w")
    await storage.delete("v")
    await storage.delete("u")
    await storage.stop()
    assert not server.left
