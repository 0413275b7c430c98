"""Every operation of every edge, with every role, on windows that a token sees and on windows that it does not see."""

import json
import socket
from functools import cache
from itertools import product

import grpc
import pytest
from google.protobuf.json_format import MessageToJson

from sash_proto.v1 import windows_pb2 as pb
from tests.security.conftest import SPEC
from tests.support.servers import problem
from tests.support.tokens import bearer

SERVICE = pb.DESCRIPTOR.services_by_name["Windows"]
READ, WRITE, ADMIN = 1, 2, 3
ROLES = {"reader": READ, "writer": WRITE, "owner": ADMIN}
NO_ENTRY = ("missing", "wrong", "late")


def spec(name):
    return pb.WindowSpec(name=name, time_unit="s", aggregates={"n": pb.AggregateSpec(function="count")})


LIMIT = {"aggregate": "entries", "lookback": "1s", "value": 9}
# What each method needs, and a request of it for a window. A method that is not here fails the first test.
METHODS = {
    "CreateWindow": (ADMIN, lambda name: pb.CreateWindowRequest(spec=spec(name))),
    "GetWindow": (READ, lambda name: pb.GetWindowRequest(name=name)),
    "ListWindows": (READ, lambda _: pb.ListWindowsRequest()),
    "GetTopology": (READ, lambda _: pb.GetTopologyRequest()),
    "MoveShard": (ADMIN, lambda _: pb.MoveShardRequest()),
    "DeleteWindow": (ADMIN, lambda name: pb.DeleteWindowRequest(name=name)),
    "Insert": (WRITE, lambda name: pb.InsertRequest(window=name, time=1, key="k")),
    "BulkInsert": (WRITE, lambda name: pb.BulkInsertRequest(window=name)),
    "InsertStream": (WRITE, lambda name: pb.BulkInsertRequest(window=name)),
    "Admit": (WRITE, lambda name: pb.AdmitRequest(window=name, time=1, key="k")),
    "BulkEvict": (WRITE, lambda name: pb.BulkEvictRequest(window=name, time=-100)),
    "Retract": (WRITE, lambda name: pb.BulkInsertRequest(window=name)),
    "Punctuate": (WRITE, lambda name: pb.PunctuateRequest(window=name, time=1)),
    "Update": (WRITE, lambda name: pb.BulkInsertRequest(window=name)),
    "Query": (READ, lambda name: pb.QueryRequest(window=name, key="k")),
    "RangeQuery": (READ, lambda name: pb.RangeQueryRequest(window=name, start=0, end=9, key="k")),
    "Series": (READ, lambda name: pb.SeriesRequest(window=name, start=0, end=9, step="1s", key="k")),
    "Watch": (READ, lambda name: pb.WatchRequest(query=pb.QueryRequest(window=name, key="k"))),
    "AnswersAt": (READ, lambda name: pb.AnswersAtRequest(window=name)),
    "AnswersAtStream": (READ, lambda name: pb.AnswersAtRequest(window=name)),
    "Entries": (READ, lambda name: pb.EntriesRequest(window=name)),
    "StageBatch": (
        WRITE,
        lambda name: pb.StageBatchRequest(query="q", batch=1, entries=pb.BulkInsertRequest(window=name)),
    ),
    "CommitBatch": (WRITE, lambda name: pb.CommitBatchRequest(window=name, query="q", batch=1)),
    "ExportWindow": (READ, lambda name: pb.ExportWindowRequest(window=name)),
    "ImportWindow": (ADMIN, lambda name: pb.WindowChunk(name=name, data=b"no export")),
    "AddAggregates": (ADMIN, lambda name: pb.AddAggregatesRequest(window=name)),
    "ListKeys": (READ, lambda name: pb.ListKeysRequest(window=name)),
}
# REST: the right (0: any token; None: no token), and a body for a window.
ROUTES = {
    ("POST", "/v1/windows"): (ADMIN, lambda name: {"json": {"name": name, **SPEC}}),
    ("GET", "/v1/windows"): (READ, lambda _: {}),
    ("GET", "/v1/topology"): (READ, lambda _: {}),
    ("POST", "/v1/topology/move"): (ADMIN, lambda _: {"json": {"shard": 0, "process": 0}}),
    ("GET", "/v1/windows/{name}"): (READ, lambda _: {}),
    ("DELETE", "/v1/windows/{name}"): (ADMIN, lambda _: {}),
    ("POST", "/v1/windows/{name}/insert"): (WRITE, lambda _: {"json": {"time": 1, "key": "k", "value": 1.0}}),
    ("POST", "/v1/windows/{name}/bulk-insert"): (
        WRITE,
        lambda _: {"json": {"time": [1], "key": ["k"], "value": [1.0]}},
    ),
    ("POST", "/v1/windows/{name}/admit"): (
        WRITE,
        lambda _: {"json": {"time": 1, "key": "k", "value": 1.0, "limits": [LIMIT]}},
    ),
    ("POST", "/v1/windows/{name}/bulk-evict"): (WRITE, lambda _: {"json": {"time": -100}}),
    ("POST", "/v1/windows/{name}/retract"): (WRITE, lambda _: {"json": {"time": [1], "key": ["k"], "id": [1]}}),
    ("POST", "/v1/windows/{name}/punctuate"): (WRITE, lambda _: {"json": {"time": 1}}),
    ("POST", "/v1/windows/{name}/update"): (
        WRITE,
        lambda _: {"json": {"time": [1], "key": ["k"], "value": [1.0]}},
    ),
    ("POST", "/v1/windows/{name}/stage"): (
        WRITE,
        lambda _: {"params": {"query": "q", "batch": 1}, "json": {"time": [1], "key": ["k"], "value": [1.0]}},
    ),
    ("POST", "/v1/windows/{name}/commit"): (WRITE, lambda _: {"json": {"query": "q", "batch": 1, "stages": []}}),
    ("GET", "/v1/windows/{name}/query"): (READ, lambda _: {"params": {"key": "k"}}),
    ("GET", "/v1/windows/{name}/range"): (READ, lambda _: {"params": {"key": "k", "start": 0, "end": 9}}),
    ("GET", "/v1/windows/{name}/series"): (
        READ,
        lambda _: {"params": {"key": "k", "start": 0, "end": 9, "step": "1s"}},
    ),
    ("POST", "/v1/windows/{name}/answers-at"): (READ, lambda _: {"json": {"time": [1], "key": ["k"]}}),
    ("GET", "/v1/windows/{name}/watch"): (READ, lambda _: {"params": {"key": "k"}}),
    ("GET", "/v1/windows/{name}/keys"): (READ, lambda _: {}),
    ("GET", "/v1/windows/{name}/entries"): (READ, lambda _: {}),
    ("POST", "/v1/windows/{name}/aggregates"): (ADMIN, lambda _: {"json": {}}),
    ("GET", "/v1/windows/{name}/export"): (READ, lambda _: {}),
    ("POST", "/v1/windows/import"): (
        ADMIN,
        lambda name: {
            "params": {"name": name},
            "content": b"no",
            "headers": {"content-type": "application/octet-stream"},
        },
    ),
    ("GET", "/metrics"): (0, lambda _: {}),
    ("GET", "/healthz"): (None, lambda _: {}),
    ("GET", "/readyz"): (None, lambda _: {}),
}
OF_NO_WINDOW = {
    "ListWindows",
    "GetTopology",
    "MoveShard",
    ("POST", "/v1/topology/move"),
    ("GET", "/v1/windows"),
    ("GET", "/v1/topology"),
    ("GET", "/metrics"),
}
CASES = list(product(ROLES, ("seen-absent", "seen", "hidden", "hidden-absent")))


