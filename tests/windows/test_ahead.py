"""Entries too far ahead of wall time: dropped or rejected, and the same by a replay."""

import asyncio

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sash.durability.records.commands import BulkEvict, BulkInsert, Commit, Insert, StageBatch
from sash_engine.clock import ManualClock
from sash_engine.errors import FailedPrecondition, ResourceExhausted
from sash_engine.windows.batches.batch import PartialBatch
from sash_engine.windows.window import Window
from tests.support.refused import refusal, refused
from tests.support.stored import StorageServer
from tests.support.times_lockstep import KEYS, LAST, START, S, bulk, entries, offsets, spec, value_of
from tests.support.twins import alike

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
