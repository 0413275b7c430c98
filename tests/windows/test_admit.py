"""Writes that decide, on every kind of window, against a plain model that folds each lookback from a list."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations_with_replacement, product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sash_engine.clock import ManualClock
from sash_engine.errors import FailedPrecondition, ResourceExhausted
from sash_engine.steps import finished
from sash_engine.windows.answers import Admission
from sash_engine.windows.batches.batch import Batch, Coded
from sash_engine.windows.questions import Limit, Query
from sash_engine.windows.spec.window import TICK_MAX, TICK_MIN, WindowSpec
from sash_engine.windows.window import Window
from sash_engine.windows.writing import admitting
from sash_engine.windows.writing.runs import Candidates
from tests.support.admit_model import ANSWERS, OF_NULLABLE, decide
from tests.support.profile import THOROUGH
from tests.support.refused import refusal, refused
from tests.support.twins import a_share_of_examples
from tests.support.windows import functions

PARTS = ("tenant", "user")
KEYS = ["a|x", "a|y", "b|x"]
START, AHEAD, AGE, S = 1000, 5, 20, 10**9
SPEC: dict[str, Any] = {
    "name": "w",
    "keys": list(PARTS),
    "time_unit": "s",
    "fields": {"value": "int64", "id": "int64"},
    "aggregates": functions(n="count", sum="sum value", max="max value", min="min value"),
}
IDENTITY: dict[str, Any] = {"identity": "id"}
AGED: dict[str, Any] = {"slide": {"max_age": f"{AGE}s"}}
WALL: dict[str, Any] = {"slide": {"max_age": f"{AGE}s", "clock": "wall"}}
GUARDED: dict[str, Any] = {"order": {"ahead": f"{AHEAD}s"}}
ROLLUPS: dict[str, Any] = {"rollups": [["tenant"]]}
VALUES = {"aggregates": SPEC["aggregates"] | {"values": {"function": "count", "field": "value"}}}
NULLABLE: dict[str, Any] = {"nullable": ["value"], **VALUES}
KINDS: dict[str, dict[str, Any]] = {
    "identity": IDENTITY,
    "entries that leave": {**AGED, **IDENTITY},
    "a history": {"slide": {"max_age": "15s"}, "history": "30s", **IDENTITY},
    "few entries": {"slide": {"max_count": 3}, **IDENTITY},
    "rollups": {"rollups": [["tenant"], []]},
    "rollups that leave": {"rollups": [["tenant"], []], **AGED},
    "one key": {"keys": None},
    "panes": {"granularity": "3s"},
    "panes that leave": {"granularity": "3s", **AGED},
    "panes on wall time": {"granularity": "3s", **WALL},
    "panes with rollups": {"granularity": "3s", **ROLLUPS},
    "panes of nulls": {"granularity": "3s", **NULLABLE},
    "arrivals": {"known": "arrival", **IDENTITY},
    "arrivals that leave": {"known": "arrival", **IDENTITY, **AGED},
    "arrivals on wall time": {"known": "arrival", **IDENTITY, **WALL},
    "wall time": {**WALL, **IDENTITY},
    "wall time with rollups": {**WALL, **ROLLUPS},
    "nulls": {**NULLABLE, **IDENTITY},
    "nulls with rollups": {**NULLABLE, **ROLLUPS},
    "arrivals of nulls": {**NULLABLE, **IDENTITY, "known": "arrival"},
    "guard": {**GUARDED, **IDENTITY},
    "guard on wall time": {**GUARDED, **WALL, **IDENTITY},
    "guarded panes": {**GUARDED, "granularity": "3s"},
    "guarded arrivals": {**GUARDED, **IDENTITY, "known": "arrival"},
}


class Lockstep:
    """A window, and the list of its entries."""

    def __init__(self, small: bool, **parts: Any) -> None:
        self.clock = ManualClock(START * S)
        self.spec = WindowSpec.parse(SPEC | parts)
        block, pages = (4, (2, 4)) if small else (1024, (4, 64))
        self.window = Window(self.spec, block=block, pages=pages, clock=self.clock)
        self.entries: list[list[Any]] = []  # key, time, value, id
        self.granule = self.spec.granularity_ticks or 1
        self.next_id = 0
        self.newest: dict[str, int] = {}
        self.left: dict[str, int] = {}  # by count

    def floor(self, time: int) -> int:
        return time - time % self.granule

    def through(self, key: str) -> int:
        """Entries of a key of this time and older have left, and are late."""
        if (age := self.spec.kept_ticks) is None:
            return self.left.get(key, -1)
        return (self.clock.now_ns() // S if self.spec.slide.clock == "wall" else self.newest.get(key, 0)) - age

    def is_ahead(self, time: int) -> bool:
        return self.spec.order.ahead is not None and self.floor(time) > self.clock.now_ns() // S + AHEAD

    def batch(self, rows: Any, ids: Any = None) -> Batch:
        first, self.next_id = self.next_id, self.next_id + len(rows)
        columns = {"value": [value for *_, value in rows], "id": ids or list(range(first, self.next_id))}
        keys = [key for key, *_ in rows] if self.spec.keyed else None
        return Batch.of(self.spec, [time for _, time, _ in rows], columns, keys)

    def took(self, rows: Any, first: int) -> None:
        for at, (key, time, value) in enumerate(rows):
            if value is not ...:
                self.entries.append([key, self.floor(time), value, first + at])
                self.newest[key] = max(self.newest.get(key, 0), self.floor(time))
        self.passed()

    def passed(self) -> None:
        """What is too old, or too much, leaves."""
        for key in KEYS if self.spec.slide.max_count else ():
            mine = sorted((entry for entry in self.entries if entry[0] == key), key=lambda entry: entry[1])
            gone = mine[: -self.spec.slide.max_count]
            self.entries = [entry for entry in self.entries if entry not in gone]
            self.left[key] = max([self.left.get(key, -1), *(entry[1] - 1 for entry in gone[-1:])])
        if self.spec.kept_ticks is not None:
            self.entries = [entry for entry in self.entries if entry[1] > self.through(entry[0])]

    # ---------------------------------------------------------------- steps

    def tick(self, seconds: int) -> None:
        self.clock.advance(seconds * S)
        self.passed()

    def insert(self, rows: Any) -> None:
        first = self.next_id
        out = [self.floor(time) <= self.through(key) or self.is_ahead(time) for key, time, _ in rows]
        result = self.window.bulk_insert(self.batch(rows))
        assert result.late + result.ahead == sum(out)
        self.took([(*row[:2], ...) if dropped else row for row, dropped in zip(rows, out, strict=True)], first)

    def admit(self, rows: Any, limits: Any) -> Admission:
        first, refused = self.next_id, self.window.info().refused
        ahead = [self.is_ahead(time) for _, time, _ in rows]
        late = [self.floor(time) <= self.through(key) and not a for (key, time, _), a in zip(rows, ahead, strict=True)]
        decided = [row for row, *out in zip(rows, late, ahead, strict=True) if not any(out)]
        answers = OF_NULLABLE if self.spec.nullable else ANSWERS
        there = [(key, time, value) for key, time, value, _ in self.entries]
        wanted = iter(decide(there, decided, limits, PARTS, 80, answers, self.granule))
        got = self.window.admit(self.batch(rows), limits)
        for i, row in enumerate(rows):
            of_row = [(each.answers[i], each.remaining[i], each.holds[i]) for each in got.limits]
            if late[i] or ahead[i]:
                assert (got.admitted[i], got.retry_after[i], of_row) == (
                    False,
                    None,
                    [(None, None, False)] * len(limits),
                )
                continue
            decision = next(wanted)
            assert (got.admitted[i], got.retry_after[i], of_row) == (*decision[:2], decision.limits), (row, limits)
        assert (got.inserted, got.late, got.ahead) == (sum(got.admitted), sum(late), sum(ahead))
        assert got.refused == len(rows) - got.inserted - got.late - got.ahead
        assert self.window.info().refused == refused + got.refused
        self.took([row if went else (*row[:2], ...) for row, went in zip(rows, got.admitted, strict=True)], first)
        return got

    def evict(self, time: int, key: str) -> None:
        self.window.bulk_evict(time, key if self.spec.keyed else None)
        self.entries = [entry for entry in self.entries if entry[1] > time or (self.spec.keyed and entry[0] != key)]

    def change(self, step: str, picked: Any, values: Any) -> None:
        """Correct or retract entries that are there."""
        found = list({id(e): e for e in (self.entries[at % len(self.entries)] for at in picked)}.values())
        rows = [(key, time, value) for (key, time, *_), value in zip(found, values, strict=False)]
        ids = [entry[3] for entry in found]
        if step == "update":
            assert self.window.update(self.batch(rows, ids)).corrected == len(rows)
            for entry, (*_, value) in zip(found, rows, strict=True):
                entry[2] = value
            return
        names = {"id": np.array(ids, np.int64)}
        named = Batch(np.array([time for _, time, _ in rows]), names, Coded.of([key for key, *_ in rows]))
        assert self.window.retract(named).retracted == len(rows)
        self.entries = [entry for entry in self.entries if entry not in found]

    def check(self) -> None:
        self.window.slide()  # a question about a key makes that one slide, and not its groups
        self.window.check_invariants()
        for key in KEYS if self.spec.keyed else KEYS[:1]:
            (answer,) = self.window.past.query(Query(key if self.spec.keyed else None))
            mine = [value for name, _, value, _ in self.entries if name == key and value is not None]
            assert answer.entries == sum(name == key for name, *_ in self.entries)
            assert answer.aggregates["sum"] == (sum(mine) if mine or not self.spec.nullable else None)


value = st.integers(-3, 5)
rows = st.lists(st.tuples(st.sampled_from(KEYS), st.integers(START - 25, START + 12), value), min_size=1, max_size=16)
limit = st.builds(
    Limit,
    st.sampled_from(["n", "sum", "max", "min", "entries", "values"]),
    st.integers(1, 15),
    st.sampled_from(["<=", "<", ">=", ">", "<=", "<="]),
    st.integers(-4, 9) | st.floats(-4, 9).map(lambda x: round(x, 1)),
    st.sampled_from([None, ("tenant",), (), ("user",), ("user", "tenant")]),
)
limits = st.lists(limit, min_size=1, max_size=2)
steps = st.one_of(
    st.tuples(st.just("admit"), rows, limits),
    st.tuples(st.just("admit"), rows.map(lambda each: each[:1]), limits),
    st.tuples(st.just("admit"), rows.map(lambda each: sorted(each, key=lambda row: row[1])), limits),
    st.tuples(st.just("insert"), rows),
    st.tuples(st.just("evict"), st.integers(START - 25, START), st.sampled_from(KEYS)),
    st.tuples(st.just("tick"), st.integers(0, 9)),
    st.tuples(st.just("change"), st.sampled_from(["update", "retract"]), st.lists(st.integers(0, 99), max_size=4)),
)


@pytest.mark.parametrize("kind", KINDS)
@a_share_of_examples(2)
@given(st.lists(steps, min_size=1, max_size=8), st.booleans(), st.sampled_from([0, 8]), st.data())
def test_any_history_on_any_kind_of_window(kind, history, small, single, data):
    """So many rows of a write are decided one by one: none, or as it comes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(admitting, "_SINGLE", single)
        run(Lockstep(small, **KINDS[kind]), history, data)


