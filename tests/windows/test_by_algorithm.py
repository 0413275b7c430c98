"""Every algorithm of the library as the store of a key: what it answers is the fold, what it cannot do it refuses."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sash_engine.aggregators import ALGORITHMS, LogMTA
from sash_engine.errors import FailedPrecondition, InvalidArgument, Unsupported
from sash_engine.forest import Forest, Layout
from sash_engine.monoids import Monoid
from sash_engine.windows.batches.batch import Batch, Coded
from sash_engine.windows.keys.by_algorithm import ByAlgorithm
from sash_engine.windows.keys.keys import Keys
from sash_engine.windows.spec.algorithms import check_algorithm, check_ranges
from sash_engine.windows.spec.window import WindowSpec
from sash_engine.windows.window import Window
from tests.support.algorithm_lockstep import ALL, ANY_ORDER, FIELDS, NAMES, WITH_RANGES, AlgorithmLockstep, layout_for
from tests.support.forest_model import histories
from tests.support.model import Slow

FORWARD = st.lists(
    st.one_of(
        st.tuples(st.just("insert"), st.sampled_from([0, 0, 1, 2])),
        st.tuples(st.just("bulk"), st.lists(st.sampled_from([0, 0, 1, 3]), max_size=20)),
        st.tuples(st.just("bulk"), st.sampled_from([[4, -3, 0, 2], [0, 5, -5, 1], [1, 1, -2]])),  # unsorted
        st.tuples(st.just("evict"), st.sampled_from([0, 1, 1, 2, 5, 20])),
        st.tuples(st.just("bulk_evict"), st.integers(-12, 1)),
        st.tuples(st.just("evict_while"), st.integers(-1, 300)),
    ),
    max_size=25,
)


@pytest.mark.parametrize("name", NAMES)
@given(history=histories(span=12, bulk=15, length=15, middle=False))
def test_any_history_is_answered_with_the_fold_or_refused_whole(name, history):
    AlgorithmLockstep(name).run(history)


@pytest.mark.parametrize("name", NAMES)
@given(history=FORWARD)
def test_histories_in_order_are_answered_with_the_fold(name, history):
    AlgorithmLockstep(name).run(history)


@pytest.mark.parametrize("name", NAMES)
def test_entries_of_equal_time_stay_apart(name):
    """Five entries at one time: they are counted, kept in the order of arrival, and evicted one by one."""
    pair = AlgorithmLockstep(name)
    pair.run([("bulk", [7, 0, 0]), ("insert", 0), ("insert", 0), ("evict", 2), ("evict", 1), ("bulk_evict", -1)])
    assert len(pair.window) == 2
    assert pair.window.bulk_evict(7) == 2


@pytest.mark.parametrize("name", NAMES)
def test_an_unsorted_bulk_may_follow_the_newest_entry(name):
    window = ByAlgorithm(layout_for(name), name)
    window.insert(5, (1, "a"))
    window.bulk_insert(np.array([9, 5, 7]), [np.array([10, 20, 30]), np.array(["b", "c", "d"], object)])
    assert (window.oldest, window.newest, len(window), window.query()[0]) == (5, 9, 4, 61)
    assert window.evict(2) == 2
    assert window.query()[0] == 40, "what came at 5 has left, the first arrival and the second"


@pytest.mark.parametrize("name", NAMES)
def test_an_emptied_window_begins_anew(name):
    """Nothing is before the newest entry of no entries."""
    pair = AlgorithmLockstep(name)
    pair.run([("insert", 100), ("bulk_evict", 0), ("insert", -90), ("insert", -80), ("evict", 5), ("bulk", [-100, 1])])
    assert len(pair.window) == 2


@pytest.mark.parametrize("name", NAMES)
def test_the_ends_of_time(name):
    """The least and greatest times that a window takes, and a range and an eviction up to each."""
    least, most = -(2**63) + 1, 2**63 - 2
    pair = AlgorithmLockstep(name)
    pair.now = least
    pair.run([("insert", 0), ("insert", most - least)])
    assert (pair.window.oldest, pair.window.newest) == (least, most)
    if name in WITH_RANGES:
        assert pair.window.range_query(least, least)[0] == 1
        assert pair.window.range_query(-(2**63), 2**63 - 1)[0] == 2
    assert pair.window.bulk_evict(most - 1) == 1
    assert pair.window.bulk_evict(most) == 1
    pair.entries.clear()
    pair.check()


class Fussy(Monoid):
    """A sum that cannot lift a negative value."""

    function = "fussy"
    invertible = True
    identity = 0

    def lift(self, value):
        if value < 0:
            raise ValueError("negative")
        return value

    def combine(self, older, newer):
        return older + newer

    def uncombine(self, total, older):
        return total - older

    def lower(self, partial):
        return partial


@pytest.mark.parametrize("name", NAMES)
def test_a_bulk_that_cannot_be_lifted_changes_nothing(name):
    window = ByAlgorithm(Layout({"value": "int64"}, {"sum": (Fussy("int64"), ["value"])}), name)
    window.insert(1, (5,))
    for write in (
        lambda: window.bulk_insert(np.array([2, 3, 4]), [np.array([1, 1, -1])]),
        lambda: window.insert(2, (-1,)),
    ):
        with pytest.raises(ValueError, match="negative"):
            write()
        window.check_invariants()
        assert (len(window), window.newest, window.query()) == (1, 1, [5])
    window.insert(2, (6,))
    assert window.query() == [11]


@pytest.mark.parametrize("name", NAMES)
def test_what_needs_the_values_is_refused(name):
    window = ByAlgorithm(layout_for(name), name)
    window.insert(1, (5, "a"))
    again = np.array([1]), [np.array([6]), np.array(["b"], object)]
    for call in (window.columns, lambda: window.relayout(layout_for(name)), lambda: window.replace(*again)):
        with pytest.raises(Unsupported, match=f"{name} keeps partials and no values"):
            call()
    assert not window.sweep()
    assert window.query()[0] == 5


@pytest.mark.parametrize("name", sorted(WITH_RANGES))
def test_it_answers_as_a_forest_does(name):
    """The same calls, the same results: types, empty ranges and missing answers included."""
    layout = Layout(FIELDS, ALL)
    forest, window = Forest(layout), ByAlgorithm(layout, name)
    for store in (forest, window):
        store.bulk_insert(np.array([1, 2, 2, 9]), [np.array([4, 8, 1, 6]), np.array(list("abcd"), object)])
    assert window.totals() == forest.totals()
    assert window.range_totals(2, 5) == forest.range_totals(2, 5)
    assert window.range_totals(5, 2) == forest.range_totals(5, 2)
    for starts in ([0, 2], [2, 4], [4, 5]):
        starts = np.array(starts, np.int64)
        entries, answers = window.series(starts, starts + 2)
        expected_entries, expected = forest.series(starts, starts + 2)
        assert entries.tolist() == expected_entries.tolist()
        assert [(a.dtype, a.tolist()) for a in answers] == [(a.dtype, a.tolist()) for a in expected]
    entries, answers = window.series(starts[:0], starts[:0])
    assert [len(column) for column in (entries, *answers)] == [0] * (1 + len(layout.names))


@pytest.mark.parametrize("name", sorted(name for name in WITH_RANGES if issubclass(ALGORITHMS[name], LogMTA)))
def test_tree_aggregators_ask_a_predicate_few_times(name):
    window, asked = ByAlgorithm(layout_for(name), name), []
    window.bulk_insert(np.arange(1000), [np.ones(1000, np.int64), np.full(1000, "", object)])
    assert window.evict_while(lambda entries, _: asked.append(entries) or entries <= 700)[0] == 700
    assert len(asked) <= 2 * 10 + 1
    assert window.evict(299) == 299
    assert (window.oldest, len(window)) == (999, 1)


# ---------------------------------------------------------------- what can be known when a window is created


def spec(algorithm, **more):
    document = {"name": "w", "aggregates": {"n": {"function": "count"}, "last": {"function": "sum"}}}
    return WindowSpec.parse(document | {"fields": {"value": "int64"}, "algorithm": algorithm} | more)


@pytest.mark.parametrize("name", [None, *NAMES])
def test_every_algorithm_can_be_named(name):
    check_algorithm(spec(name, slide={"max_count": 10, "max_age": "1m"}))


REFUSED = [
    (spec("amtä"), "algorithm", r"unknown algorithm 'amtä'; did you mean 'amta'\? Known are amta"),
    (
        spec("subtract_on_evict", aggregates={"n": {"function": "count"}, "highest": {"function": "max"}}),
        "algorithm",
        r"aggregate 'highest', Max\(int64\), has no exact inverse",
    ),
    (spec("daba", slide={"when": "old.n > 3"}), "slide.when", r"daba answers for its whole.*amta.*recalc"),
    (spec("fiba", order={"equal_times": "last"}), "order.equal_times", "equal times are kept"),
]


@pytest.mark.parametrize(("refused", "field", "why"), REFUSED, ids=lambda part: part if isinstance(part, str) else "")
def test_what_an_algorithm_cannot_do_is_refused_beforehand(refused, field, why):
    with pytest.raises(InvalidArgument, match=why) as error:
        check_algorithm(refused)
    assert error.value.field == field


@pytest.mark.parametrize("name", sorted(WITH_RANGES))
def test_a_predicate_is_taken_where_it_can_be_asked(name):
    check_algorithm(spec(name, slide={"when": "old.n > 3"}))


@pytest.mark.parametrize("name", [None, *NAMES])
def test_ranges_can_be_refused_before_anything_is_written(name):
    if name is None or name in WITH_RANGES:
        check_ranges(name)
    else:
        with pytest.raises(Unsupported, match=f"{name} answers for its whole window only"):
            check_ranges(name)


def test_an_algorithm_that_subtracts_is_not_made_for_a_maximum():
    with pytest.raises(Unsupported, match="no exact inverse"):
        ByAlgorithm(Layout(FIELDS, ALL), "subtract_on_evict")


# ---------------------------------------------------------------- in the place of forests


@pytest.mark.parametrize("name", NAMES)
def test_keys_hold_it_in_the_place_of_forests(name):
    layout = layout_for(name)
    keys = Keys(layout, None, partial(ByAlgorithm, algorithm=name))
    numbers = keys.create(["a", "b"])
    rows = [np.array([1, 2, 2, 5, 6]), np.arange(5), np.array(list("vwxyz"), object)]
    keys.bulk_insert_each(numbers, np.array([3, 2]), rows)
    keys.insert(0, 9, (40, "t40"))
    keys.check_invariants()
    assert [keys.totals(number)[0] for number in (0, 1)] == [43, 7]
    assert keys.evict_each(numbers, np.array([2, 1])).tolist() == [2, 5]
    assert keys.bulk_evict_each(numbers, np.array([2, 0])).tolist() == [1, 0]
    assert keys.entries_each(numbers).tolist() == [1, 1]
    assert [keys.totals(number)[0] for number in (0, 1)] == [40, 4]
    if name in WITH_RANGES:
        assert keys.range_query(0, 9, 9)[0] == 1
    keys.check_invariants()


WRITES = st.lists(st.lists(st.sampled_from([0, 0, 1, 2, 5]), min_size=1, max_size=6), max_size=15)


@pytest.mark.parametrize("name", NAMES)
@given(writes=WRITES)
def test_a_window_of_any_algorithm_is_slid_and_answers_with_the_fold(name, writes):
    window = Window(spec(name, time_unit="none", slide={"max_age": 12, "max_count": 8}))
    slow, now, value = Slow(max_age=12, max_count=8), 0, 0
    for write in writes:
        batch = []
        for step in write:
            now, value = now + step, value + 1
            batch.append((now, value * 61 % 101))
        times, values = (np.array(column) for column in zip(*batch, strict=True))
        if len(batch) == 1:
            result = window.insert(batch[0][0], {"value": batch[0][1]}, None)
        else:
            result = window.bulk_insert(Batch(times, {"value": values}))
        assert (result.inserted, result.late, result.evicted) == slow.write(batch)
        [answer] = window.query(None, [], None)
        kept = [kept for _, kept in slow.entries]
        assert (answer.entries, answer.aggregates["last"]) == (len(kept), sum(kept))
        window.check_invariants()


@pytest.mark.parametrize("name", sorted(set(NAMES) - ANY_ORDER))
def test_an_early_entry_refuses_the_whole_write(name):
    window = Window(spec(name, keyed=True, time_unit="none"))
    window.insert(5, {"value": 1}, "a")
    early = Batch(np.array([6, 4]), {"value": np.array([1, 1])}, Coded.of(["b", "a"]))
    for write in (lambda: window.bulk_insert(early), lambda: window.insert(4, {"value": 1}, "a")):
        with pytest.raises(FailedPrecondition, match="in order") as error:
            write()
        assert error.value.field == "time"
    assert (window.info().entries, window.info().keys) == (1, 1)


@pytest.mark.parametrize("name", sorted(WITH_RANGES))
def test_a_series_over_several_keys_needs_the_entries(name):
    """The refusal says so, and not that entries cannot be given back, which nobody asked for."""
    w = Window(spec(name, keyed=True, time_unit="none"))
    w.bulk_insert(Batch(np.arange(4), {"value": np.arange(4)}, Coded.of(["a", "b", "a", "b"])))
    with pytest.raises(Unsupported, match="one key at a time") as caught:
        w.series(0, 4, 1, None, None, ["a", "b"])
    assert caught.value.field == "keys"
    assert w.series(0, 4, 1, None, "a").entries.tolist() == [1, 0, 1, 0]
