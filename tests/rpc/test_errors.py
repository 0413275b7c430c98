"""Every way to be wrong: the right code, details that name field and limit, and nothing has changed."""

import gc
from types import FrameType

import grpc
import numpy as np
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from sash.rpc.server import _Guarded
from sash_client import Client
from sash_proto.v1 import windows_pb2 as pb
from tests.support.errors import ERRORS
from tests.support.messages import bulk, float64, int64, strings
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


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        (pb.WindowSpec(aggregates=COUNT), "name"),
        (pb.WindowSpec(name="no spaces", aggregates=COUNT), "name"),
        (pb.WindowSpec(name="x" * 129, aggregates=COUNT), "name"),
        (pb.WindowSpec(name="w"), "aggregates"),
        (pb.WindowSpec(name="w", aggregates={"n": pb.AggregateSpec(function="nope")}), "aggregates.n.function"),
        (pb.WindowSpec(name="w", aggregates={"n": pb.AggregateSpec()}), "aggregates.n.function"),
        (
            pb.WindowSpec(
                name="w", aggregates={"n": pb.AggregateSpec(function="sum", parameters={"q": pb.Value(int64=1)})}
            ),
            "aggregates.n.q",
        ),
        (
            pb.WindowSpec(
                name="w",
                aggregates={"n": pb.AggregateSpec(function="sum", parameters={"function": pb.Value(string="count")})},
            ),
            "aggregates.n.parameters.function",
        ),
        (pb.WindowSpec(name="w", aggregates=COUNT, time_unit="fortnight"), "time_unit"),
        (pb.WindowSpec(name="w", aggregates=COUNT, fields={"f": "float16"}), "fields.f"),
        (pb.WindowSpec(name="w", aggregates=COUNT, slide=pb.SlidePolicy(max_count=0)), "slide.max_count"),
        (pb.WindowSpec(name="w", aggregates=COUNT, slide=pb.SlidePolicy(max_age="soon")), "slide.max_age"),
        (pb.WindowSpec(name="w", aggregates=COUNT, order=pb.OrderPolicy(late="maybe")), "order.late"),
    ],
)
def test_a_bad_spec(stub, unchanged, spec, field):
    refuse(stub.CreateWindow, pb.CreateWindowRequest(spec=spec), "INVALID_ARGUMENT", field)


def test_a_spec_that_is_too_large(stub, unchanged):
    numbers = pb.Value(list=pb.ValueList(items=[pb.Value(float64=0.5)] * 7000))
    aggregates = {"q": pb.AggregateSpec(function="quantile", parameters={"q": numbers})}
    request = pb.CreateWindowRequest(spec=pb.WindowSpec(name="w", aggregates=aggregates))
    refuse(stub.CreateWindow, request, "RESOURCE_EXHAUSTED", "spec", "65536 bytes")
    more = pb.AddAggregatesRequest(window=unchanged, aggregates=aggregates)
    refuse(stub.AddAggregates, more, "RESOURCE_EXHAUSTED", "aggregates", "65536 bytes")


def test_a_bad_name_says_what_names_are(stub, unchanged):
    request = pb.CreateWindowRequest(spec=pb.WindowSpec(name="a b", aggregates=COUNT))
    refuse(stub.CreateWindow, request, "INVALID_ARGUMENT", "name", "128")


def test_another_spec_of_the_same_name(stub, unchanged):
    request = pb.CreateWindowRequest(spec=pb.WindowSpec(name=unchanged, aggregates=COUNT))
    refuse(stub.CreateWindow, request, "ALREADY_EXISTS", "name")


def test_too_many_windows(stub, unchanged):
    present = len(stub.ListWindows(pb.ListWindowsRequest()).windows)
    made = [f"filler{i}" for i in range(20 - present)]
    for name in made:
        stub.CreateWindow(pb.CreateWindowRequest(spec=pb.WindowSpec(name=name, aggregates=COUNT)))
    request = pb.CreateWindowRequest(spec=pb.WindowSpec(name="more", aggregates=COUNT))
    refuse(stub.CreateWindow, request, "RESOURCE_EXHAUSTED", "name", "20 windows")
    for name in made:
        stub.DeleteWindow(pb.DeleteWindowRequest(name=name))


@pytest.mark.parametrize("name", ["unknown", "no name", "", "x" * 100_000])
def test_an_unknown_window(stub, unchanged, name):
    for call, request in (
        (stub.GetWindow, pb.GetWindowRequest(name=name)),
        (stub.DeleteWindow, pb.DeleteWindowRequest(name=name)),
        (stub.Insert, pb.InsertRequest(window=name, time=1, value=1)),
        (stub.BulkInsert, bulk(name, [1], [1])),
        (stub.BulkEvict, pb.BulkEvictRequest(window=name, time=1)),
        (stub.Query, pb.QueryRequest(window=name)),
        (stub.RangeQuery, pb.RangeQueryRequest(window=name, start=1, end=2)),
    ):
        refuse(call, request, "NOT_FOUND", "window")


def value(**kind):
    return pb.Value(**kind)


