"""Writes that decide, against a plain model: every lookback folded from the list of entries, and every time tried."""

from dataclasses import replace
from itertools import combinations_with_replacement, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sash_engine.errors import FailedPrecondition, ResourceExhausted
from sash_engine.steps import finished
from sash_engine.windows.batches.batch import Batch, Coded
from sash_engine.windows.questions import ALL_KEYS, EntriesQuery, Limit
from sash_engine.windows.spec.window import TICK_MAX, TICK_MIN, WindowSpec
from sash_engine.windows.window import Window
from sash_engine.windows.writing import admitting
from sash_engine.windows.writing.runs import Candidates
from sash_wire.nulls import mark_of
from tests.support.admit_model import decide
from tests.support.profile import THOROUGH
from tests.support.refused import refusal

PARTS = ("tenant", "user", "model")
KEYS = ["a|x|m", "a|y|m", "b|x|m", "a|x|l"]
SPEC = {
    "name": "w",
    "keys": list(PARTS),
    "time_unit": "none",
    "fields": {"value": "int64", "id": "int64"},
    "aggregates": {
        "n": {"function": "count"},
        "sum": {"function": "sum", "field": "value"},
        "max": {"function": "max", "field": "value"},
        "min": {"function": "min", "field": "value"},
        "last": {"function": "last", "field": "value"},
    },
    "identity": "id",
}


def window(block=4, pages=(2, 4), clock=None, **parts):
    return Window(WindowSpec.parse(SPEC | parts), block=block, pages=pages, clock=clock)


def bulk(w, rows, first=0):
    keys = Coded.of([key for key, _, _ in rows]) if w.spec.keyed else None
    columns = {"value": np.array([value for _, _, value in rows], np.int64)}
    if "id" in w.spec.fields:
        columns["id"] = np.arange(first, first + len(rows))
    return Batch(np.array([time for _, time, _ in rows], np.int64), columns, keys)


def there(w):
    """The entries that the window has: of each key in order."""
    found = []
    for batch in w.past.entries(EntriesQuery(keys=ALL_KEYS)):
        names = batch.keys.decode().tolist()
        found += zip(names, batch.times.tolist(), batch.columns["value"].tolist(), strict=True)
    return found


def late(w, row):
    number = w.keys.find(row[0])
    through = w.slide_policy.refused_through()
    return row[1] <= (through if number is None else max(through, w.keys.late_through_of[number]))


def check(w, rows, limits, first=0):
    """Admit rows, and compare what the window says with the model."""
    before = there(w)
    on_time = [row for row in rows if not late(w, row)]
    wanted = iter(decide(before, on_time, limits, PARTS, 60))
    is_late = [late(w, row) for row in rows]
    got = w.admit(bulk(w, rows, first), limits)
    for i, row in enumerate(rows):
        of_row = [(each.answers[i], each.remaining[i], each.holds[i]) for each in got.limits]
        if is_late[i]:
            assert (got.admitted[i], got.retry_after[i], of_row) == (False, None, [(None, None, False)] * len(limits))
            continue
        decision = next(wanted)
        assert (got.admitted[i], got.retry_after[i], of_row) == (*decision[:2], decision.limits), (row, limits)
    assert got.inserted == sum(got.admitted)
    assert got.late == sum(is_late)
    assert got.inserted + got.late + got.refused == len(rows)
    w.check_invariants()
    return got


key = st.sampled_from(KEYS)
row = st.tuples(key, st.integers(0, 40), st.integers(-3, 5))
limit = st.builds(
    Limit,
    st.sampled_from(["n", "sum", "max", "min", "entries"]),
    st.integers(1, 15),
    st.sampled_from(["<=", "<", ">=", ">"]),
    st.integers(-4, 9) | st.floats(-4, 9).map(lambda x: round(x, 1)),
    st.sampled_from([None, ("tenant",), ("model", "tenant"), ("user",), (), ("user", "tenant", "model")]),
)
N = Limit("n", 10, "<=", 3)
limits = st.lists(limit, min_size=1, max_size=3)
usual = st.lists(
    st.builds(
        Limit,
        st.sampled_from(["n", "sum"]),
        st.integers(3, 15),
        st.just("<="),
        st.integers(1, 9),
        st.sampled_from([None, ("tenant",), ()]),
    ),
    min_size=1,
    max_size=2,
)
rows = st.lists(row, min_size=1, max_size=12)
steps = st.one_of(
    st.tuples(st.just("admit"), rows, limits | usual),
    st.tuples(st.just("admit"), rows.map(lambda each: each[:1]), limits | usual),
    st.tuples(st.sampled_from(["insert", "retract", "evict"]), rows, st.none()),
)
slides = [{}, {"slide": {"max_age": 20}}, {"slide": {"max_age": 15}, "history": "30"}, {"slide": {"max_count": 3}}]
GROUPED = {
    "fields": {"value": "int64"},
    "aggregates": {name: each for name, each in SPEC["aggregates"].items() if name != "last"},
    "identity": None,
}
shapes = [{}, {"rollups": [["tenant"]], **GROUPED}, {"rollups": [["model", "tenant"], []], **GROUPED}]


