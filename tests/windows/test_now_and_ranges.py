"""Every store against the slow model: what slides, what is late or too far ahead, what now is, where ranges end.

late      mark - 12          mark                       event time: now is the mark
----------|---------------------|
                  now - 12            now   |           wall time: entries may be ahead of now
------------------|--------------------|----|
                                           now + 8 |    order.ahead: what is later is dropped, or refused
"""

import asyncio

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from sash.durability.records.commands import BulkEvict, BulkInsert, Commit, Insert, StageBatch
from sash_engine.clock import ManualClock
from sash_engine.errors import FailedPrecondition, ResourceExhausted
from sash_engine.windows.batches.batch import Batch, PartialBatch
from sash_engine.windows.questions import ALL_KEYS, Query
from sash_engine.windows.spec.derived import completed
from sash_engine.windows.spec.window import TICK_MIN, WindowSpec
from sash_engine.windows.window import Window
from tests.support.model import NEVER, Slow
from tests.support.refused import refusal, refused
from tests.support.stored import StorageServer
from tests.support.times_lockstep import (
    KEYS,
    LAST,
    START,
    STORES,
    S,
    TimesLockstep,
    bulk,
    entries,
    offsets,
    spec,
    value_of,
)
from tests.support.twins import alike
from tests.support.windows import BASE

UNTIL = {"until": "punctuation"}
SLIDES = [
    {},
    {"max_age": 12},
    {"max_count": 3},
    {"max_age": 12, "max_count": 3},
    {"max_gap": 1},
    {"max_gap": 3, "max_count": 10},
    {"max_age": 9, "every": 4},
    {"max_age": 7, "every": 7},
    {"max_age": 12, "every": 5, "max_gap": 6},
    UNTIL,
    {"max_age": 9, **UNTIL},
    {"max_age": 9, "every": 4, **UNTIL},
]
one_or_all = st.sampled_from([*KEYS, None])
steps = st.one_of(
    st.tuples(st.just("insert"), entries),
    st.tuples(st.just("bulk"), st.lists(entries, max_size=15)),
    st.tuples(st.just("bulk"), st.lists(st.tuples(st.just("a"), offsets), max_size=25)),
    st.tuples(st.just("evict"), st.tuples(one_or_all, offsets)),
    st.tuples(st.just("evict"), st.tuples(one_or_all, st.just(60))),
    st.tuples(st.just("evict_range"), st.tuples(one_or_all, offsets, st.integers(0, 20))),
    st.tuples(st.just("evict_wrong"), st.tuples(one_or_all, offsets, st.sampled_from([0, 9, 99]))),
    st.tuples(st.just("punctuate"), offsets),
    st.tuples(st.just("wait"), st.integers(1, 15)),
    st.tuples(st.just("restart"), st.none()),
    st.tuples(st.just("export"), st.none()),
    st.tuples(st.just("range"), st.tuples(st.sampled_from(KEYS), offsets, st.integers(1, 20))),
)


@pytest.mark.parametrize("wall", [False, True], ids=["event", "wall"])
@pytest.mark.parametrize("store", STORES)
@given(
    history=st.lists(steps, max_size=20),
    slide=st.sampled_from(SLIDES),
    ahead=st.sampled_from([None, 1, 8]),
    block=st.sampled_from([1, 4, 1024]),
)
def test_any_history_equals_the_fold(store, wall, history, slide, ahead, block):
    assume(store != "panes" or "max_count" not in slide)
    assume(not wall or not slide.keys() & {"max_gap", "until"})
    TimesLockstep(store, slide, ahead, wall, block).run(history)


