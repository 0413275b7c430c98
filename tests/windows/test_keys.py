"""Keys and pages: keys that grow from page to page into forests answer as the slow model, whatever happens to them."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sash_engine.errors import FailedPrecondition, ResourceExhausted
from sash_engine.steps import finished
from sash_engine.windows.batches.batch import Batch, Coded
from sash_engine.windows.keys.keys import NEVER, Keys
from sash_engine.windows.keys.label_table import LabelTable
from sash_engine.windows.keys.ragged import ragged
from sash_engine.windows.reading.conditions import names_steps
from sash_engine.windows.spec.window import WindowSpec
from sash_engine.windows.window import Window
from tests.support.model import slow_window
from tests.support.page_layouts import layout

KEYS = list("abcdefgh")
SIZES = [(1, 1), (1, 4), (2, 8), (4, 64), None]

names = st.sampled_from(KEYS)
times = st.integers(0, 30)
entries = st.tuples(names, times)
writes = st.one_of(
    st.tuples(st.just("insert"), entries),
    st.tuples(st.just("bulk"), st.lists(entries, min_size=1, max_size=40)),
)
steps = st.one_of(
    writes,
    writes,
    st.tuples(st.just("evict"), st.tuples(st.sampled_from([*KEYS, None]), times)),
    st.tuples(st.just("range"), st.tuples(names, times, times)),
)


def window(pages, **parts):
    spec = {
        "name": "w",
        "keyed": True,
        "time_unit": "none",
        "fields": {"value": "int64", "word": "string"},
        "aggregates": {
            "n": {"function": "count"},
            "all": {"function": "collect", "field": "value"},
            "words": {"function": "collect", "field": "word"},
            "max": {"function": "max", "field": "value"},
        },
    }
    max_keys = parts.pop("max_keys", 100)
    return Window(WindowSpec.parse(spec | parts), max_keys=max_keys, block=4, pages=pages)


def word(value):
    return f"word {value}"


def batch(pairs, first_value):
    values = range(first_value, first_value + len(pairs))
    columns = {"value": np.array(values, np.int64), "word": Coded.of([word(value) for value in values])}
    return Batch(np.array([time for _, time in pairs], np.int64), columns, Coded.of([key for key, _ in pairs]))


def expect(answer, values):
    assert answer.entries == answer.aggregates["n"] == len(values)
    assert answer.aggregates["all"] == values
    assert answer.aggregates["words"] == [word(value) for value in values]
    assert answer.aggregates["max"] == (max(values) if values else None)


def counts(result):
    return [result.inserted, result.late, result.evicted]


# ---------------------------------------------------------------- windows


@given(
    st.lists(steps, max_size=20),
    st.sampled_from([None, 3, 12]),
    st.sampled_from([None, 1, 5]),
    st.sampled_from(SIZES),
)
def test_any_history_equals_the_fold(history, max_age, max_count, sizes):
    slide = {name: limit for name, limit in (("max_age", max_age), ("max_count", max_count)) if limit}
    w, slow, value = window(sizes, slide=slide), slow_window(max_age, max_count), 0
    for step, what in history:
        if step == "insert":
            key, time = what
            result = w.insert(time, {"value": value, "word": word(value)}, key)
            assert counts(result) == list(slow[key].write([(time, value)]))
            value += 1
        elif step == "bulk":
            expected = np.zeros(3, int)
            for key in dict.fromkeys(key for key, _ in what):
                expected += slow[key].write([(time, value + i) for i, (k, time) in enumerate(what) if k == key])
            assert counts(w.bulk_insert(batch(what, value))) == expected.tolist()
            value += len(what)
        elif step == "evict":
            key, time = what
            gone = sum(slow[k].evict(time) for k in ([key] if key else list(slow)))
            assert w.bulk_evict(time, key) == gone
        else:
            key, start, end = what
            if start <= end:
                expect(w.range_query(start, end, key), slow[key].between(start, end))
        w.check_invariants()
        for key in KEYS:
            (answer,) = w.query(key, [], None)
            expect(answer, slow[key].between(0, 99))
            if slow[key].entries:
                assert (answer.start, answer.end) == (slow[key].entries[0][0], slow[key].entries[-1][0])
            for answer, width in zip(w.query(key, [1, 8], None), (1, 8), strict=True):
                expect(answer, slow[key].trailing(width))


@given(st.lists(writes, max_size=12), st.sampled_from([{}, {"max_age": 6}, {"max_count": 3}]))
def test_all_page_sizes_and_forests_give_the_same_answers(history, slide):
    windows = [window(sizes, slide=slide) for sizes in SIZES]
    value = 0
    for step, what in history:
        if step == "insert":
            key, time = what
            fields = {"value": value, "word": word(value)}
            results = [counts(w.insert(time, fields, key)) for w in windows]
            value += 1
        else:
            results = [counts(w.bulk_insert(batch(what, value))) for w in windows]
            value += len(what)
        assert results == results[:1] * len(windows)
    for key in KEYS:
        answers = [w.query(key, ["4"], None) + w.query(key, [], None) for w in windows]
        assert answers == answers[:1] * len(windows)


@pytest.mark.parametrize("sizes", SIZES)
def test_a_key_grows_through_all_pages_into_a_forest_in_order_and_not(sizes):
    w, slow = window(sizes), slow_window()
    for value in range(70):
        for key, time in (("a", value), ("b", -value), ("c", value // 3), ("d", value * 37 % 41)):
            slow[key].write([(time, value)])
            w.insert(time, {"value": value, "word": word(value)}, key)
        w.check_invariants()
    for key in "abcd":
        expect(w.query(key, [], None)[0], slow[key].between(-99, 99))
        expect(w.range_query(-20, 11, key), slow[key].between(-20, 11))


def test_equal_times_keep_arrival_order_within_and_across_bulks():
    # key a at time 5: 0 (first bulk), then 1 and 3 of the second, which also brings 2 before them
    w = window((2, 4))
    w.bulk_insert(batch([("a", 5)], 0))
    w.bulk_insert(batch([("a", 5), ("a", 3), ("a", 5)], 1))
    w.insert(5, {"value": 4, "word": word(4)}, "a")
    assert w.query("a", [], None)[0].aggregates["all"] == [2, 0, 1, 3, 4]


@pytest.mark.parametrize("sizes", [(1, 2), None])
def test_a_bulk_over_more_keys_than_a_byte_counts(sizes):
    w = window(sizes, max_keys=10_000)
    for keys in (255, 256, 257, 700):
        pairs = [(f"key {i * 13 % keys}", i) for i in range(3 * keys)]
        assert w.bulk_insert(batch(pairs, 0)).inserted == 3 * keys
    assert w.info().keys == 700
    assert sum(w.query(f"key {i}", [], None)[0].entries for i in range(700)) == w.info().entries
    expect(w.query("key 600", [], None)[0], [i for i in range(2100) if i * 13 % 700 == 600])
    w.check_invariants()


def test_late_entries_of_some_keys_are_left_out_of_a_bulk_and_others_stay():
    # max_age 10     a at 100: late through 90     b at 20: late through 10
    w = window((2, 4), slide={"max_age": 10})
    w.bulk_insert(batch([("a", 100), ("b", 20)], 0))
    result = w.bulk_insert(batch([("a", 90), ("b", 15), ("a", 91), ("b", 10), ("c", 1), ("a", 5)], 2))
    assert counts(result) == [3, 3, 0]
    found = {key: w.query(key, [], None)[0].aggregates["all"] for key in "abc"}
    assert found == {"a": [4, 0], "b": [3, 1], "c": [6]}
    assert counts(w.bulk_insert(batch([("a", 90), ("b", 10)], 8))) == [0, 2, 0]


def test_a_refused_bulk_creates_no_key():
    w = window((2, 4), slide={"max_age": 10}, order={"late": "reject"}, max_keys=2)
    w.bulk_insert(batch([("a", 100)], 0))
    with pytest.raises(FailedPrecondition, match="1 of this write"):
        w.bulk_insert(batch([("new", 1), ("a", 90), ("a", 101)], 1))
    with pytest.raises(ResourceExhausted, match="brings 2 more"):
        w.bulk_insert(batch([("x", 1), ("a", 101), ("y", 1)], 1))
    assert (w.info().keys, w.info().entries, counts(w.counts)) == (1, 1, [1, 0, 0])
    w.check_invariants()


def test_extreme_times_and_ages_do_not_wrap_around():
    first, last = -(2**63) + 1, 2**63 - 2
    w = window((1, 4), slide={"max_age": 2**63 - 1})
    assert counts(w.bulk_insert(batch([("a", first), ("b", first), ("a", -1)], 0))) == [3, 0, 0]
    assert counts(w.bulk_insert(batch([("b", last), ("a", 0)], 3))) == [2, 0, 2]
    found = {key: w.query(key, [], None)[0].aggregates["all"] for key in "ab"}
    assert found == {"a": [2, 4], "b": [3]}
    assert w.bulk_insert(batch([("b", -1), ("a", first)], 5)).late == 2
    w.check_invariants()


# ---------------------------------------------------------------- keys


def keys_with(sizes, counts):
    """Keys with so many entries each: key i has times 0, 1, … and values 100 i, 100 i + 1, …"""
    keys = Keys(layout(), sizes)
    numbers = keys.create([f"key {i}" for i in range(len(counts))])
    for number, count in zip(numbers.tolist(), counts, strict=True):
        for time in range(count):
            keys.insert(number, time, (100 * number + time,))
    return keys, numbers


def test_names_and_numbers_come_in_chunks_in_the_order_of_their_creation():
    keys = Keys(layout())
    keys.create(["a", "b", "c", "d"])
    keys.forget(np.array([1]))
    keys.create(["e"])
    found = [(names, numbers.tolist()) for names, numbers in keys.chunks(2)]
    assert found == [(["a", "c"], [0, 2]), (["d", "e"], [3, 1])]
    assert keys.names_of(range(4)) == ["a", "e", "c", "d"]


def test_labels_are_those_of_the_keys_that_are_left():
    keys = Keys(layout())
    keys.create([f"{i % 3}|host-{i}" for i in range(10)])
    keys.forget(np.array([2, 7]))
    table = LabelTable(keys, 2)
    region, _ = finished(table.current())
    table.check_invariants()
    assert (region.values, len(region.index)) == (["0", "1", "2"], 3)
    keys.create(["0|host-new", "9|host-new"])
    finished(table.current())
    table.check_invariants()


def test_a_key_is_given_its_own_store_when_asked_for():
    keys, (number, other) = keys_with((4, 8), [3, 2])
    keys.evict(number, 1)
    forest = keys.own_store(number)
    assert forest is keys.own_store(number)
    assert (len(forest), forest.oldest, keys.columns(number)[1].tolist()) == (2, 1, [1, 2])
    keys.insert(number, 9, (7,))
    assert keys.query(number) == (3, [[1, 2, 7], 10])
    assert list(keys.own_stores()) == [forest]
    assert keys.query(other) == (2, [[100, 101], 201])
    keys.check_invariants()


@pytest.mark.parametrize("sizes", SIZES)
def test_a_forgotten_key_leaves_nothing_and_its_number_is_used_again(sizes):
    keys, numbers = keys_with(sizes, [2, 5, 70])
    keys.late_through[numbers] = 40
    assert keys.forget(numbers[[0, 2]]) == 72
    keys.check_invariants()
    assert (len(keys), keys.find("key 0"), keys.find("key 1"), keys.find("key 2")) == (1, None, 1, None)
    again = keys.create(["x", "y", "z"])
    assert sorted(again.tolist()) == [0, 2, 3]
    assert keys.entries_each(again).tolist() == [0, 0, 0]
    assert keys.now[again].tolist() == keys.late_through[again].tolist() == [NEVER] * 3
    assert [keys.name(number) for number in keys.numbers().tolist()] == ["key 1", "x", "y", "z"]
    assert keys.find_each(["z", "nobody", "key 1"]).tolist() == [again[2], -1, 1]
    keys.insert(again.item(0), 5, (1,))
    assert keys.query(again.item(0)) == (1, [[1], 1])
    keys.check_invariants()


@pytest.mark.parametrize("sizes", SIZES)
def test_evicting_a_count_tells_the_time_of_the_last_that_left(sizes):
    keys, numbers = keys_with(sizes, [4, 70, 1])
    assert keys.evict_each(numbers, np.array([2, 60, 1])).tolist() == [1, 59, 0]
    assert keys.entries_each(numbers).tolist() == [2, 10, 0]
    assert [keys.evict(number, 2) for number in numbers[:2].tolist()] == [3, 61]
    assert [keys.span(number) for number in numbers.tolist()] == [(None, None), (62, 69), (None, None)]
    keys.check_invariants()


def test_without_pages_every_key_has_its_own_store():
    keys, numbers = keys_with(None, [1, 2])
    assert len(list(keys.own_stores())) == len(numbers)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=30), st.integers(1, 7), st.integers(1, 9))
def test_pages_list_a_key_that_stays_once(changes, limit, looked_at):
    """Keys come and go, and take the places of others, between one page and the next."""
    keys = Keys(layout())
    for number in keys.create([f"stays {i}" for i in range(15)]).tolist():
        keys.insert(number, 1, (1,))
    changes, found, position, others = iter(changes), [], 0, 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sash_engine.windows.reading.conditions.PAGE_NAMES", looked_at)
        patch.setattr("sash_engine.windows.reading.conditions._NAMES_AT_ONCE", 2)
        while position is not None:
            come, go = next(changes, (0, 0))
            keys.create([f"other {others + i}" for i in range(come)])
            others += come
            going = [name for name in keys.names() if name.startswith("other")][:go]
            keys.forget(keys.find_each(going))
            page, next_ = finished(names_steps(keys, "stays", limit, position, NEVER, ()))
            assert len(page) <= limit
            assert next_ is None or position < next_ <= position + looked_at
            found, position = found + page, next_
    assert sorted(found) == sorted(f"stays {i}" for i in range(15))


def test_ragged_ranges():
    assert ragged(np.array([7, 0, 3]), np.array([2, 0, 3])).tolist() == [7, 8, 3, 4, 5]
    assert ragged(np.array([], np.int64), np.array([], np.int64)).tolist() == []
    lengths = np.arange(50)
    found = ragged(lengths * 100, lengths)
    ends = np.cumsum(lengths)
    assert all(
        found[a:b].tolist() == list(range(100 * i + 100, 100 * i + 100 + b - a))
        for i, (a, b) in enumerate(pairwise(ends))
    )
