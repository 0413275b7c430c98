"""Every benchmark runs at smoke size, so that it never rots; what it measures here means nothing.

The longest, which start services, others' programs or processes of their own again and again, do so in `make soak`.
"""

import shutil
import subprocess
import sys

import pytest


def smoke(module, *arguments):
    """Run a benchmark at smoke size; return what it prints."""
    command = [sys.executable, "-m", module, "--smoke", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "module",
    [
        "bench.engine",
        "bench.changes",
        "bench.views",
        "bench.named_aggregates",
        pytest.param("bench.edges", marks=pytest.mark.soak),
        pytest.param("bench.keys", marks=pytest.mark.soak),
        pytest.param("bench.one_caller", marks=pytest.mark.soak),
        pytest.param("bench.load", marks=pytest.mark.soak),
        "bench.training",
        pytest.param("bench.spark_commit", marks=pytest.mark.soak),
        pytest.param("bench.ingest", marks=pytest.mark.soak),
    ],
)
def test_a_benchmark_runs(module):
    assert "digest" in smoke(module)


@pytest.mark.soak
@pytest.mark.parametrize("arguments", [(), ("--access",)])
def test_unary_calls_are_measured(arguments):
    """With whichever of its two clients is installed."""
    printed = smoke("bench.unary", *arguments)
    for client, edge in (("wrk", "Connect"), ("h2load", "gRPC")):
        assert (f"| {edge} | " in printed) == (shutil.which(client) is not None)


@pytest.mark.soak
def test_logged_answers_are_given_again():
    assert "are the same, bit for bit" in smoke("bench.known")


def test_storage_is_measured_on_both_tiers():
    printed = smoke("bench.storage")
    for tier in ("lmdb", "redis"):
        for figure in ("resident beyond empty", "cold range query", "bulk evict of", "bare commits", "recovery of"):
            assert any(line.startswith(tier) and figure in line for line in printed.splitlines()), (tier, figure)


@pytest.mark.soak
def test_features_of_transactions_are_those_of_the_fold():
    """With as many of the other systems as are installed."""
    printed = smoke("bench.fraud")
    rows = [line.split(" | ") for line in printed.splitlines() if line.startswith("| Sash")]
    assert len(rows) == 8
    assert {row[7] for row in rows} == {"all exact"}
    assert len({row[9] for row in rows}) == 1


@pytest.mark.soak
def test_decisions_are_exact_against_a_log():
    printed = smoke("bench.limits")
    rows = [line.split(" | ") for line in printed.splitlines() if line.startswith("| Sash")]
    assert [row[5] for row in rows] == ["100", "100"]
    assert rows[0][6] == "0"


@pytest.mark.soak
def test_what_others_wait_is_measured_under_each_pressure():
    from bench.overload import PRESSURES

    printed = smoke("bench.overload")
    lines = printed.splitlines()
    for name in ("idle", *PRESSURES):
        assert any(line.startswith(name) and "p99" in line for line in lines), name
    assert "alone" in lines[-1]


@pytest.mark.soak
def test_peers_are_measured_and_their_answers_are_checked():
    printed = smoke("bench.peers", "sash", "polars")
    assert "| | Sash | Polars |" in printed
    assert "| From a kill to the first right answer, s | " in printed
    assert printed.count("cannot (") == 2  # sketches of Sash's other window, and a restart of a data frame


@pytest.mark.spark
@pytest.mark.soak
def test_the_spark_benchmark_runs():
    """Every case runs, and its windows are those of the fold."""
    lines = [line.split() for line in smoke("bench.spark").splitlines() if line]
    right = {line[0] for line in lines if line[-2:] == ["139", "0"]}  # windows, and how many of them are wrong
    assert right == {"window", "aggregate", "stream", "sink"}
    sinks = {" ".join(line[:-3]) for line in lines if line[0] in ("cached:", "files:")}
    ways = ("noop", "noop behind Python", "nothing in Python", "sash")
    assert sinks == {f"{source}: {way}" for source in ("cached", "files") for way in ways}
    assert any(line[0] == "digest" for line in lines)