@pytest.mark.parametrize("store", STORES)
def test_keys_grow_into_forests_in_order_and_not(store):
    both = TimesLockstep(store)
    for i in range(70):
        both.bulk([("a", i), ("b", -i), ("c", i // 3), ("d", i * 37 % 41)])
        if i % 7 == 0:
            both.check()
    both.check()


@pytest.mark.parametrize("wall", [False, True], ids=["event", "wall"])
@pytest.mark.parametrize("store", STORES)
def test_without_entries_and_marks_there_is_no_now(store, wall):
    """The mark of the only entry is taken back: lookbacks began with the least of all times."""
    for wrong in (("c", -1, 0), ("c", 0, 9)):
        TimesLockstep(store, wall=wall).run([("insert", ("c", 0)), ("evict_wrong", wrong)])


def test_a_mark_that_was_taken_back_does_not_come_again_with_the_next_write():
    w = Window(spec())
    w.insert(100, {"value": 1}, "a")
    assert w.evict_range(100, 100, reset_mark=True) == 1
    w.insert(5, {"value": 1}, "a")
    assert w.info().high_water_mark == 5


def test_what_is_late_follows_a_mark_that_was_taken_back():
    w = Window(spec(slide={"max_age": 10}))
    w.bulk_insert(bulk([("a", 95), ("a", 100)], 0))
    assert w.evict_range(100, 100, reset_mark=True) == 1
    assert [w.insert(time, {"value": 1}, "a").late for time in (85, 86)] == [1, 0]


# ---------------------------------------------------------------- the mark, and keys without entries


@pytest.mark.parametrize("pages", [(2, 4), None])
def test_a_forgotten_key_takes_its_mark_along_but_not_the_windows(pages):
    clock = ManualClock()
    w = Window(spec(idle_expiry="10s", slide={"max_age": 5}), pages=pages, clock=clock)
    w.insert(100, {"value": 1}, "a")
    w.bulk_evict(100, "a")
    clock.advance(11 * S)
    w.tidy()
    assert (w.info().high_water_mark, w.info().newest, w.info().keys, len(w.keys)) == (100, None, 0, 0)
    assert w.insert(3, {"value": 1}, "a").inserted == 1
    assert (w.info().newest, w.info().keys) == (3, 1)
    w.check_invariants()


@pytest.mark.parametrize("pages", [(2, 4), None])
def test_the_newest_entry_is_looked_for_only_where_it_has_left(pages, monkeypatch):
    w = Window(spec(), block=4, pages=pages)
    w.bulk_insert(bulk([(key, time) for key in "abc" for time in range(20)], 0))
    w.insert(30, {"value": 1}, "b")
    searches = []
    search = w.keys.newest_each
    monkeypatch.setattr(w.keys, "newest_each", lambda numbers: searches.append(len(numbers)) or search(numbers))
    w.bulk_evict(25, None)
    assert (w.info().newest, w.info().keys, searches) == (30, 1, [])
    w.bulk_insert(bulk([("c", 32), ("c", 31)], 0))
    assert (w.info().newest, searches) == (32, [])
    w.insert(28, {"value": 1}, "a")
    w.bulk_evict(40, "c")
    w.bulk_evict(40, "b")
    assert [w.info().newest for _ in range(3)] == [28] * 3
    w.bulk_evict(40, "a")
    assert [w.info().newest for _ in range(3)] == [None] * 3
    assert searches == [3, 3]


async def test_keys_and_the_newest_entry_need_no_stored_block():
    server = StorageServer(cache_bytes=0, store_entries=1)
    storage = await server.start()
    await storage.create(spec())
    await storage.write("w", BulkInsert(bulk([(key, time) for key in "abc" for time in range(200)], 0)))
    await storage.write("w", BulkEvict(250, "b"))
    await server.settled()
    storage.trim()
    server.tier.unreachable = True
    window = storage.find("w")
    assert (window.key_names("", 9)[0], window.info().keys, window.info().newest) == (["a", "c"], 2, 199)
    server.tier.unreachable = False
    await storage.write("w", BulkEvict(250, None))
    storage = await server.crash()
    window = storage.find("w")
    assert (window.key_names("", 9)[0], window.info().keys) == ([], 0)
    assert (window.info().newest, window.info().high_water_mark) == (None, 199)
    await storage.stop()


# ---------------------------------------------------------------- wall time


# ---------------------------------------------------------------- ranges without their end


def test_ranges_without_their_end_reach_the_ends_of_time():
    w = Window(spec(keyed=False, time_unit="none"))
    w.bulk_insert(bulk([("", -LAST), ("", 0), ("", LAST - 1), ("", LAST)], 0, keyed=False))
    assert w.range_query(-LAST, LAST, None, end_exclusive=True).entries == 3
    assert w.range_query(-LAST, LAST, None).entries == 4
    assert w.range_query(LAST - 1, LAST, None, end_exclusive=True).entries == 1
    for start, end, times in ((None, 0, [-LAST]), (0, None, [0, LAST - 1, LAST]), (None, -LAST, [])):
        found = w.entries(start, end, None, end_exclusive=True)
        assert [time for batch in found for time in batch.times.tolist()] == times


@pytest.mark.parametrize("ask", [Window.range_query, Window.entries])
@pytest.mark.parametrize(
    ("start", "end", "exclusive", "field", "limit"),
    [
        (5, 5, True, "start", "4"),
        (6, 5, True, "start", "4"),
        (6, 5, False, "start", "5"),
        (0, 2**63 - 1, True, "end", "-2^63 < time < 2^63 - 1"),
        (-(2**63), 5, True, "start", "-2^63 < time < 2^63 - 1"),
    ],
)
def test_a_range_has_a_time(ask, start, end, exclusive, field, limit):
    assert refusal(ask, Window(spec()), start, end, "a", end_exclusive=exclusive) == (field, limit)


# ---------------------------------------------------------------- the first times that there are


DOCUMENT = BASE | {"keyed": True}


@settings(max_examples=60)
@given(
    times=st.lists(st.integers(TICK_MIN + 1, TICK_MIN + 14), min_size=1, max_size=12),
    every=st.integers(1, 12),
    more=st.integers(0, 3),
    until=st.sampled_from([None, 1, 7, 12]),
)
def test_single_entries_and_bulks_leave_alike(times, every, more, until):
    age = every + more
    slide = {"max_age": age, "every": every} | ({} if until is None else {"until": "punctuation"})
    spec = WindowSpec.parse({**DOCUMENT, "slide": slide})
    whole = WindowSpec.parse({**DOCUMENT, "slide": {} if until is None else {"until": "punctuation"}})
    single, bulk, source = Window(spec), Window(spec), Window(whole)
    shown = WindowSpec.parse({"name": "view", "of": "w", "slide": slide, "aggregates": DOCUMENT["aggregates"]})
    view = source.derive(completed(shown, whole))
    slow = {key: Slow(age, every=every, punctuated=None if until is None else NEVER) for key in "ab"}
    keys = ["ab"[i % 2] for i in range(len(times))]
    for i, (key, time) in enumerate(zip(keys, sorted(times), strict=True)):
        single.insert(time, {"value": i}, key)
        slow[key].write([(time, i)])
    for each in (bulk, source):
        each.bulk_insert(Batch.of(each.spec, sorted(times), {"value": range(len(times))}, keys))
    if until is not None:
        for each in (single, bulk, source, *slow.values()):
            each.punctuate(TICK_MIN + until)
    for each in (single, bulk, view):
        for key, model in slow.items():
            (answer,) = each.reader.query(Query(key))
            assert answer.aggregates["all"] == [value for _, value in model.entries]
        found = {answer.key: answer.entries for answer in each.reader.query(Query(keys=ALL_KEYS))}
        assert found == {key: len(model.entries) for key, model in slow.items() if model.entries}
    assert single.info().evicted_through == bulk.info().evicted_through


# ---------------------------------------------------------------- entries too far ahead of wall time


# ---------------------------------------------------------------- too far ahead


def guarded(policy="drop", now=1000, **parts):
    order = {"ahead": "5m", "too_far_ahead": policy} | parts.pop("order", {})
    return Window(spec(slide={"max_age": "1h"}, order=order, **parts), clock=ManualClock(now * S))


def test_a_write_that_has_an_entry_of_tomorrow_is_rejected_and_changes_nothing():
    w = guarded("reject")
    for write, count in (
        (lambda: w.insert(1301, {"value": 1}, "a"), 1),
        (lambda: w.bulk_insert(bulk([("a", 1000), ("a", 1301), ("b", 5000)], 0)), 2),
    ):
        assert refusal(write, error=FailedPrecondition, match=f"and {count} of this write (is|are)") == (
            "time",
            "time <= 1300",
        )
    info = w.info()
    assert (info.entries, info.keys, info.high_water_mark, info.counts.ahead) == (0, 0, None, 0)
    assert len(w.keys) == 0
    assert w.bulk_insert(bulk([("a", 1000), ("a", 1300)], 0)).inserted == 2
    assert w.insert(1300, {"value": 1}, "a").inserted == 1


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_wall_time_is_of_the_windows_unit(unit):
    per_s = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[unit]
    w = guarded(time_unit=unit)
    through = 1300 * per_s
    assert w.insert(through, {"value": 1}, "a").inserted == 1
    assert w.insert(through + 1, {"value": 1}, "a").ahead == 1


def test_what_is_too_far_ahead_is_as_if_it_had_not_been_sent():
    """No other order policy sees it: the entry behind it is in order, and it is no duplicate."""
    w = guarded(order={"out_of_order": "reject", "equal_times": "reject", "late": "reject"})
    result = w.bulk_insert(bulk([("a", 1000), ("a", 9000), ("a", 1001), ("a", 9000)], 0))
    assert (result.inserted, result.ahead, result.duplicates) == (2, 2, 0)
    assert w.insert(9000, {"value": 1}, "a").ahead == 1
    refused(w.bulk_insert, bulk([("a", 9000), ("a", 999)], 4), error=FailedPrecondition, match="in order of time only")
    assert w.counts.ahead == 3


def test_of_partials_the_entries_that_they_stand_for_are_counted():
    w = guarded(keyed=False, granularity="1m", aggregates={"sum": {"function": "sum", "field": "value"}})

    def partials(times, entries):
        sums = (np.array([value.to_bytes(9, "little", signed=True) for value in entries], object),)
        return PartialBatch(np.array(times), {"sum": sums}, np.array(entries, np.int64))

    result = w.bulk_insert(partials([960, 1290, 1310, 9000], [2, 3, 50, 700]))
    assert (result.inserted, result.ahead) == (55, 700), "a pane that starts in time is in time"
    w.counts.ahead = 2**62 - 100
    refused(w.bulk_insert, partials([9000], [100]), error=ResourceExhausted, match=f"was sent {2**62 - 45} entries")
    assert w.counts.ahead == 2**62 - 100


def test_a_guard_may_reach_beyond_all_times():
    w = Window(spec(keyed=False, order={"ahead": 2**63 - 1}), clock=ManualClock(1000 * S))
    assert w.insert(LAST, {"value": 1}, None).inserted == 1
    assert w.bulk_insert(bulk([("", LAST), ("", 0)], 0, keyed=False)).inserted == 2


def test_a_spec_says_its_guard_where_it_has_one():
    assert spec(order={"ahead": "5m"}) == spec(order={"ahead": "5m", "too_far_ahead": "drop"})
    assert "ahead" not in str(spec().document()), "earlier versions read the specs of windows that have no guard"


def test_the_count_is_stored_where_there_is_one():
    w = guarded()
    assert "ahead" not in w.counts.document(), "earlier versions read the counts of windows that have no guard"
    w.insert(9000, {"value": 1}, "a")
    assert w.counts.document() == {"inserted": 0, "late": 0, "evicted": 0, "duplicates": 0, "ahead": 1}


# ---------------------------------------------------------------- replays decide alike


moments = st.one_of(
    st.tuples(st.just("insert"), entries),
    st.tuples(st.just("bulk"), st.lists(entries, max_size=9)),
    st.tuples(st.just("batch"), st.tuples(st.lists(st.lists(entries, max_size=5), max_size=3), st.integers(0, 15))),
    st.tuples(st.just("evict"), st.tuples(st.sampled_from([*KEYS, None]), offsets)),
    st.tuples(st.just("wait"), st.integers(1, 15)),
    st.sampled_from([("crash", None), ("restart", None)]),
)


async def follow(history, policy, checkpoint_bytes):
    server = StorageServer(checkpoint_bytes=checkpoint_bytes)
    server.clock.advance(START * S)
    storage = await server.start()
    document = spec(order={"ahead": "8s", "too_far_ahead": policy}, slide={"max_age": "20s"})
    await storage.create(document)
    model, value, number = Window(document, clock=server.clock), 0, 0
    for step, what in history:
        now = server.clock.now_ns() // S
        if step == "insert":
            key, time = what
            write = {"value": value_of(value)}
            await both(storage.write("w", Insert(now + time, write, key)), model.insert, now + time, write, key)
            value += 1
        elif step == "bulk":
            rows = bulk([(key, now + time) for key, time in what], value)
            await both(storage.write("w", BulkInsert(rows)), model.bulk_insert, rows)
            value += len(what)
        elif step == "batch":
            parts, seconds = what
            stages, pairs = [], []
            for part in parts:
                rows = [(key, now + time) for key, time in part]
                stage = storage.write("w", StageBatch(bulk(rows, value + len(pairs)), "q", number))
                if policy == "reject" and any(time > now + 8 for _, time in rows):
                    with pytest.raises(FailedPrecondition, match="too far ahead"):
                        await stage
                    continue
                stages.append((await stage).stage)
                pairs += rows
            server.clock.advance(seconds * S)  # the commit drops what is too far ahead at its time
            await both(storage.write("w", Commit("q", number, stages)), model.bulk_insert, bulk(pairs, value))
            value, number = value + len(pairs), number + 1
        elif step == "evict":
            key, time = what
            await storage.write("w", BulkEvict(now + time, key))
            model.bulk_evict(now + time, key)
        elif step == "wait":
            server.clock.advance(what * S)
        else:
            storage = await getattr(server, step)()
        same(storage.find("w"), model)
    storage = await server.crash()
    same(storage.find("w"), model)
    await storage.stop()


async def both(write, modelled, *arguments):
    """Write to the window and to its model: both are refused, or both do the same."""

    async def of_the_model():
        return modelled(*arguments)

    outcomes = []
    for result in (write, of_the_model()):
        try:
            done = await result
            outcomes.append((done.inserted, done.late, done.evicted, done.ahead))
        except FailedPrecondition as error:
            outcomes.append((error.message, error.field, error.limit))
    assert outcomes[0] == outcomes[1]


def same(window, model):
    info, expected = window.info(), model.info()
    assert info.counts == expected.counts
    assert (info.newest, info.high_water_mark, info.keys) == (expected.newest, expected.high_water_mark, expected.keys)
    assert window.key_names("", 9) == model.key_names("", 9)
    assert window.query(None, [], None, KEYS) == model.query(None, [], None, KEYS)
    window.check_invariants(alike)


@given(st.lists(moments, max_size=20), st.sampled_from(["drop", "reject"]), st.sampled_from([300, 2000, 10**6]))
def test_a_replay_finds_ahead_what_the_write_found_ahead(history, policy, checkpoint_bytes):
    asyncio.run(follow(history, policy, checkpoint_bytes))


async def test_a_rejected_stage_may_be_sent_again():
    server = StorageServer()
    server.clock.advance(START * S)
    storage = await server.start()
    await storage.create(spec(order={"ahead": "5s", "too_far_ahead": "reject"}))
    stage = StageBatch(bulk([("a", START), ("a", START + 12)], 0), "q", 0)
    with pytest.raises(FailedPrecondition, match="too far ahead"):
        await storage.write("w", stage)
    server.clock.advance(7 * S)
    staged = await storage.write("w", stage)
    assert (await storage.write("w", Commit("q", 0, [staged.stage]))).inserted == 2
    await storage.stop()
