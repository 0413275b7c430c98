"""Named windows: predicates, orders, idle keys, several keys and new aggregates; what is refused changes nothing."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sash_engine.clock import ManualClock
from sash_engine.errors import AlreadyExists, FailedPrecondition, InvalidArgument, ResourceExhausted, Unsupported
from sash_engine.windows.batches.batch import Batch, Coded
from sash_engine.windows.questions import Limit
from sash_engine.windows.window import ALL_KEYS, Window
from sash_engine.windows.writing import order
from tests.support.refused import refusal, refused
from tests.support.windows import BASE, SECOND, batch, bulk, content, keyed, window

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


# ---------------------------------------------------------------- order


def test_out_of_order_entries_refuse_the_whole_write():
    w = window(keyed=True, order={"out_of_order": "reject"})
    w.bulk_insert(bulk([(5, 1), (1, 2), (5, 3)], ["a", "b", "a"]))
    assert refusal(
        w.bulk_insert,
        bulk([(6, 1), (0, 2), (9, 3), (8, 4)], ["a", "b", "c", "c"]),
        error=FailedPrecondition,
        match="2 of this write",
    ) == ("time", "time >= 1")
    assert refusal(w.insert, 4, {"value": 1}, "a", error=FailedPrecondition) == ("time", "time >= 5")
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
    model, value, counted = {"a": {}, "b": {}}, 0, 0
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
            assert refusal(write, w, rows, single, error=FailedPrecondition) == ("time", "one entry per time")
            model = before
        else:
            result = write(w, rows, single)
            assert (result.inserted, result.duplicates) == (len(rows) - duplicates, duplicates)
            counted += duplicates
        for key, kept in model.items():
            assert content(w, key) == [kept[time] for time in sorted(kept)]
        w.check_invariants()
    assert (w.info().entries, w.counts.duplicates) == (sum(map(len, model.values())), counted)


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


# ---------------------------------------------------------------- punctuation


def test_a_key_whose_entries_are_all_final_is_there():
    w = keyed(slide={"until": "punctuation"})
    w.bulk_insert(batch([("a", 3), ("b", 9)], 0))
    w.punctuate(5)
    assert w.key_names("", 10) == (["a", "b"], None)
    assert [answer.key for answer in w.query(keys=["a", "b"])] == ["a", "b"]
    assert w.insert(5, {"value": 1}, "new").late == 1
    assert w.insert(6, {"value": 1}, "new").inserted == 1


def test_panes_are_final_when_all_of_their_time_is():
    """An entry of 15 was late after a punctuation of 12, because its pane starts at 10."""
    w = keyed(slide={"until": "punctuation", "max_age": 20}, granularity="10", aggregates={"n": {"function": "count"}})
    w.bulk_insert(batch([("a", -25), ("a", 5), ("a", 12)], 0))
    w.punctuate(12)
    assert w.info().punctuated == 9
    assert [w.insert(time, {"value": 1}, "a").late for time in (15, 9, 30)] == [0, 1, 0]
    (answer,) = w.query("a", [20])
    assert (answer.end, answer.entries) == (9, 1)
    assert w.punctuate(18) == 0
    assert w.info().punctuated == 9
    assert w.punctuate(29) == 1
    assert w.info().punctuated == 29
    assert w.query("a", [20])[0].entries == 2
    w.punctuate(2**63 - 2)
    first = keyed(slide={"until": "punctuation"}, granularity="10", aggregates={"n": {"function": "count"}})
    first.punctuate(-(2**63) + 1)
    assert first.info().punctuated is None
    assert first.insert(0, {"value": 1}, "a").inserted == 1


def test_late_entries_are_refused_where_the_order_policy_says_so():
    w = keyed(slide={"until": "punctuation"}, order={"late": "reject"})
    w.punctuate(10)
    assert refused(w.insert, 10, {"value": 1}, "a", error=FailedPrecondition, match="late").limit == "time > 10"


def test_other_windows_refuse_punctuation():
    refused(keyed().punctuate, 5, error=Unsupported, match=r"no slide\.until")
    assert refused(keyed(slide={"until": "punctuation"}).punctuate, 2**63 - 1).field == "time"


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
    refused(w.insert, 1, {"value": 2}, "a", error=FailedPrecondition)
    clock.advance(1801 * SECOND)
    w.tidy()
    assert w.key_names("", 10) == ([], None)


@pytest.mark.parametrize("pages", [(1, 2), None])
def test_a_bulk_over_more_keys_than_a_byte_counts(pages):
    w = Window(keyed().spec, block=4, pages=pages)
    for keys in (255, 256, 257, 700):
        pairs = [(f"key {i * 13 % keys}", i) for i in range(3 * keys)]
        assert w.bulk_insert(batch(pairs, 0)).inserted == 3 * keys
    assert w.info().keys == 700
    assert sum(w.query(f"key {i}", [], None)[0].entries for i in range(700)) == w.info().entries
    assert content(w, "key 600") == [i for i in range(2100) if i * 13 % 700 == 600]
    w.check_invariants()


def test_a_refused_write_creates_no_key():
    w = keyed(slide={"max_age": 10}, order={"late": "reject"}, max_keys=2)
    w.bulk_insert(batch([("a", 100)], 0))
    for write, told, error in (
        (
            lambda: w.bulk_insert(batch([("new", 1), ("a", 90), ("a", 101)], 1)),
            ("time", "time > 90"),
            FailedPrecondition,
        ),
        (lambda: w.insert(1, {"value": 1}, "a"), ("time", "time > 90"), FailedPrecondition),
        (lambda: w.bulk_insert(batch([("x", 1), ("a", 101), ("y", 1)], 1)), ("key", "2 keys"), ResourceExhausted),
    ):
        assert refusal(write, error=error, match="1 of this write|brings 2 more") == told
    assert (w.info().keys, w.info().entries, w.counts.inserted, w.counts.late) == (1, 1, 1, 0)
    w.check_invariants()
    w.insert(1, {"value": 1}, "b")
    assert refusal(w.insert, 1, {"value": 1}, "c", error=ResourceExhausted) == ("key", "2 keys")


def test_only_commutative_aggregates_are_answered_over_several_keys():
    w = window(keyed=True)
    w.insert(1, {"value": 1}, "a")
    for call in (
        lambda: w.query(None, [], None, ALL_KEYS, combine=True),
        lambda: w.range_query(0, 9, None, ["a"]),
        lambda: w.series(0, 9, 1, None, None, ALL_KEYS),
    ):
        refused(call, error=Unsupported, match="collect")


# ---------------------------------------------------------------- times


def test_extreme_times_and_ages_do_not_wrap_around():
    first, last = -(2**63) + 1, 2**63 - 2
    w = keyed(slide={"max_age": 2**63 - 1})
    assert w.bulk_insert(batch([("a", first), ("b", first), ("a", -1)], 0)).inserted == 3
    result = w.bulk_insert(batch([("b", last), ("a", 0)], 3))
    assert (result.inserted, result.late, result.evicted) == (2, 0, 2)
    assert (content(w, "a"), content(w, "b")) == ([2, 4], [3])
    assert w.bulk_insert(batch([("b", -1), ("a", first)], 5)).late == 2
    assert w.query("b", [str(2**63 - 1)], None)[0].aggregates["all"] == [3]
    assert w.query("b", [str(2**63 - 1)], first)[0].entries == 0
    assert w.range_query(first, last, "b").entries == 1
    w.check_invariants()


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


def test_what_was_evicted_of_one_time_and_of_a_key_that_is_empty():
    w = window(slide={"max_count": 1})
    for _ in range(2):
        w.insert(5, {"value": 1})
    assert (w.info().evicted_through, w.info().entries) == (5, 1)
    w = window(slide={"max_age": 10})
    assert w.info().evicted_through is None
    w.insert(30, {"value": 1})
    w.bulk_evict(30)
    assert (w.info().evicted_through, w.info().entries) == (20, 0)


# ---------------------------------------------------------------- new aggregates


@pytest.mark.parametrize("keys", [[None], ["small", "large"]])
def test_a_new_aggregate_is_computed_from_what_is_there(keys):
    w = window(keyed=len(keys) > 1)
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
    assert list(w.spec.aggregates) == [*BASE["aggregates"], "min", "first"]
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
        assert refused(w.add_aggregates, aggregates, error=error).field == field
    assert list(w.spec.aggregates) == list(BASE["aggregates"])
    assert content(w) == [1]


@pytest.mark.parametrize("algorithm", ["daba_lite", "subtract_on_evict", "bulk_fiba"])
def test_an_algorithm_in_a_spec_changes_nothing(algorithm):
    """Such windows kept partials alone, took entries in order, and refused what needs more."""
    seen = []
    for parts in ({}, {"algorithm": algorithm}):
        w = keyed(slide={"max_age": 50}, **parts)
        w.bulk_insert(bulk(list(zip((30, 5, 5, 41, 12, 60, 33, 28), range(8), strict=True)), ["a", "b"] * 4))
        admitted = w.admit(bulk([(61, 1), (62, 1)], ["a", "a"]), [Limit("sum", 10, "<=", 4)])
        evicted = w.evict_range(30, 40)
        w.add_aggregates({"min": {"function": "min"}})
        series = w.series(0, 70, 7, key="a").aggregates["all"].tolist()
        entries = [batch.times.tolist() for batch in w.entries(None, None, "a")]
        answers = w.query("a", [10, 40]), w.query(None, [7], None, ALL_KEYS)
        seen.append((admitted.admitted, evicted, series, entries, answers, w.range_query(5, 61, "b")))
    assert seen[0] == seen[1]


# ---------------------------------------------------------------- what is refused


BAD_BATCHES = {
    "lengths": (lambda: Batch(np.arange(3), {"value": np.arange(2)}, Coded.of(["a"] * 3)), "value"),
    "key length": (lambda: Batch(np.arange(3), {"value": np.arange(3)}, Coded.of(["a"] * 2)), "key"),
    "no keys": (lambda: Batch(np.arange(3), {"value": np.arange(3)}), "key"),
    "empty key": (lambda: Batch(np.arange(1), {"value": np.arange(1)}, Coded.of([""])), "key"),
    "long key": (lambda: Batch(np.arange(1), {"value": np.arange(1)}, Coded.of(["é" * 257])), "key"),
    "float time": (lambda: Batch(np.arange(3.0), {"value": np.arange(3)}, Coded.of(["a"] * 3)), "time"),
    "float field": (lambda: Batch(np.arange(3), {"value": np.arange(3.0)}, Coded.of(["a"] * 3)), "value"),
    "unknown field": (lambda: Batch(np.arange(1), {"val": np.arange(1)}, Coded.of(["a"])), "val"),
    "missing field": (lambda: Batch(np.arange(1), {}, Coded.of(["a"])), "value"),
    "strings": (lambda: Batch(np.arange(1), {"value": Coded.of(["x"])}, Coded.of(["a"])), "value"),
    "code": (lambda: Batch(np.arange(1), {"value": np.arange(1)}, Coded(["a"], np.array([1]))), "key"),
    "negative code": (lambda: Batch(np.arange(1), {"value": np.arange(1)}, Coded(["a"], np.array([-1]))), "key"),
    "repeated key": (lambda: Batch(np.arange(2), {"value": np.arange(2)}, Coded(["a", "a"], np.array([0, 1]))), "key"),
    "largest time": (lambda: Batch(np.array([2**63 - 1]), {"value": np.arange(1)}, Coded.of(["a"])), "time"),
    "smallest time": (lambda: Batch(np.array([-(2**63)]), {"value": np.arange(1)}, Coded.of(["a"])), "time"),
}


@pytest.mark.parametrize("case", BAD_BATCHES)
def test_a_bad_batch_names_the_field_and_changes_nothing(case):
    make, field = BAD_BATCHES[case]
    w = keyed()
    w.insert(1, {"value": 1}, "a")
    assert refused(w.bulk_insert, make()).field == field
    assert (w.info().entries, w.info().keys, w.counts.inserted) == (1, 1, 1)


@pytest.mark.parametrize(
    ("fields", "key", "time", "field"),
    [
        ({}, "a", 1, "value"),
        ({"value": 1, "more": 2}, "a", 1, "more"),
        ({"value": 1.5}, "a", 1, "value"),
        ({"value": True}, "a", 1, "value"),
        ({"value": None}, "a", 1, "value"),
        ({"value": "1"}, "a", 1, "value"),
        ({"value": 2**63}, "a", 1, "value"),
        ({"value": 1}, None, 1, "key"),
        ({"value": 1}, "", 1, "key"),
        ({"value": 1}, "a", 2**63, "time"),
        ({"value": 1}, "a", -(2**63), "time"),
    ],
)
def test_a_bad_entry_names_the_field_and_changes_nothing(fields, key, time, field):
    w = keyed()
    assert refused(w.insert, time, fields, key).field == field
    assert (w.info().entries, w.info().keys) == (0, 0)


@pytest.mark.parametrize("lookback", ["", "5", "-5m", "5x", "0", "1.0000000001ns", "m", "5 m", "9" * 40])
def test_lookbacks_are_checked(lookback):
    spec = keyed().spec.model_copy(update={"time_unit": "us"})
    w = Window(spec)
    if lookback == "5":
        w.query("a", [lookback], None)
        return
    assert refused(w.query, "a", [lookback], None).field == "lookback"


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
    assert refused(call, w).field == field
    assert w.info().entries == 0


def test_an_unkeyed_window_refuses_keys():
    w = window()
    w.insert(1, {"value": 1}, None)
    for call in (lambda: w.insert(1, {"value": 1}, "a"), lambda: w.query("a", [], None)):
        assert refused(call).field == "key"
    assert (w.info().oldest, w.info().newest, w.info().keys) == (1, 1, 1)