def test_the_tables_are_complete(service):
    assert set(METHODS) == {method.name for method in SERVICE.methods}
    paths = service.http().get("/openapi.json", headers=bearer("reader")).json()["paths"]
    assert set(ROUTES) == {(method.upper(), path) for path, methods in paths.items() for method in methods}


# -------------------------------------------------------------------- how each edge is asked


@cache
def asked(service):
    """A channel and an HTTP client for all tests of this file."""
    return service.channel(), service.http()


def over_grpc(service, name, request, headers):
    """The code and the message of the answer."""
    method = SERVICE.methods_by_name[name]
    kinds = {False: "unary", True: "stream"}
    callable_ = getattr(asked(service)[0], f"{kinds[method.client_streaming]}_{kinds[method.server_streaming]}")(
        f"/{SERVICE.full_name}/{name}", request_serializer=type(request).SerializeToString
    )
    given = iter([request]) if method.client_streaming else request
    try:
        answer = callable_(given, metadata=list(headers.items()), timeout=120)
        if method.server_streaming:
            next(answer, None)
            answer.cancel()
    except grpc.RpcError as error:
        return error.code().name, error.details()
    return "OK", ""


def over_connect(service, name, request, headers):
    method = SERVICE.methods_by_name[name]
    body = MessageToJson(request).encode()
    streams = method.client_streaming or method.server_streaming
    kind = "application/connect+json" if streams else "application/json"
    if streams:
        body = b"\0" + len(body).to_bytes(4, "big") + body
    with asked(service)[1].stream(
        "POST", f"/{SERVICE.full_name}/{name}", content=body, headers={"content-type": kind, **headers}
    ) as response:
        if response.status_code != 200:
            found = json.loads(response.read() or b"{}")
            assert (response.headers.get("www-authenticate") == "Bearer") == (response.status_code == 401)
            return found.get("code", str(response.status_code)).upper(), found.get("message", "")
        data = next(response.iter_raw()) if streams else b""
    if data[:1] == b"\x02":
        found = json.loads(data[5:]).get("error", {})
        return found.get("code", "ok").upper(), found.get("message", "")
    return "OK", ""