def run(both, history, data):
    def fitting(some):
        """Of the keys that there are; some of the values are null, where they may be."""
        nulls = (-1, 3) if both.spec.nullable else ()
        keyed = both.spec.keyed
        return [(key if keyed else KEYS[0], time, None if value in nulls else value) for key, time, value in some]

    for step, *rest in history:
        if step == "admit":
            asked = [each for each in rest[1] if each.aggregate in (*both.spec.aggregates, "entries")]
            asked = asked if both.spec.keyed else [replace(each, by=None) for each in asked]
            both.admit(fitting(rest[0]), asked or [Limit("n", 10, "<=", 3)])
        elif step == "insert":
            both.insert(fitting(rest[0]))
        elif step in ("tick", "evict"):
            getattr(both, step)(*rest)
        elif both.spec.identity and both.entries and rest[1]:
            values = data.draw(st.lists(value, min_size=4, max_size=4))
            both.change(rest[0], rest[1], [value for *_, value in fitting([("", 0, each) for each in values])])
        both.check()


@pytest.mark.parametrize(
    ("kind", "before", "value", "limit"),
    [
        ("int64", [2**62] * 3, 2**62, 2**64),
        ("int64", [2**62] * 3, -(2**62), 2**70),
        ("int64", [-(2**63)] * 3, 2**63 - 1, -1),
        ("float64", [1e308], 1e308, 1.7e308),
        ("float64", [1e308] * 2, -1e308, float("inf")),
        ("float64", [float("nan")], 1.0, 5),
        ("float64", [float("inf")], -float("inf"), 5),
        ("float64", [-float("inf")], 1.0, 5),
    ],
)
def test_numbers_at_the_ends_are_decided_in_runs_as_one_by_one(monkeypatch, kind, before, value, limit):
    def decided(single):
        monkeypatch.setattr(admitting, "_SINGLE", single)
        w = Window(WindowSpec.parse(SPEC | {"fields": {"value": kind}, "keys": None}))
        w.bulk_insert(Batch.of(w.spec, [0] * len(before), {"value": before}))
        got = w.admit(Batch.of(w.spec, list(range(1, 13)), {"value": [value] * 12}), [Limit("sum", 6, "<=", limit)])
        return repr(got)

    assert decided(0) == decided(12)


