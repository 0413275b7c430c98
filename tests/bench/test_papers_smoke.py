"""Every experiment of `bench/papers` at its smallest: it runs, algorithms agree, and figures and plots are written."""

from __future__ import annotations

import csv
import gc
from collections import defaultdict
from functools import cache

import numpy as np
import pytest

from bench.papers import bulk_fiba
from bench.papers.__main__ import PAPERS, run
from bench.papers.common import AnswersDiffer, Experiment, Study, quantiles, values
from bench.papers.fiba import Late
from bench.papers.sliding import Kept, counting, fill, slide
from sash_engine.aggregators import ALGORITHMS, RecalcInOrder, TwoStacksLite, create
from sash_engine.aggregators.counting import Counting
from sash_engine.monoids import Collect, Sum

EXPERIMENTS = {
    "ra": {"throughput", "break-even", "coarse"},
    "daba": {"throughput", "latency", "dynamic"},
    "fiba": {"throughput", "latency", "in-order", "sharing"},
    "bulk_fiba": {"bulk-evict", "bulk-insert", "distance", "flights"},
    "amta": {"throughput", "latency", "bulk-evict", "policies", "memory", "dimensions"},
}
PLOTLESS = {"break-even"}


@pytest.fixture(autouse=True)
def _frozen():
    """What other tests have left is not looked at whenever an experiment clears up; nor later, as in `conftest.py`."""
    gc.freeze()
    yield
    gc.freeze()


@pytest.fixture(scope="module")
def studied(tmp_path_factory):
    """Runs the experiments of a paper, once; raises AnswersDiffer where two algorithms do not agree."""
    folder = tmp_path_factory.mktemp("papers")
    return cache(lambda paper: (run(paper, "smoke", folder), folder))


SHORT = ("amta", "bulk_fiba")
"""The others run in `make soak`. These have all that there is: plots, latencies, memory, a store, real flights."""


