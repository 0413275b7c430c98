"""Histograms of OTLP as partials: what they are beside the values they stand for, and that nothing counts twice."""

import math
from collections import Counter as Counted

import numpy as np
import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.sdk.metrics import Histogram
from opentelemetry.sdk.metrics.export import AggregationTemporality
from opentelemetry.sdk.metrics.view import ExplicitBucketHistogramAggregation, ExponentialBucketHistogramAggregation

from sash_client import Client
from tests.otlp.sending import post, put, stock_sdk
from tests.support.servers import running_service
from tests.support.tokens import bearer, write_tokens

T = 1_700_000_040 * 10**9  # the start of a minute
MS = 10**6
MINUTE = 60_000
ALL = {
    "n": {"function": "count"},
    "sum": {"function": "sum"},
    "mean": {"function": "mean"},
    "least": {"function": "min"},
    "most": {"function": "max"},
    "quantiles": {"function": "quantile", "q": [0.1, 0.5, 0.99]},
    "tail": {"function": "quantile", "q": [0.5, 0.999], "accuracy": "tail"},
    "bins": {"function": "histogram", "bounds": [5, 50]},
}
BASE = {"time_unit": "ms", "granularity": "1m", "fields": {"seconds": "float64"}}
DELTA, CUMULATIVE = 1, 2


def window(sash, aggregates=("n", "sum"), name="latency", **changed):
    named = aggregates if isinstance(aggregates, dict) else {each: ALL[each] for each in aggregates}
    return sash.create_window({**BASE, "name": name, "aggregates": named, **changed})


def histogram(values, bounds, **more):
    """A point of values, as an SDK makes it."""
    counts = [0] * (len(bounds) + 1)
    for value in values:
        counts[int(np.searchsorted(bounds, value, "left"))] += 1
    return {"bucket_counts": counts, "explicit_bounds": bounds} | told(values) | more


def exponential(values, scale, **more):
    """Likewise; a bucket ends at a power of 2^(2^-scale)."""
    ends = Counted(math.ceil(math.log2(abs(value)) * 2**scale) * math.copysign(1, value) for value in values if value)
    found = {"scale": scale, "zero_count": sum(not value for value in values)} | told(values)
    for name, sign in (("positive", 1), ("negative", -1)):
        some = {int(end * sign): count for end, count in ends.items() if math.copysign(1, end) == sign}
        if some:
            first = min(some)
            counts = [some.get(end, 0) for end in range(first, max(some) + 1)]
            found[name] = {"offset": first - 1, "bucket_counts": counts}
    return found | more


def told(values):
    if not values:
        return {"count": 0, "sum": 0.0}
    return {"count": len(values), "sum": sum(values), "min": min(values), "max": max(values)}


def message(*points, kind="histogram", name="latency", temporality=DELTA, resource=None, scope=""):
    """A request with one metric; a point is a time in ms after T, its members, and its attributes."""
    request = ExportMetricsServiceRequest()
    made = request.resource_metrics.add()
    put(made.resource.attributes, resource or {})
    scoped = made.scope_metrics.add()
    scoped.scope.name = scope
    data = getattr(scoped.metrics.add(name=name), kind)
    data.aggregation_temporality = temporality
    for time, members, attributes in points:
        put(data.data_points.add(time_unix_nano=T + time * MS, **members).attributes, attributes)
    return request


def answer(window, **where):
    (found,) = window.query(**where)
    return found


def taken(service):
    """What the metrics say has become of points."""
    lines = service.http().get("/metrics").text.splitlines()
    found = {
        line.split('"')[1]: float(line.split()[-1]) for line in lines if line.startswith("sash_otlp_points_total{")
    }
    return Counted({outcome: int(found.get(outcome, 0)) for outcome in ("taken", "rejected", "repeated")})


# ---------------------------------------------------------------- what they are

VALUES = [1.0, 4.5, 6.0, 7.0, 30.0, 200.0, 200.0]


def check(found, values, wide):
    """The answers over points against those over their values; `wide`: how much a bucket tells less than they do."""
    assert (found.entries, found.aggregates["n"]) == (len(values), len(values))
    assert found.aggregates["sum"] == pytest.approx(sum(values))
    assert found.aggregates["mean"] == pytest.approx(sum(values) / len(values))
    assert (found.aggregates["least"], found.aggregates["most"]) == (min(values), max(values))
    ordered = sorted(values)
    for name, ranks in (("quantiles", [0.1, 0.5, 0.99]), ("tail", [0.5, 0.999])):
        for rank, got in zip(ranks, found.aggregates[name], strict=True):
            low, high = (ordered[min(max(int(len(ordered) * rank) + by, 0), len(ordered) - 1)] for by in (-1, 1))
            assert low / wide <= got <= high * wide, (name, rank)


