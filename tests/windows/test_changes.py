"""Retractions and corrections of single entries, against the fold over a list."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sash_engine.clock import ManualClock
from sash_engine.errors import InvalidArgument, TooLarge, Unsupported
from sash_engine.forest.finder import Wanted
from sash_engine.steps import finished
from sash_engine.windows.batches.batch import UNKNOWN_TIME, Batch, Coded, PartialBatch, untimed
from sash_engine.windows.spec.window import WindowSpec
from sash_engine.windows.window import Window
from sash_engine.windows.writing import changes
from tests.support.model import slow_window
from tests.support.refused import refusal, refused
from tests.support.windows import functions

KEYS = ["a", "b"]
SPEC = {
    "name": "w",
    "keyed": True,
    "time_unit": "none",
    "fields": {"id": "string", "value": "int64"},
    "aggregates": functions(n="count", all="collect value", min="min value"),
    "identity": "id",
}


def window(block=4, **parts):
    return Window(WindowSpec.parse(SPEC | parts), block=block, pages=(2, 4))


def rows(entries, values=None):
    """A batch of (key, time, id), with a value of each; without values as a retraction has it."""
    columns = {"id": Coded.of([name for _, _, name in entries])}
    if values is not None:
        columns["value"] = np.array(values, np.int64)
    times = np.array([time for _, time, _ in entries], np.int64)
    return Batch(times, columns, Coded.of([key for key, _, _ in entries]))


# Few identities, so that entries of one time share them, and many names name nothing.
times_of = st.integers(0, 9)
some = st.lists(st.tuples(st.sampled_from(KEYS), times_of, st.sampled_from("012")), max_size=25)
steps = st.one_of(
    st.tuples(st.sampled_from(["insert", "insert", "retract", "update"]), some, st.just(True)),
    st.tuples(st.sampled_from(["retract", "update"]), some.map(lambda names: names[:4]), st.just(False)),
    st.tuples(st.just("evict"), times_of, st.none()),
    st.just(("ask", None, None)),
)


def changed(entries, time, name, value):
    """Give an entry of a list another value, or none; return whether it is there. Without a time, the newest one."""
    times = [t for t, (other, _) in entries if other == name and time in (None, t)]
    if times:
        at = next(i for i, (t, (other, _)) in enumerate(entries) if (t, other) == (max(times), name))
        entries[at : at + 1] = [] if value is None else [(max(times), (name, value))]
    return bool(times)


@given(
    history=st.lists(steps, max_size=14),
    max_count=st.sampled_from([None, 7]),
    block=st.sampled_from([1, 2, 4, 1024]),
    kind=st.sampled_from(["int64", "string"]),
    identity_first=st.booleans(),
)
def test_any_history_equals_the_fold(history, max_count, block, kind, identity_first):
    fields = {"id": kind, "value": "int64"} if identity_first else {"value": "int64", "id": kind}
    w = window(block, slide={} if max_count is None else {"max_count": max_count}, fields=fields)
    slow, value, counted = slow_window(max_count=max_count), 0, {"retract": 0, "update": 0}
    for step, what, timed in [*history, ("ask", None, None)]:
        if step == "ask":
            for key in KEYS:
                (answer,) = w.query(key)
                values = [v for _, (_, v) in slow[key].entries]
                assert answer.aggregates == {"n": len(values), "all": values, "min": min(values, default=None)}
            w.check_invariants()
            continue
        if step == "evict":
            assert w.bulk_evict(what) == sum(each.evict(what) for each in slow.values())
            continue
        batch, named = rows(what, range(value, value + len(what))), list(enumerate(what, value))
        value += len(what)
        if kind == "int64":
            batch.columns["id"] = np.array([int(name) for _, _, name in what], np.int64)
        if step == "insert":
            result, expected = w.bulk_insert(batch), np.zeros(3, int)
            for key in KEYS:
                expected += slow[key].write([(time, (name, v)) for v, (of, time, name) in named if of == key])
            assert [result.inserted, result.late, result.evicted] == expected.tolist()
            continue
        batch = batch if timed else replace(batch, times=untimed(len(what)))
        if step == "retract":
            del batch.columns["value"]
        result = w.retract(batch) if step == "retract" else w.update(batch)
        found = 0
        for v, (key, time, name) in named:
            found += changed(slow[key].entries, time if timed else None, name, None if step == "retract" else v)
        assert (result.retracted + result.corrected, result.missing) == (found, len(what) - found)
        counted[step] += found
    assert (w.counts.retracted, w.counts.corrected) == (counted["retract"], counted["update"])
    assert w.info().entries == sum(len(each.entries) for each in slow.values())


def test_entries_that_are_gone_but_still_in_their_block_are_not_found_again():
    """[0 1 2 3 0 1 2 3 …] [4 5 6 7 4 5 …]   nobody asks in between, so what was found is noted only"""
    w, gone = window(16, keyed=False, fields={"id": "int64", "value": "int64"}), set()
    ids = np.arange(64) // 16 * 4 + np.arange(64) % 4
    w.bulk_insert(Batch(np.arange(64), {"id": ids, "value": np.arange(64)}))
    for back in range(2, 16, 4):
        places = np.array([32 - back, 48 - back])
        gone |= set(places.tolist())
        assert w.retract(Batch(untimed(2), {"id": ids[places]})).retracted == 2
    assert w.query()[0].aggregates["all"] == [each for each in range(64) if each not in gone]


def test_an_entry_that_is_gone_but_still_in_its_block_is_not_taken_for_the_next_of_its_time():
    """[… 9x 9x 9x …]   three of one time and identity leave one after the other, and nobody asks in between"""
    w = window(16, keyed=False, fields={"id": "int64", "value": "int64"})
    times = np.array([*range(20), 25, 25, 25, *range(30, 60)])
    w.bulk_insert(Batch(times, {"id": times, "value": np.arange(53)}))
    for left in (2, 1, 0):
        name = Batch(np.array([25]), {"id": np.array([25])})
        assert w.update(Batch(name.times, {"id": name.columns["id"], "value": np.array([-left])})).corrected == 1
        assert w.retract(name).retracted == 1
    assert w.retract(name).missing == 1
    assert w.query()[0].aggregates["all"] == [*range(20), *range(23, 53)]


@pytest.mark.parametrize(
    ("entries", "most", "oldest"), [(3, 2, 1), (40, 12, 28), (65, 40, 25)], ids=["tail", "head", "head with a gone row"]
)
def test_evicted_entries_are_not_found(entries, most, oldest):
    """[0..15] [16 .. 21 gone .. 24 | 25 .. 31] …   rows that were evicted are in the head, or the tail, still"""
    w = window(16, keyed=False, fields={"id": "int64", "value": "int64"}, slide={"max_count": most})
    times = np.arange(entries)
    for some in np.split(times, [40]):
        w.bulk_insert(Batch(some, {"id": some, "value": some}))
        if entries == 65 and some[0] == 0:
            assert w.retract(Batch(np.array([21]), {"id": np.array([21])})).retracted == 1
    batch, missing = finished(w.timed_steps(Batch(untimed(entries), {"id": times}), True))
    assert (batch.times.tolist(), missing) == (list(range(oldest, entries)), oldest)


def test_times_are_found_once_and_in_steps():
    n = 3_000
    w = Window(WindowSpec.parse({**SPEC, "keyed": False, "fields": {"value": "int64"}, "identity": "value"}), block=4)
    w.bulk_insert(Batch(np.arange(n), {"value": np.arange(n) % 1_000}))
    names = Batch(untimed(4), {"value": np.array([7, 5, 7, 5_000])})
    steps, taken = w.timed_steps(names, True), 0
    while True:
        try:
            next(steps)
            taken += 1
        except StopIteration as end:
            batch, missing = end.value
            break
    assert taken > n // 2 // 4 // 64
    assert (batch.times.tolist(), batch.columns["value"].tolist(), missing) == ([2007, 2005, 1007], [7, 5, 7], 1)
    assert w.info().entries == n
    again = w.timed_steps(batch, True)
    with pytest.raises(StopIteration) as end:
        next(again)
    assert end.value.value == (batch, 0)


def test_many_values_are_sorted_once_and_in_steps():
    """Each block that had some of the values sorted all others again: of 2^17 values that took 11 s."""
    n = 3 * 4_096
    wanted = Wanted(list(range(n)), once=True)
    assert sum(1 for _ in wanted.prepared()) >= 3
    names = np.arange(n)[::-1].copy()
    wanted.take(np.arange(0, 8), names, 0, 8, [2])
    first = wanted._sorted
    wanted.take(np.arange(0, 16), names, 0, 16, ())
    assert wanted._sorted is first
    assert np.count_nonzero(wanted._open) == len(wanted.left)
    assert wanted.times[-16:].tolist() == [*range(15, 7, -1), 7, 6, 5, 4, 3, 2, 1, 0]
    assert set(wanted.left) == set(range(n - 16))


def test_a_change_without_times_that_would_read_too_much_is_refused(monkeypatch):
    monkeypatch.setattr(changes, "SCANNED_MAX", 9)
    w, names = window(), [("a", time, "x") for time in range(10)]
    w.bulk_insert(rows(names, range(10)))
    w.bulk_insert(rows([("b", 1, "x")], [0]))
    assert refusal(w.retract, rows([("a", UNKNOWN_TIME, "x")]), error=TooLarge) == ("time", "9 entries of the keys")
    assert w.retract(rows([("b", UNKNOWN_TIME, "x")])).retracted == 1
    assert w.retract(rows([("a", 9, "x")])).retracted == 1


def test_a_predicate_looks_again_at_what_was_corrected():
    aggregates = {"sum": {"function": "sum", "field": "value"}}
    w = window(aggregates=aggregates, slide={"when": "total.sum - old.sum >= 10"})
    names = [("a", time, "x") for time in range(3)]
    w.bulk_insert(rows(names, [1, 2, 3]))
    result = w.update(rows(names[2:], [10]))
    assert (result.corrected, result.evicted) == (1, 2)
    assert w.query("a")[0].aggregates == {"sum": 10}


def test_wall_time_evicts_first_and_the_key_is_not_idle():
    clock = ManualClock(100 * 10**9)
    spec = SPEC | {"time_unit": "s", "slide": {"max_age": "10s", "clock": "wall"}, "idle_expiry": "30s"}
    w = Window(WindowSpec.parse(spec), clock=clock)
    w.bulk_insert(rows([("a", 95, "x"), ("a", 100, "y")], [1, 2]))
    clock.advance(8 * 10**9)
    result = w.retract(rows([("a", 95, "x"), ("a", 100, "y")]))
    assert (result.retracted, result.missing) == (1, 1)
    assert (w.counts.evicted, w.counts.retracted) == (1, 1)
    clock.advance(25 * 10**9)
    w.tidy()
    assert len(w.keys) == 1
    clock.advance(10 * 10**9)
    w.tidy()
    assert len(w.keys) == 0


ONE, KEYLESS = Coded.of(["x"]), {"id": Coded.of(["x"])}
WRONG = {
    "no identity": ("retract", rows([("a", 1, "x")]), Unsupported, "identity"),
    "update, no identity": ("update", rows([("a", 1, "x")], [1]), Unsupported, "identity"),
    "too many fields": ("retract", rows([("a", 1, "x")], [1]), InvalidArgument, "value"),
    "too few fields": ("update", rows([("a", 1, "x")]), InvalidArgument, "value"),
    "no key": ("retract", Batch(np.array([1]), KEYLESS), InvalidArgument, "key"),
    "no key, no time": ("retract", Batch(untimed(1), KEYLESS), InvalidArgument, "key"),
    "time": ("retract", rows([("a", 2**63 - 1, "x")]), InvalidArgument, "time"),
    "some times": ("retract", rows([("a", 1, "x"), ("a", UNKNOWN_TIME, "x")]), InvalidArgument, "time"),
    "fewer identities": ("retract", Batch(untimed(2), KEYLESS), InvalidArgument, "id"),
    "partials": ("retract", PartialBatch(np.array([1]), {}, np.array([1]), ONE), InvalidArgument, "partials"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_refused_change_names_the_field_and_changes_nothing(case):
    change, batch, error, field = WRONG[case]
    w = window(identity=None) if field == "identity" else window()
    w.insert(1, {"id": "x", "value": 1}, "a")
    caught = refused(getattr(w, change), batch, error=error)
    assert caught.field == field
    assert "time has" not in str(caught), "a batch may have no times"
    assert (w.info().entries, w.counts.retracted, w.counts.corrected) == (1, 0, 0)


def test_many_entries_of_one_time_are_found_without_looking_at_all_for_each():
    """A run of equal times is read once for all names in it."""
    w = Window(WindowSpec.parse({**SPEC, "keyed": False, "fields": {"value": "int64"}, "identity": "value"}), block=64)
    n = 20_000
    w.bulk_insert(Batch(np.zeros(n, np.int64), {"value": np.arange(n)}))
    gone = np.arange(0, n, 2)
    assert w.retract(Batch(np.zeros(len(gone), np.int64), {"value": gone[::-1].copy()})).retracted == len(gone)
    assert w.query()[0].aggregates["all"] == list(range(1, n, 2))


def test_a_session_without_its_middle_is_its_newer_part():
    w = window(slide={"max_gap": 3})
    names = [("a", time, "x") for time in range(0, 20, 2)]
    w.bulk_insert(rows(names, range(10)))
    assert w.retract(rows(names[3:4])).evicted == 3
    assert w.query("a")[0].aggregates["all"] == [4, 5, 6, 7, 8, 9]
    assert w.evict_range(12, 14, "a") == 2 + 2
    assert w.query("a")[0].aggregates["all"] == [8, 9]
    assert w.insert(10, {"id": "x", "value": 0}, "a").late == 1
    w.check_invariants()


def test_gaps_and_steps_at_the_ends_of_time_do_not_overflow():
    first, last = -(2**63) + 1, 2**63 - 2
    w = window(slide={"max_gap": 2**63 - 1})
    w.bulk_insert(rows([("a", first, "x"), ("a", -5, "x")], [1, 2]))
    assert w.query("a")[0].entries == 2
    assert w.insert(last, {"id": "x", "value": 3}, "a").evicted == 2  # 2^63 + 3 ticks later
    w.bulk_insert(rows([("b", first, "x"), ("b", last, "x")], [1, 2]))
    assert w.query("b")[0].entries == 1
    w = window(slide={"max_age": 2**63 - 1, "every": 2**62})
    w.bulk_insert(rows([("a", first, "x"), ("a", last, "x"), ("b", first, "x")], [1, 2, 3]))
    assert (w.query("a")[0].entries, w.query("b")[0].entries) == (1, 1)
