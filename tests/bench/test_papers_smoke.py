"""Every experiment of `bench/papers` at its smallest: it runs, algorithms agree, and figures and plots are written."""

from __future__ import annotations

import csv
from collections import defaultdict

import pytest

from bench.papers import amta
from bench.papers.__main__ import PAPERS, run
from bench.papers.common import AnswersDiffer, Experiment, Study, quantiles

EXPERIMENTS = {
    "ra": {"throughput", "break-even", "coarse", "laws"},
    "daba": {"throughput", "latency", "dynamic"},
    "fiba": {"throughput", "latency", "in-order", "sharing"},
    "bulk_fiba": {"bulk-evict", "bulk-insert", "distance", "flights"},
    "amta": {"throughput", "latency", "bulk-evict", "policies", "memory", "dimensions"},
}
PLOTLESS = {"break-even", "laws"}


@pytest.mark.parametrize("paper", PAPERS)
def test_experiments_run_and_algorithms_agree(paper, tmp_path):
    study = run(paper, "smoke", tmp_path)  # raises AnswersDiffer where two algorithms do not agree

    with (tmp_path / f"{paper}.csv").open(encoding="utf-8") as file:
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
        plot = tmp_path / f"{paper}-{experiment}.png"
        assert plot.read_bytes().startswith(b"\x89PNG")
        assert plot.stat().st_size < 80_000


def test_the_middle_of_the_window_is_in_the_store_and_not_in_memory(tmp_path):
    study = Study("amta", "smoke", tmp_path)
    amta.memory(study)
    found = {(row.series, row.x, row.measure): row.value for row in study.rows}
    assert found["amta", 64, "partials in memory"] > 64
    assert found["kvs_amta", 64, "partials in memory"] < found["amta", 64, "partials in memory"]
    assert found["kvs_amta", 64, "chunks in the store"] > 0


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
