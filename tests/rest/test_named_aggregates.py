"""Questions that name aggregates: Arrow and PromQL; tests/edges has the others."""

import pyarrow as pa
import pytest

from sash_client import Client
from sash_engine.windows.reading import reader
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


@pytest.fixture(params=["w", "view"])
def path(service, request):
    return f"/v1/windows/{request.param}"


NAMED = [("aggregate", name) for name in TARGET]


def test_arrow_has_the_columns_that_are_named(service, path):
    asked = [("key", "a"), ("step", "10s"), ("start", T), ("end", T + 30), *NAMED]
    answer = service.http().get(f"{path}/series", params=asked, headers={"accept": ARROW["content-type"]})
    assert pa.ipc.open_stream(answer.content).schema.names == ["time", "entries", "aggregates.low", "aggregates.p99"]


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
