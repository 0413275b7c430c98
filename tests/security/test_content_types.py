"""A web page of any site may send forms, plain text and bodies without a type: no route takes those."""

import httpx
import pytest

from sash.rest.routes import ROUTES
from sash_proto.v1 import windows_pb2 as pb
from tests.support.servers import problem, running_service

# What a page may send to another site without asking that site first; and what it may not, but no route takes.
FOREIGN = [
    None,
    "",
    "text/plain",
    "text/plain; charset=utf-8",
    "text/plain;application/json",
    "text/plain, application/json",
    "application/x-www-form-urlencoded",
    "multipart/form-data; boundary=x",
    "application/jsonp",
    "application",
    "*/*",
]
CHANGES = [route for route in ROUTES if route.method not in ("GET", "HEAD")]
BODIES = {
    "create_window": b'{"name": "made", "aggregates": {"n": {"function": "count"}}}',
    "add_aggregates": b'{"total": {"function": "sum"}}',
    "insert": b'{"time": 2, "value": 2}',
    "bulk_insert": b'{"time": [2, 3], "value": [2, 3]}',
    "admit": b'{"time": 2, "value": 2, "limits": [{"aggregate": "n", "lookback": "1s", "value": 9}]}',
    "bulk_evict": b'{"time": 1}',
    "retract": b'{"time": [1], "value": [1]}',
    "punctuate": b'{"time": 1}',
    "update": b'{"time": [1], "value": [1]}',
    "stage": b'{"time": [2, 3], "value": [2, 3]}',
    "commit": b'{"query": "q", "batch": 0, "stages": []}',
    "import_window": b"x",
    "answers_at": b'{"time": [1]}',
    "delete_window": b"",
    "move_shard": b'{"shard": 0, "process": 0}',
}
QUERIES = {"stage": "?query=q&batch=0"}


@pytest.fixture(scope="module")
def service():
    with running_service() as running:
        yield running


@pytest.fixture
def unchanged(http):
    """A window with an entry; checks after the test that it is as it was, and that there is no other."""
    assert http.post("/v1/windows", json={"name": "w", "aggregates": {"n": {"function": "count"}}}).status_code == 201
    assert http.post("/v1/windows/w/insert", json={"time": 1, "value": 1}).status_code == 200
    before = http.get("/v1/windows").json()
    yield
    assert http.get("/v1/windows").json() == before
    http.delete("/v1/windows/w")


def headers_of(kind):
    return {} if kind is None else {"content-type": kind}


@pytest.mark.parametrize("route", CHANGES, ids=lambda route: route.name)
def test_a_body_of_a_foreign_type_is_refused(http, unchanged, route):
    path = route.path.replace("{name}", "w") + QUERIES.get(route.name, "")
    for kind in FOREIGN:
        if not (route.kinds or kind):
            continue  # a request without a body has no type
        found = problem(http.request(route.method, path, content=BODIES[route.name], headers=headers_of(kind)))
        assert (found["status"], found["field"]) == (415, "Content-Type"), kind
        assert ("is missing" in found["detail"]) == (not kind)


@pytest.mark.parametrize("kind", ["application/json", "Application/JSON", "application/json; charset=utf-8"])
def test_bodies_of_the_right_type_are_taken(http, kind):
    for name in ("create_window", "insert", "delete_window"):
        (route,) = (each for each in CHANGES if each.name == name)
        path = route.path.replace("{name}", "made")
        assert http.request(route.method, path, content=BODIES[name], headers=headers_of(kind)).is_success


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("application/x-ndjson", b'{"time": 2, "value": 2}\n'),
        ("text/csv", b"time,value\n2,2\n"),
        ("text/csv; charset=utf-8", b"time,value\n2,2\n"),
    ],
)
def test_lines_are_taken_where_the_route_declares_them(http, unchanged, kind, body):
    """A page may send them to another site only if that site allows it: they are no form, and no plain text."""
    assert http.post("/v1/windows", json={"name": "lines", "aggregates": {"n": {"function": "count"}}}).is_success
    assert http.post("/v1/windows/lines/bulk-insert", content=body, headers=headers_of(kind)).json()["inserted"] == 1
    http.delete("/v1/windows/lines")
    for name in ("insert", "stage", "bulk_evict", "commit"):
        (route,) = (each for each in CHANGES if each.name == name)
        path = route.path.replace("{name}", "w") + QUERIES.get(name, "")
        assert http.post(path, content=body, headers=headers_of(kind)).status_code == 415


def test_every_route_that_changes_something_is_covered():
    assert {route.name for route in CHANGES} == set(BODIES)


METHODS = pb.DESCRIPTOR.services_by_name["Windows"].methods


@pytest.mark.parametrize(
    "method", [each.name for each in METHODS if not (each.client_streaming and each.server_streaming)]
)
def test_connect_refuses_them_too(http: httpx.Client, unchanged, method):
    body = b'{"window": "w", "name": "w", "time": 5, "value": 5}'
    for kind in FOREIGN:
        answer = http.post(f"/sash.v1.Windows/{method}", content=body, headers=headers_of(kind))
        assert answer.status_code == 415, kind
