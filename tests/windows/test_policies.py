"""Policies beyond count and age: predicates, wall time, equal times, order, idle keys; several keys, new aggregates."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sash_engine.clock import ManualClock
from sash_engine.errors import AlreadyExists, FailedPrecondition, InvalidArgument, Unsupported
from sash_engine.windows.batches.batch import Batch, Coded
from sash_engine.windows.spec.window import WindowSpec
from sash_engine.windows.window import ALL_KEYS, Window
from sash_engine.windows.writing import order

BASE = {
    "name": "w",
    "time_unit": "none",
    "fields": {"value": "int64"},
    "aggregates": {
        "all": {"function": "collect"},
        "sum": {"function": "sum"},
        "last": {"function": "last"},
        "max": {"function": "max"},
    },
}
SECOND = 10**9


def window(block=3, clock=None, **parts):
    return Window(WindowSpec.parse(BASE | parts), block=block, clock=clock)


def bulk(pairs, keys=None):
    times, values = zip(*pairs, strict=True) if pairs else ((), ())
    coded = None if keys is None else Coded.of(keys)
    return Batch(np.array(times, np.int64), {"value": np.array(values, np.int64)}, coded)


def content(w, key=None):
    (answer,) = w.query(key, [], None)
    assert answer.entries == len(answer.aggregates["all"])
    return answer.aggregates["all"]


# ---------------------------------------------------------------- when


AT_MOST_TEN = "total.sum - old.sum + old.last > 10"


def test_keep_the_newest_values_whose_sum_is_at_most_ten_and_report_the_max():
    # values 3  9  1  2  4  8      what stays is the longest suffix with a sum of at most 10
    w = window(slide={"when": AT_MOST_TEN})
    seen = []
    for time, value in enumerate([3, 9, 1, 2, 4, 8]):
        result = w.insert(time, {"value": value}, None, answer=True)
        seen.append((result.answers[0].aggregates["all"], result.answers[0].aggregates["max"]))
    assert seen == [([3], 3), ([9], 9), ([9, 1], 9), ([1, 2], 2), ([1, 2, 4], 4), ([8], 8)]


@given(st.lists(st.lists(st.integers(0, 12), max_size=8), max_size=12), st.sampled_from([1, 2, 3, 8, 1024]))
def test_when_evicts_the_longest_prefix(bulks, block):
    w, kept, time = window(block, slide={"when": AT_MOST_TEN}), [], 0
    for values in bulks:
        result = w.bulk_insert(bulk(list(enumerate(values, time))))
        time += len(values)
        before = len(kept) + len(values)
        kept += values
        while sum(kept) > 10:
            kept.pop(0)
        assert content(w) == kept
        assert result.evicted == before - len(kept)
        w.check_invariants()


def test_evict_what_precedes_the_maximum():
    w = window(slide={"when": "old.max < total.max"})
    for time, value in enumerate([4, 2, 7, 1, 5, 7, 9, 3]):
        w.insert(time, {"value": value}, None)
    assert content(w) == [9, 3]


def test_evict_what_precedes_the_longest_increasing_run():
    aggregates = BASE["aggregates"] | {
        "run": {"function": "longest_increasing_run"},
        "when": {"function": "last", "field": "time"},
    }
    w = window(aggregates=aggregates, slide={"when": "old.when < total.run.start"})
    w.bulk_insert(bulk(list(enumerate([5, 1, 2, 9, 3, 4, 6, 8, 2]))))
    assert content(w) == [3, 4, 6, 8, 2]


def test_what_when_evicted_is_late_afterwards():
    w = window(slide={"when": "old.max < total.max"})
    w.bulk_insert(bulk([(10, 1), (20, 9)]))
    assert content(w) == [9]
    assert w.insert(5, {"value": 99}, None).late == 1
    assert w.insert(10, {"value": 3}, None).inserted == 1  # not older than what left, though it leaves at once
    assert content(w) == [9]


# ---------------------------------------------------------------- wall time


def test_on_wall_time_answers_change_while_nothing_is_written():
    #   0 s   5 s   8 s   12 s                max_age 10 s: at 12 s the entry of 0 s is gone
    clock = ManualClock(0)
    w = window(clock=clock, time_unit="s", slide={"max_age": "10s", "clock": "wall"})
    clock.advance(1 * SECOND)
    w.insert(1, {"value": 1}, None)
    clock.advance(4 * SECOND)
    w.insert(5, {"value": 2}, None)
    assert content(w) == [1, 2]
    clock.advance(6 * SECOND)
    assert content(w) == [2]
    assert w.counts.evicted == 1
    (answer,) = w.query(None, ["7s"], None)
    assert (answer.start, answer.end, answer.aggregates["all"]) == (5, 11, [2])
    assert w.insert(1, {"value": 3}, None).late == 1
    clock.advance(100 * SECOND)
    w.tidy()
    assert w.info().entries == 0
    assert w.range_query(1, 10**9, None).entries == 0


def test_on_wall_time_a_new_key_can_be_late():
    clock = ManualClock(100 * SECOND)
    w = window(clock=clock, keyed=True, time_unit="s", slide={"max_age": "10s", "clock": "wall"})
    result = w.bulk_insert(bulk([(90, 1), (91, 2), (5, 3)], ["a", "a", "b"]))
    assert (result.inserted, result.late, w.info().keys) == (1, 2, 1)
    assert w.insert(90, {"value": 1}, "c").late == 1
    assert w.info().keys == 1
    w.check_invariants()


def test_logical_time_has_no_wall_clock():
    with pytest.raises(InvalidArgument, match="wall") as caught:
        window(slide={"max_age": 5, "clock": "wall"})
    assert caught.value.field == "slide.clock"


# ---------------------------------------------------------------- order


def test_out_of_order_entries_refuse_the_whole_write():
    w = window(keyed=True, order={"out_of_order": "reject"})
    w.bulk_insert(bulk([(5, 1), (1, 2), (5, 3)], ["a", "b", "a"]))
    with pytest.raises(FailedPrecondition, match="2 of this write") as caught:
        w.bulk_insert(bulk([(6, 1), (0, 2), (9, 3), (8, 4)], ["a", "b", "c", "c"]))
    assert (caught.value.field, caught.value.limit) == ("time", "time >= 1")
    with pytest.raises(FailedPrecondition) as caught:
        w.insert(4, {"value": 1}, "a")
    assert (caught.value.field, caught.value.limit) == ("time", "time >= 5")
    assert (w.info().entries, w.info().keys) == (3, 2)
    assert w.insert(5, {"value": 4}, "a").inserted == 1
    assert content(w, "a") == [1, 3, 4]


def write(w, rows, single):
    if single and rows:
        ((key, time, item),) = rows
        return w.insert(time, {"value": item}, key)
    return w.bulk_insert(bulk([(time, item) for _, time, item in rows], [key for key, _, _ in rows]))


@given(
    st.sampled_from(["first", "last", "reject"]),
    st.lists(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 15)), max_size=9), max_size=12),
    st.sampled_from([1, 2, 3, 8, 1024]),
    st.booleans(),
)
def test_of_equal_times_one_stays(policy, bulks, block, single):
    w = window(block, keyed=True, order={"equal_times": policy})
    model, value = {"a": {}, "b": {}}, 0
    for entries in bulks:
        entries = entries[:1] if single else entries
        rows = [(key, time, value + i) for i, (key, time) in enumerate(entries)]
        value += len(rows)
        before = {key: dict(kept) for key, kept in model.items()}
        duplicates = 0
        for key, time, item in rows:
            if time in model[key]:
                duplicates += 1
            if policy != "first" or time not in model[key]:
                model[key][time] = item
        if policy == "reject" and duplicates:
            with pytest.raises(FailedPrecondition) as caught:
                write(w, rows, single)
            assert (caught.value.field, caught.value.limit) == ("time", "one entry per time")
            model = before
        else:
            result = write(w, rows, single)
            assert (result.inserted, result.duplicates) == (len(rows) - duplicates, duplicates)
        for key, kept in model.items():
            assert content(w, key) == [kept[time] for time in sorted(kept)]
        w.check_invariants()
    assert w.info().entries == sum(map(len, model.values()))


@pytest.mark.parametrize("policy", ["first", "last"])
def test_equal_times_are_looked_for_once_each_and_some_at_a_time(policy, monkeypatch):
    """100,000 rows of one time were 100,000 questions in one step."""
    asked = []
    monkeypatch.setattr(order, "_TIMES_A_STEP", 8)
    w = window(4, keyed=True, order={"equal_times": policy})
    w.bulk_insert(Batch.of(w.spec, range(40), {"value": range(40)}, ["k"] * 40))
    store = w.keys.store

    class Asked:
        def __init__(self, number):
            self._store = store(number)

        def __getattr__(self, name):
            return getattr(self._store, name)

        def series(self, starts, stops):
            asked.append(starts.tolist())
            return self._store.series(starts, stops)

    monkeypatch.setattr(w.keys, "store", Asked)
    times = [time for time in range(40) for _ in range(10)]
    found = w.bulk_insert(Batch.of(w.spec, times, {"value": range(400)}, ["k"] * 400))
    assert (found.inserted, found.duplicates) == (0, 400)
    assert [len(each) for each in asked] == [8] * 5
    assert [time for each in asked for time in each] == list(range(40))


# ---------------------------------------------------------------- keys


def test_idle_keys_are_forgotten():
    clock = ManualClock(0)
    w = window(clock=clock, keyed=True, idle_expiry="1h")
    w.bulk_insert(bulk([(1, 1), (1, 2)], ["a", "b"]))
    clock.advance(1800 * SECOND)
    w.insert(2, {"value": 3}, "b")
    clock.advance(1801 * SECOND)
    w.tidy()
    assert (w.key_names("", 10)[0], w.info().entries, w.counts.evicted) == (["b"], 2, 1)
    assert content(w, "a") == []
    assert w.insert(0, {"value": 4}, "a").inserted == 1
    w.check_invariants()


def test_a_refused_write_does_not_keep_a_key_alive():
    clock = ManualClock(0)
    w = window(clock=clock, keyed=True, idle_expiry="1h", order={"equal_times": "reject"})
    w.insert(1, {"value": 1}, "a")
    clock.advance(1800 * SECOND)
    with pytest.raises(FailedPrecondition):
        w.insert(1, {"value": 2}, "a")
    clock.advance(1801 * SECOND)
    w.tidy()
    assert w.key_names("", 10) == ([], None)


SUMS = {"aggregates": {"sum": {"function": "sum"}, "max": {"function": "max"}, "n": {"function": "count"}}}


@given(
    st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 30)), max_size=200),
    st.integers(-1, 31),
    st.integers(0, 12),
)
def test_answers_over_several_keys(entries, start, width):
    w = window(2, keyed=True, **SUMS)
    rows = [(key, time, i) for i, (key, time) in enumerate(entries)]
    if rows:
        w.bulk_insert(bulk([(time, i) for _, time, i in rows], [key for key, _, _ in rows]))

    def fold(keys, a, b):
        values = [i for key, time, i in rows if key in keys and a <= time <= b]
        return {"sum": sum(values), "max": max(values, default=None), "n": len(values)}

    answer = w.range_query(start, start + width, None, ["a", "c", "x"])
    assert (answer.key, answer.aggregates) == (None, fold("ac", start, start + width))
    (everything,) = w.query(None, [], None, ALL_KEYS, combine=True)
    assert everything.aggregates == fold("abcd", 0, 30)
    if rows:
        times = [time for _, time, _ in rows]
        assert (everything.start, everything.end) == (min(times), max(times))
    each = w.query(None, [], None, ALL_KEYS)
    assert [answer.key for answer in each] == w.key_names("", 10)[0]
    assert [answer.aggregates for answer in each] == [fold(answer.key, 0, 30) for answer in each]
    series = w.series(0, 31, 4, 10, None, ALL_KEYS)
    assert series.times.tolist() == list(range(0, 31, 4))
    for i, t in enumerate(series.times.tolist()):
        expected = fold("abcd", t, t + 9)
        assert series.entries[i] == expected["n"]
        assert {name: column[i] for name, column in series.aggregates.items()} == expected


def test_only_commutative_aggregates_are_answered_over_several_keys():
    w = window(keyed=True)
    w.insert(1, {"value": 1}, "a")
    for call in (
        lambda: w.query(None, [], None, ALL_KEYS, combine=True),
        lambda: w.range_query(0, 9, None, ["a"]),
        lambda: w.series(0, 9, 1, None, None, ALL_KEYS),
    ):
        with pytest.raises(Unsupported, match="collect"):
            call()


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda w: w.query("a", [], None, ["b"]), "key"),
        (lambda w: w.query("a", [], None, (), True), "combine"),
        (lambda w: w.query(None, [], None, [""]), "key"),
        (lambda w: w.query(None, ["5"] * 65, None, ["a"]), "lookbacks"),
        (lambda w: w.series(5, 5, 1, None, "a"), "start"),
        (lambda w: w.series(0, 5, 0, None, "a"), "step"),
        (lambda w: w.series(0, 5, 1, "0", "a"), "width"),
        (lambda w: w.series(0, 2**62, 1, None, "a"), "step"),
        (lambda w: w.series(0, 5, 1, None, None), "key"),
        (lambda w: w.insert(1, {"value": 1}, "a", False, ["5"]), "lookbacks"),
        (lambda w: w.insert(1, {"value": 1}, "a", True, ["x"]), "lookback"),
    ],
)
def test_bad_questions_name_the_field(call, field):
    w = window(keyed=True)
    with pytest.raises(InvalidArgument) as caught:
        call(w)
    assert caught.value.field == field
    assert w.info().entries == 0


def test_a_series_reaches_the_ends_of_time():
    w = window()
    w.insert(2**63 - 2, {"value": 1}, None)
    w.insert(-(2**63) + 1, {"value": 2}, None)
    series = w.series(2**63 - 3, 2**63 - 2, 1, 2**63 - 1, None)
    assert series.entries.tolist() == [1]
    series = w.series(-(2**63) + 1, 2**63 - 2, 2**62, None, None)
    assert series.entries.tolist() == [1, 0, 0, 1]
    empty = window().series(0, 3, 1, None, None)
    assert empty.entries.tolist() == [0, 0, 0]
    assert empty.aggregates["max"].tolist() == [None] * 3


# ---------------------------------------------------------------- new aggregates


@pytest.mark.parametrize("keyed", [False, True])
def test_a_new_aggregate_is_computed_from_what_is_there(keyed):
    w = window(keyed=keyed)
    keys = [None] if not keyed else ["small", "large"]
    for key in keys:
        for i in range(100 if key != "small" else 5):
            w.insert(i, {"value": i * 7 % 10}, key)
    w.add_aggregates({"min": {"function": "min"}, "first": {"function": "first"}})
    for key in keys:
        (answer,) = w.query(key, [], None)
        values = answer.aggregates["all"]
        assert (answer.aggregates["min"], answer.aggregates["first"]) == (min(values), values[0])
        w.insert(200, {"value": -5}, key)
        assert w.query(key, [], None)[0].aggregates["min"] == -5
        assert w.range_query(1, 3, key).aggregates["min"] == min(values[1:4])
    w.check_invariants()
    assert list(w.spec.aggregates) == ["all", "sum", "last", "max", "min", "first"]
    w.add_aggregates({"min": {"function": "min"}})


def test_a_bad_new_aggregate_changes_nothing():
    w = window()
    w.insert(1, {"value": 1}, None)
    for aggregates, error, field in (
        ({"sum": {"function": "max"}}, AlreadyExists, "aggregates.sum"),
        ({"x": {"function": "nope"}}, InvalidArgument, "aggregates.x.function"),
        ({"x": {"function": "min", "field": "y"}}, InvalidArgument, "aggregates.x.field"),
        ({"x": 5}, InvalidArgument, "aggregates.x"),
    ):
        with pytest.raises(error) as caught:
            w.add_aggregates(aggregates)
        assert caught.value.field == field
    assert list(w.spec.aggregates) == list(BASE["aggregates"])
    assert content(w) == [1]
