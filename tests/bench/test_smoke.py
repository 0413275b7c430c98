"""Every benchmark runs at smoke size, so that it never rots; what it measures here means nothing.

The longest, which start services, others' programs or processes of their own again and again, do so in `make soak`.
"""

import shutil
import subprocess
import sys

import pytest


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
    done = subprocess.run([sys.executable, "-m", module, "--smoke"], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert "digest" in done.stdout


@pytest.mark.soak
@pytest.mark.parametrize("arguments", [(), ("--access",)])
def test_unary_calls_are_measured(arguments):
    """With whichever of its two clients is installed."""
    command = [sys.executable, "-m", "bench.unary", "--smoke", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    for client, edge in (("wrk", "Connect"), ("h2load", "gRPC")):
        assert (f"| {edge} | " in done.stdout) == (shutil.which(client) is not None)


@pytest.mark.soak
def test_logged_answers_are_given_again():
    done = subprocess.run([sys.executable, "-m", "bench.known", "--smoke"], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert "are the same, bit for bit" in done.stdout


def test_storage_is_measured_on_both_tiers():
    command = [sys.executable, "-m", "bench.storage", "--smoke"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    for tier in ("lmdb", "redis"):
        for figure in ("resident beyond empty", "cold range query", "bulk evict of", "bare commits", "recovery of"):
            assert any(line.startswith(tier) and figure in line for line in done.stdout.splitlines()), (tier, figure)


@pytest.mark.soak
def test_features_of_transactions_are_those_of_the_fold():
    """With as many of the other systems as are installed."""
    command = [sys.executable, "-m", "bench.fraud", "--smoke"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    rows = [line.split(" | ") for line in done.stdout.splitlines() if line.startswith("| Sash")]
    assert len(rows) == 8
    assert {row[7] for row in rows} == {"all exact"}
    assert len({row[9] for row in rows}) == 1


@pytest.mark.soak
def test_decisions_are_exact_against_a_log():
    done = subprocess.run(
        [sys.executable, "-m", "bench.limits", "--smoke"], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    rows = [line.split(" | ") for line in done.stdout.splitlines() if line.startswith("| Sash")]
    assert [row[5] for row in rows] == ["100", "100"]
    assert rows[0][6] == "0"


@pytest.mark.soak
def test_what_others_wait_is_measured_under_each_pressure():
    from bench.overload import PRESSURES

    command = [sys.executable, "-m", "bench.overload", "--smoke"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    for name in ("idle", *PRESSURES):
        assert any(line.startswith(name) and "p99" in line for line in lines), name
    assert "alone" in lines[-1]


@pytest.mark.soak
def test_peers_are_measured_and_their_answers_are_checked():
    command = [sys.executable, "-m", "bench.peers", "--smoke", "sash", "polars"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert "| | Sash | Polars |" in done.stdout
    assert "| From a kill to the first right answer, s | " in done.stdout
    assert done.stdout.count("cannot (") == 2  # sketches of Sash's other window, and a restart of a data frame
