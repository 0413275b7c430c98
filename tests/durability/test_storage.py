"""Storage against the same windows in memory: restarts, crashes, tiers that fail, tiny caches, retries."""

import asyncio
import contextlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sash_engine.monoids
from sash.durability import checkpoints, image
from sash.durability import formats as values
from sash.durability import storage as storage_module
from sash.durability.catalogue import Catalogue
from sash.durability.records import AddAggregates, BulkEvict, BulkInsert, Expire, Insert, Stage
from sash.durability.storage import Storage
from sash.tiers.memory import MemoryTier
from sash_engine.clock import ManualClock
from sash_engine.errors import AlreadyExists, DataLoss, FailedPrecondition, SashError, TooLarge, Unavailable
from sash_engine.monoids import Sum
from sash_engine.windows import spec as spec_module
from sash_engine.windows.batch import Batch, Origin
from sash_engine.windows.window import ALL_KEYS, Window
from tests.support.stored import AGGREGATES, KEYS, Server, batch, same, spec
from tests.support.tiers import Faulty
from tests.support.virtual_time import in_virtual_time, passes
from tests.support.waiting import surely, until

EXACT = 4096
SKETCHES = {
    "users": {"function": "distinct_count"},
    "median": {"function": "quantile", "q": 0.5, "k": EXACT},  # a sketch of more entries flips coins
    "frequent": {"function": "frequent_items", "limit": 2},
}

times = st.integers(0, 40)
entries = st.tuples(st.sampled_from(KEYS), times)
steps = st.one_of(
    st.tuples(st.just("insert"), entries),
    st.tuples(st.just("bulk"), st.lists(entries, max_size=25)),
    st.tuples(st.just("bulk"), st.lists(st.tuples(st.just("a"), times), min_size=20, max_size=60)),
    st.tuples(st.just("batch"), st.lists(st.lists(entries, max_size=9), max_size=3)),
    st.tuples(st.just("evict"), st.tuples(st.sampled_from([*KEYS, None]), times)),
    st.tuples(st.just("together"), st.lists(entries, min_size=2, max_size=6)),
    st.tuples(st.just("tidy"), st.integers(0, 3)),
    st.sampled_from([("restart", None), ("crash", None), ("check", None)]),
)


async def read_on(server):
    """Read the window all the time, whatever is done to it."""
    while True:
        with contextlib.suppress(SashError):
            window = server.storage.find("w")
            window.query(None, [4], None, ALL_KEYS)
            window.range_query(5, 20, "a")
            window.series(0, 40, 4, 9, "b")
        await asyncio.sleep(0)


async def follow(history, slide, options, watched=False):
    server = Server(**options)
    storage = await server.start()
    reader = asyncio.create_task(read_on(server)) if watched else None
    document = spec(slide=slide, idle_expiry="10s", aggregates=AGGREGATES | SKETCHES)
    await storage.create(document)
    model = Window(document, clock=server.clock)
    value = sequence = number = 0
    for step, what in history:
        if step == "insert":
            key, time = what
            sequence += 1
            for attempt in range(2):
                write = Insert(time, {"value": value}, key)
                result = await storage.write("w", write, Origin("p", sequence))
                assert result.already_applied == (attempt > 0)
            model.insert(time, {"value": value}, key)
            value += 1
        elif step == "bulk":
            await storage.write("w", BulkInsert(batch(what, value)))
            model.bulk_insert(batch(what, value))
            value += len(what)
        elif step == "batch":
            stages, pairs = [], []
            for part in what:
                staged = await storage.stage("w", batch(part, value + len(pairs)), "q", number)
                stages.append(staged.stage)
                pairs += part
            await storage.stage("w", batch([("a", 1)], 0), "q", number)  # of a task that was retried
            if number % 3 == 1:
                storage = await server.crash()
            for attempt in range(2):
                result = await storage.commit("w", "q", number, stages)
                assert result.already_applied == (attempt > 0)
            model.bulk_insert(batch(pairs, value))
            number, value = number + 1, value + len(pairs)
        elif step == "evict":
            key, time = what
            await storage.write("w", BulkEvict(time, key))
            model.bulk_evict(time, key)
        elif step == "together":
            writes = [storage.write("w", BulkInsert(batch([pair], value + i))) for i, pair in enumerate(what)]
            await asyncio.gather(*writes)
            for i, pair in enumerate(what):
                model.bulk_insert(batch([pair], value + i))
            value += len(what)
        elif step == "tidy":
            server.clock.advance(what * 5 * 10**9)
            await storage._stored["w"].still.wait()  # or it would be tidied a second later
            storage.tidy()
            await server.settled()  # nobody was answered: a crash now might undo it for a second
            model.tidy()
        elif step == "restart":
            storage = await server.restart()
        elif step == "crash":
            storage = await server.crash()
        else:
            same(storage.find("w"), model)
    same(storage.find("w"), model)
    storage = await server.restart()
    same(storage.find("w"), model)
    await storage.delete("w")
    await storage.stop(5)
    assert not server.left, "nothing of a deleted window is left"
    if reader is not None:
        reader.cancel()


