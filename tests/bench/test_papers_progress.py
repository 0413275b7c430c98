"""A run of the papers' experiments that is cut short goes on where it was."""

import doctest
from pathlib import Path

import pytest

from bench.papers import progress
from bench.papers.__main__ import run
from bench.papers.common import AnswersDiffer, Study


class Cut(Exception):
    pass


def experiments(ran, cut_at=None):
    def experiment(name, value):
        def measure(study):
            if cut_at == len(ran):
                raise Cut
            ran.append(name)
            study.experiment(name, "n").add("a", 8, {"slides per second": value + len(ran)}, [1, 2])

        measure.__name__ = name
        return measure

    return [experiment("one", 1.0), experiment("two", 2.0)]


def test_it_goes_on_with_the_experiment_that_was_cut_short(tmp_path, monkeypatch):
    monkeypatch.setattr("bench.papers.__main__.PAPERS", {"p": experiments(ran := [], cut_at=3)})
    with pytest.raises(Cut):
        run("p", "full", tmp_path, passes=3)
    assert ran == ["one", "two", "one"]
    assert not (tmp_path / "p.csv").exists()
    monkeypatch.setattr("bench.papers.__main__.PAPERS", {"p": experiments(again := [])})
    study = run("p", "full", tmp_path, passes=3)
    assert again == ["two", "one", "two"]
    assert {row.experiment: row.value for row in study.rows} == {"one": 4.0, "two": 5.0}, "the best of all passes"
    assert [path.name for path in tmp_path.iterdir()] == ["p.csv"]


def test_it_may_end_after_fewer_passes(tmp_path, monkeypatch):
    monkeypatch.setattr("bench.papers.__main__.PAPERS", {"p": experiments(ran := [], cut_at=3)})
    with pytest.raises(Cut):
        run("p", "full", tmp_path, passes=3)
    study = run("p", "full", tmp_path, passes=1)
    assert ran == ["one", "two", "one"]
    assert {row.experiment: row.value for row in study.rows} == {"one": 4.0, "two": 4.0}
    assert [path.name for path in tmp_path.iterdir()] == ["p.csv"]


def test_a_run_of_another_size_begins_anew(tmp_path, monkeypatch):
    monkeypatch.setattr("bench.papers.__main__.PAPERS", {"p": experiments([], cut_at=1)})
    with pytest.raises(Cut):
        run("p", "full", tmp_path)
    monkeypatch.setattr("bench.papers.__main__.PAPERS", {"p": experiments(ran := [])})
    run("p", "smoke", tmp_path)
    assert ran == ["one", "two"]


def series(ran, answers, cut_at=None):
    """An experiment of three series, which measure the windows 8 and 16."""

    def measure(study):
        experiment = study.experiment("question", "n")
        for name in experiment.each(answers):
            if name == cut_at:
                raise Cut
            ran.append(name)
            for n in (8, 16):
                experiment.add(name, n, {"slides per second": float(n)}, [n + answer for answer in answers[name]])

    return [measure]


AGREED = {"a": range(2000), "b": range(1200), "c": range(1500)}


def test_it_goes_on_with_the_series_that_was_cut_short(tmp_path, monkeypatch):
    monkeypatch.setattr("bench.papers.__main__.PAPERS", {"p": series(ran := [], AGREED, cut_at="c")})
    with pytest.raises(Cut):
        run("p", "full", tmp_path)
    monkeypatch.setattr("bench.papers.__main__.PAPERS", {"p": series(again := [], AGREED)})
    study = run("p", "full", tmp_path)
    assert (ran, again) == (["a", "b"], ["c"])
    assert [(row.series, row.x, row.answers) for row in study.rows] == [
        (name, n, len(AGREED[name])) for name in AGREED for n in (8, 16)
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["p.csv"]


def test_its_answers_are_compared_with_those_of_the_earlier_run(tmp_path, monkeypatch):
    monkeypatch.setattr("bench.papers.__main__.PAPERS", {"p": series([], AGREED, cut_at="c")})
    with pytest.raises(Cut):
        run("p", "full", tmp_path)
    wrong = AGREED | {"c": [*range(999), 0]}
    monkeypatch.setattr("bench.papers.__main__.PAPERS", {"p": series([], wrong)})
    with pytest.raises(AnswersDiffer, match="answer 999 is 8 by c, but 1007 by a"):
        run("p", "full", tmp_path)


def test_a_second_pass_measures_every_series_again(tmp_path, monkeypatch):
    monkeypatch.setattr("bench.papers.__main__.PAPERS", {"p": series(ran := [], AGREED)})
    run("p", "laptop", tmp_path)
    assert ran == ["a", "b", "c"] * 2


def test_the_estimate_is_of_what_the_earlier_runs_took_as_well(tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(progress.time, "perf_counter", lambda: now[0])
    study = Study("p", "full", tmp_path)
    steps = progress.remaining(study, experiments([]))
    next(steps)
    now[0] += 600
    assert next(steps)[0].endswith("1 of 2, about 10 min left")
    later = Study("p", "full", tmp_path)
    now[0] += 5000  # between the runs
    steps = progress.remaining(later, experiments([]))
    assert next(steps)[0].endswith("1 of 2, about 10 min left")


def test_it_shows_how_far_it_is(tmp_path):
    study = Study("p", "laptop", Path(tmp_path))
    shown = [line for line, _ in progress.remaining(study, experiments([]))]
    estimate = ", about 0 min left"
    assert shown == [
        "p, pass 1 of 2: one [······························] 0 of 4",
        f"p, pass 1 of 2: two [#######·······················] 1 of 4{estimate}",
        f"p, pass 2 of 2: one [###############···············] 2 of 4{estimate}",
        f"p, pass 2 of 2: two [######################········] 3 of 4{estimate}",
    ]
    assert doctest.testmod(progress).failed == 0