@pytest.mark.parametrize(
    ("entry", "field"),
    [
        ({"value": 1.0}, "time"),
        ({"time": 1}, "value"),
        ({"time": 2**63 - 1, "value": 1.0}, "time"),
        ({"time": -(2**63), "value": 1.0}, "time"),
        ({"time": 1, "value": 1.0, "key": "k"}, "key"),
        ({"time": 1, "value": 1.0, "fields": {"value": value(float64=1)}}, "value"),
        ({"time": 1, "fields": {"value": value(string="x")}}, "value"),
        ({"time": 1, "fields": {"value": value(bool=True)}}, "value"),
        ({"time": 1, "fields": {"value": value()}}, "fields.value"),
        ({"time": 1, "fields": {"value": value(list=pb.ValueList())}}, "fields.value"),
        ({"time": 1, "fields": {"other": value(float64=1)}}, "value"),
        ({"time": 1, "fields": {"value": value(float64=1), "other": value(float64=1)}}, "other"),
    ],
)
def test_a_wrong_entry(stub, unchanged, entry, field):
    refuse(stub.Insert, pb.InsertRequest(window=unchanged, **entry), "INVALID_ARGUMENT", field)


def test_a_wrong_key(stub, unchanged, typed):
    fields = {"f": value(float64=1), "i": value(int64=1), "s": value(string="x"), "b": value(bool=True)}
    for key in (None, "", "k" * 513):
        request = pb.InsertRequest(window=typed, key=key, time=1, fields=fields)
        refuse(stub.Insert, request, "INVALID_ARGUMENT", "key")
        refuse(stub.Query, pb.QueryRequest(window=typed, key=key), "INVALID_ARGUMENT", "key")


@pytest.mark.parametrize(
    ("columns", "field", "limit"),
    [
        ({"time": b"1234567"}, "time", "8 bytes"),
        ({"time": int64(1, 2)}, "value", "2"),
        ({"time": int64()}, "value", "0"),
        ({"fields": {}}, "value", None),
        ({"fields": {"value": pb.Column()}}, "value", None),
        ({"fields": {"value": pb.Column(float64=b"123")}}, "value", "8 bytes"),
        ({"fields": {"value": pb.Column(int64=int64(1))}}, "value", None),
        ({"fields": {"value": pb.Column(bool=b"\x01")}}, "value", None),
        ({"fields": {"value": pb.Column(bool=b"\x02")}}, "value", "0 to 1"),
        ({"fields": {"value": pb.Column(string=strings(["x"], 0))}}, "value", None),
        ({"fields": {"value": pb.Column(float64=float64(1)), "other": pb.Column(float64=float64(1))}}, "other", None),
        ({"key": strings(["k"], 0)}, "key", None),
        ({"time": int64(2**63 - 1)}, "time", "2^63"),
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
        (strings([""], 0), "512"),
        (strings(["k" * 513], 0), "512"),
        (strings(["k"], 0, 0), "1"),
        (pb.Strings(dictionary=["k"], codes=b"123"), "4 bytes"),
        (None, None),
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


def test_too_many_entries(stub, unchanged):
    n = 20_001
    request = bulk(unchanged, np.zeros(n), np.zeros(n))
    refuse(stub.BulkInsert, request, "RESOURCE_EXHAUSTED", "time", "20000 entries")


def test_a_message_that_is_too_large_names_the_limit(stub, unchanged):
    with pytest.raises(grpc.RpcError) as caught:
        stub.BulkInsert(pb.BulkInsertRequest(window=unchanged, time=b"\0" * (2 << 20)))
    assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert str(1 << 20) in caught.value.details()


@pytest.mark.parametrize(
    ("method", "request_", "field"),
    [
        ("BulkEvict", pb.BulkEvictRequest(), "time"),
        ("BulkEvict", pb.BulkEvictRequest(time=1, key="k"), "key"),
        ("RangeQuery", pb.RangeQueryRequest(end=1), "start"),
        ("RangeQuery", pb.RangeQueryRequest(start=1), "end"),
        ("RangeQuery", pb.RangeQueryRequest(start=1, end=2, key="k"), "key"),
        ("Query", pb.QueryRequest(key="k"), "key"),
    ],
)
def test_a_wrong_question(stub, unchanged, method, request_, field):
    request_.window = unchanged
    refuse(getattr(stub, method), request_, "INVALID_ARGUMENT", field)


@pytest.mark.parametrize("lookback", ["soon", "", "0", "-5", "1.5", "9" * 25])
def test_a_wrong_lookback(stub, unchanged, lookback):
    with pytest.raises(grpc.RpcError) as caught:
        stub.Query(pb.QueryRequest(window=unchanged, lookbacks=["5m", lookback]))
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert "lookback" in caught.value.details()


def test_a_rejecting_window_refuses_late_entries(stub, unchanged):
    spec = pb.WindowSpec(
        name="strict", aggregates=COUNT, slide=pb.SlidePolicy(max_count=1), order=pb.OrderPolicy(late="reject")
    )
    stub.CreateWindow(pb.CreateWindowRequest(spec=spec))
    stub.BulkInsert(bulk("strict", [10, 20], [1, 2]))
    for call, request in (
        (stub.Insert, pb.InsertRequest(window="strict", time=5, value=1)),
        (stub.BulkInsert, bulk("strict", [30, 5], [1, 1])),
    ):
        with pytest.raises(grpc.RpcError) as caught:
            call(request)
        assert caught.value.code() == grpc.StatusCode.FAILED_PRECONDITION
    assert stub.GetWindow(pb.GetWindowRequest(name="strict")).entries == 1
    stub.DeleteWindow(pb.DeleteWindowRequest(name="strict"))


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