@pytest.mark.parametrize(
    "paper", [paper if paper in SHORT else pytest.param(paper, marks=pytest.mark.soak) for paper in PAPERS]
)
def test_experiments_run_and_algorithms_agree(paper, studied):
    study, folder = studied(paper)
    with (folder / f"{paper}.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert {row["experiment"] for row in rows} == EXPERIMENTS[paper]
    assert len(rows) == len(study.rows)
    series = defaultdict(set)
    for row in rows:
        assert float(row["value"]) >= 0
        assert int(row["answers"]) >= 1
        series[row["experiment"]].add(row["series"])
    assert all(len(names) > 1 for experiment, names in series.items() if experiment != "break-even")
    for experiment in EXPERIMENTS[paper] - PLOTLESS:
        plot = folder / f"{paper}-{experiment}.png"
        assert plot.read_bytes().startswith(b"\x89PNG")
        assert plot.stat().st_size < 80_000


def test_the_middle_of_the_window_is_in_the_store_and_not_in_memory(studied):
    study, _ = studied("amta")
    found = {(row.series, row.x, row.measure): row.value for row in study.rows}
    assert found["amta", 64, "partials in memory"] > 64
    assert found["kvs_amta", 64, "partials in memory"] < found["amta", 64, "partials in memory"]
    assert found["kvs_amta", 64, "chunks in the store"] > 0


def test_a_kept_window_slides_on_and_is_filled_anew_only_where_it_does_not_stand():
    made = []

    def make():
        made.append(RecalcInOrder(Sum("int64")))
        return made[-1]

    kept = Kept(make, 4, range(100))
    for start, slides, windows in [(0, 3, 1), (3, 2, 1), (10, 2, 2), (12, 0, 2)]:
        window = kept.at(start)
        assert (window.query(), len(made)) == (sum(range(start, start + 4)), windows)
        answers = slide(window, kept.newcomers(slides), start + 4)
        assert answers == [sum(range(at, at + 4)) for at in range(start + 1, start + slides + 1)]


def test_a_window_that_is_wanted_anew_is_never_kept():
    kept = Kept(lambda: TwoStacksLite(Sum("int64")), 4, range(100), anew=True)
    window = kept.at(0)
    slide(window, kept.newcomers(2), 4)
    assert kept.at(2) is not window
    assert kept.at(2).query() == sum(range(2, 6))


@pytest.mark.parametrize("name", ["btree", "fiba", "reactive", "amta", "kvs_amta", "two_stacks_lite", "flatfit"])
def test_combines_that_are_counted_for_a_while_are_those_of_a_window_that_counts_always(name):
    always = Counting(Sum("int64"))
    entries = values(96)
    for_a_while, counted = ALGORITHMS[name](Sum("int64")), ALGORITHMS[name](always)
    for window in (for_a_while, counted):
        fill(window, entries[:64])
    always.reset()
    with counting(for_a_while) as counter:
        assert slide(for_a_while, entries[64:], 64) == slide(counted, entries[64:], 64)
    assert counter.combines == always.combines > 0
    before = counter.combines
    for_a_while.evict()
    for_a_while.query()
    assert counter.combines == before


def test_entries_at_distance_d_come_right_before_the_newest_d():
    window = Late(create("recalc", Collect("int64")), 8)
    window.set_distance(2)
    first = window.slide([5001, 5002])[-1]
    window.set_distance(3)
    second = window.slide([5003])[-1]
    assert first[4:6] == [5001, 5002]
    assert second[-4] == 5003
    assert len(first) == len(second) == len(window.window) == 8


def test_batches_come_up_to_d_places_late_and_the_window_keeps_its_size():
    filled = bulk_fiba.Filled(lambda: bulk_fiba.Tuples("recalc"), 64)
    for m, d, rounds in [(4, 0, 5), (8, 16, 3), (1, 32, 7), (64, 0, 3)]:
        before = filled.times
        _, answers = filled.rounds(m, d, rounds)
        assert len(answers) == rounds
        assert len(filled.times) == 64
        assert answers[-1] == bulk_fiba.values_at(filled.times).sum()
        assert filled.times[-1] > before[-1]
        assert (np.diff(filled.times) > 0).all()
    arrivals = bulk_fiba.arrivals(1000, 16)
    assert sorted(arrivals) == list(range(1000))
    lateness = np.maximum.accumulate(arrivals) - arrivals
    assert 8 < lateness.max() <= 16


def experiment(tmp_path) -> Experiment:
    return Study("paper", "smoke", tmp_path).experiment("question", "x")


def test_a_wrong_answer_shows(tmp_path):
    asked = experiment(tmp_path)
    asked.add("amta", 8, {"slides per second": 1.0}, [3, 4, 5])
    with pytest.raises(AnswersDiffer, match=r"answer 1 is 7 by daba, but 4 by amta"):
        asked.add("daba", 8, {"slides per second": 1.0}, [3, 7])


def test_an_answer_beyond_the_first_series_is_compared_with_the_longer_one(tmp_path):
    asked = experiment(tmp_path)
    asked.add("recalc", 8, {"slides per second": 1.0}, [3])
    asked.add("amta", 8, {"slides per second": 1.0}, [3, 4, 5])
    with pytest.raises(AnswersDiffer, match=r"answer 2 is 6 by daba, but 5 by amta"):
        asked.add("daba", 8, {"slides per second": 1.0}, [3, 4, 6])


def test_no_answers_are_no_measurement(tmp_path):
    with pytest.raises(AnswersDiffer, match="no answers"):
        experiment(tmp_path).add("amta", 8, {"slides per second": 1.0}, [])


def test_other_cases_have_other_answers_and_floats_may_round(tmp_path):
    asked = experiment(tmp_path)
    asked.add("amta", 8, {"slides per second": 1.0}, [0.3])
    asked.add("daba", 8, {"slides per second": 1.0}, [0.1 + 0.2])
    asked.add("daba", 16, {"slides per second": 1.0}, [0.4])
    assert asked.lines("slides per second") == {"amta": ([8], [1.0]), "daba": ([8, 16], [1.0, 1.0])}


def test_quantiles_are_steps_that_occurred():
    found = quantiles(range(1, 1001))
    assert found == {"p50": 500, "p90": 900, "p99": 990, "p99.9": 999, "p99.99": 1000, "max": 1000}
    assert set(quantiles([7.0]).values()) == {7.0}