def test_an_explicit_histogram(sash, send):
    to = window(sash, ALL)
    assert not send(message((1, histogram(VALUES, [2, 5, 10, 50, 100]), {}))).rejected_data_points
    check(answer(to), VALUES, 3)
    assert answer(to).aggregates["bins"] == {"bounds": [5.0, 50.0], "counts": [2, 3, 2], "nan": 0}


@pytest.mark.parametrize("scale", [3, 0, -1])
def test_an_exponential_histogram(sash, send, scale):
    to = window(sash, {name: each for name, each in ALL.items() if name != "bins"})
    assert not send(message((1, exponential(VALUES, scale), {}), kind="exponential_histogram")).rejected_data_points
    check(answer(to), VALUES, 2**2**-scale)


def test_an_exponential_histogram_has_zeros_and_values_below(sash, send):
    to = window(sash, ALL | {"bins": {"function": "histogram", "bounds": [-4, 0.5, 4]}})
    values = [-8.0, -3.0, -3.0, 0.0, 0.0, 0.0, 1.0, 4.0, 16.0, 17.0]
    assert not send(message((1, exponential(values, 0), {}), kind="exponential_histogram")).rejected_data_points
    found = answer(to).aggregates
    assert found["bins"]["counts"] == [1, 5, 2, 2]
    assert found["quantiles"][1] == 0.0
    assert -8 <= found["quantiles"][0] <= -4
    assert 16 <= found["quantiles"][2] <= 17


def test_a_bucket_is_taken_as_evenly_full(sash, send):
    """And its outer ends are 0, or the other end, where a point does not tell them."""
    to = window(sash, {"q": {"function": "quantile", "q": [0.125, 0.375, 0.625, 0.875]}}, keys=["k"])
    two = {"count": 4, "bucket_counts": [2, 2, 0], "explicit_bounds": [10, 20]}
    below = {"count": 4, "bucket_counts": [4, 0], "explicit_bounds": [-10]}
    above = {"count": 4, "bucket_counts": [0, 0, 4], "explicit_bounds": [10, 20]}
    ends = {"count": 4, "bucket_counts": [4], "min": 1.0, "max": 9.0}
    points = {"two": two, "below": below, "above": above, "ends": ends}
    assert not send(message(*((1, each, {"k": k}) for k, each in points.items()))).rejected_data_points
    found = {k: answer(to, key={"k": k}).aggregates["q"] for k in points}
    assert found == {"two": [2.5, 7.5, 12.5, 17.5], "below": [-10.0] * 4, "above": [20.0] * 4, "ends": [2, 4, 6, 8]}


def test_large_counts_keep_their_ranks(sash, send):
    """A sketch of k items is of all values: its ranks are true to 1 / k, and also after it is merged."""
    to = window(sash, {"q": {"function": "quantile", "q": [0.25, 0.5, 0.9]}}, keys=["k", "none"])
    counts = [10**9 + 7, 3 * 10**9, 1, 10**9, 0]
    one = {"count": sum(counts), "bucket_counts": counts, "explicit_bounds": [10, 20, 30, 40]}
    for time in (1, 2, 3):
        assert not send(message(*((time, one, {"k": k}) for k in "ab"))).rejected_data_points
    ends, edges = np.cumsum([0, *counts[:-1]]), [0, 10, 20, 30, 40]
    for found in (answer(to, key={"k": "a", "none": ""}), answer(to, by=["none"])):
        for rank, value in zip((0.25, 0.5, 0.9), found.aggregates["q"], strict=True):
            assert abs(np.interp(value, edges, ends) / ends[-1] - rank) < 0.02


def test_only_what_the_window_asks_for_is_needed(sash, send):
    """A point may tell nothing but how many values there were, and their sum."""
    to = window(sash)
    assert not send(message((1, {"count": 3, "sum": 6.0}, {}))).rejected_data_points
    assert answer(to).aggregates == {"n": 3, "sum": 6.0}
    assert not send(message((2, {"count": 0}, {}), (3, {"count": 1, "sum": 1.0, "flags": 1}, {}))).rejected_data_points
    assert answer(to).entries == 3


