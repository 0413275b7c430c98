"""A run of the papers' experiments that is cut short goes on where it was."""

import doctest
from pathlib import Path

import pytest

from bench.papers import progress
from bench.papers.__main__ import run
from bench.papers.common import Study


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
        run("p", "full", tmp_path)  # three passes of two
    assert ran == ["one", "two", "one"]
    assert not (tmp_path / "p.csv").exists()
    monkeypatch.setattr("bench.papers.__main__.PAPERS", {"p": experiments(again := [])})
    study = run("p", "full", tmp_path)
    assert again == ["two", "one", "two"]
    assert {row.experiment: row.value for row in study.rows} == {"one": 4.0, "two": 5.0}, "the best of all passes"
    assert [path.name for path in tmp_path.iterdir()] == ["p.csv"]


def test_it_may_end_after_fewer_passes(tmp_path, monkeypatch):
    monkeypatch.setattr("bench.papers.__main__.PAPERS", {"p": experiments(ran := [], cut_at=3)})
    with pytest.raises(Cut):
        run("p", "full", tmp_path)
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


def test_it_shows_how_far_it_is(tmp_path):
    study = Study("p", "laptop", Path(tmp_path))
    shown = [line for line, _ in progress.remaining(study, experiments([]))]
    assert [line.partition("] ")[2] for line in shown] == [
        "0 of 4 p, pass 1 of 2: one",
        "1 of 4 p, pass 1 of 2: two",
        "2 of 4 p, pass 2 of 2: one",
        "3 of 4 p, pass 2 of 2: two",
    ]
    assert doctest.testmod(progress).failed == 0