def over_rest(service, route, name, headers):
    method, path = route
    given = ROUTES[route][1](name)
    given["headers"] = {**given.get("headers", {}), **headers}
    with asked(service)[1].stream(method, path.replace("{name}", name), **given) as response:
        if response.status_code < 400:
            return "OK", ""
        response.read()
        found = problem(response)
        assert (response.headers.get("www-authenticate") == "Bearer") == (response.status_code == 401)
        return found.get("reason", str(response.status_code)), found["detail"]


EDGES = {"gRPC": over_grpc, "Connect": over_connect}


# -------------------------------------------------------------------- the matrix


def check(ask, right, has_window, tidy):
    """Check the answers to all roles and windows; `ask(window, headers)` asks."""
    refusals = {}
    for role, window in CASES:
        code, text = ask(window, bearer(role))
        tidy()
        if ROLES[role] >= right and (window.startswith("seen") or not has_window):
            assert code not in ("UNAUTHENTICATED", "PERMISSION_DENIED", "INTERNAL", "505"), (role, window, code, text)
        else:
            assert code == "PERMISSION_DENIED", (role, window, code, text)
            assert repr(role) in text
            assert "right" in text
            refusals[role, window] = text.replace("hidden-absent", "hidden")
    # The answer does not tell whether there is such a window.
    for role in ROLES:
        assert refusals.get((role, "hidden")) == refusals.get((role, "hidden-absent"))
    for token in NO_ENTRY:
        headers = {} if token == "missing" else bearer(token)
        for window in ("seen", "hidden-absent"):
            assert ask(window, headers)[0] == "UNAUTHENTICATED"


@pytest.fixture
def tidy(service):
    """Bring the windows back to what they were."""
    http = asked(service)[1]

    def tidy():
        http.delete("/v1/windows/seen-absent", headers=bearer("root"))
        assert http.post("/v1/windows", json={"name": "seen", **SPEC}, headers=bearer("root")).status_code in (200, 201)

    return tidy


@pytest.mark.parametrize("edge", EDGES)
@pytest.mark.parametrize("name", METHODS)
def test_methods(service, edge, name, tidy):
    right, make = METHODS[name]
    if edge == "Connect" and name in ("InsertStream", "AnswersAtStream"):
        # HTTP/1.1 cannot carry it; who has no token does not hear even that.
        assert over_connect(service, name, make("seen"), {})[0] == "UNAUTHENTICATED"
        return

    def ask(window, headers):
        return EDGES[edge](service, name, make(window), headers)

    check(ask, right, name not in OF_NO_WINDOW, tidy)


