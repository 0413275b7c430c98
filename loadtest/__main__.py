"""Start a service, put load on it, stop both; the exit status is 1 if a call failed or was answered wrongly.

``python -m loadtest``                                 the scenario steady: 20 users, 30 seconds, all edges
``python -m loadtest --scenario keys --edge rest --workers 4 --report out.html``
``python -m loadtest --tokens --tls``                  with a token, over TLS
``SASH_TOKEN=… python -m loadtest --target sash.example:7070 --address https://sash.example:7071 --ca ca.pem``
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from loadtest.options import EDGES, SCENARIOS, VARIABLE, Options
from sash_client.local import local_service
from tests.support.ports import free_port

SECONDS = {"soak": 4 * 3600.0}
"""Seconds of a scenario, where it is not 30."""
SMOKE_S, SMOKE_USERS = {"spike": 3.0}, {"spike": 6}
"""At smoke size, where it is not 60 seconds at the latest and 3 users."""


def main(arguments: list[str] | None = None) -> int:
    """Run a load test; return locust's exit status."""
    given = _parser().parse_args(arguments)
    options = Options(
        scenario=given.scenario,
        edges=EDGES if given.edge == "all" else (given.edge,),
        users=given.users or (SMOKE_USERS.get(given.scenario, 3) if given.smoke else 20),
        seconds=given.seconds or (SMOKE_S if given.smoke else SECONDS).get(given.scenario, 60 if given.smoke else 30),
        tasks=given.tasks or (10 if given.smoke and given.scenario != "spike" else 0),
        things=given.things or (30 if given.smoke else 0),
    )
    if options.users < len(options.edges):
        raise SystemExit(f"--users: {options.users} users cannot use {len(options.edges)} edges")
    with ExitStack() as closing:
        if given.target and given.address:
            options = replace(
                options, target=given.target, address=given.address, token=os.environ.get("SASH_TOKEN"), ca=given.ca
            )
        elif given.target or given.address:
            raise SystemExit("--target and --address are given together")
        else:
            options = closing.enter_context(_service(options, given.tokens, given.tls))
        return _locust(options, given.workers, given.report)


def _parser() -> argparse.ArgumentParser:
    listed = "; ".join(f"{name}: {what}" for name, what in SCENARIOS.items())
    parser = argparse.ArgumentParser(prog="python -m loadtest", description=__doc__.splitlines()[0], epilog=listed)
    parser.add_argument("--scenario", choices=list(SCENARIOS), default="steady", help="what users do (steady)")
    parser.add_argument("--edge", choices=[*EDGES, "all"], default="all", help="how they call (all)")
    parser.add_argument("--users", type=int, help="users at a time (20)")
    parser.add_argument("--seconds", type=float, help="how long (30; soak: four hours)")
    parser.add_argument("--tasks", type=int, help="tasks after which each user stops (no bound)")
    parser.add_argument("--things", type=int, help="windows or keys of all users (10,000 windows; 100,000 keys)")
    parser.add_argument("--workers", type=int, default=0, help="locust's worker processes (0: one process for all)")
    parser.add_argument("--report", type=Path, help="where to write locust's HTML report")
    parser.add_argument("--smoke", action="store_true", help="smoke size: seconds")
    parser.add_argument("--tokens", action="store_true", help="the service asks for a token")
    parser.add_argument("--tls", action="store_true", help="the service speaks TLS only")
    parser.add_argument("--target", help="host and port of gRPC of a service that runs; its token is SASH_TOKEN")
    parser.add_argument("--address", help="URL of REST of that service")
    parser.add_argument("--ca", help="PEM file of the authority of its certificate")
    return parser


@contextmanager
def _service(options: Options, tokens: bool, tls: bool) -> Iterator[Options]:
    """Run a service in memory; yield the options with its addresses, a token and an authority."""
    environment, token, ca = {"SASH_MAX_WINDOWS": str(options.users * options.share + 10)}, None, None
    with tempfile.TemporaryDirectory() as scratch:
        if tokens:
            from tests.support.tokens import write_tokens

            token = "loadtest-token"
            tokens = write_tokens(Path(scratch, "tokens.yaml"), {"loadtest": {"role": "admin"}})
            environment["SASH_TOKENS"] = str(tokens)
        if tls:
            from tests.support.certificates import Authority

            authority, ca = Authority("loadtest"), str(Path(scratch, "ca.pem"))
            Path(ca).write_bytes(authority.pem)
            cert, key = authority.give(Path(scratch))
            environment |= {"SASH_TLS_CERT": str(cert), "SASH_TLS_KEY": str(key)}
        os.environ.update(environment)  # the service inherits them
        with local_service() as service:
            yield replace(options, target=service.target, address=service.address, token=token, ca=ca)


def _locust(options: Options, workers: int, report: Path | None) -> int:
    """Run locust in processes of its own, because it patches the standard library for its greenlets."""
    command = [sys.executable, "-m", "locust", "--locustfile", str(Path(__file__).with_name("users.py"))]
    first = str(options.phases[0][0])
    leading = ["--headless", "--only-summary", "--host", options.address, "--users", first, "--spawn-rate", first]
    leading += ["--html", str(report)] if report else []
    root = str(Path(__file__).parent.parent)
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path, VARIABLE: options.text()}
    with ExitStack() as closing:
        if workers:
            port = str(free_port())
            leading += ["--master", "--master-bind-host", "127.0.0.1", "--master-bind-port", port]
            leading += ["--expect-workers", str(workers)]
            for _ in range(workers):
                joining = ["--worker", "--master-host", "127.0.0.1", "--master-port", port, "--loglevel", "WARNING"]
                worker = subprocess.Popen([*command, *joining], env=environment)
                closing.callback(worker.wait)
                closing.callback(worker.terminate)
        return subprocess.run([*command, *leading], env=environment, timeout=options.seconds + 300).returncode


if __name__ == "__main__":
    sys.exit(main())
