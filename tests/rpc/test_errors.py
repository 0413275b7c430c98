"""Errors: their codes, what they say of when to come again, and what they leave behind."""

import gc
from types import FrameType

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from sash.rest.problems import STATUSES
from sash.rpc.errors import CODES
from sash.rpc.server import _Guarded
from sash_client import Client
from sash_engine.errors import Unavailable
from sash_proto.v1 import windows_pb2 as pb
from tests.support.errors import ERRORS
from tests.support.rpc_errors import refuse
from tests.support.servers import running_service
from tests.support.waiting import wait_until

COUNT = {"n": pb.AggregateSpec(function="count")}


@pytest.fixture
def unchanged(stub, window, typed):
    """Checks after the test that no window has changed."""
    stub.Insert(pb.InsertRequest(window=window, time=1, value=1))
    before = stub.ListWindows(pb.ListWindowsRequest())
    yield window
    assert stub.ListWindows(pb.ListWindowsRequest()) == before


def test_a_message_that_is_too_large_names_the_limit(stub, unchanged):
    with pytest.raises(grpc.RpcError) as caught:
        stub.BulkInsert(pb.BulkInsertRequest(window=unchanged, time=b"\0" * (2 << 20)))
    assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert str(1 << 20) in caught.value.details()


def test_bytes_that_are_no_message(service, unchanged):
    call = service.channel().unary_unary("/sash.v1.Windows/Insert", _registered_method=False)
    refuse(call, b"\xff\xff\xff", "INVALID_ARGUMENT", "request")


def test_an_unknown_method(service, unchanged):
    call = service.channel().unary_unary("/sash.v1.Windows/Nope", _registered_method=False)
    with pytest.raises(grpc.RpcError) as caught:
        call(b"")
    assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED


def test_a_failure_of_the_service_is_logged_and_not_shown(stub, service, unchanged, monkeypatch, caplog):
    async def fail(name):
        raise RuntimeError("secret")

    monkeypatch.setattr(service.plane, "window", fail)
    with pytest.raises(grpc.RpcError) as caught:
        stub.GetWindow(pb.GetWindowRequest(name=unchanged))
    assert caught.value.code() == grpc.StatusCode.INTERNAL
    assert "secret" not in caught.value.details()
    assert "secret" in caplog.text


def test_an_error_that_may_pass_says_when_to_come_back(stub, service, unchanged, monkeypatch):
    async def fail(name):
        raise Unavailable("the tier is away", retry_after_s=1.5)

    monkeypatch.setattr(service.plane, "window", fail)
    error = refuse(stub.GetWindow, pb.GetWindowRequest(name=unchanged), "UNAVAILABLE")
    retry = error_details_pb2.RetryInfo()
    assert any(detail.Unpack(retry) for detail in rpc_status.from_call(error).details)
    assert retry.retry_delay.ToNanoseconds() == 1_500_000_000


def test_calls_beyond_the_limit_are_asked_to_come_again():
    """As on REST. A stream holds a place until it ends, however it ends."""
    with running_service(max_concurrent_calls=2) as small:
        stub = small.stub()
        stub.CreateWindow(pb.CreateWindowRequest(spec=pb.WindowSpec(name="w", aggregates=COUNT)))
        looks = [stub.Watch(pb.WatchRequest(query=pb.QueryRequest(window="w"), interval_ms=50)) for _ in range(2)]
        assert [next(look).answers[0].entries for look in looks] == [0, 0]
        with pytest.raises(grpc.RpcError) as caught:
            stub.ListWindows(pb.ListWindowsRequest())
        assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
        retry = error_details_pb2.RetryInfo()
        assert any(detail.Unpack(retry) for detail in rpc_status.from_call(caught.value).details)
        assert retry.retry_delay.ToTimedelta().total_seconds() == 1
        looks[0].cancel()
        with Client(small.grpc_target) as client:  # which comes again
            assert client.window("w").insert(1, 1.0, producer="p", sequence=1).inserted == 1
            assert [window.entries for window in client.list_windows()] == [1]


def test_every_error_has_a_code():
    kinds = set(ERRORS[1:])
    assert kinds == set(CODES)
    assert kinds <= set(STATUSES)


@pytest.mark.parametrize("reads_first", [False, True], ids=["by gRPC", "by the service"])
def test_a_refused_call_leaves_nothing_for_the_collector(reads_first, monkeypatch):
    """gRPC kept its exception, this its frames, and they the message: until the collector looked."""
    frames = {method.__code__ for method in (_Guarded.unary, _Guarded._request, _Guarded._parsed, _Guarded._refuse)}

    def left():
        return [it for it in gc.get_objects() if type(it) is FrameType and it.f_code in frames]

    with running_service() as running:
        if reads_first:
            monkeypatch.setattr("sash.limits.receiving.Receiving.slot", lambda _: None)
        stub = running.stub()
        gc.collect()
        gc.disable()
        earlier = left()  # of other tests
        try:
            for _ in range(5):
                refuse(stub.BulkInsert, pb.BulkInsertRequest(window="none", time=bytes(8000)), "NOT_FOUND", "window")
            wait_until(lambda: all(any(it is one for one in earlier) for it in left()))
        finally:
            gc.enable()
