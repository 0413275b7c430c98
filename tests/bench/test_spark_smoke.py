"""The Spark benchmark at smoke size: every case runs and its windows are those of the fold."""

import subprocess
import sys

import pytest


@pytest.mark.spark
def test_the_spark_benchmark_runs():
    command = [sys.executable, "-m", "bench.spark", "--smoke"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = {line.split()[0]: line.split() for line in done.stdout.splitlines() if line}
    for case in ("window", "aggregate", "stream", "sink"):
        assert lines[case][-2:] == ["139", "0"]
    assert {"noop", "write", "digest"} <= set(lines)
