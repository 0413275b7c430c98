"""Questions that name aggregates, through each edge: REST, gRPC, Connect, the client, the command line and PromQL."""

import json

import grpc
import pyarrow as pa
import pytest

from sash_client import ALL_KEYS, Client, InvalidArgument
from sash_engine.windows.reading import reader
from sash_proto.v1 import windows_pb2 as pb
from tests.support.arrow import ARROW
from tests.support.servers import running_service

T = 1_700_000_000
SPEC = {
    "name": "w",
    "time_unit": "s",
    "keys": ["host"],
    "fields": {"v": "int64"},
    "aggregates": {
        "n": {"function": "count"},
        "total": {"function": "sum"},
        "low": {"function": "min"},
        "p99": {"function": "quantile", "q": 0.99},
    },
}
TARGET = ("low", "p99")
"""What the questions name."""


@pytest.fixture(scope="module")
def service():
    with running_service() as running:
        with Client(running.grpc_target) as sash:
            assert running.http().post("/v1/windows", json=SPEC).status_code == 201  # in this order
            window = sash.window("w")
            window.bulk_insert(
                [T + i for i in range(40)], {"v": range(40)}, keys={"host": ["ab"[i % 2] for i in range(40)]}
            )
        view = {"name": "view", "of": "w", "aggregates": SPEC["aggregates"]}
        assert running.http().post("/v1/windows", json=view).status_code == 201
        yield running


@pytest.fixture(params=["grpc", "connect"])
def window(service, request):
    with Client(service.grpc_target if request.param == "grpc" else service.rest_url) as sash:
        yield sash.window("w")


@pytest.fixture(params=["w", "view"])
def path(service, request):
    return f"/v1/windows/{request.param}"


NAMED = [("aggregate", name) for name in TARGET]
RANGE = [("start", T), ("end", T + 30)]


@pytest.mark.parametrize(
    ("route", "asked"),
    [
        ("query", [("key", "a")]),
        ("query", [("key", "a"), ("lookback", "9s"), ("partials", "true")]),
        ("query", [("all_keys", "true"), ("combine", "true")]),
        ("query", [("by", "host"), ("top", "total"), ("having", "n>3")]),
        ("range", [("key", "a"), *RANGE]),
        ("range", [("by", "host"), *RANGE]),
        ("series", [("key", "a"), ("step", "10s"), *RANGE]),
        ("series", [("all_keys", "true"), ("step", "10s"), *RANGE]),
        ("series", [("by", "host"), ("step", "10s"), *RANGE]),
    ],
)
def test_rest_answers_what_is_named(service, path, route, asked):
    http = service.http()

    def aggregates(more):
        answer = http.get(f"{path}/{route}", params=[*asked, *more])
        assert answer.status_code == 200, answer.text
        document = answer.json()
        answers = document.get("answers") or document.get("groups") or [document]
        assert all(list(each.get("partials") or TARGET) == list(TARGET) for each in answers if more)
        return [each["aggregates"] for each in answers]

    found = aggregates(NAMED)
    assert found == [{name: each[name] for name in TARGET} for each in aggregates([])]
    assert found


def test_arrow_has_the_columns_that_are_named(service, path):
    asked = [("key", "a"), ("step", "10s"), *RANGE, *NAMED]
    answer = service.http().get(f"{path}/series", params=asked, headers={"accept": ARROW["content-type"]})
    assert pa.ipc.open_stream(answer.content).schema.names == ["time", "entries", "aggregates.low", "aggregates.p99"]


@pytest.mark.parametrize("route", ["query", "range", "series", "watch"])
def test_rest_refuses_an_unknown_name(service, path, route):
    asked = {"query": [], "watch": [], "range": RANGE, "series": [*RANGE, ("step", "9s")]}[route]
    answer = service.http().get(f"{path}/{route}", params=[("key", "a"), *asked, ("aggregate", "p50")])
    assert answer.status_code == 400
    problem = answer.json()
    assert problem["field"] == "aggregates"
    assert problem["limit"] == "n, total, low, p99"
    assert "has no aggregate 'p50'; it has n, total, low, p99" in problem["detail"]


