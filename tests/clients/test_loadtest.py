"""The load test at smoke size: users of both edges, every reply checked by them."""

import subprocess
import sys


def test_load_at_smoke_size():
    command = [sys.executable, "-m", "loadtest", "--smoke", "--tasks", "60"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    for edge in ("REST", "gRPC"):
        for operation in ("insert", "bulk-insert", "query", "range"):
            assert f"{edge} {operation}" in done.stdout + done.stderr