def test_points_are_folded_by_key_and_granule(sash, send):
    """Series that have one key are one: their partials are combined."""
    to = window(sash, ["n", "sum"], keys=["service.name"])
    point = {"count": 2, "sum": 5.0}
    for pod in "ab":
        resource = {"service.name": "shop", "pod": pod}
        points = ((time, point, {"route": route}) for time in (1, 2, MINUTE + 1) for route in "xyz")
        assert not send(message(*points, resource=resource)).rejected_data_points
    assert answer(to, key={"service.name": "shop"}).aggregates == {"n": 36, "sum": 90.0}
    series = to.series(T // MS, T // MS + 2 * MINUTE, step="1m", key={"service.name": "shop"})
    assert list(series.aggregates["n"]) == [24, 12]


# ---------------------------------------------------------------- once


def test_a_point_that_is_sent_again_is_there_already(service, sash, send):
    to, before = window(sash, ALL, keys=["k"]), taken(service)
    many = [float(n) for n in range(1, 1000)]  # more than a sketch has items
    request = message(*((time, histogram(many, [5, 50, 500]), {"k": k}) for time in (5, 9) for k in "ab"))
    for again in range(3):
        assert not send(request).rejected_data_points, again
    assert to.describe().entries == 4 * len(many)
    assert taken(service) - before == Counted(taken=4, repeated=8)


def test_a_point_that_is_older_or_another_one_of_the_same_time_is_rejected(service, sash, send):
    to, before = window(sash), taken(service)
    assert not send(message((5, {"count": 1, "sum": 1.0}, {}))).rejected_data_points
    found = send(
        message((4, {"count": 1, "sum": 1.0}, {}), (5, {"count": 1, "sum": 2.0}, {}), (6, {"count": 1, "sum": 4.0}, {}))
    )
    assert found.rejected_data_points == 2
    assert "older than the last one of its series" in found.error_message
    assert "and not its values" in found.error_message
    assert answer(to).aggregates == {"n": 2, "sum": 5.0}
    assert taken(service) - before == Counted(taken=2, rejected=2)


@pytest.mark.parametrize(
    "other",
    [
        {"resource": {"pod": "b"}},
        {"scope": "other"},
        {"attributes": {"a": "x"}},
        {"attributes": {"a": ""}},
        {"kind": "exponential_histogram", "name": "other"},
    ],
    ids=str,
)
def test_what_tells_series_apart(sash, send, other):
    to = window(sash)
    for more in ({}, other):
        given = {"resource": {"pod": "a"}} | {name: value for name, value in more.items() if name != "attributes"}
        request = message((5, {"count": 1, "sum": 1.0}, more.get("attributes", {})), **given)
        assert not send(request, sash_window="latency").rejected_data_points
    assert answer(to).entries == 2


def test_the_order_of_attributes_tells_nothing(sash, send):
    to = window(sash)
    for names in ("ab", "ba"):
        attributes = dict.fromkeys(names, "x")
        assert not send(message((5, {"count": 1, "sum": 1.0}, attributes), resource=attributes)).rejected_data_points
    assert answer(to).entries == 1


def test_names_and_values_are_told_apart(sash, send):
    to = window(sash)
    for attributes in ({"": "", "a": "x"}, {"\n\0a": "x"}):
        assert not send(message((5, {"count": 1, "sum": 1.0}, attributes))).rejected_data_points
    assert answer(to).entries == 2


@pytest.mark.parametrize("other", [(5, 7, 9), (7, 9, 5)])
def test_points_of_a_series_are_written_in_order(sash, send, other):
    """So a request that comes again has them by the same numbers, in whatever order they are in it."""
    to = window(sash)
    for times in ((9, 5, 7), other):
        points = [(time, {"count": 1, "sum": float(time)}, {}) for time in times]
        assert not send(message(*points)).rejected_data_points
    assert answer(to).aggregates == {"n": 3, "sum": 21.0}


def test_many_series_over_shards_and_a_restart(tmp_path, monkeypatch):
    monkeypatch.setattr("sash.otlp.metrics._SERIES_AT_ONCE", 7)
    points = [(time, {"count": 1, "sum": 1.0}, {"k": f"k{n}"}) for n in range(40) for time in (1, 2)]
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2_grpc import MetricsServiceStub

    for again in range(2):
        with running_service(shards=3, data=str(tmp_path)) as service, Client(service.grpc_target) as client:
            if not again:
                window(client, keys=["k"])
            stub = MetricsServiceStub(service.channel())
            for request in (message(*points[: 60 + 20 * again]), message(*points)):
                assert not stub.Export(request).partial_success.rejected_data_points
            assert client.window("latency").describe().entries == len(points)


def test_what_a_caller_may_not_write_is_rejected_beside_what_it_may(tmp_path):
    roles = {"owner": {"role": "admin"}, "writer": {"role": "write", "windows": ["latency"]}}
    tokens = write_tokens(tmp_path / "tokens.yaml", roles)
    with running_service(tokens=tokens) as service, Client(service.grpc_target, token="owner-token") as owner:
        to, hidden = window(owner), window(owner, name="hidden")
        one = {"count": 1, "sum": 1.0}
        request = message((1, one, {}), name="hidden")
        assert post(service.http(), request.SerializeToString(), **bearer("writer")).status_code == 403
        request.MergeFrom(message((1, one, {})))
        found = post(service.http(), request.SerializeToString(), **bearer("writer"))
        assert found.status_code == 200
        answered = ExportMetricsServiceResponse.FromString(found.content)
        assert answered.partial_success.rejected_data_points == 1
        assert (to.describe().entries, hidden.describe().entries) == (1, 0)


# ---------------------------------------------------------------- what does not fit


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"granularity": None, "order": {"equal_times": "first"}}, "keeps entries, and a histogram has none"),
        ({"fields": {"a": "int64"}}, "has other fields than one of float64"),
        ({"fields": {"a": "float64", "b": "float64"}}, "has other fields than one of float64"),
        ({"nullable": ["seconds"]}, "has other fields than one of float64 that is never null"),
        ({"time_unit": "none", "granularity": 60}, "counts in 'none'"),
        ({"aggregates": {"v": {"function": "variance"}}}, "has an aggregate variance, which a histogram does not tell"),
    ],
)
def test_windows_that_take_no_histograms(sash, send, changed, reason):
    fields = changed.get("fields", BASE["fields"])
    sums = {f"sum_{name}": {"function": "sum", "field": name} for name in fields}
    made = {**BASE, "name": "latency", "aggregates": sums, **changed}
    sash.create_window({name: value for name, value in made.items() if value is not None})
    found = send(message((1, {"count": 1, "sum": 1.0}, {})))
    assert (found.rejected_data_points, reason in found.error_message) == (1, True), found.error_message


