"""Failures become exceptions with all that the service says; only what is safe is tried again."""

import socket

import grpc
import numpy as np
import pytest
from google.protobuf import duration_pb2
from google.rpc import error_details_pb2

import sash_client
from sash_client import Client, DeadlineExceeded, InvalidArgument, SashClientError, Unavailable, WriteResult
from sash_client.errors import from_rpc
from sash_proto.v1 import windows_pb2 as pb
from tests.support.connect_server import address
from tests.support.either_client import CLIENTS, opened
from tests.support.recorder import recording, status
from tests.support.refused import field_of

UNAVAILABLE = status(grpc.StatusCode.UNAVAILABLE, "starting")


@pytest.fixture
def recorded(transport):
    with recording(transport) as found:
        yield found


@pytest.fixture
def service(recorded):
    recorder, where = recorded
    with Client(**where, timeout_s=60) as client:
        yield recorder, client


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (grpc.StatusCode.INVALID_ARGUMENT, sash_client.InvalidArgument),
        (grpc.StatusCode.NOT_FOUND, sash_client.NotFound),
        (grpc.StatusCode.ALREADY_EXISTS, sash_client.AlreadyExists),
        (grpc.StatusCode.FAILED_PRECONDITION, sash_client.FailedPrecondition),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, sash_client.ResourceExhausted),
        (grpc.StatusCode.UNIMPLEMENTED, sash_client.Unsupported),
        (grpc.StatusCode.UNAUTHENTICATED, sash_client.Unauthenticated),
        (grpc.StatusCode.PERMISSION_DENIED, sash_client.PermissionDenied),
        (grpc.StatusCode.UNAVAILABLE, sash_client.Unavailable),
        (grpc.StatusCode.DATA_LOSS, sash_client.DataLoss),
        (grpc.StatusCode.DEADLINE_EXCEEDED, sash_client.DeadlineExceeded),
        (grpc.StatusCode.INTERNAL, sash_client.SashClientError),
    ],
)
def test_every_status_has_its_exception(service, code, kind):
    recorder, client = service
    recorder.failures.append(status(code, "so it is"))
    with pytest.raises(SashClientError) as caught:
        client.window("w").insert(1, 1.0)
    error = caught.value
    assert type(error) is kind
    assert (error.code, error.message, str(error)) == (code.name, "so it is", "so it is")
    assert (error.reason, error.field, error.limit, error.retry_after_s) == (None, None, None, None)


@pytest.mark.parametrize(
    ("code", "message", "kind"),
    [
        (grpc.StatusCode.INTERNAL, "Internal error from Core", Unavailable),
        (grpc.StatusCode.INTERNAL, "Internal error from Core: more", SashClientError),
        (grpc.StatusCode.UNKNOWN, "Internal error from Core", SashClientError),
    ],
)
def test_a_connection_that_breaks_off_is_no_defect_of_the_service(code, message, kind):
    error = from_rpc(grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), message))
    assert type(error) is kind
    assert error.code == (code.name if kind is SashClientError else "UNAVAILABLE")


def test_details_are_decoded(service):
    recorder, client = service
    violation = error_details_pb2.BadRequest.FieldViolation(field="aggregates.p95.q", description="…")
    recorder.failures.append(
        status(
            grpc.StatusCode.INVALID_ARGUMENT,
            "q must be below 1",
            error_details_pb2.ErrorInfo(domain="sash", reason="INVALID_ARGUMENT", metadata={"limit": "0 to 1"}),
            error_details_pb2.BadRequest(field_violations=[violation]),
            error_details_pb2.RetryInfo(retry_delay=duration_pb2.Duration(seconds=1, nanos=500_000_000)),
        )
    )
    with pytest.raises(InvalidArgument, match="q must be below 1") as caught:
        client.window("w").query()
    assert caught.value.field == "aggregates.p95.q"
    assert caught.value.limit == "0 to 1"
    assert caught.value.retry_after_s == 1.5
    assert caught.value.reason == "INVALID_ARGUMENT"


@pytest.mark.parametrize(
    ("domain", "reason", "shown"), [("sash", "OUT_OF_ROOM", "OUT_OF_ROOM"), ("sash", "", None), ("proxy", "BUSY", None)]
)
def test_a_reason_is_the_service_s_own(service, domain, reason, shown):
    recorder, client = service
    info = error_details_pb2.ErrorInfo(domain=domain, reason=reason)
    recorder.failures.append(status(grpc.StatusCode.RESOURCE_EXHAUSTED, "full", info))
    with pytest.raises(sash_client.ResourceExhausted) as caught:
        client.window("w").insert(1, 1.0)
    assert caught.value.reason == shown


def unchanged(says="true"):
    info = error_details_pb2.ErrorInfo(domain="sash", reason="UNAVAILABLE", metadata={"unchanged": says})
    again = error_details_pb2.RetryInfo(retry_delay=duration_pb2.Duration(nanos=1_000_000))
    return status(grpc.StatusCode.UNAVAILABLE, "moving", info, again)


