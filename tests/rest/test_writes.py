"""Writes over REST: applied once, in batches, of at most so many entries, and cancelled."""

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
