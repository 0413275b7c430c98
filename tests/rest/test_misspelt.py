"""Names that nobody knows: what each edge says in words of its own; tests/edges/refused.yaml has the others."""

import pytest

from sash_client import Client, InvalidArgument
from tests.support.servers import running_service

SPEC = {
    "name": "delays",
    "time_unit": "s",
    "keys": ["airport", "carrier"],
    "fields": {"delay": "float64", "dest": "string"},
    "identity": "dest",
    "aggregates": {"flights": {"function": "count"}, "mean": {"function": "mean", "field": "delay"}},
}
ROW = {"time": 17, "airport": "JFK", "carrier": "AA", "delay": 1.0, "dest": "x"}
ROWS = {name: [value] for name, value in ROW.items()}
WINDOW = "/v1/windows/delays"


@pytest.fixture(scope="module")
def service():
    with running_service() as running:
        assert running.http().post("/v1/windows", json=SPEC).status_code == 201
        yield running


@pytest.fixture(scope="module")
def window(service):
    with Client(service.grpc_target) as client:
        yield client.window("delays")


def without(given, name, **more):
    return {each: value for each, value in given.items() if each != name} | more


UNKNOWN = "'{}' is unknown: is it misspelt?"


@pytest.mark.parametrize(
    ("path", "document", "field", "says"),
    [
        ("", {**SPEC, "slide": {"max_aeg": "1d"}}, "slide.max_aeg", "did you mean 'max_age'?"),
        ("", {**SPEC, "slide": {"adaptive": {"field": "delya"}}}, "slide.adaptive.field", "did you mean 'delay'?"),
        ("/insert", without(ROW, "time", tiem=17), "time", UNKNOWN.format("tiem")),
        ("/insert", without(ROW, "airport", airprot="JFK"), "parts.airport", UNKNOWN.format("airprot")),
        ("/insert", without(ROW, "delay", delya=1.0), "delay", "'delya' is no field: is it misspelt?"),
        ("/insert", {**ROW, "delya": 1.0}, "delya", "did you mean 'delay'?"),
        ("/insert", without(ROW, "time", zzz=1), "time", "time is missing"),
        ("/insert", without(ROW, "delay", zzz=1), "delay", "'delay' is missing"),
        ("/insert", without(ROW, "airport", zzz=1), "parts.airport", "of the key is missing"),
        ("/bulk-insert", without(ROWS, "time", tiem=[17]), "time", UNKNOWN.format("tiem")),
        ("/bulk-insert", without(ROWS, "airport", airprot=["JFK"]), "parts.airport", UNKNOWN.format("airprot")),
        ("/bulk-insert", without(ROWS, "delay", delya=[1.0]), "delya", "did you mean 'delay'?"),
        ("/bulk-evict", {"tiem": 17}, "tiem", "did you mean 'time'?"),
        ("/retract", {"dst": ["x"], "airport": ["JFK"], "carrier": ["AA"]}, "dest", UNKNOWN.format("dst")),
        ("/query?lookbacks=1h&key=a|b", None, "lookbacks", "did you mean 'lookback'?"),
        ("/query?airport=JFK", None, "airport", "a part of keys goes into where: where=NAME=VALUE"),
    ],
)
def test_rest(service, path, document, field, says):
    path = WINDOW + path if path else "/v1/windows"
    refused = service.http().request("GET" if document is None else "POST", path, json=document)
    assert (refused.status_code, refused.json()["field"]) == (400, field)
    detail = refused.json()["detail"]
    assert says in detail
    assert ("where=NAME" in detail) == (field == "airport")
    assert detail.endswith(says) or "missing" not in says  # what is like no name is no guess
    (window,) = service.http().get("/v1/windows").json()["windows"]
    assert window["entries"] == 0


@pytest.mark.parametrize(("kind", "body"), [("text/csv", "time,airport,carrier,delya,dest\n"), ("ndjson", None)])
def test_a_column_of_a_file(service, kind, body):
    body = body or '{"time": 17, "airport": "JFK", "carrier": "AA", "delay": 1, "dest": "x", "delya": 1}\n'
    kind = {"ndjson": "application/x-ndjson"}.get(kind, kind)
    refused = service.http().post(f"{WINDOW}/bulk-insert", content=body, headers={"content-type": kind})
    assert refused.status_code == 400
    assert "; did you mean 'delay'?" in refused.json()["detail"]