@given(
    st.lists(steps, max_size=25),
    st.sampled_from([{}, {"max_age": 9}, {"max_count": 7}, {"when": "total.n > 12"}]),
    st.sampled_from([0, 64, 10**6]),
    st.sampled_from([4096, 300, 10**6]),
    st.sampled_from([1, 8, 10**6]),
)
def test_any_history_equals_the_window_in_memory(history, slide, cache, checkpoint, store):
    options = {"cache_bytes": cache, "checkpoint_bytes": checkpoint, "store_entries": store}
    asyncio.run(follow(history, slide, options))


@given(
    st.lists(steps, max_size=25),
    st.sampled_from([{}, {"max_age": 9}, {"max_count": 7}, {"when": "total.n > 12"}]),
    st.sampled_from([0, 10**6]),
    st.sampled_from([100, 1000]),
    st.sampled_from([1, 8, 10**6]),
)
def test_images_taken_bit_by_bit_while_others_read_change_nothing(history, slide, cache, checkpoint, store):
    options = {"cache_bytes": cache, "checkpoint_bytes": checkpoint, "store_entries": store}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoints, "_TURN_S", -1.0)
        patch.setattr(image, "_KEYS", 1)
        patch.setattr(image, "_FORESTS", 1)
        asyncio.run(follow(history, slide, options, watched=True))


async def test_a_write_without_an_answer_is_applied_once_when_it_is_sent_again():
    server = Server()
    storage = await server.start()
    await storage.create(spec())
    server.tier.fail_before = 1
    with pytest.raises(Unavailable):
        await storage.write("w", Insert(1, {"value": 1}, "a"), Origin("p", 1))
    result = await surely(lambda: storage.write("w", Insert(1, {"value": 1}, "a"), Origin("p", 1)))
    assert result.already_applied
    assert result.durability == "sync"
    storage = await server.crash()
    assert storage.find("w").query("a", [], None)[0].entries == 1
    await storage.stop()


async def test_a_commit_that_took_place_but_was_not_answered_is_not_applied_twice():
    server = Server()
    storage = await server.start()
    await storage.create(spec())
    server.tier.fail_after = 2
    with pytest.raises(Unavailable):
        await storage.write("w", Insert(1, {"value": 1}, "a"))
    await until(lambda: storage.problem is None)
    await storage.write("w", Insert(2, {"value": 2}, "a"))
    storage = await server.crash()
    assert storage.find("w").query("a", [], None)[0].aggregates["all"] == [1, 2]
    await storage.stop()


async def test_while_the_tier_is_down_writes_fail_fast_and_memory_answers():
    server = Server()
    storage = await server.start()
    await storage.create(spec())
    await storage.write("w", Insert(1, {"value": 1}, "a"))
    server.tier.fail_before = 10**9
    with pytest.raises(Unavailable):
        await storage.write("w", Insert(2, {"value": 2}, "a"))
    assert storage.problem is not None
    with pytest.raises(Unavailable):
        await storage.write("w", Insert(3, {"value": 3}, "a"))
    assert storage.find("w").query("a", [], None)[0].aggregates["max"] == 2, "the third changed nothing"
    with pytest.raises(Unavailable):
        await storage.create(spec(name="other"))
    server.tier.fail_before = 0
    await until(lambda: storage.problem is None)
    await storage.write("w", Insert(3, {"value": 3}, "a"))
    await storage.stop()


async def test_a_window_that_was_left_half_changed_recovers_by_itself():
    server = Server(cache_bytes=0, checkpoint_bytes=10**6, store_entries=4)
    storage = await server.start()
    await storage.create(spec(aggregates={"first": {"function": "first"}, "n": {"function": "count"}}))
    await storage.write("w", BulkInsert(batch([("a", 2 * time) for time in range(100)], 0)))
    await server.settled()
    storage.trim()
    server.tier.fail_reads = 3
    with pytest.raises(Unavailable):
        await storage.write("w", Insert(11, {"value": 1000}, "a"))
    with pytest.raises(Unavailable, match="recovered"):
        storage.find("w")
    await surely(lambda: storage.write("w", Insert(11, {"value": 1000}, "a")))
    assert storage.find("w").range_query(10, 12, "a").entries == 3
    assert storage.find("w").query("a", [], None)[0].entries == 101
    storage = await server.restart()
    assert storage.find("w").range_query(10, 12, "a").aggregates["first"] == 5
    await storage.stop()


