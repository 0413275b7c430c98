"""A write that comes in parts leaves the same window as one bulk, and lets its rows go as it takes them in."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sash_engine.clock import ManualClock
from sash_engine.errors import SashError
from sash_engine.steps import finished
from sash_engine.windows.batches import stages
from sash_engine.windows.batches.batch import AnyBatch, Batch, Coded, PartialBatch
from sash_engine.windows.spec.window import WindowSpec
from sash_engine.windows.window import Window
from sash_engine.windows.writing import writer
from sash_engine.windows.writing.writer import Writer
from tests.support.refused import refused
from tests.support.shelf import Shelf
from tests.support.twins import SPECS, a_share_of_examples
from tests.support.windows import functions

SECOND = 10**9
KEYS = ["a", "b", "c", "d", "é"]
FIELDS = {"n": "int64", "word": "string"}
AGGREGATES = functions(all="collect n", words="collect word", sum="sum n", last="last word")
BOTH = ("plain", "max_age", "max_count", "both", "wall", "idle", "punctuation", "steps", "identity")
SLICED: dict[str, dict[str, Any]] = {
    **{name: SPECS[name] for name in BOTH},
    "when": {"slide": {"when": "total.sum - old.sum > 60"}},
    "rejecting guard": {"order": {"ahead": "10s", "too_far_ahead": "reject"}, "time_unit": "s"},
}
WHOLE: dict[str, dict[str, Any]] = {
    **{name: SPECS[name] for name in ("in order", "last", "guard", "panes", "sessions")},
    "adaptive": {"slide": {"adaptive": {"field": "n", "every": 1, "delta": 0.5, "range": 1}}},
    "rollups": {"keyed": False, "keys": ["key", "other"], "rollups": [["key"]]},
}
FEEDING: dict[str, Any] = {"aggregates": {"rows": {"function": "count"}}}
FED = FEEDING | {"from": {"window": "w", "granularity": 5}}

ROW = st.tuples(st.sampled_from(KEYS), st.integers(0, 40), st.sampled_from(["x", "y", "ü"]))
PART = st.lists(ROW, max_size=12)
WRITES = st.lists(st.lists(PART, min_size=1, max_size=5), min_size=1, max_size=4)


def spec(name: str, keyed: bool = True) -> WindowSpec:
    document = {"name": "w", "time_unit": "none", "keyed": keyed, "fields": FIELDS, "aggregates": AGGREGATES}
    document |= (SLICED | WHOLE)[name]
    return WindowSpec.parse(document)


def bulks(parts: list[list[tuple[str, int, str]]], value: int, shift: int, keyed: bool) -> list[AnyBatch]:
    """Parts with one dictionary for each column of strings, as the storage reads them."""
    found: list[AnyBatch] = []
    for rows in parts:
        times = np.array([time + shift for _, time, _ in rows], np.int64)
        numbers = np.arange(value, value + len(rows))
        value += len(rows)
        words, keys = ["y", "ü", "x"], ["zz", *KEYS]
        word = Coded(words, np.array([words.index(each) for *_, each in rows], np.uint8))
        key = Coded(keys, np.array([keys.index(each) for each, *_ in rows], np.uint16)) if keyed else None
        found.append(Batch(times, {"n": numbers, "word": word}, key))
    return found


def joined(parts: list[list[tuple[str, int, str]]], value: int, shift: int, keyed: bool) -> AnyBatch:
    (batch,) = bulks([[row for rows in parts for row in rows]], value, shift, keyed)
    return batch


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slices of some rows."""
    cut_small(monkeypatch, 5)


