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


def written(window, values, bulk, key=None, asked=False):
    """Send the values in bulks of a size; of 1, entry by entry."""
    for a in range(0, len(values), bulk):
        times = range(a, min(a + bulk, len(values)))
        keys = None if key is None else [key(time) for time in times]
        if bulk == 1:
            window.insert(a, {"x": values[a].item()}, None if keys is None else keys[0])
        else:
            window.bulk_insert(Batch.of(window.spec, times, {"x": values[a : a + bulk]}, keys))
        if asked:
            window.reader.query(Query())
    return window


def of_a_view(values):
    window = window_of()
    aggregates = {"spread": {"function": "variance", "field": "x"}}
    document = {"name": "view", "of": "w", "slide": {"max_age": N}, "aggregates": aggregates}
    view = window.derive(completed(WindowSpec.parse(document), window.spec))
    written(window, values, 1)
    return spread_of(view)


def of_a_rollup(values):
    window = window_of(keys=["a", "b"], rollups=[["b"]])
    written(window, values, 1, lambda time: f"a{time % 50}|b")
    return spread_of(window, question_of(Query, by=["b"]))


WAYS = {
    "asked after each": (OPEN, lambda values: spread_of(written(window_of(), values, 1, asked=True))),
    "in one bulk": (OPEN, lambda values: spread_of(written(window_of(), values, N))),
    "one by one into a pane": (N, lambda values: spread_of(written(window_of(granularity=2 * N), values, 1))),
    "in bulks into panes": (N // 100 + 64, lambda values: spread_of(written(window_of(granularity=300), values, 100))),
    "of a view": (OPEN, of_a_view),
    "of a rollup": (OPEN, of_a_rollup),
    "of keys together": (64, lambda values: spread_of(written(window_of(keyed=True), values, N, str))),
    "of large keys together": (
        OPEN + N // 200,
        lambda values: spread_of(written(window_of(keyed=True), values, N, lambda time: str(time // 200))),
    ),
}


@pytest.mark.parametrize(
    ("order", "offset"), [("random", 1e6), ("rising", -1e9), ("falling", 1e12), ("random", 1e15), ("rising", 1e15)]
)
@pytest.mark.parametrize("way", WAYS)
def test_of_a_variance_far_from_zero_no_more_is_lost_than_is_said(way, order, offset):
    values = ORDERS[order](np.random.default_rng(7).normal(size=N)) + offset
    sets, spread = WAYS[way]
    variance, error = variance_and_error(values.tolist(), sets)
    assert spread(values) == pytest.approx(variance, abs=error)