@pytest.fixture(params=[0, 8], ids=["in runs", "as it comes"], scope="module")
def rows_single(request):
    """So many rows of a write are decided one by one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(admitting, "_SINGLE", request.param)
        yield


@given(st.lists(steps, min_size=1, max_size=8), st.sampled_from(slides), st.sampled_from(shapes), st.booleans())
def test_any_history_is_decided_as_the_model_does(rows_single, history, slide, shape, small):
    if "rollups" in shape and ("history" in slide or "max_count" in slide.get("slide", {})):
        slide = {}  # such windows have no rollups
    w = window(*((4, (2, 4)) if small else (1024, (4, 64))), **shape, **slide)
    first = 0
    for step, some, asked in history:
        if step == "admit":
            check(w, some, [each for each in asked if each.aggregate in (*w.spec.aggregates, "entries")] or [N], first)
        elif step == "insert":
            w.bulk_insert(bulk(w, some, first))
        elif step == "evict":
            w.bulk_evict(some[0][1] // 2, some[0][0])
        elif w.spec.identity is not None:
            for name in retractions(w, [each for each in some if each in there(w)]):
                assert w.retract(name).retracted == 1
        first += len(some)


def retractions(w, taken):
    """Batches that name one entry each."""
    for batch in list(w.past.entries(EntriesQuery(keys=ALL_KEYS))):
        names = batch.keys.decode().tolist()
        for i, entry in enumerate(zip(names, batch.times.tolist(), batch.columns["value"].tolist(), strict=True)):
            if entry in taken:
                taken.remove(entry)
                yield Batch(batch.times[i : i + 1], {"id": batch.columns["id"][i : i + 1]}, Coded.of([names[i]]))


ENTRIES = [some for n in range(4) for some in combinations_with_replacement(range(6), n)]
ONE_OF = 17 if THOROUGH else 37
ASKED = list(product(range(7), (1, 2, 3, 4), ("<=", "<", ">=", ">"), ("n", "entries", "sum", "max"), (-1, 0, 1, 2, 3)))


@pytest.mark.parametrize("block", [1, 1024])
def test_all_short_histories_of_one_key(block):
    """All entries of up to three times, and for each of them a share of all rows and limits."""
    for at, times in enumerate(ENTRIES):
        w = window(block, (2, 2) if block == 1 else (4, 64))
        entries = [("a|x|m", time, value) for time, value in zip(times, (2, -1, 1), strict=False)]
        w.bulk_insert(bulk(w, entries))
        for time, span, op, aggregate, value in ASKED[at % ONE_OF :: ONE_OF]:
            row, limits = ("a|x|m", time, 1), [Limit(aggregate, span, op, value)]
            (decision,) = decide(entries, [row], limits, PARTS, 12)
            got, _ = finished(w.admitting.decide_steps(bulk(w, [row]), limits))
            of_row = [(each.answers[0], each.remaining[0], each.holds[0]) for each in got.limits]
            assert (got.admitted[0], got.retry_after[0], of_row) == (*decision[:2], decision.limits), (
                times,
                row,
                limits,
            )


def test_late_rows_lookbacks_that_are_kept_and_several_rows():
    w = window(slide={"max_age": 20})
    w.bulk_insert(bulk(w, [("a|x|m", 40, 1)]))
    for time, is_late in ((20, True), (21, False)):
        assert check(w, [("a|x|m", time, 1)], [Limit("n", 5, "<=", 1)]).late == is_late
    assert refusal(w.admit, bulk(w, [("a|x|m", 41, 1)]), [Limit("n", 21, "<=", 1)]) == (
        "limits.lookback",
        "slide.max_age 20",
    )
    w = window()
    assert check(w, [("a|x|m", 5, 1), ("a|x|m", 6, 1)], [Limit("n", 5, "<=", 1)]).refused == 1
    groups = [("a|x|m", 10, 1), ("b|x|m", 10, 1), ("a|y|m", 10, 1), ("b|x|m", 10, 1)]
    assert check(w, groups, [Limit("n", 3, "<=", 1, ("tenant",))]).admitted == [True, True, False, False]
    # One limit holds again later than the other, and no longer when that one does.
    w.bulk_insert(bulk(w, [("a|x|l", time, value) for time, value in ((20, 5), (23, -4), (26, 3), (29, -4))]))
    for value in range(-3, 6):
        check(w, [("a|x|l", 30, 1)], [Limit("sum", 10, ">=", value), Limit("n", 7, "<=", 1), Limit("sum", 5, "<=", 0)])


def test_rows_that_are_compared_in_too_many_lookbacks_are_refused():
    """A bulk of 4,000 rows that are older than 4,000 entries took minutes, in which nobody else could write."""
    w = window(block=1024, pages=(16, 32))
    w.bulk_insert(bulk(w, [(KEYS[0], time, 1) for time in range(1, 4001)]))
    limits = [Limit("n", 10_000, "<=", 5_000)]
    assert refusal(
        w.admit, bulk(w, [(KEYS[0], 0, 1)] * 66, first=4000), limits, error=ResourceExhausted, match="send fewer"
    ) == ("entries", "262144 lookbacks and keys")
    assert w.info().entries == 4000
    assert w.admit(bulk(w, [(KEYS[0], 0, 1)] * 60, first=4000), limits).admitted == [True] * 60
    keys = [f"a|{user}|m" for user in range(5_000)]
    w.bulk_insert(bulk(w, [(key, 9_000, 1) for key in keys], first=5000))
    rows = bulk(w, [(KEYS[0], 9_000, 1)] * 60, first=10_000)
    with pytest.raises(ResourceExhausted, match="rollup"):
        w.admit(rows, [Limit("n", 10, "<=", 9_000, by=["tenant"])])
    assert w.info().entries == 9_060


def test_rows_that_went_in_count_for_late_ones_and_behind_a_horizon():
    w = window(**GROUPED, rollups=[["tenant"]], slide={"max_age": 30})
    w.bulk_insert(bulk(w, [("a|x|m", 10, 1), ("a|y|m", 35, 1)]))
    w.bulk_insert(bulk(w, [("a|y|m", 55, 1)]))  # the rollup has left 10 behind; the key has it still
    rows = [("a|x|m", time, 2) for time in (12, 14, 16, 18, 20)]
    got = check(w, rows, [Limit("sum", 20, "<=", 7, ("tenant",)), Limit("entries", 20, "<=", 4, ("tenant",))])
    assert 0 < got.refused < 5


@pytest.mark.parametrize("aggregate", ["n", "entries", "sum"])
def test_rows_that_went_in_count_in_many_later_lookbacks(aggregate):
    w = window()
    w.bulk_insert(bulk(w, [("a|x|m", time, 1) for time in (20, 21, 22, 23, 24)]))
    got = check(w, [("a|x|m", time, 1) for time in (17, 18, 18, 19, 19)], [Limit(aggregate, 10, "<=", 7)])
    assert got.refused == 3


def test_the_only_row_may_be_of_any_key_of_a_dictionary():
    w = window()
    columns = {"value": np.array([1]), "id": np.array([1])}
    assert w.admit(Batch(np.array([5]), columns, Coded(KEYS, np.array([2], np.uint32))), [N]).admitted == [True]
    assert there(w) == [(KEYS[2], 5, 1)]


shapes_of_runs = [
    {},
    {"keys": None, "rollups": None},
    {"rollups": [["tenant"]]},
    {"granularity": 4},
    {"known": "arrival", "slide": {"max_age": 60}, "history": "100"},
    {"nullable": ["value"]},
]
sums = st.builds(
    Limit,
    st.sampled_from(["n", "sum", "entries"]),
    st.integers(2, 30),
    st.sampled_from(["<=", ">="]),
    st.integers(-3, 12),
)


@given(
    st.sampled_from(shapes_of_runs),
    st.lists(st.lists(row, min_size=1, max_size=30), min_size=1, max_size=3),
    st.lists(sums, min_size=1, max_size=3),
    st.booleans(),
    st.data(),
)
def test_rows_of_runs_are_decided_as_one_by_one(shape, writes, limits, grouped, data):
    """In windows of all kinds; the times of each write are mostly later than those before."""
    shape = {**GROUPED, **shape}
    if grouped and shape.get("keys", PARTS):
        limits = [replace(each, by=("tenant",)) for each in limits]
    if "granularity" in shape:
        limits = [replace(each, lookback=each.lookback // 4 * 4 + 4) for each in limits]
    windows = [window(4, (2, 4), **shape) for _ in range(2)]
    for number, some in enumerate(writes):
        moved = [(key, time + 35 * number, value) for key, time, value in some]
        if data.draw(st.booleans()):
            moved.sort(key=lambda each: each[1])
        got = []
        for w, single in zip(windows, (0, 1 << 20), strict=True):
            batch = bulk(w, moved)
            if w.spec.nullable:
                batch.columns[mark_of("value")] = np.array([value > 0 for _, _, value in moved])
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(admitting, "_SINGLE", single)
                got.append(w.admit(batch, limits))
            if moved[0][2] < 0:  # what a group's rollup has begins behind this
                w.bulk_evict(moved[0][1], moved[0][0] if w.spec.keyed else None)
            w.check_invariants()
        assert got[0] == got[1]
    assert windows[0].counts == windows[1].counts


def test_a_run_ends_with_the_first_row_that_does_not_go_in_and_no_other_run_with_it():
    rows, scope = np.arange(7), np.array([2, 2, 2, 0, 0, 1, 1])
    found = Candidates(rows, rows, scope, np.array([3, 4]), np.array([2, 2]))
    goes = found.went([True, False, True, True, True, False, True])
    assert goes.tolist() == [True, False, False, True, True, False, False]


def test_times_that_are_as_far_apart_as_can_be():
    w = window(keys=None, keyed=True, rollups=None)
    ends = [TICK_MIN + 1, TICK_MAX - 1]
    written = [(key, time, 1) for time in ends for key in "ab" for _ in range(5)]
    got = w.admit(bulk(w, written), [Limit("n", 10, "<=", 3)])
    assert got.admitted == [True, True, True, False, False] * 4


@pytest.mark.parametrize("single", [0, 99])
def test_runs_of_a_group_whose_rollup_begins_behind_what_its_keys_have(single, monkeypatch):
    """Evicting from one key empties the rollup up to there; the others still count."""
    w = window(rollups=[["tenant"]], **GROUPED)
    w.bulk_insert(bulk(w, [(key, time, 1) for key in KEYS[:2] for time in range(1, 11)]))
    w.bulk_evict(5, KEYS[0])
    monkeypatch.setattr(admitting, "_SINGLE", single)
    got = w.admit(bulk(w, [(KEYS[0], 11 + i // 4, 1) for i in range(12)]), [Limit("n", 10, "<=", 18, ("tenant",))])
    #  (1, 11] has 5 + 9 entries, (2, 12] 5 + 8, (3, 13] 5 + 7, and the rows that went in
    assert got.limits[0].answers == [15, 16, 17] + [18] * 9
    assert [i for i, goes in enumerate(got.admitted) if goes] == [0, 1, 2, 3, 4, 8]


def test_a_dictionary_that_says_a_key_twice_says_one_key(monkeypatch):
    monkeypatch.setattr(admitting, "_SINGLE", 0)
    columns = {"value": np.ones(4, np.int64), "id": np.arange(4)}
    batch = Batch(np.arange(4), columns, Coded([KEYS[0], KEYS[0]], np.array([0, 1, 0, 1], np.uint32)))
    admission, _ = finished(window().admitting.decide_steps(batch, [N]))
    assert admission.admitted == [True, True, True, False]


def test_thousands_of_rows_that_a_key_has_no_room_for_are_refused_one_by_one():
    w = window(1024, (4, 64))
    got = w.admit(bulk(w, [(KEYS[0], i, 1) for i in range(5_000)]), [Limit("n", 10_000, "<=", 60)])
    assert (got.inserted, got.refused) == (60, 4_940)
    assert got.retry_after[60:] == [9_940 - i for i in range(4_940)]


def test_rows_alike_wait_for_other_entries_once_some_more_went_in():
    w = window()
    w.bulk_insert(bulk(w, [(KEYS[0], 0, 4), (KEYS[0], 2, 4)]))
    rows = [(KEYS[0], 3, 4), (KEYS[0], 4, 1), (KEYS[0], 5, 4)]
    check(w, rows, [Limit("sum", 10, "<=", 9)], 2)


@pytest.mark.parametrize("order", [{"out_of_order": "reject"}, {"late": "reject"}])
def test_one_row_keeps_to_the_order_policy(order):
    w = window(order=order, slide={"max_age": 20})
    w.bulk_insert(bulk(w, [(KEYS[0], 30, 1)]))
    with pytest.raises(FailedPrecondition):
        w.admit(bulk(w, [(KEYS[0], 1, 1)], 1), [N])


def test_one_row_is_late_by_what_was_punctuated():
    w = window(slide={"max_age": 20, "until": "punctuation"})
    w.bulk_insert(bulk(w, [(KEYS[0], 30, 1)]))
    w.punctuate(40)
    got = w.admit(bulk(w, [(KEYS[0], 35, 1)], 1), [N])
    assert (got.admitted, got.late) == ([False], 1)
