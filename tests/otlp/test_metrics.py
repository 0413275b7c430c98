"""OTLP metrics over gRPC and HTTP: what becomes an entry, what is rejected, and that nothing counts twice."""

import gzip

import grpc
import httpx
import pytest
from google.rpc import status_pb2
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2_grpc import MetricsServiceStub
from opentelemetry.sdk.metrics import Counter
from opentelemetry.sdk.metrics.export import AggregationTemporality

from sash.otlp import metrics as otlp
from sash_client import Client
from sash_engine.errors import ResourceExhausted
from tests.otlp.sending import post, put, status_of, stock_sdk
from tests.support.servers import running_service
from tests.support.tokens import bearer, write_tokens

CUMULATIVE, DELTA = 2, 1
T = 1_700_000_000 * 10**9
MS = 10**6
BASE = {
    "time_unit": "ms",
    "fields": {"value": "float64"},
    "order": {"equal_times": "first"},
    "slide": {"max_age": "1h"},
}
SUM = {"total": {"function": "sum"}}
INCREASE = {"more": {"function": "increase"}}


def window(sash, name="requests", aggregates=None, **changed):
    return sash.create_window({**BASE, "name": name, "aggregates": aggregates or SUM, **changed})


def message(*points, kind="gauge", name="requests", temporality=DELTA, monotonic=True, resource=None):
    """A request with one metric; a point is a time in ms after T, a value, a start likewise or None, and attributes."""
    request = ExportMetricsServiceRequest()
    made = request.resource_metrics.add()
    put(made.resource.attributes, resource or {})
    metric = made.scope_metrics.add().metrics.add(name=name)
    data = getattr(metric, kind)
    if kind == "sum":
        data.aggregation_temporality, data.is_monotonic = temporality, monotonic
    for time, value, start, attributes in points:
        point = data.data_points.add(time_unix_nano=T + time * MS)
        if start is not None:
            point.start_time_unix_nano = T + start * MS
        if isinstance(value, int):
            point.as_int = value
        elif value is not None:
            point.as_double = value
        put(point.attributes, attributes)
    return request