@pytest.mark.parametrize("single", [0, 99])
def test_a_guard_that_rejects_and_orders_that_reject_refuse_the_whole_write(monkeypatch, single):
    """Also for a row that a limit would refuse alone."""
    monkeypatch.setattr(admitting, "_SINGLE", single)
    limits = [Limit("n", 10, "<=", 100), Limit("max", 10, "<=", 5)]
    for order, times, bound in (
        ({"ahead": "5s", "too_far_ahead": "reject"}, [1000, 1006], "time <= 1005"),
        ({"ahead": "5s", "too_far_ahead": "reject"}, [1006], "time <= 1005"),
        ({"late": "reject"}, [1000, 980], "time > 980"),
        ({"late": "reject"}, [980], "time > 980"),
        ({"out_of_order": "reject"}, [1000, 999], "time >= 1000"),
        ({"out_of_order": "reject"}, [999], "time >= 1000"),
    ):
        both = Lockstep(False, **AGED, order=order)
        both.insert([("a|x", 1000, 1)])
        rows = both.batch([("a|x", time, 1 if time == 1000 else 9) for time in times])
        assert refusal(both.window.admit, rows, limits, error=FailedPrecondition) == ("time", bound)
        assert (both.window.info().entries, both.window.refused) == (1, 0)
        both.check()
        assert both.admit([("a|x", 1000, 1)] * 10, limits).admitted == [True] * 10


