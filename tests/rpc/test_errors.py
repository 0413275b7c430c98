"""Every way to be wrong: the right code, details that name field and limit, and nothing has changed."""

import gc
from types import FrameType

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from sash.rpc.server import _Guarded
from sash_client import Client
from sash_proto.v1 import windows_pb2 as pb
from tests.support.errors import ERRORS
from tests.support.messages import float64, int64, strings
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


def test_a_parameter_that_is_no_parameter(stub, unchanged):
    wrong = pb.AggregateSpec(function="sum", parameters={"function": pb.Value(string="count")})
    request = pb.CreateWindowRequest(spec=pb.WindowSpec(name="w", aggregates={"n": wrong}))
    refuse(stub.CreateWindow, request, "INVALID_ARGUMENT", "aggregates.n.parameters.function")


def test_a_spec_that_is_too_large(stub, unchanged):
    numbers = pb.Value(list=pb.ValueList(items=[pb.Value(float64=0.5)] * 7000))
    aggregates = {"q": pb.AggregateSpec(function="quantile", parameters={"q": numbers})}
    request = pb.CreateWindowRequest(spec=pb.WindowSpec(name="w", aggregates=aggregates))
    refuse(stub.CreateWindow, request, "RESOURCE_EXHAUSTED", "spec", "65536 bytes")
    more = pb.AddAggregatesRequest(window=unchanged, aggregates=aggregates)
    refuse(stub.AddAggregates, more, "RESOURCE_EXHAUSTED", "aggregates", "65536 bytes")


def value(**kind):
    return pb.Value(**kind)


@pytest.mark.parametrize(
    ("entry", "field"),
    [
        ({"time": 1, "value": 1.0, "fields": {"value": value(float64=1)}}, "value"),
        ({"time": 1, "fields": {"value": value(string="x")}}, "value"),
        ({"time": 1, "fields": {"value": value(bool=True)}}, "value"),
        ({"time": 1, "fields": {"value": value()}}, "fields.value"),
        ({"time": 1, "fields": {"value": value(list=pb.ValueList())}}, "fields.value"),
    ],
)
def test_a_wrong_entry(stub, unchanged, entry, field):
    refuse(stub.Insert, pb.InsertRequest(window=unchanged, **entry), "INVALID_ARGUMENT", field)


@pytest.mark.parametrize(
    ("columns", "field", "limit"),
    [
        ({"time": b"1234567"}, "time", "8 bytes"),
        ({"fields": {"value": pb.Column()}}, "value", None),
        ({"fields": {"value": pb.Column(float64=b"123")}}, "value", "8 bytes"),
        ({"fields": {"value": pb.Column(int64=int64(1))}}, "value", None),
        ({"fields": {"value": pb.Column(bool=b"\x01")}}, "value", None),
        ({"fields": {"value": pb.Column(bool=b"\x02")}}, "value", "0 to 1"),
        ({"fields": {"value": pb.Column(string=strings(["x"], 0))}}, "value", None),
    ],
)
def test_wrong_columns(stub, unchanged, columns, field, limit):
    good = {"time": int64(1), "fields": {"value": pb.Column(float64=float64(1))}}
    request = pb.BulkInsertRequest(window=unchanged, **{**good, **columns})
    refuse(stub.BulkInsert, request, "INVALID_ARGUMENT", field, limit)


@pytest.mark.parametrize(
    ("keys", "limit"),
    [
        (strings(["k"], 1), "0 to 0"),
        (strings([], 0), None),
        (strings(["k"], 2**32 - 1), None),
        (strings(["k", "k"], 2), None),
        (strings(["k"], 0, 0), "1"),
        (pb.Strings(dictionary=["k"], codes=b"123"), "4 bytes"),
    ],
)
def test_wrong_keys(stub, unchanged, typed, keys, limit):
    columns = {
        "f": pb.Column(float64=float64(1)),
        "i": pb.Column(int64=int64(1)),
        "s": pb.Column(string=strings(["x"], 0)),
        "b": pb.Column(bool=b"\x01"),
    }
    request = pb.BulkInsertRequest(window=typed, time=int64(1), fields=columns, key=keys)
    refuse(stub.BulkInsert, request, "INVALID_ARGUMENT", "key", limit)


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
    from sash_engine.errors import Unavailable

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
    from sash.rest.problems import STATUSES
    from sash.rpc.errors import CODES

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