POINT = {"count": 3, "sum": 3.0, "min": 1.0, "max": 2.0, "bucket_counts": [1, 2], "explicit_bounds": [1.5]}
TWO = {"positive": {"offset": 0, "bucket_counts": [1, 1]}}


@pytest.mark.parametrize(
    ("kind", "members", "reason"),
    [
        ("histogram", {"count": 2**40 + 1}, "values; 1099511627776 are taken"),
        ("histogram", {"sum": None}, "a point has no sum, which the window needs"),
        ("histogram", {"min": None}, "a point has no min"),
        ("histogram", {"max": None}, "a point has no max"),
        ("histogram", {"count": 4}, "a point has 4 values, and 3 in its buckets"),
        ("histogram", {"bucket_counts": [], "explicit_bounds": []}, "a point has 3 values, and 0 in its buckets"),
        ("histogram", {"explicit_bounds": [1.5, 2.0]}, "2 buckets and 2 bounds"),
        ("histogram", {"bucket_counts": [1, 1, 1], "explicit_bounds": [2.0, 2.0]}, "do not rise"),
        ("histogram", {"explicit_bounds": [math.inf]}, "do not rise, or are not finite"),
        ("histogram", {"explicit_bounds": [math.nan]}, "do not rise, or are not finite"),
        ("histogram", {"bucket_counts": [2**40 + 1, 2]}, "a bucket of a point has 1099511627777 values"),
        ("histogram", {"bucket_counts": [0] * 2001, "explicit_bounds": range(2000)}, "2001 buckets; 2000 are taken"),
        ("histogram", {"min": 3.0}, "the min of a point is 3.0, and its max 2.0"),
        ("histogram", {"min": math.nan}, "the min of a point is nan"),
        ("histogram", {"min": 0.0, "explicit_bounds": [1.75]}, "bound 1.5 is inside the bucket from 0 to 1.75"),
        ("histogram", {"time_unix_nano": 0}, "has no time"),
        ("exponential_histogram", TWO | {"count": 2, "scale": -11}, "out of range of float64"),
        ("exponential_histogram", TWO | {"count": 2, "scale": -(2**31)}, "out of range of float64"),
        ("exponential_histogram", TWO | {"count": 3}, "a point has 3 values, and 2 in its buckets"),
        ("exponential_histogram", TWO | {"count": 2, "zero_threshold": -1.0}, "zero_threshold of a point is below 0"),
        ("exponential_histogram", TWO | {"count": 2, "zero_threshold": math.nan}, "zero_threshold of a point"),
    ],
    ids=str,
)
def test_points_that_do_not_fit_are_rejected_alone(sash, send, kind, members, reason):
    to = window(sash, ALL | {"bins": {"function": "histogram", "bounds": [1.5]}}, keys=["k"])
    base = POINT if kind == "histogram" else {"count": 3, "sum": 3.0, "min": 1.0, "max": 2.0}
    bad = {name: value for name, value in (base | members).items() if value is not None}
    good = {"count": 1, "sum": 1.0, "min": 1.0, "max": 1.0}
    good |= {"bucket_counts": [1, 0], "explicit_bounds": [1.0]} if kind == "histogram" else {"zero_count": 0} | {
        "positive": {"offset": -1, "bucket_counts": [1]}}  # fmt: skip
    request = message((1, good, {"k": "good"}), (2, {}, {"k": "bad"}), kind=kind)
    data = getattr(request.resource_metrics[0].scope_metrics[0].metrics[0], kind).data_points[1]
    data.MergeFrom(type(data)(**bad))
    if "time_unix_nano" in members:
        data.time_unix_nano = members["time_unix_nano"]
    found = send(request)
    assert (found.rejected_data_points, reason in found.error_message) == (1, True), found.error_message
    assert found.error_message.startswith("metric 'latency': ") or "has no time" in found.error_message
    assert (answer(to, key={"k": "good"}).entries, to.describe().entries) == (1, 1)