@pytest.mark.parametrize("slide", [AGED, WALL])
def test_a_reservation_is_settled_and_what_was_too_much_is_free_at_once(slide):
    both = Lockstep(False, **IDENTITY, known="arrival", **slide)
    limits = [Limit("sum", 20, "<=", 10, ("tenant",))]
    assert both.admit([("a|x", 1000, 4), ("a|y", 1000, 4), ("a|x", 1001, 4)], limits).admitted == [True, True, False]
    both.change("update", [0], [1])
    assert both.admit([("a|x", 1001, 4), ("a|y", 1001, 4)], limits).admitted == [True, False]
    both.change("retract", [1], [0])
    both.tick(3)
    assert both.admit([("a|y", 1002, 5)], limits).admitted == [True]
    both.change("update", [0], [40])  # it cost more: later ones wait for it
    assert both.admit([("b|x", 1003, 5), ("a|y", 1003, 1)], limits).retry_after == [None, 17]
    both.check()


N = Limit("n", 10, "<=", 3)
ENTRIES = [some for n in range(4) for some in combinations_with_replacement(range(6), n)]
ONE_OF = 17 if THOROUGH else 37
ASKED = list(product(range(7), (1, 2, 3, 4), ("<=", "<", ">=", ">"), ("n", "entries", "sum", "max"), (-1, 0, 1, 2, 3)))


