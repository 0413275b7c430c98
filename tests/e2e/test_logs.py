"""The log of a service: lines for people, or a JSON object a line; both with the id of the request."""

import fcntl
import json
import logging
import signal
import socket
import subprocess
import sys

import pytest

from sash.access.audit import Audit
from sash.context import CALL, CallContext
from sash.runtime.logs import JsonLines, PlainLines
from sash_engine.clock import ManualClock
from tests.support import http2
from tests.support.certificates import Authority
from tests.support.servers import WAIT_S, service_process
from tests.support.tokens import bearer, write_tokens


@pytest.fixture
def record():
    """Makes a record of the log, with an exception where asked for."""

    def record(message="it is so", fails=False, **more):
        made = logging.LogRecord("sash.x", logging.WARNING, __file__, 1, message, (), None)
        if fails:
            try:
                raise ValueError("line 1\nline 2")
            except ValueError:
                made.exc_info = sys.exc_info()
        made.__dict__.update(more)
        return made

    return record


@pytest.fixture
def request_():
    """Serves a request with the id `r-1` while the test runs."""
    token = CALL.set(CallContext(lambda: [("x-request-id", "r-1")]))
    yield
    CALL.reset(token)


def test_json(record, request_):
    line = JsonLines().format(record('say "hello"\nto ä', fails=True))
    assert "\n" not in line
    said = json.loads(line)
    assert said.pop("exception").endswith("ValueError: line 1\nline 2")
    assert said.pop("time").endswith("Z")
    assert said == {
        "level": "warning",
        "logger": "sash.x",
        "message": 'say "hello"\nto ä',
        "request_id": "r-1",
    }


def test_json_without_a_request(record):
    assert set(json.loads(JsonLines().format(record()))) == {"time", "level", "logger", "message"}


def test_text(record, request_):
    first, *_, last = PlainLines().format(record(fails=True)).splitlines()
    assert first.endswith("WARNING sash.x: it is so request_id=r-1")
    assert last == "line 2"


def test_text_without_a_request(record):
    assert PlainLines().format(record()).endswith("WARNING sash.x: it is so")


def test_members_of_the_audit_log(caplog, request_):
    caplog.set_level(logging.INFO, "sash.audit")
    Audit(ManualClock()).note("create", 'w" who=root', "ok")
    (found,) = caplog.records
    said = json.loads(JsonLines().format(found))
    named = {name: said[name] for name in ("who", "operation", "window", "from", "outcome", "request_id")}
    assert named == {
        "who": "-",
        "operation": "create",
        "window": 'w" who=root',
        "from": "-",
        "outcome": "ok",
        "request_id": "r-1",
    }
    assert PlainLines().format(found).count("request_id=") == 1


@pytest.mark.parametrize("form", ["json", "text"])
def test_a_service_writes_it(tmp_path, form):
    tokens = write_tokens(tmp_path / "tokens.yaml", {"root": {"role": "admin"}})
    with service_process(SASH_TOKENS=str(tokens), SASH_LOG_FORMAT=form) as service:
        service.http().get("/v1/windows", headers={"x-request-id": "r-2"})
        service.http().delete("/v1/windows/missing", headers={"x-request-id": "r-3", **bearer("root")})
        service.process.send_signal(signal.SIGTERM)
        lines = service.process.communicate(timeout=WAIT_S)[1].splitlines()
    if form == "json":
        said = [json.loads(line) for line in lines]
        audit = [(each["outcome"], each["request_id"]) for each in said if each["logger"] == "sash.audit"]
        assert audit == [("UNAUTHENTICATED", "r-2"), ("NOT_FOUND", "r-3")]
        assert said[-1]["message"] == "stopped"
    else:
        audit = [line for line in lines if "sash.audit" in line]
        assert audit[0].endswith("outcome=UNAUTHENTICATED request_id=r-2")
        assert audit[1].endswith("outcome=NOT_FOUND request_id=r-3")
        assert lines[-1].endswith("INFO sash: stopped")


def test_a_log_that_nobody_reads_stops_nothing(tmp_path):
    """What is lost is counted, and what is read are whole lines."""
    tokens, calls = write_tokens(tmp_path / "tokens.yaml", {"root": {"role": "admin"}}), 60
    with service_process(SASH_TOKENS=str(tokens), SASH_LOG_FORMAT="json") as service:
        http = service.http()
        fcntl.fcntl(service.process.stderr, fcntl.F_SETPIPE_SZ, 4096)
        for _ in range(calls):
            assert http.get("/v1/windows", headers={"x-request-id": "r" * 64}).status_code == 401
        read = [service.process.stderr.readline()]
        assert http.get("/v1/windows", headers={"x-request-id": "last"}).status_code == 401
        service.process.send_signal(signal.SIGTERM)
        said = [json.loads(line) for line in (*read, *service.process.stderr)]
    lost = [int(each["message"].partition(" ")[0]) for each in said if each["logger"] == "sash.runtime.logs"]
    kept = [each for each in said if each["logger"] != "sash.runtime.logs"]
    assert sum(lost) > 10
    assert len(kept) + sum(lost) == calls + 1 + len(("shutting down", "stopped"))
    assert kept[-1]["message"] == "stopped"


def test_a_log_whose_reader_has_gone_stops_nothing(tmp_path):
    tokens = write_tokens(tmp_path / "tokens.yaml", {"root": {"role": "admin"}})
    with service_process(SASH_TOKENS=str(tokens)) as service:
        service.process.stderr.close()
        service.process.stderr = None
        for _ in range(3):
            assert service.http().get("/v1/windows").status_code == 401


def test_callers_of_grpc_that_go_away_or_speak_no_tls_write_no_lines(tmp_path):
    certificate, key = Authority("grpc").give(tmp_path)
    with service_process(SASH_TLS_CERT=str(certificate), SASH_TLS_KEY=str(key)) as service:
        for _ in range(5):
            with socket.create_connection(("127.0.0.1", service.grpc_port), WAIT_S) as caller:
                caller.sendall(http2.PREFACE)
                caller.recv(1)
        service.process.send_signal(signal.SIGTERM)
        lines = service.process.communicate(timeout=WAIT_S)[1].splitlines()
    assert [line.partition(" INFO ")[2] for line in lines] == ["sash: shutting down", "sash: stopped"]
    program = """
import logging
from grpc._cython.cygrpc import ExecuteBatchError
from sash.runtime.logs import begin
begin("info", "text")
for error in (ExecuteBatchError("gone"), ValueError("ours")):
    try:
        raise error
    except Exception:
        logging.getLogger("grpc._cython.cygrpc").exception("failed")
logging.getLogger("grpc._cython.cygrpc").error("told")
"""
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stderr
    assert "gone" not in said
    assert said.count("failed") == said.count("ValueError: ours") == said.count("told") == 1