def entries(window):
    return [
        (key, time - T // MS, value)
        for bulk in window.entries()
        for key, time, value in zip(
            bulk.keys if bulk.keys is not None else [None] * len(bulk.times),
            bulk.times.tolist(),
            bulk.columns["value"].tolist(),
            strict=True,
        )
    ]


# ---------------------------------------------------------------- what is taken


def test_gauges_are_values_at_their_times(sash, send):
    to = window(sash)
    assert not send(message((1, 2.5, None, {}), (2, 3, 0, {}))).rejected_data_points
    assert entries(to) == [(None, 1, 2.5), (None, 2, 3.0)]


def test_deltas_are_summed_and_a_repeated_export_changes_nothing(sash, send):
    to = window(sash)
    request = message((10, 3, 0, {}), (20, 4, 10, {}), kind="sum")
    for _ in range(3):
        assert not send(request).rejected_data_points
    assert to.query()[0].aggregates == {"total": 7.0}


def test_cumulative_sums_increase_from_their_start(sash, send):
    to = window(sash, aggregates=INCREASE)
    for point in ((10, 3, 0, {}), (20, 7, 0, {}), (20, 7, 0, {}), (30, 7, 0, {}), (40, 9, 0, {})):
        assert not send(message(point, kind="sum", temporality=CUMULATIVE)).rejected_data_points
    assert to.query()[0].aggregates == {"more": 9.0}
    assert entries(to)[0] == (None, 1, 0.0)
    assert to.describe().counts.duplicates == 1  # the repeated point; the start was sent once


@pytest.mark.parametrize("restarted", [2, 7, 100])
def test_a_reset_is_known_by_its_start(sash, send, restarted):
    """Also where the new count is larger than the old one, and where the new one starts as the old one ends."""
    to = window(sash, aggregates=INCREASE)
    points = [(10, 3, 0, {}), (20, 7, 0, {}), (30, restarted, 20, {}), (40, restarted + 1, 20, {})]
    send(message(*points, kind="sum", temporality=CUMULATIVE))
    assert to.query()[0].aggregates == {"more": 7.0 + restarted + 1}


def test_points_out_of_order_and_after_a_start_that_was_forgotten(service, sash, send):
    to = window(sash, aggregates=INCREASE)
    send(message((20, 7, 0, {}), (10, 3, 0, {}), kind="sum", temporality=CUMULATIVE))
    send(message((50, 1, 45, {}), kind="sum", temporality=CUMULATIVE))
    send(message((40, 8, 0, {}), kind="sum", temporality=CUMULATIVE))  # another start than the last one
    assert to.query()[0].aggregates == {"more": 9.0}


def test_a_window_that_is_made_anew_has_the_start_again(sash, send):
    request = message((10, 3, 0, {}), kind="sum", temporality=CUMULATIVE)
    for _ in range(2):
        to = window(sash, aggregates=INCREASE)
        send(request)
        assert to.query()[0].aggregates == {"more": 3.0}
        sash.delete_window("requests")


def test_a_start_that_is_not_known_or_no_earlier_has_no_entry(sash, send):
    to = window(sash, aggregates=INCREASE, slide=None)
    send(message((10, 3, None, {}), (20, 4, 20, {}), (20, 5, 21, {}), kind="sum", temporality=CUMULATIVE))
    assert [time for _, time, _ in entries(to)] == [10, 20]


@pytest.mark.parametrize("first", [21, 22])
def test_a_count_right_behind_its_start_is_behind_its_0(sash, send, first):
    """The count before ends where this one starts, and the start is written a second time."""
    to = window(sash, aggregates=INCREASE)
    for point in ((20, 7, 0, {}), (first, 5, 20, {}), (90, 1, 80, {}), (30, 9, 20, {})):
        send(message(point, kind="sum", temporality=CUMULATIVE))
    assert to.query()[0].aggregates == {"more": 7.0 + 9.0 + 1.0}
    assert [time for _, time, _ in entries(to)] == [1, 20, 21, 22, 30, 81, 90]


def test_a_sum_that_goes_up_and_down_is_a_gauge(sash, send):
    to = window(sash)
    send(message((10, 3, 0, {}), (20, 1, 0, {}), kind="sum", temporality=CUMULATIVE, monotonic=False))
    assert [value for _, _, value in entries(to)] == [3.0, 1.0]


# ---------------------------------------------------------------- keys and routes


def test_attributes_of_points_and_resources_are_the_parts(sash, send):
    to = window(sash, keys=["service.name", "status", "ok", "no", "missing", "otel_metric"])
    point = {"status": 200, "ok": True, "no": False, "unused": b"x"}
    send(message((1, 1.0, None, point), resource={"service.name": "shop", "status": 1}))
    assert entries(to) == [("shop|200|true|false||requests", 1, 1.0)]


def test_headers_name_window_and_attributes(sash, send):
    to = window(sash, "latency", keys=["service", "route"])
    point = (1, 1.0, None, {"http.route": "/a|b"})
    request = message(point, name="a/b", resource={"service.name": "shop"})
    send(request, sash_window="latency", sash_parts="service=service.name, route=http.route")
    assert entries(to) == [("shop|/a\\|b", 1, 1.0)]
    to = window(sash, "hosts", keyed=True)
    request = message((1, 1.0, None, {}), resource={"host.name": "h1"})
    send(request, sash_window="hosts", sash_key="host.name")
    assert entries(to) == [("h1", 1, 1.0)]


def test_parts_may_be_for_some_of_several_windows(sash, send):
    by_route, by_host = window(sash, "a", keys=["route"]), window(sash, "b", keys=["host"])
    request = message((1, 1.0, None, {"http.route": "/"}), name="a")
    request.MergeFrom(message((1, 2.0, None, {"host.name": "h"}), name="b"))
    send(request, sash_parts="route=http.route,host=host.name")
    assert (entries(by_route), entries(by_host)) == ([("/", 1, 1.0)], [("h", 1, 2.0)])


# ---------------------------------------------------------------- what is rejected


def test_what_cannot_be_taken_is_rejected_and_the_rest_is_applied(sash, send):
    to = window(sash, keyed=True)
    points = [
        (1, 1.0, None, {"key": "a"}),
        (2, 1.0, None, {}),
        (3, None, None, {"key": "a"}),
        (4, 1.0, None, {"key": b"bytes"}),
        (-T // MS, 1.0, None, {"key": "a"}),
        (5, 2.0, None, {"key": "b"}),
    ]
    found = send(message(*points))
    assert found.rejected_data_points == 4
    for reason in ("no attribute 'key'", "has no value", "is bytes", "; and 1 more"):
        assert reason in found.error_message
    assert entries(to) == [("a", 1, 1.0), ("b", 5, 2.0)]


def test_a_point_without_a_value_that_says_so_is_none(sash, send):
    to = window(sash)
    request = message((1, None, None, {}), (2, 1.0, None, {}))
    request.resource_metrics[0].scope_metrics[0].metrics[0].gauge.data_points[0].flags = 1
    assert not send(request).rejected_data_points
    assert entries(to) == [(None, 2, 1.0)]


@pytest.mark.parametrize(
    ("kind", "temporality", "aggregates", "reason"),
    [
        ("sum", CUMULATIVE, SUM, "give window 'requests' an aggregate increase or rate"),
        ("sum", DELTA, INCREASE, "is a sum of deltas, and window 'requests' keeps counts"),
        ("sum", 0, SUM, "does not say whether its sum is cumulative"),
        ("sum", 7, SUM, "does not say whether its sum is cumulative"),
    ],
)
def test_sums_of_the_other_temporality_are_rejected(sash, send, kind, temporality, aggregates, reason):
    to = window(sash, aggregates=aggregates)
    found = send(message((1, 1, 0, {}), (2, 1, 0, {}), kind=kind, temporality=temporality))
    assert (found.rejected_data_points, reason in found.error_message) == (2, True)
    assert entries(to) == []


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"name": "another"}, "requests"),
        ({"order": {}}, "order.equal_times: first"),
        ({"fields": {"value": "int64"}}, "samples are float64"),
        (
            {"fields": {"value": "float64", "b": "float64"}, "aggregates": {"n": {"function": "count"}}},
            "several fields",
        ),
        ({"time_unit": "s"}, "counts in 's'"),
        ({"aggregates": INCREASE, "order": {"equal_times": "first", "late": "reject"}}, "refuses late entries"),
        ({"aggregates": INCREASE, "order": {"equal_times": "first", "out_of_order": "reject"}}, "refuses late entries"),
    ],
)
def test_windows_that_take_no_points(sash, send, changed, reason):
    sash.create_window({**BASE, "name": "requests", "aggregates": SUM, **changed})
    found = send(message((1, 1.0, None, {}), (2, 1.0, None, {})))
    assert (found.rejected_data_points, reason in found.error_message) == (2, True), found