def test_all_short_histories_of_one_key():
    """All entries of up to three times, and for each of them a share of all rows and limits."""
    for at, times in enumerate(ENTRIES):
        both = Lockstep(at % 2 == 1)
        if times:
            both.insert([("a|x", time, value) for time, value in zip(times, (2, -1, 1), strict=False)])
        there = [tuple(entry[:3]) for entry in both.entries]
        for time, span, op, aggregate, value in ASKED[at % ONE_OF :: ONE_OF]:
            row, limits = ("a|x", time, 1), [Limit(aggregate, span, op, value)]
            (decision,) = decide(there, [row], limits, PARTS, 12)
            got, _ = finished(both.window.admitting.decide_steps(both.batch([row]), limits))
            of_row = [(each.answers[0], each.remaining[0], each.holds[0]) for each in got.limits]
            told = (got.admitted[0], got.retry_after[0], of_row)
            assert told == (*decision[:2], decision.limits), (times, row, limits)


def test_a_lookback_that_is_kept_and_limits_that_hold_again_at_other_times():
    both = Lockstep(True, **AGED)
    asked = both.batch([("a|x", 41, 1)]), [Limit("n", 21, "<=", 1)]
    assert refusal(both.window.admit, *asked) == ("limits.lookback", "slide.max_age 20s")
    both = Lockstep(True)
    both.insert([("a|x", time, value) for time, value in ((20, 5), (23, -4), (26, 3), (29, -4))])
    for value in range(-3, 6):
        both.admit([("a|x", 30, 1)], [Limit("sum", 10, ">=", value), Limit("n", 7, "<=", 1), Limit("sum", 5, "<=", 0)])


def test_rows_that_are_compared_in_too_many_lookbacks_are_refused():
    """A bulk of 4,000 rows that are older than 4,000 entries took minutes, in which nobody else could write."""
    both = Lockstep(False)
    both.insert([("a|x", time, 1) for time in range(1, 4001)])
    w, limits = both.window, [Limit("n", 10_000, "<=", 5_000)]
    told = refusal(w.admit, both.batch([("a|x", 0, 1)] * 66), limits, error=ResourceExhausted, match="send fewer")
    assert told == ("entries", "262144 lookbacks and keys")
    assert w.info().entries == 4000
    assert w.admit(both.batch([("a|x", 0, 1)] * 60), limits).admitted == [True] * 60
    w.bulk_insert(both.batch([(f"a|{user}", 9_000, 1) for user in range(5_000)]))
    asked = both.batch([("a|x", 9_000, 1)] * 60), [Limit("n", 10, "<=", 9_000, by=["tenant"])]
    refused(w.admit, *asked, error=ResourceExhausted, match="rollup")
    assert w.info().entries == 9_060


def test_rows_that_went_in_count_for_late_ones_and_behind_a_horizon():
    both = Lockstep(True, rollups=[["tenant"]], slide={"max_age": 30})
    both.insert([("a|x", 10, 1), ("a|y", 35, 1)])
    both.insert([("a|y", 55, 1)])  # the rollup has left 10 behind; the key has it still
    limits = [Limit("sum", 20, "<=", 7, ("tenant",)), Limit("entries", 20, "<=", 4, ("tenant",))]
    assert 0 < both.admit([("a|x", time, 2) for time in (12, 14, 16, 18, 20)], limits).refused < 5


