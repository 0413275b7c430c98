"""The audit log: a line for each call that matters, and none that a caller can forge."""

import logging
import shlex

import grpc
import pytest

from sash.access.audit import Audit
from sash.access.caller import Caller
from sash.access.rights import Right
from sash.context import CALL, CallContext, serving
from sash.rpc.access import note_peer
from sash_engine.clock import ManualClock
from sash_proto.v1 import windows_pb2 as pb
from tests.security.conftest import SPEC
from tests.support.servers import running_service
from tests.support.tokens import bearer


@pytest.fixture(autouse=True)
def request_():
    """What is written in the test's own process belongs to the request `r-1`."""
    token = CALL.set(CallContext(lambda: [("x-request-id", "r-1")]))
    yield
    CALL.reset(token)


@pytest.fixture
def lines(caplog):
    """The lines so far, each as a mapping."""
    caplog.set_level(logging.INFO, "sash.audit")

    def lines():
        found = [record.getMessage() for record in caplog.records if record.name == "sash.audit"]
        caplog.clear()
        return [dict(part.split("=", 1) for part in shlex.split(line)) for line in found]

    return lines


def says(line, who, operation, window, outcome):
    host, _, port = line.pop("from").rpartition(":")
    assert host == "127.0.0.1"
    assert port.isdecimal()
    assert line.pop("request_id")
    assert line == {"who": who, "operation": operation, "window": window, "outcome": outcome}


def test_what_changes_windows_is_there(service, lines):
    http, root = service.http(), bearer("root")
    lines()
    http.post("/v1/windows", json={"name": "made", **SPEC}, headers=root)
    exported = http.get("/v1/windows/made/export", headers=root).content
    http.post("/v1/windows/made/aggregates", json={"m": {"function": "count"}}, headers=root)
    octets = {"content-type": "application/octet-stream", **root}
    http.post("/v1/windows/import", content=exported, headers=octets)
    http.delete("/v1/windows/made", headers=root)
    http.post("/v1/windows/import", content=exported, headers=octets)
    service.stub().DeleteWindow(pb.DeleteWindowRequest(name="made"), metadata=list(root.items()))
    expected = [
        ("create", "made", "ok"),
        ("export", "made", "ok"),
        ("add_aggregates", "made", "ok"),
        ("restore", "made", "ALREADY_EXISTS"),
        ("delete", "made", "ok"),
        ("restore", "made", "ok"),
        ("delete", "made", "ok"),
    ]
    found = lines()
    assert len(found) == len(expected)
    for line, (operation, window, outcome) in zip(found, expected, strict=True):
        says(line, "root", operation, window, outcome)


def test_reads_and_writes_are_not(service, lines):
    lines()
    http = service.http()
    http.get("/v1/windows/seen/query", params={"key": "k"}, headers=bearer("writer"))
    http.post("/v1/windows/seen/insert", json={"time": 1, "key": "k", "value": 1.0}, headers=bearer("writer"))
    http.post("/v1/windows/seen/bulk-evict", json={"time": -100}, headers=bearer("writer"))
    http.get("/v1/windows", headers=bearer("writer"))
    assert lines() == []
    http.post("/v1/windows/seen/bulk-evict", json={"time": -100}, headers=bearer("owner"))
    (evicted,) = lines()
    says(evicted, "owner", "bulk_evict", "seen", "ok")


def test_refusals_are_there(service, lines):
    http = service.http()
    lines()
    http.get("/v1/windows/hidden/query", headers=bearer("reader"))
    http.delete("/v1/windows/seen", headers=bearer("writer"))
    http.get("/v1/windows", headers=bearer("wrong"))
    http.post("/sash.v1.Windows/Query", headers={"content-type": "application/json"})
    http.get("/metrics", headers=bearer("reader"))
    with pytest.raises(grpc.RpcError):
        service.stub().Query(pb.QueryRequest(window="hidden"), metadata=list(bearer("reader").items()))
    with pytest.raises(grpc.RpcError):
        service.stub().Query(pb.QueryRequest(window="hidden"))
    expected = [
        ("reader", "GET /v1/windows/hidden/query", "hidden", "PERMISSION_DENIED"),
        ("writer", "DELETE /v1/windows/seen", "seen", "PERMISSION_DENIED"),
        ("-", "GET /v1/windows", "-", "UNAUTHENTICATED"),
        ("-", "POST /sash.v1.Windows/Query", "-", "UNAUTHENTICATED"),
        ("reader", "GET /metrics", "*", "PERMISSION_DENIED"),
        ("reader", "query", "hidden", "PERMISSION_DENIED"),
        ("-", "/sash.v1.Windows/Query", "-", "UNAUTHENTICATED"),
    ]
    found = lines()
    assert len(found) == len(expected)
    for line, parts in zip(found, expected, strict=True):
        says(line, *parts)


def test_without_tokens_it_says_from_where(lines):
    with running_service() as service:
        service.http().post("/v1/windows", json={"name": "made", **SPEC})
        service.stub().DeleteWindow(pb.DeleteWindowRequest(name="made"))
    created, deleted = lines()
    says(created, "-", "create", "made", "ok")
    says(deleted, "-", "delete", "made", "ok")


def test_nobody_forges_a_line(caplog):
    audit = Audit(ManualClock())
    caplog.set_level(logging.INFO, "sash.audit")
    audit.refused('/x outcome=ok\nwho=root "', "w" * 1000, "UNAUTHENTICATED")
    (record,) = caplog.records
    assert record.getMessage() == (
        f'who=- operation="/x outcome=ok\\nwho=root \\"" window={"w" * 200} from=- '
        "outcome=UNAUTHENTICATED request_id=r-1"
    )


def test_a_flood_of_refusals_does_not_fill_the_log(caplog):
    clock = ManualClock()
    audit = Audit(clock)
    caplog.set_level(logging.INFO, "sash.audit")
    for _ in range(1000):
        audit.refused("/x", None, "UNAUTHENTICATED")
    assert len(caplog.records) == 100
    audit.note("create", "w", "ok")  # what was done is always there
    clock.advance(10**9)
    audit.refused("/x", None, "UNAUTHENTICATED")
    assert caplog.records[-2].getMessage().endswith("operation=create window=w from=- outcome=ok request_id=r-1")
    assert caplog.records[-1].getMessage().endswith(" unlogged_refusals=900")


def test_the_caller_is_named(caplog):
    caplog.set_level(logging.INFO, "sash.audit")
    token = CALL.set(
        CallContext(lambda: [("x-request-id", "r-1")], lambda: "[::1]:80", caller=Caller("me", Right.READ, ["*"]))
    )
    Audit(ManualClock()).note("create", "w", "ok")
    CALL.reset(token)
    (record,) = caplog.records
    assert record.getMessage() == "who=me operation=create window=w from=[::1]:80 outcome=ok request_id=r-1"


class Call:
    """A call of gRPC as a handler sees it."""

    invocation_metadata = ()
    ended = False

    def peer(self) -> str:
        assert not self.ended, "gRPC ends the process"
        return "ipv6:%5B::1%5D:5000"


def test_the_address_of_a_call_of_grpc_is_known_when_its_client_has_gone():
    call = Call()
    note_peer(call)
    call.ended = True
    assert serving().address == "[::1]:5000"