def test_a_point_without_any_bounds_has_no_quantile(sash, send):
    window(sash, ["quantiles"])
    found = send(message((1, {"count": 2, "bucket_counts": [2]}, {})))
    assert "tells no bounds, and no min and max" in found.error_message


@pytest.mark.parametrize("kind", ["histogram", "exponential_histogram"])
@pytest.mark.parametrize("temporality", [0, CUMULATIVE])
def test_cumulative_histograms_are_rejected(sash, send, kind, temporality):
    window(sash)
    found = send(message((1, {"count": 1, "sum": 1.0}, {}), kind=kind, temporality=temporality))
    assert (found.rejected_data_points, "is not of deltas" in found.error_message) == (1, True)


def test_numbers_and_histograms_of_one_name_are_told_apart(sash, send):
    window(sash)
    request = message((1, {"count": 1, "sum": 1.0}, {}))
    request.resource_metrics[0].scope_metrics[0].metrics.add(name="latency").gauge.data_points.add(
        as_int=1, time_unix_nano=T
    )
    found = send(request)
    assert (found.rejected_data_points, "order.equal_times" in found.error_message) == (1, True)


# ---------------------------------------------------------------- a stock SDK


@pytest.mark.parametrize("transport", ["grpc", "http"])
@pytest.mark.parametrize("aggregation", [ExplicitBucketHistogramAggregation, ExponentialBucketHistogramAggregation])
def test_a_stock_sdk_exports_histograms(service, sash, transport, aggregation, monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    to = window(sash, {name: each for name, each in ALL.items() if name != "bins"}, keys=["service.name"])
    given = {
        "preferred_temporality": {Histogram: AggregationTemporality.DELTA},
        "preferred_aggregation": {Histogram: aggregation()},
    }
    values = [0.2, 3.0, 8.0, 20.0, 60.0, 400.0, 1.5, 90.0, 30.0]
    with stock_sdk(service, transport, **given) as (meter, export):
        seconds = meter.create_histogram("latency")
        for place, value in enumerate(values):
            seconds.record(value, {"route": "ab"[place % 2]})
            export()
    check(answer(to, key={"service.name": "shop"}), values, 4)
