"""Variances of values that are far from zero and close to each other are as right as the page of aggregates says.

k sets that are joined one after the other:   e = k 2^-53 |mean| / deviation,   error <= 3 e + e^2
"""

import numpy as np
import pytest

from sash_engine.windows.batches.batch import Batch
from sash_engine.windows.questions import ALL_KEYS, Query
from sash_engine.windows.spec.derived import completed
from sash_engine.windows.spec.window import WindowSpec
from sash_engine.windows.window import Window
from tests.support.asking import question_of
from tests.support.far_from_zero import variance_and_error

N = 2000
OPEN = 1024 + 64
"""Of a window of entries: those of the open block, one by one, and some dozens of sealed ones."""
ORDERS = {"random": lambda values: values, "rising": np.sort, "falling": lambda values: np.sort(values)[::-1]}
TOGETHER = Query(keys=ALL_KEYS, combine=True)


def window_of(**more):
    aggregates = {"spread": {"function": "variance", "field": "x"}}
    return Window(
        WindowSpec.parse(
            {"name": "w", "time_unit": "none", "fields": {"x": "float64"}, "aggregates": aggregates, **more}
        )
    )


def spread_of(window, question=None):
    """Of all entries."""
    (answer,) = window.reader.query(question or (TOGETHER if window.spec.keyed else Query()))
    return answer.aggregates["spread"]


def one_by_one(window, values, key=lambda _: None, asked=False):
    for time, value in enumerate(values.tolist()):
        window.insert(time, {"x": value}, key(time))
        if asked:
            window.reader.query(Query())


def in_bulks(window, values, size, key=None):
    for a in range(0, len(values), size):
        times = range(a, min(a + size, len(values)))
        keys = None if key is None else [key(time) for time in times]
        window.bulk_insert(Batch.of(window.spec, times, {"x": values[a : a + size]}, keys))


def asked_after_each(values):
    window = window_of()
    one_by_one(window, values, asked=True)
    return spread_of(window)


def in_one_bulk(values):
    window = window_of()
    in_bulks(window, values, N)
    return spread_of(window)


def one_by_one_into_a_pane(values):
    window = window_of(granularity=str(2 * N))
    one_by_one(window, values)
    return spread_of(window)


def in_bulks_into_panes(values):
    window = window_of(granularity="300")
    in_bulks(window, values, 100)
    return spread_of(window)


def of_a_view(values):
    window = window_of()
    aggregates = {"spread": {"function": "variance", "field": "x"}}
    document = {"name": "view", "of": "w", "slide": {"max_age": N}, "aggregates": aggregates}
    view = window.derive(completed(WindowSpec.parse(document), window.spec))
    one_by_one(window, values)
    return spread_of(view)


def of_a_rollup(values):
    window = window_of(keys=["a", "b"], rollups=[["b"]])
    one_by_one(window, values, key=lambda time: f"a{time % 50}|b")
    return spread_of(window, question_of(Query, by=["b"]))


def of_keys_together(values):
    window = window_of(keyed=True)
    in_bulks(window, values, N, key=str)
    return spread_of(window)


def of_large_keys_together(values):
    window = window_of(keyed=True)
    in_bulks(window, values, N, key=lambda time: str(time // 200))
    return spread_of(window)


WAYS = {
    asked_after_each: OPEN,
    in_one_bulk: OPEN,
    one_by_one_into_a_pane: N,
    in_bulks_into_panes: N // 100 + 64,
    of_a_view: OPEN,
    of_a_rollup: OPEN,
    of_keys_together: 64,
    of_large_keys_together: OPEN + N // 200,
}


@pytest.mark.parametrize("offset", [1e6, -1e9, 1e12, 1e15])
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("way", WAYS)
def test_of_a_variance_far_from_zero_no_more_is_lost_than_is_said(way, order, offset):
    values = ORDERS[order](np.random.default_rng(7).normal(size=N)) + offset
    variance, error = variance_and_error(values.tolist(), WAYS[way])
    assert way(values) == pytest.approx(variance, abs=error)
