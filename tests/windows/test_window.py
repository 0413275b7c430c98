"""Named windows against the slow model: keys, slide policies, late entries, lookbacks and ranges."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sash_engine.errors import FailedPrecondition, InvalidArgument, ResourceExhausted
from sash_engine.windows.batches.batch import Batch, Coded
from sash_engine.windows.questions import Limit
from sash_engine.windows.spec.window import WindowSpec
from sash_engine.windows.window import ALL_KEYS, Window
from tests.support.model import slow_window

KEYS = ["a", "b", "c"]
times = st.integers(0, 40)
entries = st.tuples(st.sampled_from(KEYS), times)
steps = st.one_of(
    st.tuples(st.just("insert"), entries),
    st.tuples(st.just("bulk"), st.lists(entries, max_size=25)),
    st.tuples(st.just("evict"), st.tuples(st.sampled_from([*KEYS, None]), times)),
    st.tuples(st.just("evict range"), st.tuples(st.sampled_from([*KEYS, None]), times, st.integers(0, 20))),
    st.tuples(st.just("query"), st.tuples(st.sampled_from(KEYS), times, st.integers(1, 30))),
)


def window(block=4, **parts):
    spec = {
        "name": "w",
        "keyed": True,
        "time_unit": "none",
        "fields": {"value": "int64"},
        "aggregates": {"n": {"function": "count"}, "all": {"function": "collect"}, "sum": {"function": "sum"}},
    }
    return Window(WindowSpec.parse(spec | parts), block=block)


def batch(pairs, first_value):
    return Batch(
        np.array([time for _, time in pairs], np.int64),
        {"value": np.arange(first_value, first_value + len(pairs))},
        Coded.of([key for key, _ in pairs]),
    )


def expect(answer, values):
    assert answer.entries == answer.aggregates["n"] == len(values)
    assert answer.aggregates["all"] == values
    assert answer.aggregates["sum"] == sum(values)


@given(
    st.lists(steps, max_size=25),
    st.sampled_from([None, 1, 7, 100]),
    st.sampled_from([None, 1, 3, 10]),
    st.sampled_from([1, 2, 3, 8, 1024]),
)
def test_any_history_equals_the_fold(history, max_age, max_count, block):
    follow(history, block, max_age=max_age, max_count=max_count)


@pytest.mark.parametrize(
    "slide",
    [
        {"max_gap": 1},
        {"max_gap": 4},
        {"max_gap": 3, "max_count": 10},
        {"max_age": 9, "every": 4},
        {"max_age": 7, "every": 7},
        {"max_age": 12, "every": 5, "max_gap": 6},
    ],
)
@given(st.lists(steps, min_size=3, max_size=25), st.sampled_from([1, 3, 1024]))
def test_steps_and_sessions_equal_the_fold(slide, history, block):
    follow(history, block, **slide)


def follow(history, block, **limits):
    slide = {name: limit for name, limit in limits.items() if limit}
    w, slow, value = window(block, slide=slide), slow_window(**slide), 0
    sent = 0
    for step, what in history:
        if step == "insert":
            key, time = what
            result = w.insert(time, {"value": value}, key)
            assert (result.inserted, result.late, result.evicted) == slow[key].write([(time, value)])
            value, sent = value + 1, sent + 1
        elif step == "bulk":
            result = w.bulk_insert(batch(what, value))
            expected = np.zeros(3, int)
            for key in dict.fromkeys(key for key, _ in what):
                mine = [(time, value + i) for i, (k, time) in enumerate(what) if k == key]
                expected += slow[key].write(mine)
            assert [result.inserted, result.late, result.evicted] == expected.tolist()
            value, sent = value + len(what), sent + len(what)
        elif step == "evict":
            key, time = what
            gone = sum(slow[k].evict(time) for k in ([key] if key else list(slow)))
            assert w.bulk_evict(time, key) == gone
        elif step == "evict range":
            key, start, width = what
            gone = sum(slow[k].evict_range(start, start + width) for k in ([key] if key else list(slow)))
            assert w.evict_range(start, start + width, key) == gone
        else:
            key, time, width = what
            expect(w.range_query(time, time + width, key), slow[key].between(time, time + width))
            (answer,) = w.query(key, [width], time)
            assert (answer.start, answer.end) == (time - width + 1, time)
            expect(answer, slow[key].between(time - width + 1, time))
        for key in KEYS:
            everything = slow[key].between(0, 99)
            (answer,) = w.query(key, [], None)
            expect(answer, everything)
            now = slow[key].now
            for answer, width in zip(w.query(key, [5, 20], None), (5, 20), strict=True):
                expect(answer, slow[key].between(now - width + 1, now))
    counts = w.counts
    assert counts.inserted + counts.late == sent
    assert counts.inserted - counts.evicted == w.info().entries == sum(len(s.entries) for s in slow.values())


def test_a_lookback_includes_as_of_and_excludes_its_start():
    # time      10    15    20        lookback 10 as of 20 is 10 < time <= 20
    w = window()
    for time in (10, 15, 20):
        w.insert(time, {"value": time}, "a")
    short, long = w.query("a", ["10", "11"], None)
    assert (short.start, short.end, short.aggregates["all"]) == (11, 20, [15, 20])
    assert (long.start, long.end, long.aggregates["all"]) == (10, 20, [10, 15, 20])
    assert short.lookback == "10"


def test_a_key_without_entries_has_an_empty_answer():
    (answer,) = window().query("nobody", [], None)
    assert (answer.start, answer.end, answer.entries) == (None, None, 0)
    assert answer.aggregates == {"n": 0, "all": [], "sum": 0}
    (answer,) = window().query("nobody", ["5"], 20)
    assert (answer.start, answer.end) == (16, 20)


def test_as_of_without_lookback_is_everything_up_to_it():
    w = window()
    w.bulk_insert(batch([("a", 1), ("a", 5), ("a", 9)], 0))
    (answer,) = w.query("a", [], 5)
    assert (answer.start, answer.end, answer.aggregates["all"]) == (1, 5, [0, 1])
    (answer,) = w.query("a", [], 0)
    assert (answer.start, answer.end, answer.entries) == (None, 0, 0)


def test_a_late_entry_of_one_key_is_not_late_for_another():
    w = window(slide={"max_age": 10})
    w.insert(100, {"value": 1}, "fast")
    assert w.insert(50, {"value": 2}, "slow").inserted == 1
    assert w.insert(90, {"value": 3}, "fast").late == 1
    assert w.insert(91, {"value": 4}, "fast").inserted == 1


def test_late_reject_refuses_the_whole_write():
    w = window(slide={"max_age": 10}, order={"late": "reject"})
    w.insert(100, {"value": 1}, "a")
    with pytest.raises(FailedPrecondition, match="1 of this write") as caught:
        w.bulk_insert(batch([("a", 101), ("b", 5), ("a", 90)], 0))
    assert (caught.value.field, caught.value.limit) == ("time", "time > 90")
    with pytest.raises(FailedPrecondition) as caught:
        w.insert(1, {"value": 1}, "a")
    assert (caught.value.field, caught.value.limit) == ("time", "time > 90")
    assert w.info().entries == 1
    assert w.info().keys == 1


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
    w = window()
    w.insert(1, {"value": 1}, "a")
    with pytest.raises(InvalidArgument) as caught:
        w.bulk_insert(make())
    assert caught.value.field == field
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
    w = window()
    with pytest.raises(InvalidArgument) as caught:
        w.insert(time, fields, key)
    assert caught.value.field == field
    assert (w.info().entries, w.info().keys) == (0, 0)


def test_extreme_times_and_policies_do_not_overflow():
    w = window(slide={"max_age": 2**63 - 1})
    w.insert(-(2**63) + 1, {"value": 1}, "a")
    w.insert(2**63 - 2, {"value": 2}, "a")
    (answer,) = w.query("a", [str(2**63 - 1)], None)
    assert answer.aggregates["all"] == [2]
    assert w.range_query(-(2**63) + 1, 2**63 - 2, "a").entries == 1
    (answer,) = w.query("a", [str(2**63 - 1)], -(2**63) + 1)
    assert answer.entries == 0


def test_keys_are_limited():
    w = Window(window().spec, max_keys=2)
    w.bulk_insert(batch([("a", 1), ("b", 1)], 0))
    with pytest.raises(ResourceExhausted) as caught:
        w.bulk_insert(batch([("a", 2), ("c", 1)], 0))
    assert caught.value.limit == "2 keys"
    with pytest.raises(ResourceExhausted):
        w.insert(1, {"value": 1}, "c")
    assert w.info().entries == 2


@pytest.mark.parametrize("lookback", ["", "5", "-5m", "5x", "0", "1.0000000001ns", "m", "5 m", "9" * 40])
def test_lookbacks_are_checked(lookback):
    spec = window().spec.model_copy(update={"time_unit": "us"})
    w = Window(spec)
    if lookback == "5":
        w.query("a", [lookback], None)
        return
    with pytest.raises(InvalidArgument) as caught:
        w.query("a", [lookback], None)
    assert caught.value.field == "lookback"


def test_a_range_must_not_end_before_it_starts():
    with pytest.raises(InvalidArgument, match="after end"):
        window().range_query(2, 1, "a")


def test_an_unkeyed_window_refuses_keys():
    w = window(keyed=False)
    w.insert(1, {"value": 1}, None)
    for call in (lambda: w.insert(1, {"value": 1}, "a"), lambda: w.query("a", [], None)):
        with pytest.raises(InvalidArgument) as caught:
            call()
        assert caught.value.field == "key"
    assert (w.info().oldest, w.info().newest, w.info().keys) == (1, 1, 1)


@pytest.mark.parametrize("algorithm", ["daba_lite", "subtract_on_evict", "bulk_fiba"])
def test_an_algorithm_in_a_spec_changes_nothing(algorithm):
    """Such windows kept partials alone, took entries in order, and refused what needs more."""
    document = {
        "name": "w",
        "time_unit": "none",
        "keyed": True,
        "fields": {"v": "int64"},
        "aggregates": {"all": {"function": "collect", "field": "v"}, "sum": {"function": "sum", "field": "v"}},
        "slide": {"max_age": 50},
    }
    seen = []
    for parts in ({}, {"algorithm": algorithm}):
        w = Window(WindowSpec.parse(document | parts), block=4)
        times = np.array([30, 5, 5, 41, 12, 60, 33, 28])
        w.bulk_insert(Batch(times, {"v": np.arange(8)}, Coded(["a", "b"], np.arange(8) % 2)))
        two = Batch(np.array([61, 62]), {"v": np.array([1, 1])}, Coded(["a"], np.zeros(2, np.int64)))
        admitted = w.admit(two, [Limit("sum", 10, "<=", 4)])
        evicted = w.evict_range(30, 40)
        w.add_aggregates({"max": {"function": "max", "field": "v"}})
        series = w.series(0, 70, 7, key="a").aggregates["all"].tolist()
        entries = [batch.times.tolist() for batch in w.entries(None, None, "a")]
        answers = w.query("a", [10, 40]), w.query(None, [7], None, ALL_KEYS)
        seen.append((admitted.admitted, evicted, series, entries, answers, w.range_query(5, 61, "b")))
    assert seen[0] == seen[1]
