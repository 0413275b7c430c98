"""Writes over REST: forms of bodies, applied once, decided, in batches, of at most so many entries, cancelled."""

import itertools
import socket
import threading

import numpy as np
import pytest

from sash_engine.errors import Unavailable
from sash_engine.windows.answers import WriteResult
from tests.rest.conftest import made
from tests.support.arrow import ARROW, batch, stream
from tests.support.refusals import refuse
from tests.support.servers import WAIT_S, json_head, problem
from tests.support.waiting import until

OCTETS = {"content-type": "application/octet-stream"}


def entries(http, window):
    return http.get(f"/v1/windows/{window}").json()["entries"]


# ---------------------------------------------------------------- once

WRITES = {
    "insert": {"time": 1, "value": 1},
    "bulk-insert": {"time": [2, 3], "value": [2, 3]},
    "bulk-evict": {"time": 1},
}


def test_an_arrow_bulk_says_who_sends_it_in_parameters(http, window):
    body, path = stream(batch(time=[1], value=[1.0])), f"/v1/windows/{window}/bulk-insert"
    sent = [
        http.post(path, content=body, headers=ARROW, params={"producer": "p", "sequence": 1}).json() for _ in range(2)
    ]
    assert [each.get("already_applied", False) for each in sent] == [False, True]
    for parameters, field in (({"producer": "p"}, "sequence"), ({"sequence": 1}, "producer"),
                              ({"producer": "p", "sequence": "x"}, "sequence"), ({"other": 1}, "other"),
                              ({"epoch": 1}, "producer"),
                              ({"producer": "p", "sequence": 1, "epoch": "x"}, "epoch")):  # fmt: skip
        refuse(http, "POST", path, 400, field, content=body, headers=ARROW, params=parameters)
    # In JSON they are members; to take no notice of a parameter would apply a retry twice.
    refuse(http, "POST", path, 400, "producer", json=WRITES["bulk-insert"], params={"producer": "p", "sequence": 2})
    parameters = {"producer": "p", "sequence": 9, "after": 1, "epoch": 3}
    assert http.post(path, content=body, headers=ARROW, params=parameters).json()["inserted"] == 1
    late = parameters | {"sequence": 10, "after": 9, "epoch": 2}
    refuse(http, "POST", path, 409, "epoch", content=body, headers=ARROW, params=late)
    assert entries(http, window) == 2


def test_fields_called_producer_sequence_and_epoch(http):
    fields = {"producer": "string", "sequence": "int64", "epoch": "int64"}
    aggregates = {"who": {"function": "collect", "field": "producer"}}
    for name in made(http, name="meta", fields=fields, aggregates=aggregates):
        path = f"/v1/windows/{name}"
        beside = {"time": 1, "producer": "beside", "sequence": 5, "epoch": 6}
        assert http.post(f"{path}/insert", json=beside).json()["inserted"] == 1
        nested = {"time": 2, "fields": beside | {"producer": "nested"}, "producer": "p", "sequence": 1, "epoch": 6}
        del nested["fields"]["time"]
        assert http.post(f"{path}/insert", json=nested).json()["inserted"] == 1
        assert http.post(f"{path}/insert", json=nested).json()["already_applied"]
        answer = http.get(f"{path}/query").json()["answers"][0]
        assert answer["aggregates"] == {"who": ["beside", "nested"]}


# ---------------------------------------------------------------- forms of bodies


def test_a_window_is_created_once(http):
    spec = {"name": "once", "aggregates": {"n": {"function": "count"}}}
    assert [http.post("/v1/windows", json=spec).status_code for _ in range(2)] == [201, 200]
    assert http.post("/v1/windows", json={**spec, "keyed": True}).status_code == 409
    assert http.delete("/v1/windows/once").json() == {"entries": 0}
    assert http.get("/v1/windows/once").status_code == 404


@pytest.mark.parametrize("media_type", ["application/yaml", "application/yaml; charset=utf-8", "text/yaml"])
def test_a_window_is_created_from_yaml(http, media_type):
    text = "name: from_yaml\naggregates: {n: {function: count}}\nslide: {max_age: 6h}\n"
    response = http.post("/v1/windows", content=text, headers={"content-type": media_type})
    assert response.status_code == 201
    assert response.json()["spec"]["slide"] == {"max_age": "6h", "clock": "event"}
    http.delete("/v1/windows/from_yaml")


def test_columns_stand_beside_the_time_or_in_fields(http, typed):
    rows = {"f": [0.5, -0.0], "i": [2**63 - 1, 0], "s": ["", "x"], "b": [False, True]}
    for time, columns in ((1, rows), (2, {"fields": rows})):
        bulk = {"time": [time] * 2, "key": ["k", "j"], **columns}
        assert http.post(f"/v1/windows/{typed}/bulk-insert", json=bulk).json()["inserted"] == 2
    (answer,) = http.get(f"/v1/windows/{typed}/query?key=k").json()["answers"]
    assert answer["aggregates"] == {"n": 2} | {name: [values[0]] * 2 for name, values in rows.items()}