def test_a_window_that_refuses_a_write_has_none_of_it(sash, send):
    to = window(sash, order={"equal_times": "first", "out_of_order": "reject"})
    other = window(sash, "other")
    request = message((5, 1.0, None, {}), (4, 1.0, None, {}))
    request.MergeFrom(message((1, 1.0, None, {}), name="other"))
    found = send(request)
    assert found.rejected_data_points == 2
    assert "order" in found.error_message
    assert (entries(to), entries(other)) == ([], [(None, 1, 1.0)])


def test_summaries_are_rejected_and_said(sash, send):
    window(sash)
    request = ExportMetricsServiceRequest()
    metric = request.resource_metrics.add().scope_metrics.add().metrics.add(name="requests")
    for _ in range(3):
        metric.summary.data_points.add(time_unix_nano=T, count=1)
    found = send(request)
    assert (found.rejected_data_points, "is a summary" in found.error_message) == (3, True)


def test_series_that_have_one_key_are_not_mixed(sash, send):
    to = window(sash)
    found = send(message((1, 1.0, None, {"a": "x"}), (2, 2.0, None, {"a": "y"}), (3, 3.0, None, {"a": "x"})))
    assert (found.rejected_data_points, "other labels are not kept" in found.error_message) == (1, True)
    assert [value for _, _, value in entries(to)] == [1.0, 3.0]


def test_a_start_that_the_window_refused_is_written_again(sash, send):
    ahead = {"ahead": "1h", "too_far_ahead": "reject"}
    to = window(sash, aggregates=INCREASE, order={"equal_times": "first"} | ahead)
    assert send(message((2 * 10**12, 9, 0, {}), kind="sum", temporality=CUMULATIVE)).rejected_data_points == 1
    send(message((10, 3, 0, {}), kind="sum", temporality=CUMULATIVE))
    assert to.query()[0].aggregates == {"more": 3.0}


def test_a_key_that_is_too_long_is_rejected_alone(sash, send):
    to = window(sash, keyed=True)
    found = send(message((1, 1.0, None, {"key": "x" * 10_000}), (2, 1.0, None, {"key": "a"})))
    assert (found.rejected_data_points, "10000 bytes long" in found.error_message) == (1, True)
    assert entries(to) == [("a", 2, 1.0)]


