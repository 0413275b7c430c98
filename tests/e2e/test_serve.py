"""`sash serve`: signals, settings and ports."""

import signal
import subprocess
import sys

import httpx
import pytest

from sash.settings import misspelt
from tests.support.servers import WAIT_S, json_head, service_process
from tests.support.tokens import bearer, write_tokens
from tests.support.waiting import wait_until


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_end_it_gracefully(number):
    """A request in progress is answered after the signal; then the process ends with status 0."""
    import socket

    with service_process(forked=number == signal.SIGINT) as running:
        http = running.http()
        http.post("/v1/windows", json={"name": "w", "aggregates": {"n": {"function": "count"}}}).raise_for_status()
        with socket.create_connection(("127.0.0.1", running.rest_port)) as holder:
            head = json_head("/v1/windows/w/insert", 23)
            holder.sendall(head + b'{"time": 1,')
            assert http.get("/healthz").status_code == 200
            running.process.send_signal(number)
            refused = False
            while not refused:
                try:
                    httpx.get(f"{running.rest_url}/healthz", trust_env=False, verify=False)
                except httpx.TransportError:
                    refused = True
            assert running.process.poll() is None
            holder.sendall(b' "value": 2}')
            assert b"200 OK" in holder.recv(65536)
        assert running.process.wait(WAIT_S) == 0
        assert "Traceback" not in running.process.stderr.read()


@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_clean_end_says_nothing_of_what_was_left(processes, tmp_path):
    """The module of the sketches lists each object that outlives it, in hundreds of lines."""
    sketches = {"d": {"function": "distinct_count"}, "q": {"function": "quantile", "q": 0.5}}
    with service_process("--processes", processes, forked=False, SASH_DATA=str(tmp_path)) as running:
        http = running.http()
        http.post("/v1/windows", json={"name": "w", "keyed": True, "aggregates": sketches}).raise_for_status()
        for key in "abcdef":
            http.post("/v1/windows/w/insert", json={"time": 1, "key": key, "value": 2}).raise_for_status()
        http.get("/v1/windows/w/query", params={"all_keys": True}).raise_for_status()
        running.process.send_signal(signal.SIGTERM)
        _, said = running.process.communicate(timeout=WAIT_S)
        assert running.process.returncode == 0
        assert "stopped" in said or processes == "2"
        assert "leaked" not in said


RECOVERING = """
import sys, threading
from sash.main import run
from sash.durability import tier_storage

def recover(*_):
    print("recovering", flush=True)
    threading.Event().wait()

tier_storage.recover = recover
sys.argv = ["sash", "serve", "--grpc-port", "0", "--rest-port", "0", "--data", sys.argv[1]]
run()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_recovery_ends_with_a_signal_and_leaves_the_data_to_the_next(number, tmp_path):
    command = [sys.executable, "-c", RECOVERING, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "recovering\n"
            process.send_signal(number)
            assert process.wait(WAIT_S) == 0
        finally:
            process.kill()
        assert "Traceback" not in process.stderr.read()
    with service_process("--data", str(tmp_path)) as running:
        assert running.http().get("/readyz").status_code == 200


def test_settings_come_from_the_environment():
    with service_process(SASH_MAX_BODY_BYTES="2048") as running:
        headers = {"content-type": "application/json"}
        response = running.http().post("/v1/windows", content=b" " * 4096, headers=headers)
        assert (response.status_code, response.json()["limit"]) == (413, "2048 bytes")


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"SASH_GRPC_PORT": "70000"}, "SASH_GRPC_PORT"),
        ({"SASH_MAX_BODY_BYTES": "lots"}, "SASH_MAX_BODY_BYTES"),
        ({"SASH_LOG_LEVEL": "loud"}, "SASH_LOG_LEVEL"),
        ({"SASH_HOST": "256.0.0.1", "SASH_INSECURE": "1"}, "cannot listen on 256.0.0.1"),
        ({"SASH_HOST": "0.0.0.0"}, "SASH_HOST=0.0.0.0 lets other machines call"),
        ({"SASH_PUBLIC": "metrics,all"}, "SASH_PUBLIC must be metrics, docs or both, separated by commas, not 'all'"),
        ({"SASH_TLS_CERT": "cert.pem"}, "SASH_TLS_KEY is missing"),
        ({"SASH_TOKENS": "/nowhere/tokens.yaml"}, "SASH_TOKENS: cannot read /nowhere/tokens.yaml"),
    ],
)
def test_bad_settings_are_one_line(sash, monkeypatch, environment, words):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    done = sash("serve", "--rest-port", "0", expect=1)
    assert words in done.err
    assert done.err.count("\n") == 1


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("SASH_CACHE_BYTE", "5", "SASH_CACHE_BYTE is no setting and is ignored; is SASH_CACHE_BYTES meant?"),
        (
            "SASH_SHUTDOWN_DELAY",
            "5",
            "SASH_SHUTDOWN_DELAY is no setting and is ignored; is SASH_SHUTDOWN_DELAY_S meant?",
        ),
        ("SASH_COLOUR", "red", "SASH_COLOUR is no setting and is ignored"),
        ("SASH_CACHE_BYTES", "5", None),
        ("SASH_TARGET", "10.0.0.1:7070", None),
        ("SASH_PORT", "tcp://10.0.0.1:7070", None),
        ("SASH_PORT_7070_TCP_ADDR", "10.0.0.1", None),
        ("SASH_SERVICE_HOST", "10.0.0.1", None),
        ("OTHER_CACHE_BYTE", "5", None),
    ],
)
def test_settings_that_are_misspelt_are_named(name, value, said):
    assert misspelt({name: value}) == ([said] if said else [])


def test_a_misspelt_setting_is_logged():
    with service_process(SASH_CACHE_BYTE="5", SASH_LOG_LEVEL="warning") as running:
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(WAIT_S) == 0
        assert "SASH_CACHE_BYTE is no setting" in running.process.stderr.read()


@pytest.mark.parametrize("processes", ["1", "2"])
def test_sighup_ends_nothing(processes, tmp_path):
    """It ended the service at once: whoever had a call in progress got no answer."""
    tokens = write_tokens(tmp_path / "tokens.yaml", {"root": {"role": "admin"}})
    data = str(tmp_path / "data")
    with service_process("--processes", processes, SASH_DATA=data, SASH_TOKENS=str(tokens)) as running:
        assert running.process is not None
        http = running.http()
        assert http.get("/v1/windows", headers=bearer("root")).status_code == 200
        write_tokens(tokens, {"other": {"role": "admin"}})
        running.process.send_signal(signal.SIGHUP)
        wait_until(lambda: http.get("/v1/windows", headers=bearer("other")).status_code == 200)
        running.process.send_signal(signal.SIGTERM)
        _, said = running.process.communicate(timeout=240)
        assert running.process.returncode == 0
        assert said.count("told to reload") == 1