async def test_a_damaged_block_is_named_and_harms_only_what_needs_it():
    server = Server(cache_bytes=0, checkpoint_bytes=10**6, store_entries=4)
    storage = await server.start()
    await storage.create(spec(keyed=False, aggregates={"n": {"function": "count"}}))  # so only blocks are numbered
    rows = Batch(np.arange(100), {"value": np.arange(100)})
    await storage.write("w", BulkInsert(rows))
    await server.settled()
    storage.trim()
    [key] = [values.block_key(1, 5)]
    server.store.values[key] = server.store.values[key][:-1] + b"?"
    window = storage.find("w")
    with pytest.raises(DataLoss, match="block 5 of window 'w'"):
        window.range_query(17, 40, None)
    assert window.range_query(30, 41, None).entries == 12
    assert window.query(None, [], None)[0].entries == 100
    assert storage.status().damaged == 1
    assert server.store.values[key].endswith(b"?"), "it is left as it is"
    await storage.stop()


async def test_a_damaged_image_takes_one_window_down_and_no_other():
    server = Server()
    storage = await server.start()
    for name in ("w", "v"):
        await storage.create(spec(name=name))
        await storage.write(name, Insert(1, {"value": 1}, "a"))
    await storage.stop()
    [damaged] = [key for key in server.store.values if key.startswith(b"image/00000001") and key.endswith(b"0")]
    server.store.values[damaged] = b"nonsense"
    storage = await server.start()
    with pytest.raises(DataLoss):
        storage.find("w")
    with pytest.raises(DataLoss):
        await storage.write("w", Insert(2, {"value": 2}, "a"))
    assert storage.find("v").query("a", [], None)[0].entries == 1
    await storage.delete("w")
    await storage.create(spec())
    await storage.stop()


async def test_added_aggregates_and_spec_survive():
    server = Server()
    storage = await server.start()
    await storage.create(spec())
    await storage.write("w", BulkInsert(batch([("a", time) for time in range(10)], 0)))
    await storage.write("w", AddAggregates({"min": {"function": "min"}}))
    for again in (server.crash, server.restart, server.crash):
        storage = await again()
        assert storage.find("w").query("a", [], None)[0].aggregates["min"] == 0
        assert storage.info(storage.find("w")).durability == "sync"
    await storage.stop()


# ---------------------------------------------------------------- a start on a tier that is away


class Stumbling(Faulty):
    """A tier whose every call fails so many times before it succeeds."""

    def __init__(self, store, times, error=Unavailable):
        super().__init__(MemoryTier(store))
        self.times = self.left = times
        self.kind = error

    def _stumble(self):
        if self.left:
            self.left -= 1
            raise self.kind("as told")
        self.left = self.times

    def acquire(self):
        self._stumble()
        super().acquire()

    def get_many(self, keys):
        self._stumble()
        return super().get_many(keys)


async def start_on(tier):
    """A storage that starts on a tier, and how long it paused each time."""
    clock, pauses_s = ManualClock(), []

    def sleep(seconds):
        pauses_s.append(seconds)
        clock.advance(round(seconds * 1e9))

    storage = Storage(Catalogue(clock=clock), clock, tier, sleep=sleep)
    try:
        await storage.start()
    except SashError as error:
        return error, pauses_s
    return storage, pauses_s


async def stored():
    server = Server(checkpoint_bytes=10**9)
    storage = await server.start()
    await storage.create(spec())
    await storage.write("w", BulkInsert(batch([("a", time) for time in range(20)], 0)))
    await server.settled()
    storage._checkpoints.begin(storage._stored["w"])
    await server.settled()
    await storage.write("w", Insert(20, {"value": 20}, "a"))
    await server.die()
    return server.store


