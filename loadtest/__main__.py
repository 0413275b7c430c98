"""Start a service, put load on it, stop both; the exit status is 1 if a call failed or was answered wrongly.

``python -m loadtest``            20 users, 30 seconds
``python -m loadtest --smoke``     4 users, at most 100 tasks each and 20 seconds: for tests
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

from sash_client.local import local_service


def main(arguments: list[str] | None = None) -> int:
    """Run a load test; return locust's exit status."""
    parser = argparse.ArgumentParser(prog="python -m loadtest", description=__doc__.splitlines()[0])
    parser.add_argument("--smoke", action="store_true", help="smoke size: seconds")
    parser.add_argument("--users", type=int, help="users at a time, half on each edge (20; smoke: 4)")
    parser.add_argument("--seconds", type=int, help="when to stop at the latest (30; smoke: 20)")
    parser.add_argument("--tasks", type=int, help="tasks after which each user stops (no bound; smoke: 100)")
    options = parser.parse_args(arguments)
    users = options.users or (4 if options.smoke else 20)
    seconds = options.seconds or (20 if options.smoke else 30)
    tasks = options.tasks or (100 if options.smoke else 0)
    with local_service() as service:
        # A process of its own, because locust patches the standard library for its greenlets.
        command = [sys.executable, "-m", "locust", "--locustfile", str(Path(__file__).with_name("users.py"))]
        command += ["--headless", "--only-summary", "--host", service.address]
        command += ["--users", str(users), "--spawn-rate", str(users), "--run-time", f"{seconds}s"]
        environment = {"LOADTEST_GRPC": service.target, "LOADTEST_TASKS_MAX": str(tasks)}
        return subprocess.run(command, env={**os.environ, **environment}, timeout=seconds + 60).returncode


if __name__ == "__main__":
    sys.exit(main())