def test_one_field_is_called_value_whatever_its_name(http):
    spec = {"name": "renamed", "fields": {"delay": "int64"}, "aggregates": {"all": {"function": "collect"}}}
    http.post("/v1/windows", json=spec)
    for document in ({"value": 1}, {"delay": 2}, {"fields": {"delay": 3}}):
        assert http.post("/v1/windows/renamed/insert", json={"time": 1, **document}).status_code == 200
    for document in ({"value": [4]}, {"delay": [5]}, {"fields": {"delay": [6]}}):
        assert http.post("/v1/windows/renamed/bulk-insert", json={"time": [2], **document}).status_code == 200
    (answer,) = http.get("/v1/windows/renamed/query").json()["answers"]
    assert answer["aggregates"] == {"all": [1, 2, 3, 4, 5, 6]}
    http.delete("/v1/windows/renamed")


# ---------------------------------------------------------------- decided


def test_refused_entries_are_counted(http):
    aggregates = {"n": {"function": "count"}}
    for name in made(http, name="limited", time_unit="none", keyed=True, aggregates=aggregates):

        def counted(name=name):
            lines = http.get("/metrics").text.splitlines()
            return [line.split()[1] for line in lines if f'outcome="refused",window="{name}"' in line]

        assert counted() == ["0.0"]
        rows = {"time": [1, 2, 3], "key": ["a"] * 3, "value": [1] * 3, "producer": "p"}
        for sequence in (1, 1, 2, 2, 3):
            limits = [{"aggregate": "n", "lookback": 10, "value": 2}]
            sent = rows | {"limits": limits, "sequence": sequence}
            http.post(f"/v1/windows/{name}/admit", json=sent).raise_for_status()
        assert counted() == ["7.0"]


def test_a_field_called_limits(http):
    spec = {"name": "fielded", "fields": {"limits": "float64"}, "aggregates": {"sum": {"function": "sum"}}}
    http.post("/v1/windows", json=spec)
    body = {"time": 1, "fields": {"limits": 4}, "limits": [{"aggregate": "sum", "lookback": "1s", "value": 5}]}
    path = "/v1/windows/fielded/admit"
    assert [http.post(path, json=body).json()["admitted"] for _ in range(2)] == [[True], [False]]
    http.delete("/v1/windows/fielded")


# ---------------------------------------------------------------- batches


def test_a_part_of_a_batch_as_arrow(http, window):
    body, parameters = stream(batch(time=[4], value=[4.0])), {"query": "q", "batch": 0}
    sent = {"content": body, "headers": ARROW, "params": parameters}
    staged = http.post(f"/v1/windows/{window}/stage", **sent).json()
    assert (staged["entries"], staged["durability"]) == (1, "memory")
    commit = parameters | {"stages": [staged["stage"]]}
    assert http.post(f"/v1/windows/{window}/commit", json=commit).json()["inserted"] == 1


# ---------------------------------------------------------------- how many entries

MOST = 20_000


@pytest.mark.parametrize("route", ["bulk-insert", "stage"])
@pytest.mark.parametrize("form", ["json", "arrow", "two arrow batches"])
def test_a_write_has_as_many_entries_as_it_may_and_not_one_more(http, window, route, form):
    path = f"/v1/windows/{window}/{route}"
    parameters = {"query": "q", "batch": 0} if route == "stage" else {}
    for n in (MOST, MOST + 1):
        if form == "json":
            sent = {"json": {"time": list(range(n)), "value": [0] * n}}
        else:
            cut = 10_000 if form.startswith("two") else n
            ends = (0, cut, n) if cut < n else (0, n)
            parts = [batch(time=np.arange(a, b), value=np.zeros(b - a)) for a, b in itertools.pairwise(ends)]
            sent = {"content": stream(*parts), "headers": ARROW}
        if n > MOST:
            refuse(http, "POST", path, 413, "time", f"{MOST} entries", params=parameters, **sent)
        else:
            http.post(path, params=parameters, **sent).raise_for_status()
    assert entries(http, window) == (0 if route == "stage" else MOST)


# ---------------------------------------------------------------- a tier that takes its time


def test_a_write_whose_client_goes_is_ended(service, window, monkeypatch):
    begun, go, ended = threading.Event(), threading.Event(), threading.Event()

    async def write(*arguments):
        begun.set()
        await until(go.is_set)
        ended.set()
        return WriteResult(inserted=1)

    monkeypatch.setattr(service.plane, "write", write)
    body = b'{"time": 1, "value": 1}'
    with socket.create_connection(("127.0.0.1", service.rest_port)) as client:
        head = json_head(f"/v1/windows/{window}/insert", len(body))
        client.sendall(head + body)
        assert begun.wait(WAIT_S)
    go.set()
    assert ended.wait(WAIT_S)


def test_a_tier_that_is_away(http, service, window, monkeypatch):
    async def write(*arguments):
        raise Unavailable("the tier is away", retry_after_s=1.5)

    monkeypatch.setattr(service.plane, "write", write)
    response = http.post(f"/v1/windows/{window}/insert", json=WRITES["insert"])
    assert problem(response)["status"] == 503
    assert response.headers["retry-after"] == "2"