async def test_a_start_tries_a_tier_again_that_fails_for_a_moment():
    tier = Stumbling(await stored(), 6)
    storage, pauses_s = await start_on(tier)
    assert storage.find("w").query("a", [], None)[0].entries == 21
    assert pauses_s[:6] == [0.1, 0.2, 0.4, 0.8, 1.6, 2.0], "to become the server"
    assert pauses_s == pauses_s[:6] * (len(pauses_s) // 6)
    assert len(pauses_s) > 5 * 6, "each read is tried for as long as it takes"
    before = len(pauses_s)
    tier.times = tier.left = 0
    tier.fail_reads = 1
    with pytest.raises(Unavailable):
        storage._session.read("meta", values.meta_key())
    assert len(pauses_s) == before, "once it runs, it fails at once"
    await storage.stop()


@pytest.mark.parametrize("reads", [0, 1, 3])
async def test_a_start_on_a_tier_that_stays_away_ends_after_30_seconds_and_changes_nothing(reads):
    store = await stored()
    before = dict(store.values)
    tier = Stumbling(store, 10**6)
    stumble = tier._stumble

    def later():
        if reads <= len(tier.reads):
            stumble()

    if reads:
        tier._stumble = later
    error, pauses_s = await start_on(tier)
    assert isinstance(error, Unavailable)
    assert sum(pauses_s) == pytest.approx(30.0)
    assert len(pauses_s) == 19
    assert store.values == before
    assert store.owner is None, "another may start"


@pytest.mark.parametrize("kind", [FailedPrecondition, DataLoss])
async def test_a_start_does_not_wait_for_what_does_not_pass(kind):
    error, pauses_s = await start_on(Stumbling(await stored(), 1, kind))
    assert isinstance(error, kind)
    assert not pauses_s


async def test_a_window_in_memory_is_gone_after_a_restart_and_says_so_before():
    server = Server()
    storage = await server.start()
    await storage.create(spec(durability="memory"))
    result = await storage.write("w", Insert(1, {"value": 1}, "a"), Origin("p", 1))
    assert result.durability == "memory"
    assert (await storage.write("w", Insert(1, {"value": 1}, "a"), Origin("p", 1))).already_applied
    staged = await storage.stage("w", batch([("a", 5)], 7), "q", 0)
    assert (await storage.commit("w", "q", 0, [staged.stage])).inserted == 1
    storage = await server.restart()
    with pytest.raises(SashError, match="no window"):
        storage.find("w")
    await storage.stop()


async def test_interval_windows_answer_before_the_commit():
    server = Server(interval_s=0.02)
    storage = await server.start()
    await storage.create(spec(durability="interval"))
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
    await storage.stop()


def test_writes_of_an_interval_share_the_commit_at_its_end():
    async def main():
        server = Server(interval_s=60.0)
        storage = await server.start()
        for name, durability in (("w", "interval"), ("v", "sync")):
            await storage.create(spec(name=name, durability=durability))
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

    in_virtual_time(main())


async def test_an_orderly_stop_commits_what_waits_for_the_interval():
    server = Server(interval_s=60.0, checkpoint_bytes=10**9)
    storage = await server.start()
    await storage.create(spec(durability="interval"))
    await storage.write("w", Insert(1, {"value": 1}, "a"))
    storage._stored["w"].resting = 1  # no image of it can be taken now
    storage = await server.restart()
    assert storage.find("w").query("a", [], None)[0].entries == 1
    await storage.stop()


async def test_durability_needs_a_tier():
    storage = Storage(Catalogue(), ManualClock())
    await storage.start()
    with pytest.raises(FailedPrecondition) as refused:
        await storage.create(spec(durability="sync"))
    assert refused.value.field == "durability"
    window, _ = await storage.create(spec())
    assert storage.info(window).durability == "memory"


async def test_two_commits_of_one_batch_at_once_apply_it_once():
    server = Server()
    storage = await server.start()
    await storage.create(spec())
    staged = await storage.stage("w", batch([("a", 5), ("b", 6)], 7), "q", 0)
    results = await asyncio.gather(*(storage.commit("w", "q", 0, [staged.stage]) for _ in range(4)))
    assert sorted(result.inserted for result in results) == [0, 0, 0, 2]
    await storage.stop()


@pytest.fixture
def earlier(monkeypatch):
    """Writes records of staged parts as they were before they said when these expire, and which expired."""
    monkeypatch.setattr(Stage, "fields", lambda self: [self.token, self.query, self.batch, self.entries])
    monkeypatch.setattr(Expire, "fields", lambda self: [])


async def parts_that_expire(monkeypatch, expires_ns):
    """One part expires, one is committed after that, one is left; recovered where parts are kept for `expires_ns`."""
    minute = 60 * 10**9
    server = Server(checkpoint_bytes=10**9)
    storage = await server.start()
    await storage.create(spec())
    first = await storage.stage("w", batch([("a", 1)], 1), "q", 0)
    server.clock.advance(30 * minute)
    second = await storage.stage("w", batch([("a", 2)], 2), "q", 1)
    server.clock.advance(29 * minute)
    storage.tidy()
    assert first.stage in storage.find("w").ledger.parts, "it is kept for an hour"
    server.clock.advance(minute)
    storage.tidy()
    assert list(storage.find("w").ledger.parts) == [second.stage]
    server.clock.advance(minute)
    await storage.commit("w", "q", 1, [second.stage])
    third = await storage.stage("w", batch([("a", 3)], 3), "q", 2)
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


@pytest.mark.parametrize("expires_ns", [10**9, 10**15])
async def test_a_version_that_keeps_parts_for_another_time_recovers_the_same_window(monkeypatch, expires_ns):
    await parts_that_expire(monkeypatch, expires_ns)


@pytest.mark.parametrize("expires_ns", [10**9, 3_600 * 10**9, 10**15])
async def test_records_that_do_not_say_when_parts_expire_are_applied_as_they_were(monkeypatch, earlier, expires_ns):
    await parts_that_expire(monkeypatch, expires_ns)


async def test_a_journal_is_cut_behind_checkpoints_and_blocks_that_nobody_needs_go():
    server = Server(checkpoint_bytes=3000, store_entries=8)
    storage = await server.start()
    await storage.create(spec(keyed=False, slide={"max_count": 50}))
    sizes = []
    for start in range(0, 10_000, 50):
        rows = Batch(np.arange(start, start + 50), {"value": np.arange(50)})
        await storage.write("w", BulkInsert(rows))
        storage.tidy()
        await server.settled()  # or it is a matter of luck how many deletes wait
        sizes.append(len(server.store.values))
    assert max(sizes[100:]) < 1.1 * max(sizes[:100]), "it does not grow with what came and went"
    assert storage.status().checkpoints > 5
    await storage.stop()


async def test_an_idle_window_does_not_keep_the_journal_of_a_busy_one():
    server = Server(checkpoint_bytes=2000)
    storage = await server.start()
    await storage.create(spec(name="idle"))
    await storage.create(spec())
    await storage.write("idle", Insert(1, {"value": 1}, "a"))
    for time in range(200):
        await storage.write("w", Insert(time, {"value": 1}, "a"))
        storage.tidy()
    await storage._session.journal.drained()
    assert storage.status().journal_groups < 80
    storage = await server.crash()
    assert storage.find("idle").query("a", [], None)[0].entries == 1
    await storage.stop()


# ---------------------------------------------------------------- what is too large, and what is not installed


async def test_a_write_that_is_no_value_of_a_tier_is_refused_and_changes_nothing():
    server = Server()
    storage = await server.start()
    await storage.create(spec(keyed=False, aggregates={"n": {"function": "count"}}))
    await storage.create(spec(name="texts", fields={"value": "string"}, aggregates={"n": {"function": "count"}}))
    n = 17 * 2**18
    large = Batch(np.zeros(n, np.int64), {"value": np.zeros(n, np.int64)})
    for refused in (
        lambda: storage.write("w", BulkInsert(large), Origin("p", 1)),
        lambda: storage.stage("w", large, "q", 0),
        lambda: storage.write("texts", Insert(1, {"value": "x" * 2**26}, "a")),
        lambda: storage.write("texts", Insert(1, {"value": "ß" * 2**25}, "a")),
    ):
        with pytest.raises(TooLarge, match="in parts") as error:
            await refused()
        assert (error.value.field, error.value.limit) == ("time", "63 MiB")
    assert (await storage.write("w", Insert(1, {"value": 1}, None), Origin("p", 1))).inserted == 1
    storage = await server.crash()
    assert storage.find("w").query(None, [], None)[0].entries == 1
    await storage.stop()


async def test_where_nothing_is_kept_a_write_may_have_any_size():
    server = Server()
    storage = await server.start()
    await storage.create(spec(durability="memory", fields={"value": "string"}, aggregates={"n": {"function": "count"}}))
    assert (await storage.write("w", Insert(1, {"value": "x" * 2**26}, "a"))).inserted == 1
    await storage.stop()


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
@pytest.mark.parametrize("added", [False, True])
@pytest.mark.parametrize("when", [None, "total.own > 10000"])
async def test_a_window_whose_aggregate_is_not_installed_is_kept_as_it_is(installed, end, added, when):
    if added and when:
        pytest.skip("a predicate is of what there is from the beginning")
    server = Server(checkpoint_bytes=500, store_entries=4)
    storage = await server.start()
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
        lambda: storage.stage("w", batch([("a", 1)], 0), "q", 0),
        lambda: storage.commit("w", "q", 0, []),
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