def query(client):
    return client.window("w").query()


def insert(client):
    return client.window("w").insert(1, 1.0)


AGAIN = {
    "a read": (query, [UNAVAILABLE] * 2, 3, None),
    "a read, in vain": (query, [UNAVAILABLE] * 10, 4, "starting"),
    "a write that may have been applied": (insert, [UNAVAILABLE], 1, "starting"),
    "a write that changed nothing": (insert, [unchanged()], 2, None),
    "a write that changed nothing, often": (insert, [unchanged()] * 3, 4, None),
    "a write that changed nothing, in vain": (insert, [unchanged()] * 10, 4, "moving"),
    "a write that changed nothing at first": (insert, [unchanged(), unchanged("false")], 2, "moving"),
    "a write that changed nothing at first, and is lost": (insert, [unchanged(), UNAVAILABLE], 2, "starting"),
}
"""A call, how the service fails it, how often it is made, and the error at last."""


@pytest.mark.parametrize("call", AGAIN)
def test_only_what_changes_nothing_twice_is_sent_again(service, call):
    recorder, client = service
    make, failures, attempts, error = AGAIN[call]
    recorder.failures += failures
    if error is None:
        make(client)
    else:
        with pytest.raises(Unavailable, match=error) as caught:
            make(client)
        assert caught.value.unchanged == ("nothing, in vain" in call)
    assert len(recorder.requests) == attempts


def test_a_failed_bulk_says_what_was_applied(recorded):
    recorder, where = recorded
    with Client(**where, bulk_entries_max=10) as client:
        window = client.window("w")
        assert window.bulk_insert(np.arange(35), np.zeros(35)) == WriteResult(inserted=35)
        recorder.failures += [None, None, status(grpc.StatusCode.NOT_FOUND, "gone")]
        with pytest.raises(sash_client.NotFound) as caught:
            window.bulk_insert(np.arange(35), np.zeros(35))
    assert caught.value.applied == WriteResult(inserted=20)
    assert [len(request.time) // 8 for request in recorder.of(pb.BulkInsertRequest)] == [10, 10, 10, 5, 10, 10, 10]


@pytest.mark.parametrize("kind", CLIENTS)
def test_nobody_there(transport, kind):
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))  # bound, not listening: refuses
        port = deaf.getsockname()[1]
        with opened(kind, **address(transport, port, port), timeout_s=5) as client:
            with pytest.raises(Unavailable):
                client.window("w").insert(1, 1.0)
            with pytest.raises(Unavailable, match=r"no service at .* within 0\.2 s"):
                client.wait_until_ready(0.2)


def test_nobody_answers(transport):
    with (
        socket.create_server(("127.0.0.1", 0)) as mute,
        Client(**address(transport, mute.getsockname()[1], mute.getsockname()[1]), timeout_s=0.3) as client,
        pytest.raises(DeadlineExceeded),
    ):
        client.window("w").insert(1, 1.0)


def test_a_closed_client_says_so(service):
    _, client = service
    client.close()
    client.close()
    with pytest.raises(Unavailable, match="closed"):
        client.list_windows()


def test_what_cannot_be_sent_is_refused_before_any_call(service):
    recorder, client = service
    window = client.window("w")
    for call, field in [
        (lambda: window.insert(1), "value"),
        (lambda: window.insert(1, 2.0, fields={"value": 2.0}), "value"),
        (lambda: window.insert(1, "2"), "value"),
        (lambda: window.insert(2**63, 1.0), "time"),
        (lambda: window.insert(1, 1.0, key=5), "key"),
        (lambda: window.insert(1, fields={"value": object()}), "value"),
        (lambda: window.query(lookbacks="5m"), "lookbacks"),
        (lambda: window.query(lookbacks=[0.5]), "lookbacks"),
        (lambda: window.range_query(1.5, 2), "start"),
        (lambda: window.bulk_evict("soon"), "time"),
        (lambda: window.bulk_insert([1, 2], [1.0]), "value"),
        (lambda: window.bulk_insert([1, 2], [1.0, 2.0], keys=["a"]), "key"),
        (lambda: window.bulk_insert([1], {"delay": [1.0]}), "delay"),
        (lambda: window.bulk_insert([1], {}), "value"),
    ]:
        assert field_of(call) == field
    assert {type(request) for request in recorder.requests} <= {pb.GetWindowRequest}
    for wrong in ({"timeout_s": 0}, {"bulk_entries_max": 0}, {"bulk_bytes_max": 0}):
        with pytest.raises(InvalidArgument):
            Client("127.0.0.1:1", **wrong)


def test_the_spec_is_fetched_once_and_only_when_it_is_needed(service):
    recorder, client = service
    window = client.window("w")
    window.insert(1, 1.0)
    window.query(as_of=5)
    assert recorder.of(pb.GetWindowRequest) == []
    window.bulk_insert([1], [1.0])
    window.insert(np.datetime64(2, "us"), 1.0)
    window.bulk_insert([1], {"value": [1.0]})
    assert len(recorder.of(pb.GetWindowRequest)) == 1