def test_too_many_attributes(sash, send):
    to = window(sash)
    many = {f"a{i}": "" for i in range(200)}
    request = message((1, 1.0, None, many), (2, 1.0, None, many | {"a": ""}))
    request.MergeFrom(message((3, 1.0, None, {}), resource=many | {"a": ""}))
    found = send(request)
    assert (found.rejected_data_points, "has 201 attributes; 200 are taken" in found.error_message) == (2, True)
    assert [time for _, time, _ in entries(to)] == [1]


def test_a_metric_without_data_is_nothing(sash, send):
    request = ExportMetricsServiceRequest()
    request.resource_metrics.add().scope_metrics.add().metrics.add(name="requests")
    assert not send(request).rejected_data_points
    assert not send(ExportMetricsServiceRequest()).rejected_data_points


# ---------------------------------------------------------------- refusals


def refused(send, request, **headers):
    """The message of a refusal on either edge."""
    try:
        send(request, **headers)
    except grpc.RpcError as error:
        return error.details()
    except AssertionError as error:
        return str(error)
    raise AssertionError("it is taken")


def test_wrong_headers_refuse_the_request(sash, send):
    window(sash, keys=["a"])
    request = message((1, 1.0, None, {}))
    assert "is not part=attribute" in refused(send, request, sash_parts="a")
    assert "is not part=attribute" in refused(send, request, sash_parts="a=b,a=c")
    assert "needs Spark" in refused(send, request, sash_parts="a=lower(b)")
    assert "has the parts a" in refused(send, request, sash_window="requests", sash_parts="b=b")


def test_too_many_points_or_bytes(sash, send):
    to = window(sash)
    most = message(*((i, 1.0, None, {}) for i in range(5000)))
    assert not send(most).rejected_data_points  # parsed in steps
    assert "too many points" in refused(send, message(*((i, 1.0, None, {}) for i in range(5001))))
    assert "bytes" in refused(send, message((1, 1.0, None, {"a": "x" * otlp.BYTES_MAX})))
    empty = ExportMetricsServiceRequest.FromString(b"\x0a\x00" * 100_000)
    assert not send(empty).rejected_data_points
    empty.resource_metrics.add()
    assert "too many metrics" in refused(send, empty)
    assert to.describe().entries == 5000


def test_http_takes_gzip_and_refuses_what_is_none(service, sash):
    to, http = window(sash), service.http()
    body = message(*((i, 1.0, None, {}) for i in range(3000))).SerializeToString()
    assert post(http, gzip.compress(body), **{"content-encoding": "gzip"}).status_code == 200
    assert to.describe().entries == 3000
    packed = {"content-encoding": "gzip"}
    bomb = gzip.compress(bytes(otlp.BYTES_MAX + 1))
    for content, headers, code, text in (
        (bytes(100), packed, 400, "no gzip"),
        (gzip.compress(body)[:-9] + gzip.compress(body)[-8:], packed, 400, "no gzip"),
        (bomb, packed, 413, "bytes when it is unpacked"),
        (b"\xff", {}, 400, "no ExportMetricsServiceRequest"),
        (b"\xff" * 10_000, {}, 400, "no ExportMetricsServiceRequest"),
        (body, {"content-encoding": "br"}, 415, "send gzip"),
        (body, {"content-type": "application/json"}, 415, "send application/x-protobuf"),
        (body, {"content-type": "text/plain"}, 415, "send application/x-protobuf"),
        (body, {"content-type": ""}, 415, "missing"),
    ):
        answer = post(http, content, **headers)
        assert (answer.status_code, text in status_of(answer)) == (code, True), status_of(answer)
    assert http.get("/v1/metrics").status_code == 405
    assert http.get("/v1/metrics").headers["allow"] == "POST"
    assert post(http, body, path="/v1/metrics/x").status_code == 404
    assert to.describe().entries == 3000


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    roles = {
        "owner": {"role": "admin"},
        "writer": {"role": "write", "windows": ["requests"]},
        "reader": {"role": "read"},
    }
    tokens = write_tokens(tmp_path_factory.mktemp("tokens") / "tokens.yaml", roles)
    with running_service(tokens=tokens) as running, Client(running.grpc_target, token="owner-token") as owner:
        for name in ("requests", "hidden"):
            window(owner, name)
        yield running