def cut_small(monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    monkeypatch.setattr(writer, "_SLICE_ROWS", rows)
    monkeypatch.setattr(writer, "_ROWS_OF_KEY", 1)
    monkeypatch.setattr(stages, "_STRIDE", 2)


def outcome(write: Callable[[], Any]) -> Any:
    try:
        return write()
    except SashError as error:
        return type(error), error.message, error.field


def seen(window: Window, keyed: bool) -> list[Any]:
    """What anybody can ask, and the marks that later writes go by."""
    keys = [key for key in KEYS if window.keys.find(key) is not None] if keyed else [None]
    marks = [(window.keys.find(key or ""), key) for key in keys]
    return [
        window.info(),
        sorted(window.keys.names()),
        [(key, window.keys.now_of[n], window.keys.late_through_of[n]) for n, key in marks if n is not None],
        [window.query(key, [], None) + window.query(key, [5, 11], None) for key in keys],
    ]


@pytest.mark.parametrize("keyed", [True, False])
@pytest.mark.parametrize("name", SLICED)
@a_share_of_examples(8)
@given(writes=WRITES, pages=st.sampled_from([(2, 4), (4, 64)]), waits=st.integers(0, 9))
def test_parts_leave_the_same_window_as_one_bulk(
    name: str, keyed: bool, writes: list[list[Any]], pages: tuple[int, int], waits: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        cut_small(patch, 5)
        clock = ManualClock(100 * SECOND)
        shelf = Shelf(0)
        whole = Window(spec(name, keyed), block=4, pages=pages, clock=clock)
        sliced = Window(spec(name, keyed), block=4, pages=pages, clock=clock, cold=shelf.cold)
        shift, value = {"wall": 100, "rejecting guard": 80}.get(name, 0), 0
        for parts in writes:
            one = outcome(lambda parts=parts, value=value: whole.bulk_insert(joined(parts, value, shift, keyed)))
            some = bulks(parts, value, shift, keyed)
            assert outcome(lambda some=some: finished(sliced.bulk_insert_stages_steps(some))) == one
            assert seen(sliced, keyed) == seen(whole, keyed)
            value += sum(map(len, parts))
            clock.advance(waits * SECOND)
            for window in (whole, sliced):
                window.tidy()
                if name == "punctuation":
                    window.punctuate(waits * 3)
            shelf.store(sliced)
        sliced.check_invariants()


def test_the_windows_above_are_written_in_slices(small: None, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = list[str]()
    inner = Writer._insert_slices

    def noted(writer: Any, *arguments: Any) -> Any:
        taken.append(name)
        return inner(writer, *arguments)

    monkeypatch.setattr(Writer, "_insert_slices", noted)
    for name in SLICED | {name: WHOLE[name] for name in WHOLE if name != "rollups"}:
        window = Window(spec(name), clock=ManualClock(100 * SECOND))
        parts: list[Any] = [[("a", 1, "x")] * 4, [("a", 2, "x")] * 4]
        outcome(lambda window=window, parts=parts: finished(window.bulk_insert_stages_steps(bulks(parts, 0, 90, True))))
    assert taken == list(SLICED)


def test_a_window_that_feeds_another_gets_parts_together(small: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Writer, "_insert_slices", None)
    window = Window(WindowSpec.parse({"name": "w", "time_unit": "none", "keyed": True, "fields": FIELDS} | FEEDING))
    window.derive(WindowSpec.parse({"name": "fed", "time_unit": "none", "keyed": True, "fields": FIELDS} | FED))
    parts: list[Any] = [[("a", 1, "x")] * 4, [("a", 2, "x")] * 4]
    finished(window.bulk_insert_stages_steps(bulks(parts, 0, 100, True)))
    (answer,) = window.query(key="a")
    assert answer.aggregates == {"rows": 8}


@pytest.mark.parametrize("name", [name for name in WHOLE if name != "rollups"])
@a_share_of_examples(8)
@given(writes=WRITES)
def test_windows_that_must_see_all_rows_get_them_together(name: str, writes: list[list[Any]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        cut_small(patch, 5)
        clock = ManualClock(100 * SECOND)
        windows = [Window(spec(name), block=4, pages=(2, 4), clock=clock) for _ in range(2)]
        value = 0
        for parts in writes:
            one = outcome(lambda parts=parts, value=value: windows[0].bulk_insert(joined(parts, value, 80, True)))
            some = bulks(parts, value, 80, True)
            assert outcome(lambda some=some: finished(windows[1].bulk_insert_stages_steps(some))) == one
            value += sum(map(len, parts))
        assert seen(windows[0], True) == seen(windows[1], True)


def test_a_key_that_outgrows_pages_in_its_first_slice_leaves_none(small: None) -> None:
    window = Window(spec("plain"), pages=(2, 4))
    finished(window.bulk_insert_stages_steps(bulks([[("a", 1, "x")] * 6, [("b", 9, "x")] * 5], 0, 0, True)))
    window.check_invariants()
    assert [window.query(key)[0].aggregates["all"] for key in "ab"] == [[*range(6)], [*range(6, 11)]]


def test_too_many_keys_are_refused_before_anything_changes(small: None) -> None:
    window = Window(spec("plain"), max_keys=3)
    window.bulk_insert(joined([[("a", 1, "x")]], 0, 0, True))
    before = seen(window, True)
    parts: list[Any] = [[("a", 2, "x"), ("b", 3, "x"), ("c", 4, "x")], [("d", 5, "x")] * 9]
    with pytest.raises(SashError) as caught:
        finished(window.bulk_insert_stages_steps(bulks(parts, 0, 0, True)))
    assert (caught.value.field, caught.value.limit) == ("key", "3 keys")
    assert seen(window, True) == before
    parts[1] = [("a", 5, "x")] * 9
    assert finished(window.bulk_insert_stages_steps(bulks(parts, 0, 0, True))).inserted == 12


def test_a_key_with_two_codes_is_refused_before_anything_changes(small: None) -> None:
    window = Window(spec("plain"))
    before = window.info()
    (part,) = bulks([[("a", time, "x") for time in range(20)]], 0, 0, True)
    codes = np.array([0] * 19 + [2])
    parts = [replace(part, keys=Coded(["a", "b", "a"], codes))]  # type: ignore[list-item]
    refused(finished, window.bulk_insert_stages_steps(parts), error=SashError, match="repeats a key")
    assert window.info() == before


@pytest.mark.parametrize("counts_first", [True, False])
def test_parts_of_partials_with_and_without_counts_are_one_write(counts_first: bool) -> None:
    aggregates = {"n": {"function": "count"}, "high": {"function": "max", "field": "n"}}
    document = {"name": "w", "time_unit": "none", "fields": FIELDS, "aggregates": aggregates, "granularity": 10}
    window, one = Window(WindowSpec.parse(document)), np.array([1])
    without: AnyBatch = PartialBatch(np.array([0]), {"high": (np.array([4]),)}, one)
    with_counts: AnyBatch = PartialBatch(np.array([10]), {"n": (one,), "high": (np.array([3]),)}, one)
    parts = [with_counts, without] if counts_first else [without, with_counts]
    assert finished(window.bulk_insert_stages_steps(parts)).inserted == 2
    assert window.query(None, [], None)[0].aggregates == {"n": 2, "high": 4}


def test_keys_that_only_late_rows_have_are_not_counted(small: None) -> None:
    window = Window(spec("punctuation"), max_keys=2)
    window.punctuate(10)
    parts: list[Any] = [[("a", 20, "x"), ("b", 3, "x"), ("c", 10, "x")], [("d", 21, "x")] * 9]
    result = finished(window.bulk_insert_stages_steps(bulks(parts, 0, 0, True)))
    assert (result.inserted, result.late, sorted(window.keys.names())) == (10, 2, ["a", "d"])


def test_slices_are_larger_where_keys_have_stores_of_their_own(small: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "_ROWS_OF_KEY", 10)
    slices = list[int]()
    inner = Writer._insert_slices

    def noted(writer: Any, parts: Any, rows: int) -> Any:
        slices.append(rows)
        return inner(writer, parts, rows)

    monkeypatch.setattr(Writer, "_insert_slices", noted)
    window = Window(spec("plain"), pages=(2, 4))

    def write(*keys: str) -> None:
        finished(window.bulk_insert_stages_steps(bulks([[(key, 1, "x") for key in keys]], 0, 0, True)))

    write(*"abcdab")  # small keys only
    write(*"abababababababababababab")  # a and b outgrow the pages
    write(*"abcdcdc")  # 20 rows and more would be one slice for both: there are fewer, so they are one bulk
    assert slices == [5, 20]


def test_parts_are_let_go_as_their_rows_are_taken_in(small: None) -> None:
    window, held = Window(spec("plain")), list[weakref.ref[Any]]()
    parts = bulks([[("a", 10 * i + j, "x") for j in range(8)] for i in range(20)], 0, 0, True)
    held += [weakref.ref(part.times) for part in parts]
    steps, left = window.bulk_insert_stages_steps(parts), set[int]()
    del parts
    for _ in steps:
        left.add(sum(each() is not None for each in held))
    assert len(left) > 10, "they do not go all at once"


@pytest.mark.parametrize("rows", [5, 10**6])
@pytest.mark.parametrize("nulls_first", [True, False])
def test_parts_with_and_without_nulls_are_one_write(
    monkeypatch: pytest.MonkeyPatch, nulls_first: bool, rows: int
) -> None:
    cut_small(monkeypatch, rows)
    aggregates = {"n": {"function": "count", "field": "n"}, "sum": {"function": "sum", "field": "n"}}
    document = {"name": "w", "time_unit": "none", "keyed": True, "fields": FIELDS, "aggregates": aggregates}
    window = Window(WindowSpec.parse(document | {"nullable": ["n"]}))
    parts = bulks([[("a", time, "x") for time in range(i, 40, 2)] for i in range(2)], 100, 0, True)
    mark = np.arange(20) % 4 > 0
    with_nulls = replace(parts[0], columns={**parts[0].columns, "n?": mark})  # type: ignore[union-attr]
    parts = [with_nulls, parts[1]] if nulls_first else [parts[1], with_nulls]
    assert finished(window.bulk_insert_stages_steps(parts)).inserted == 40
    (answer,) = window.query("a", [], None)
    values = [100 + i for i in range(20) if i % 4] + list(range(120, 140))
    assert (answer.entries, answer.aggregates["sum"]) == (40, sum(values))
    window.check_invariants()
