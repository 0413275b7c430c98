"""Staged parts, joined as they are read: the same rows as all parts one after the other, and one part in memory."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sash_engine.clock import ManualClock
from sash_engine.errors import FailedPrecondition
from sash_engine.windows.batches.batch import AnyBatch, Batch, Coded, PartialBatch
from sash_engine.windows.batches.rows import ROWS
from sash_engine.windows.batches.stages import joined
from sash_engine.windows.spec.window import WindowSpec
from sash_engine.windows.window import Window

ROW = st.tuples(st.integers(-5, 5), st.floats(-9, 9), st.sampled_from("abcd"), st.sampled_from(["", "é", "x|y"]))
PARTS = st.lists(st.lists(ROW, max_size=5), max_size=5)


def values(rows: list[tuple[int, float, str, str]], keyed: bool) -> Batch:
    times, numbers, texts, keys = ([row[i] for row in rows] for i in range(4))
    columns = {"value": np.array(numbers, np.float64), "text": Coded.of(texts)}
    return Batch(np.array(times, np.int64), columns, Coded.of(keys) if keyed else None)


def partials(rows: list[tuple[int, float, str, str]], keyed: bool) -> PartialBatch:
    times, numbers, _, keys = ([row[i] for row in rows] for i in range(4))
    sums, wide = np.array(numbers, np.float64), np.array([repr(each).encode() for each in numbers], object)
    return PartialBatch(
        np.array(times, np.int64),
        {"sum": (sums, sums + 1), "sketch": (wide,)},
        np.arange(1, len(rows) + 1),
        Coded.of(keys) if keyed else None,
    )


def plain(batch: AnyBatch | None) -> list[tuple[object, ...]]:
    """The rows of a batch."""
    if batch is None:
        return []
    columns = [batch.times]
    if isinstance(batch, Batch):
        columns += [each.decode() if isinstance(each, Coded) else each for each in batch.columns.values()]
    else:
        columns += [batch.entries, *(part for parts in batch.partials.values() for part in parts)]
    columns += [] if batch.keys is None else [batch.keys.decode()]
    return list(zip(*(column.tolist() for column in columns), strict=True))


@given(parts=PARTS, keyed=st.booleans(), of_partials=st.booleans(), more=st.integers(0, 3))
def test_joined_parts_have_all_rows_in_order(
    parts: list[list[tuple[int, float, str, str]]], keyed: bool, of_partials: bool, more: int
) -> None:
    batches: list[AnyBatch] = [(partials if of_partials else values)(rows, keyed) for rows in parts]
    whole = joined(iter(batches), sum(map(len, parts)) + more)
    assert plain(whole) == [row for batch in batches for row in plain(batch)]
    assert (whole is None) == (not parts)


def test_parts_with_values_and_with_partials_are_refused() -> None:
    row = (1, 2.0, "a", "b")
    with pytest.raises(FailedPrecondition) as caught:
        joined([values([row], False), partials([row], False)], 2)
    assert caught.value.field == "stages"


def test_each_part_is_let_go_before_the_next_is_read() -> None:
    seen = list[weakref.ref[Any]]()

    def parts() -> Iterator[AnyBatch]:
        for _ in range(5):
            times = np.arange(10)
            seen.append(weakref.ref(times))
            yield Batch(times, {"value": times / 2})
            del times
            # The caller still holds the part that it has just copied, and none before it.
            assert not any(each() is not None for each in seen[:-1])

    assert len(plain(joined(parts(), 50))) == 50


@pytest.mark.parametrize("keyed", [True, False])
def test_rows_are_let_go_while_a_write_sorts_them(keyed: bool) -> None:
    """A caller that hands its columns over has them in memory once when the store takes them, not twice."""
    spec = {"name": "w", "keyed": keyed, "aggregates": {"sum": {"function": "sum"}}, "order": {"equal_times": "last"}}
    window = Window(WindowSpec.parse(spec), ManualClock())
    rng, n = np.random.default_rng(3), ROWS + 1
    times = rng.permutation(n)
    keys = Coded(["a", "b"], rng.integers(0, 2, n).astype(np.uint32)) if keyed else None
    unsorted = weakref.ref(times)
    steps = window.bulk_insert_steps(Batch(times, {"value": times / 2}, keys))
    del times, keys
    while unsorted() is not None:
        next(steps)  # StopIteration would fail the test: the write ends, and the columns were there until then
