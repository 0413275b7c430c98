"""The Spark benchmark at smoke size: every case runs and its windows are those of the fold."""

import subprocess
import sys

import pytest


@pytest.mark.spark
@pytest.mark.soak
def test_the_spark_benchmark_runs():
    command = [sys.executable, "-m", "bench.spark", "--smoke"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line.split() for line in done.stdout.splitlines() if line]
    right = {line[0] for line in lines if line[-2:] == ["139", "0"]}  # windows, and how many of them are wrong
    assert right == {"window", "aggregate", "stream", "sink"}
    sinks = {" ".join(line[:-3]) for line in lines if line[0] in ("cached:", "files:")}
    ways = ("noop", "noop behind Python", "nothing in Python", "sash")
    assert sinks == {f"{source}: {way}" for source in ("cached", "files") for way in ways}
    assert any(line[0] == "digest" for line in lines)
