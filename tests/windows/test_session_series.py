"""A series over sessions, against the fold over the runs of a list."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sash_engine.steps import finished
from sash_engine.windows.batches.batch import Batch
from sash_engine.windows.questions import ALL_KEYS, Grouped, SeriesQuery
from sash_engine.windows.reading import session_series
from sash_engine.windows.reading.costs import MAX_BUCKETS
from sash_engine.windows.window import Window
from tests.support.refused import refused
from tests.support.shelf import Shelf
from tests.support.twins import bulk, spec
from tests.support.windows import batch, keyed


def sessions(w, start, end, gap, **parts):
    return w.reader.series(SeriesQuery(start, end, "", key=parts.pop("key", "a"), gap=gap, **parts))


def runs(entries, start, end, gap):
    """The runs of the entries of a range that have no gap between them."""
    inside = [entry for entry in entries if start <= entry[0] < end]
    cuts = [0, *(i for i, (a, b) in enumerate(pairwise(inside), 1) if b[0] - a[0] > gap), len(inside)]
    return [inside[a:b] for a, b in pairwise(cuts) if a < b]


@given(
    st.lists(st.integers(0, 120), max_size=60),
    st.integers(-5, 120),
    st.integers(1, 130),
    st.integers(1, 12),
    st.sampled_from([1, 2, 8, 1024]),
    st.integers(1, 3),
)
def test_each_session_is_the_fold_over_its_run(times, start, width, gap, block, at_once):
    w = keyed(block)
    w.bulk_insert(batch([("a", time) for time in times], 0))
    held = sorted(((time, value) for value, time in enumerate(times)), key=lambda entry: entry[0])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session_series, "_SLICES", at_once)
        series = sessions(w, start, start + width, gap)
    expected = runs(held, start, start + width, gap)
    assert series.times.tolist() == [run[0][0] for run in expected]
    assert series.last.tolist() == [run[-1][0] for run in expected]
    assert series.entries.tolist() == list(map(len, expected))
    assert list(series.aggregates["all"]) == [[value for _, value in run] for run in expected]
    assert series.width == gap


def test_stored_blocks_are_read():
    shelf = Shelf(0)
    w = Window(spec("plain", keyed=False), block=4, cold=shelf.cold)
    w.bulk_insert(bulk([("a", time + 50 * (time // 30)) for time in range(90)], 0, keyed=False))
    shelf.store(w)
    series = sessions(w, 0, 1000, 5, key=None)
    assert (series.times.tolist(), series.last.tolist()) == ([0, 80, 160], [29, 109, 189])
    assert series.aggregates["sum"].tolist() == [435, 1335, 2235]


def test_a_key_that_is_not_there_has_no_sessions():
    series = sessions(keyed(), 0, 10, 5, key="nobody")
    assert (len(series.times), len(series.last), len(series.aggregates["n"])) == (0, 0, 0)


@pytest.mark.parametrize(
    ("parts", "field"),
    [
        ({"gap": 0}, "gap"),
        ({"gap": "soon"}, "gap"),
        ({"width": 5}, "width"),
        ({"key": None, "keys": ["a", "b"]}, "keys"),
        ({"key": None, "keys": ALL_KEYS}, "keys"),
        ({"partials": True}, "partials"),
        ({"start": 10}, "start"),
    ],
)
def test_what_does_not_go_with_sessions_is_refused(parts, field):
    question = {"start": 0, "end": 10, "step": "", "key": "a", "gap": 5}
    assert refused(keyed().reader.series, SeriesQuery(**question | parts)).field == field


def test_a_series_has_a_step_or_a_gap_and_sessions_no_groups():
    reader = keyed().reader
    for step, gap in (("", None), ("5", 5)):
        assert refused(reader.series, SeriesQuery(0, 10, step, key="a", gap=gap)).field == "step"
    steps = reader.series_groups(SeriesQuery(0, 10, "", gap=5, selection=Grouped(limit=3)))
    assert refused(finished, steps).field == "by"


def test_sessions_are_limited_as_buckets_are():
    w = keyed(1024, aggregates={"n": {"function": "count"}}, keyed=False)
    n = MAX_BUCKETS + 1
    w.bulk_insert(Batch(np.arange(n) * 10, {"value": np.zeros(n, np.int64)}))
    assert refused(sessions, w, 0, 10 * n, 5, key=None).limit == f"{MAX_BUCKETS} buckets"
    assert len(sessions(w, 0, 10 * n, 10, key=None).times) == 1
