"""The tables "At the papers' sizes" in bench/papers/README.md have the figures of the CSVs."""

import csv
import re

import pytest

from bench.papers import summary
from bench.papers.__main__ import PAPERS

PLACES = re.findall(r"\{\{(.*?)\}\}", (summary.FOLDER / "full.md").read_text(encoding="utf-8"))


def test_the_section_has_the_figures_of_the_csvs():
    readme = (summary.FOLDER / "README.md").read_text(encoding="utf-8")
    written = readme.partition(summary.BEGIN)[2].partition(summary.END)[0]
    assert written == summary.section(), "run `python -m bench.papers.summary`"
    assert "{{" not in written
    assert all(f"### {heading}" in written for heading in ("The Reactive", "DABA", "FiBA", "Bulk FiBA", "AMTA"))
    for plot in re.findall(r"\]\((results/[^)]*)\)", written):
        assert (summary.FOLDER / plot).is_file(), plot


@pytest.mark.parametrize("paper", PAPERS)
def test_every_experiment_was_measured_at_full_size_and_is_in_the_section(paper):
    with (summary.RESULTS / f"{paper}.csv").open(encoding="utf-8") as file:
        measured = {row["experiment"] for row in csv.DictReader(file)}
    with (summary.RESULTS.parent / f"{paper}.csv").open(encoding="utf-8") as file:
        assert measured == {row["experiment"] for row in csv.DictReader(file)}
    told = {place.split(";")[1].strip() for place in PLACES if re.match(rf"(. )?(.: )?{paper};", place)}
    assert measured <= told


@pytest.mark.parametrize(
    ("place", "shown"),
    [
        ("p; throughput; amta; 2^22; slides per second", "1,980,000"),
        ("k: p; throughput; amta; 2^22; slides per second", "1,980"),
        ("m: p; throughput; amta; 2^22; slides per second", "1.98"),
        ("p; latency; amta (4), one by one; 6; time [µs]", "0.792"),
        ("p; latency; amta (4), one by one; 6; time [µs] / p; throughput; amta; 64; slides per second", "0.396"),
        ("%: p; latency; amta (4), one by one; 6; time [µs] / p; throughput; amta; 64; slides per second", "39.6"),
    ],
)
def test_a_figure_is_looked_up_and_rounded(place, shown, tmp_path, monkeypatch):
    monkeypatch.setattr(summary, "FOLDER", tmp_path)
    monkeypatch.setattr(summary, "RESULTS", tmp_path)
    summary.figures.cache_clear()
    (tmp_path / "full.md").write_text(f"It is {{{{{place}}}}}.\n")
    (tmp_path / "p.csv").write_text(
        "experiment,series,parameter,x,measure,value,answers,digest\n"
        "throughput,amta,n,4194304,slides per second,1.9787e+06,9,00\n"
        "throughput,amta,n,64,slides per second,2,9,00\n"
        'latency,"amta (4), one by one",n,6,time [µs],0.792,9,00\n'
    )
    try:
        assert summary.section() == f"It is {shown}.\n"
    finally:
        summary.figures.cache_clear()