CASES = [
    ("writer", "requests", "OK", 200),
    ("writer", "hidden", "PERMISSION_DENIED", 403),
    ("reader", "requests", "PERMISSION_DENIED", 403),
    ("nobody", "requests", "UNAUTHENTICATED", 401),
    (None, "requests", "UNAUTHENTICATED", 401),
]


@pytest.mark.parametrize(("who", "name", "code", "status"), CASES)
@pytest.mark.parametrize("named", [False, True])
def test_who_may_write(guarded, who, name, code, status, named):
    request, headers = message((1, 1.0, None, {}), name=name), {} if who is None else bearer(who)
    if named:
        headers["sash-window"] = name
    answer = post(guarded.http(), request.SerializeToString(), **headers)
    assert answer.status_code == status
    if status != 200:
        found = status_pb2.Status.FromString(answer.content)
        assert found.code == grpc.StatusCode[code].value[0]
        assert found.message
        assert ("www-authenticate" in answer.headers) == (status == 401)
    assert over_grpc_of(guarded, request, headers) == code


def over_grpc_of(service, request, headers):
    try:
        MetricsServiceStub(service.channel()).Export(request, metadata=list(headers.items()))
    except grpc.RpcError as error:
        return error.code().name
    return "OK"


def test_what_a_caller_may_not_write_is_rejected_beside_what_it_may(guarded):
    request = message((2, 1.0, None, {}))
    request.MergeFrom(message((2, 1.0, None, {}), name="hidden"))
    answer = post(guarded.http(), request.SerializeToString(), **bearer("writer"))
    found = ExportMetricsServiceResponse.FromString(answer.content).partial_success
    assert (found.rejected_data_points, "hidden" in found.error_message) == (1, True)


def test_a_service_that_cannot_store_says_to_try_again(service, sash, monkeypatch):
    to = window(sash, aggregates=INCREASE)
    request = message((10, 3, 0, {}), kind="sum", temporality=CUMULATIVE)

    async def full(*_):
        raise ResourceExhausted("no room", limit="1 byte")

    with monkeypatch.context() as patched:
        patched.setattr(type(service.plane), "write", full)
        answer = post(service.http(), request.SerializeToString())
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        with pytest.raises(grpc.RpcError) as raised:
            MetricsServiceStub(service.channel()).Export(request)
        assert raised.value.code() == grpc.StatusCode.UNAVAILABLE
    assert post(service.http(), request.SerializeToString()).status_code == 200
    assert to.query()[0].aggregates == {"more": 3.0}  # the start was not taken for written


def test_three_reasons_are_said_without_more(sash, send):
    window(sash, keyed=True)
    points = [(1, 1.0, None, {}), (3, None, None, {"key": "a"}), (4, 1.0, None, {"key": b"bytes"})]
    found = send(message(*points, (5, 1.0, None, {})))
    assert (found.rejected_data_points, "more" in found.error_message) == (4, False)
    assert found.error_message.count("; ") == 2


def test_times_that_int64_does_not_hold_are_rejected(sash, send):
    to = window(sash, time_unit="ns")
    request = message((1, 1.0, None, {}), (2, 1.0, None, {}))
    request.resource_metrics[0].scope_metrics[0].metrics[0].gauge.data_points[1].time_unix_nano = 2**63
    found = send(request)
    assert (found.rejected_data_points, "out of range" in found.error_message) == (1, True)
    assert to.describe().entries == 1


def test_a_start_that_several_points_of_a_request_have_is_one_entry(sash, send):
    to = window(sash, aggregates=INCREASE)
    send(message(*((at, at, 0, {}) for at in (10, 20, 30)), kind="sum", temporality=CUMULATIVE))
    assert (to.describe().entries, to.describe().counts.duplicates) == (4, 0)


def test_starts_beyond_what_is_remembered_are_written_again_and_known(sash, send, monkeypatch):
    monkeypatch.setattr(otlp, "_STARTS_MAX", 1)
    to = window(sash, aggregates=INCREASE, keyed=True)
    for at in (10, 20):
        for key in "ab":
            send(message((at, at, 0, {"key": key}), kind="sum", temporality=CUMULATIVE))
    assert [each.aggregates for each in to.query(keys=["a", "b"])] == [{"more": 20.0}] * 2
    assert to.describe().counts.duplicates == 2