@pytest.mark.parametrize("route", ROUTES, ids="_".join)
def test_routes(service, route, tidy):
    right, _ = ROUTES[route]
    if right is None:
        for headers in ({}, bearer("wrong"), bearer("reader")):
            assert over_rest(service, route, "seen", headers)[0] == "OK"
        return
    if right == 0:
        for token, code in (("auditor", "OK"), ("reader", "PERMISSION_DENIED"), ("wrong", "UNAUTHENTICATED")):
            assert over_rest(service, route, "seen", bearer(token))[0] == code
        return
    check(lambda window, headers: over_rest(service, route, window, headers), right, route not in OF_NO_WINDOW, tidy)


@pytest.mark.parametrize("path", ["/docs", "/openapi.json", "/nothing", "/sash.v1.Windows/Nothing", "/v1/nothing"])
def test_what_is_no_route_needs_a_token_too(service, path):
    assert service.http().get(path).status_code == 401
    assert service.http().get(path, headers=bearer("reader")).status_code not in (401, 403)


def test_the_page_loads_so_that_it_can_ask_for_a_token(service):
    for path in ("/", "/ui/page.js", "/ui/page.css", "/ui/views/overview.js"):
        assert service.http().get(path).status_code == 200


def test_a_list_has_what_the_token_sees(service):
    for token, seen in (("reader", ["seen"]), ("auditor", ["hidden", "seen"])):
        listed = service.http().get("/v1/windows", headers=bearer(token)).json()["windows"]
        assert [window["spec"]["name"] for window in listed] == seen
        windows = service.stub().ListWindows(pb.ListWindowsRequest(), metadata=list(bearer(token).items())).windows
        assert [window.spec.name for window in windows] == seen


def test_a_refused_body_is_not_read(service):
    """The answer comes although the body that is announced never does."""
    for name, status in (("wrong", 401), ("reader", 403)):
        with socket.create_connection(("127.0.0.1", service.rest_port), timeout=120) as connection:
            connection.sendall(
                b"POST /v1/windows/seen/bulk-insert HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
                b"content-length: 100000\r\nauthorization: %s\r\n\r\n" % bearer(name)["authorization"].encode()
            )
            assert connection.recv(100).startswith(b"HTTP/1.1 %d " % status)


def test_an_import_is_checked_by_the_name_in_the_file(service):
    http = asked(service)[1]
    octets = {"content-type": "application/octet-stream", **bearer("owner")}
    for window in ("hidden", "gone"):
        http.post("/v1/windows", json={"name": window, **SPEC}, headers=bearer("root"))
        exported = http.get(f"/v1/windows/{window}/export", headers=bearer("root")).content
        if window == "gone":
            http.delete("/v1/windows/gone", headers=bearer("root"))
        refused = problem(http.post("/v1/windows/import", content=exported, headers=octets))
        assert (refused["reason"], window in refused["detail"]) == ("PERMISSION_DENIED", True)
    assert http.get("/v1/windows/gone", headers=bearer("root")).status_code == 404
    named = http.post("/v1/windows/import", params={"name": "seen-copy"}, content=exported, headers=octets)
    assert named.status_code == 201
    assert http.delete("/v1/windows/seen-copy", headers=bearer("owner")).status_code == 200


def test_nobody_reads_a_hidden_window_through_one_that_it_feeds(service):
    """Whoever may create windows, and may not read a window, cannot have it feed one of theirs."""
    fed = {"name": "seen.fed", **SPEC, "from": {"window": "hidden", "granularity": 60}}
    http = service.http()
    assert http.post("/v1/windows", json=fed, headers=bearer("owner")).status_code == 403
    assert http.post("/v1/windows", json=fed, headers=bearer("root")).status_code == 201
    assert http.delete("/v1/windows/seen.fed", headers=bearer("root")).status_code == 200