@pytest.mark.parametrize(
    ("expression", "says"),
    [("summ(up)", "unknown function 'summ'; did you mean 'sum'?"), ("rte(up[1m])", "'rte'; did you mean 'rate'?")],
)
def test_promql(service, expression, says):
    refused = service.http().get("/prometheus/api/v1/query", params={"query": expression})
    assert refused.status_code == 400
    assert refused.json()["error"].endswith(says)


def test_promql_at_its_usual_place(service):
    refused = service.http().get("/api/v1/query", params={"query": "up"})
    assert (refused.status_code, "PromQL is below /prometheus/api/v1" in refused.json()["detail"]) == (404, True)
    assert "PromQL" not in service.http().get("/v2/query").json()["detail"]


@pytest.mark.parametrize(
    ("method", "message", "says"),
    [
        ("Query", {"window": "delays", "lookbak": ["1h"]}, "did you mean 'lookbacks'?"),
        ("Query", {"window": "delays", "top": {"by": "mean", "oder": "asc"}}, "did you mean 'order'?"),
        ("Query", {"window": "delays", "key": "a|b", "as_of": "now"}, "a time is ticks on this edge, an int64"),
        ("Insert", {"window": "delays", "time": "2026-01-01"}, "a time is ticks on this edge, an int64"),
        ("Query", {"window": "delays", "key": "a|b", "limit": "ten"}, "it must be an integer"),
    ],
)
def test_connect(service, method, message, says):
    refused = service.http().post(f"/sash.v1.Windows/{method}", json=message)
    assert refused.status_code == 400
    assert refused.json()["message"].count(says) == 1, refused.json()["message"]


def test_the_client_and_grpc(window):
    for ask, says in (
        (lambda: window.bulk_insert(without(ROWS, "delay", delya=[1.0])), "did you mean 'delay'?"),
        (
            lambda: window.bulk_insert(without(ROWS, "airport", airprot=["JFK"])),
            "'airprot' is unknown: is it misspelt?",
        ),
        (
            lambda: window.insert(17, fields={"delay": 1.0, "dest": "x"}, key={"airprot": "JFK", "carrier": "AA"}),
            "did you mean 'airport'?",
        ),
        (lambda: window._client.answers_at(ROWS, ["delays"], lookbak=["1h"]), "did you mean 'lookbacks'?"),
        (
            lambda: window._client.create_window({**SPEC, "name": "other", "idenity": "dest"}),
            "did you mean 'identity'?",
        ),
    ):
        with pytest.raises(InvalidArgument) as refused:
            ask()
        assert refused.value.message.count(says) == 1, refused.value.message


def test_an_entry_without_a_key(service, window):
    """Several keys, and all of them, are for questions."""
    refused = service.http().post(f"{WINDOW}/insert", json={"time": 17, "delay": 1.0, "dest": "x"})
    assert refused.json()["detail"] == "window 'delays' is keyed: give the entry's key, or its parts: airport, carrier"
    with pytest.raises(InvalidArgument, match="is keyed: give the entry's key, or its parts: airport, carrier"):
        window.insert(17, fields={"delay": 1.0, "dest": "x"})
    with pytest.raises(InvalidArgument, match="give a key, several keys, or all keys"):
        window.query()
    made = window._client.create_window({"name": "plain", "keyed": True, "aggregates": {"n": {"function": "count"}}})
    with pytest.raises(InvalidArgument, match=r"is keyed: give the entry's key$"):
        made.insert(17, 1.0)
    window._client.delete_window("plain")


def test_a_field_is_no_misspelt_time(service):
    spec = {"name": "near", "fields": {"times": "float64"}, "aggregates": {"n": {"function": "count"}}}
    assert service.http().post("/v1/windows", json=spec).status_code == 201
    for path, value in (("insert", 1.0), ("bulk-insert", [1.0])):
        refused = service.http().post(f"/v1/windows/near/{path}", json={"times": value})
        assert refused.json()["detail"] == "time is missing"
    service.http().delete("/v1/windows/near")
