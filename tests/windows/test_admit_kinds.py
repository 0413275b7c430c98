"""Writes that decide on every kind of window, against the plain model: panes, arrivals, nulls, wall time, guards."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sash_engine.clock import ManualClock
from sash_engine.errors import FailedPrecondition
from sash_engine.windows.answers import Admission
from sash_engine.windows.batches.batch import Batch, Coded
from sash_engine.windows.questions import Limit
from sash_engine.windows.spec.window import WindowSpec
from sash_engine.windows.window import Window
from sash_engine.windows.writing import admitting
from tests.support.admit_model import ANSWERS, OF_NULLABLE, decide
from tests.support.refused import refusal

PARTS = ("tenant", "user")
KEYS = ["a|x", "a|y", "b|x"]
START, AHEAD, AGE, S = 1000, 5, 20, 10**9
SPEC: dict[str, Any] = {
    "name": "w",
    "keys": list(PARTS),
    "time_unit": "s",
    "fields": {"value": "int64", "id": "int64"},
    "aggregates": {
        "n": {"function": "count"},
        "sum": {"function": "sum", "field": "value"},
        "max": {"function": "max", "field": "value"},
    },
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

    def floor(self, time: int) -> int:
        return time - time % self.granule

    def through(self, key: str) -> int:
        """Entries of a key of this time and older have left, and are late."""
        if self.spec.slide.max_age is None:
            return -1
        return (self.clock.now_ns() // S if self.spec.slide.clock == "wall" else self.newest.get(key, 0)) - AGE

    def is_ahead(self, time: int) -> bool:
        return self.spec.order.ahead is not None and self.floor(time) > self.clock.now_ns() // S + AHEAD

    def batch(self, rows: Any, ids: Any = None) -> Batch:
        first, self.next_id = self.next_id, self.next_id + len(rows)
        columns = {"value": [value for *_, value in rows], "id": ids or list(range(first, self.next_id))}
        return Batch.of(self.spec, [time for _, time, _ in rows], columns, [key for key, *_ in rows])

    def took(self, rows: Any, first: int) -> None:
        for at, (key, time, value) in enumerate(rows):
            if value is not ...:
                self.entries.append([key, self.floor(time), value, first + at])
                self.newest[key] = max(self.newest.get(key, 0), self.floor(time))
        self.passed()

    def passed(self) -> None:
        """What is too old leaves."""
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
        for key in KEYS:
            (answer,) = self.window.query(key)
            mine = [value for name, _, value, _ in self.entries if name == key and value is not None]
            assert answer.entries == sum(name == key for name, *_ in self.entries)
            assert answer.aggregates["sum"] == (sum(mine) if mine or not self.spec.nullable else None)


value = st.integers(-3, 5)
rows = st.lists(st.tuples(st.sampled_from(KEYS), st.integers(START - 25, START + 12), value), min_size=1, max_size=10)
limit = st.builds(
    Limit,
    st.sampled_from(["n", "sum", "max", "entries", "values"]),
    st.integers(1, 15),
    st.sampled_from(["<=", "<", ">=", ">", "<=", "<="]),
    st.integers(-4, 9),
    st.sampled_from([None, ("tenant",), (), ("user", "tenant")]),
)
limits = st.lists(limit, min_size=1, max_size=2)
steps = st.one_of(
    st.tuples(st.just("admit"), rows, limits),
    st.tuples(st.just("admit"), rows.map(lambda each: each[:1]), limits),
    st.tuples(st.just("insert"), rows),
    st.tuples(st.just("tick"), st.integers(0, 9)),
    st.tuples(st.just("change"), st.sampled_from(["update", "retract"]), st.lists(st.integers(0, 99), max_size=4)),
)


@pytest.mark.parametrize("kind", KINDS)
@given(st.lists(steps, min_size=1, max_size=8), st.booleans(), st.sampled_from([0, 8]), st.data())
def test_any_history_on_any_kind_of_window(kind, history, small, single, data):
    """So many rows of a write are decided one by one: none, or as it comes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(admitting, "_SINGLE", single)
        run(Lockstep(small, **KINDS[kind]), history, data)


def run(both, history, data):
    def nulls(some):
        """Some of the values are null, where they may be."""
        if not both.spec.nullable:
            return some
        return [(key, time, None if value in (-1, 3) else value) for key, time, value in some]

    for step, *rest in history:
        if step == "admit":
            asked = [each for each in rest[1] if each.aggregate in (*both.spec.aggregates, "entries")]
            both.admit(nulls(rest[0]), asked or [Limit("n", 10, "<=", 3)])
        elif step == "insert":
            both.insert(nulls(rest[0]))
        elif step == "tick":
            both.tick(*rest)
        elif both.spec.identity and both.entries and rest[1]:
            values = data.draw(st.lists(value, min_size=4, max_size=4))
            both.change(rest[0], rest[1], [value for *_, value in nulls([("", 0, each) for each in values])])
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
    monkeypatch.setattr(admitting, "_SINGLE", single)
    limits = [Limit("n", 10, "<=", 100)]
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
        assert refusal(
            both.window.admit, both.batch([("a|x", time, 1) for time in times]), limits, error=FailedPrecondition
        ) == ("time", bound)
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