def test_no_attribute_stands_for_the_metrics_name(sash, send):
    to = window(sash, keys=["otel_metric", "a"])
    own = {"otel_metric": "own", "a": "x"}
    send(message((1, 1.0, None, own), (2, 1.0, None, {}), resource={"otel_metric": "resource"}))
    assert sorted(key for key, _, _ in entries(to)) == ["requests|", "requests|x"]


@pytest.mark.parametrize(
    "headers",
    [
        {"content-type": "application/x-protobuf; charset=utf-8"},
        {"content-type": "Application/X-Protobuf"},
        {"content-encoding": "identity"},
        {"content-encoding": "GZIP"},
    ],
)
def test_http_headers_in_other_words(service, sash, headers):
    to = window(sash)
    body = message((1, 1.0, None, {})).SerializeToString()
    body = gzip.compress(body) if "GZIP" in headers.values() else body
    assert post(service.http(), body, **headers).status_code == 200
    assert to.describe().entries == 1


def test_a_body_of_the_largest_size_is_taken(service, sash):
    window(sash)
    left = otlp.BYTES_MAX - message((1, 1.0, None, {"a": "x" * 3_000_000})).ByteSize()
    request = message((1, 1.0, None, {"a": "x" * (3_000_000 + left)}))
    assert request.ByteSize() == otlp.BYTES_MAX
    for body, headers in (
        (request.SerializeToString(), {}),
        (gzip.compress(request.SerializeToString(), 1), {"content-encoding": "gzip"}),
    ):
        assert post(service.http(), body, **headers).status_code == 200


def test_a_refusal_over_http_names_the_field_the_request_and_when_to_try_again(service, sash, monkeypatch):
    answer = post(service.http(), b"\xff", **{"x-request-id": "mine"})
    status = status_pb2.Status.FromString(answer.content)
    assert status.details, "the field is in them"
    assert answer.headers["x-request-id"] == "mine"
    before = refusals(service, 503)

    async def full(*_):
        raise ResourceExhausted("no room", limit="1 byte", retry_after_s=1.5)

    window(sash)
    with monkeypatch.context() as patched:
        patched.setattr(type(service.plane), "write", full)
        answer = post(service.http(), message((1, 1.0, None, {})).SerializeToString())
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")
    assert refusals(service, 503) == before + 1


def refusals(service, code):
    (found,) = [
        float(line.split()[-1])
        for line in service.http().get("/metrics").text.splitlines()
        if line.startswith("sash_requests_rejected_total{") and f'code="{code}"' in line and 'edge="otlp"' in line
    ] or [0.0]
    return found


# ---------------------------------------------------------------- stock exporters


@pytest.mark.parametrize("transport", ["grpc", "http", "http gzip"])
@pytest.mark.parametrize("temporality", [AggregationTemporality.CUMULATIVE, AggregationTemporality.DELTA])
def test_a_stock_sdk_exports(service, sash, transport, temporality, monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    delta = temporality is AggregationTemporality.DELTA
    requests = window(sash, "shop.requests", SUM if delta else INCREASE, keys=["service.name", "route"], time_unit="ns")
    load = window(sash, "shop.load", {"last": {"function": "last"}}, keyed=True, time_unit="ns")
    key = ("sash-key", "service.name")
    given = {"preferred_temporality": {Counter: temporality}, "headers": [key] if transport == "grpc" else dict([key])}
    with stock_sdk(service, transport, **given) as (meter, export):
        counter, gauge = meter.create_counter("shop.requests"), meter.create_gauge("shop.load")
        for round_ in range(3):
            counter.add(5, {"route": "/a"})
            counter.add(1 + round_, {"route": "/b"})
            gauge.set(round_)
            export()
    answers = requests.query(keys=[{"service.name": "shop", "route": route} for route in ("/a", "/b")])
    assert [next(iter(each.aggregates.values())) for each in answers] == [15.0, 6.0]
    assert load.query(key="shop")[0].aggregates == {"last": 2.0}


def test_reflection_lists_the_service(service):
    from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

    stub = reflection_pb2_grpc.ServerReflectionStub(service.channel())
    (answer,) = stub.ServerReflectionInfo(iter([reflection_pb2.ServerReflectionRequest(list_services="")]))
    assert otlp.SERVICE in {each.name for each in answer.list_services_response.service}


def test_http_client_without_a_body(service):
    assert httpx.post(f"{service.rest_url}/v1/metrics", trust_env=False, verify=False).status_code == 415