@pytest.mark.parametrize("aggregate", ["n", "entries", "sum"])
def test_rows_that_went_in_count_in_many_later_lookbacks(aggregate):
    both = Lockstep(True)
    both.insert([("a|x", time, 1) for time in (20, 21, 22, 23, 24)])
    rows = [("a|x", time, 1) for time in (17, 18, 18, 19, 19)]
    assert both.admit(rows, [Limit(aggregate, 10, "<=", 7)]).refused == 3


@pytest.mark.parametrize(
    ("dictionary", "codes", "admitted"), [(KEYS, [2], [True]), (["a|x"] * 2, [0, 1] * 2, [True] * 3 + [False])]
)
def test_rows_of_any_dictionary(dictionary, codes, admitted, monkeypatch):
    """The only row may be of any key of it, and it may say a key twice."""
    monkeypatch.setattr(admitting, "_SINGLE", 0)
    columns = {"value": np.ones(len(codes), np.int64), "id": np.arange(len(codes))}
    batch = Batch(np.arange(len(codes)), columns, Coded(dictionary, np.array(codes, np.uint32)))
    admission, rows = finished(Lockstep(True).window.admitting.decide_steps(batch, [N]))
    assert admission.admitted == admitted
    assert rows.keys.decode().tolist() == [dictionary[code] for code in codes[:3]]


def test_a_run_ends_with_the_first_row_that_does_not_go_in_and_no_other_run_with_it():
    rows, scope = np.arange(7), np.array([2, 2, 2, 0, 0, 1, 1])
    found = Candidates(rows, rows, scope, np.array([3, 4]), np.array([2, 2]))
    goes = found.went([True, False, True, True, True, False, True])
    assert goes.tolist() == [True, False, False, True, True, False, False]


def test_times_that_are_as_far_apart_as_can_be():
    both = Lockstep(True)
    rows = [(key, time, 1) for time in (TICK_MIN + 1, TICK_MAX - 1) for key in KEYS[:2] for _ in range(5)]
    assert both.window.admit(both.batch(rows), [N]).admitted == [True, True, True, False, False] * 4


@pytest.mark.parametrize("single", [0, 99])
def test_runs_of_a_group_whose_rollup_begins_behind_what_its_keys_have(single, monkeypatch):
    """Evicting from one key empties the rollup up to there; the others still count."""
    both = Lockstep(True, rollups=[["tenant"]])
    both.insert([(key, time, 1) for key in KEYS[:2] for time in range(1, 11)])
    both.evict(5, KEYS[0])
    monkeypatch.setattr(admitting, "_SINGLE", single)
    got = both.admit([(KEYS[0], 11 + i // 4, 1) for i in range(12)], [Limit("n", 10, "<=", 18, ("tenant",))])
    #  (1, 11] has 5 + 9 entries, (2, 12] 5 + 8, (3, 13] 5 + 7, and the rows that went in
    assert got.limits[0].answers == [15, 16, 17] + [18] * 9
    assert [i for i, goes in enumerate(got.admitted) if goes] == [0, 1, 2, 3, 4, 8]


def test_thousands_of_rows_that_a_key_has_no_room_for_are_refused_one_by_one():
    both = Lockstep(False)
    got = both.window.admit(both.batch([("a|x", i, 1) for i in range(5_000)]), [Limit("n", 10_000, "<=", 60)])
    assert (got.inserted, got.refused) == (60, 4_940)
    assert got.retry_after[60:] == [9_940 - i for i in range(4_940)]


def test_rows_alike_wait_for_other_entries_once_some_more_went_in():
    both = Lockstep(True)
    both.insert([("a|x", 0, 4), ("a|x", 2, 4)])
    both.admit([("a|x", 3, 4), ("a|x", 4, 1), ("a|x", 5, 4)], [Limit("sum", 10, "<=", 9)])


def test_one_row_is_late_by_what_was_punctuated():
    both = Lockstep(True, slide={"max_age": 20, "until": "punctuation"})
    both.window.bulk_insert(both.batch([("a|x", 30, 1)]))
    both.window.punctuate(40)
    got = both.window.admit(both.batch([("a|x", 35, 1)]), [N])
    assert (got.admitted, got.late) == ([False], 1)