def test_a_watch_over_rest(service, path):
    with service.http().stream("GET", f"{path}/watch", params=[("key", "a"), *NAMED]) as answer:
        data = next(line for line in answer.iter_lines() if line.startswith("data:"))
    assert list(json.loads(data[5:])["answers"][0]["aggregates"]) == list(TARGET)


def test_the_client(window):
    def aggregates(answers):
        return [list(each.aggregates) for each in answers]

    both = [sorted(TARGET)] * 2
    assert aggregates(window.query(key="a", aggregates=TARGET)) == both[:1]
    assert aggregates(window.query(keys=ALL_KEYS, lookbacks=["5s"], aggregates=["p99", "low", "low"])) == both
    assert aggregates(window.query(by="host", having="total > 0", aggregates=TARGET)) == both
    assert window.query(key="a", aggregates="low")[0].aggregates == {"low": 0}
    assert window.query(key="a", aggregates=[])[0] == window.query(key="a")[0]
    assert aggregates([window.range_query(T, T + 9, key="a", aggregates=TARGET)]) == both[:1]
    assert aggregates(window.range_groups(T, T + 9, by="host", aggregates=TARGET)) == both
    assert aggregates([window.series(T, T + 9, step=3, key="a", aggregates=TARGET)]) == both[:1]
    assert aggregates(window.series_groups(T, T + 9, step=3, by="host", aggregates=TARGET)) == both
    with pytest.raises(InvalidArgument, match="it has n, total, low, p99") as caught:
        window.query(key="a", aggregates=["sum"])
    assert caught.value.field == "aggregates"
    with pytest.raises(InvalidArgument) as caught:
        window.query(key="a", aggregates=[7])
    assert caught.value.field == "aggregates"


def test_a_watch_over_grpc(service):
    with Client(service.grpc_target) as sash:
        first = next(iter(sash.window("w").watch(key="a", aggregates=TARGET)))
    assert sorted(first[0].aggregates) == sorted(TARGET)


def test_grpc_refuses_an_unknown_name(service):
    with pytest.raises(grpc.RpcError) as caught:
        service.stub().Query(pb.QueryRequest(window="w", key="a", aggregates=["n", ""]))
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize(
    ("query", "named"),
    [
        ('w:total{host="a"}', [["total"]]),
        ("w:total / w:n", [["total", "n"]]),
        ("sum(w:n)", [["n"]]),
        ("sum by (host) (rate(w:total[9s]))", [["total"]]),
        ("avg(w:low)", [["low"]]),
        ("min_over_time(w:v[9s]) + sum_over_time(w:v[9s])", [["low", "total"]]),
        ("count_over_time(w:v[9s])", [["n"]]),
        ('{__name__=~"w:n|w:p99"}', [["n", "p99"]]),
    ],
)
@pytest.mark.parametrize("route", ["query", "query_range"])
def test_promql_asks_for_what_the_expression_needs(service, monkeypatch, query, named, route):
    asked = []
    original = reader.named
    monkeypatch.setattr(reader, "named", lambda names, *more: asked.append(sorted(names)) or original(names, *more))
    form = {"query": query, "time": T + 39, "start": T + 30, "end": T + 39, "step": 3}
    answer = service.http().post(f"/prometheus/api/v1/{route}", data=form).json()
    assert answer["status"] == "success", answer
    assert answer["data"]["result"]
    assert [list(each) for each in dict.fromkeys(map(tuple, asked))] == [sorted(each) for each in named]


def test_federation_asks_once_for_all_that_it_names(service, monkeypatch):
    asked = []
    original = reader.named
    monkeypatch.setattr(reader, "named", lambda names, *more: asked.append(sorted(names)) or original(names, *more))
    answer = service.http().get("/prometheus/federate", params=[("match[]", "w:low"), ("match[]", 'w:n{host="a"}')])
    assert answer.status_code == 200
    assert {tuple(each) for each in asked} == {("low", "n")}
