"""The load tests at smoke size: every scenario with its users' checks, and runs that have to fail."""

import subprocess
import sys
import threading

import numpy as np
import pytest

from loadtest.__main__ import main
from loadtest.model import KEPT, Key, Summary, Wrong, check_answer
from loadtest.options import EDGES, Options
from sash_client import Client, NotFound
from tests.support.certificates import Authority
from tests.support.servers import running_service
from tests.support.tokens import write_tokens
from tests.support.waiting import wait_until

OPERATIONS = {
    "steady": ["insert", "bulk-insert", "query", "range"],
    "spike": ["insert", "bulk-insert", "query", "range"],
    "windows": ["create", "insert", "query"],
    "keys": ["bulk-insert", "query"],
    "watchers": ["insert", "watch", "change"],
    "soak": ["insert", "bulk-insert", "query", "range"],
}


@pytest.fixture
def load(capfd):
    """Puts load on a service that runs; returns the exit status, and what all processes say."""

    def load(target, address, *arguments):
        status = main(["--smoke", "--target", target, "--address", address, *arguments])
        said = capfd.readouterr()
        return status, said.out + said.err

    return load


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    """A service that asks for a token, and speaks TLS only; where it is."""
    folder, authority = tmp_path_factory.mktemp("guarded"), Authority("loadtest")
    (ca := folder / "ca.pem").write_bytes(authority.pem)
    cert, key = authority.give(folder)
    tokens = write_tokens(folder / "tokens.yaml", {"loadtest": {"role": "admin"}})
    with running_service(tls_cert=cert, tls_key=key, tokens=tokens) as service:
        yield service.grpc_target, f"https://127.0.0.1:{service.rest_port}", "--ca", str(ca)


@pytest.mark.parametrize(
    "scenario",
    [pytest.param(each, marks=pytest.mark.soak) if each in ("spike", "soak") else each for each in OPERATIONS],
)
def test_a_scenario(load, service, guarded, scenario, tmp_path, monkeypatch):
    # The soak pauses between tasks. It and the spike do what `steady` does, with other users at other times.
    report = tmp_path / "report.html"
    more = ["--scenario", scenario, "--report", str(report)]
    if scenario == "keys":  # it starts a service of its own
        command = [sys.executable, "-m", "loadtest", "--smoke", "--tokens", "--tls", *more]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600)
        status, said = done.returncode, done.stdout + done.stderr
    elif scenario in ("steady", "watchers"):
        monkeypatch.setenv("SASH_TOKEN", "loadtest-token")
        status, said = load(*guarded, *more, *["--workers", "2"] * (scenario == "steady"))
    else:
        status, said = load(service.grpc_target, service.rest_url, *more, *["--tasks", "5"] * (scenario == "soak"))
    assert status == 0, said
    assert "as pushed" in said
    lines = [line.split()[:2] for line in said.splitlines()]
    for edge in EDGES:
        for operation in OPERATIONS[scenario]:
            assert [edge, operation] in lines, said
            assert operation in report.read_text()


def test_entries_of_others_fail_the_run(load):
    with running_service() as service, Client(service.grpc_target) as client:

        def is_in():
            try:
                client.window("loadtest").insert(1, 1e6, key="stranger")
            except NotFound:
                return False
            return True

        stranger = threading.Thread(target=wait_until, args=[is_in, 60])
        stranger.start()
        try:
            status, said = load(service.grpc_target, service.rest_url, "--edge", "connect")
        finally:
            stranger.join()
    assert status == 1, said
    assert "totals: {'n'" in said
    assert "'max': 1000000.0}, not" in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--users", "2"], "2 users cannot use 3 edges"),
        (["--target", "127.0.0.1:1"], "--target and --address are given together"),
    ],
)
def test_options_that_do_not_fit(arguments, said):
    with pytest.raises(SystemExit, match=said):
        main(["--smoke", *arguments])


def test_phases_of_a_spike():
    assert Options(scenario="spike", users=50, seconds=60).phases == [(5, 20), (50, 20), (5, 20)]
    assert Options(scenario="spike", users=20, seconds=6).phases == [(3, 2), (20, 2), (3, 2)]
    assert Options(users=50, seconds=60).phases == [(50, 60)]


def test_the_model_of_a_key():
    key, values = Key(), np.random.default_rng(7).normal(20, 5, 3 * KEPT + 500)
    for at in range(0, len(values), 700):
        key.push(values[at : at + 700])
    assert key.now == len(values)
    for start, end in [(1, key.now), (key.now - 10, key.now), (key.now - KEPT, key.now - KEPT + 1), (5, 4), (1, 50)]:
        kept = values[max(start, key.now - KEPT + 1) - 1 : end]
        answer = key.between(start, end).answer()
        assert answer["n"] == len(kept)
        if len(kept) > 1:
            assert answer["mean"] == pytest.approx(kept.mean())
            assert answer["deviation"] == pytest.approx(kept.std(ddof=1))
        if len(kept):
            assert answer["max"] == kept.max()
    assert key.latest(300).n == 300


def test_summaries_add_up():
    values = np.random.default_rng(8).normal(1e6, 1e-3, 1000)
    total = sum((Summary.of(part) for part in (values[:1], values[1:1], values[1:700], values[700:])), Summary())
    check_answer("all", total.answer(), Summary.of(values))
    check_answer("all", Summary.from_answer(total.answer()).answer(), Summary.of(values))


@pytest.mark.parametrize("name", ["n", "mean", "deviation", "max"])
@pytest.mark.parametrize("wrong", [None, 21])
def test_every_aggregate_is_compared(name, wrong):
    expected = Summary.of([1.0, 2.0, 4.0])
    check_answer("right", expected.answer(), expected)
    with pytest.raises(Wrong):
        check_answer("wrong", expected.answer() | {name: wrong}, expected)
