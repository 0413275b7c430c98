"""One declaration per route: parsing, documentation and the right that a call needs follow from it."""

from typing import Annotated, Any
from urllib.parse import parse_qsl, urlencode

import httpx
import pytest
from fastapi import APIRouter, FastAPI, Path, Query
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from pydantic import Field

from sash.durability.catalogue import Catalogue
from sash.durability.storage import Storage
from sash.plane import Plane
from sash.rest.app import create_app
from sash.rest.bodies import ARROW, JSON
from sash.rest.call import Call
from sash.rest.documents import Status
from sash.rest.models import ABSENT, Described, Document, Int64, Parameters, Texts
from sash.rest.route import Route, needs, told
from sash.rest.routes import ROUTES
from sash.runtime.clock import SystemClock
from sash.runtime.metrics import Metrics
from sash.settings import Settings
from sash_engine.errors import InvalidArgument, PermissionDenied
from tests.rest.test_service import operations
from tests.support.servers import problem

THINGS = APIRouter(route_class=Route, tags=["things"])


class Things(Parameters):
    count: Int64 = Field(json_schema_extra={"minimum": 1})
    """How many."""
    loud: bool = False
    """Whether."""
    tag: Texts = Field((), examples=[["a"]])
    note: str = ABSENT


class Beside(Parameters):
    not_with = JSON

    stream: Int64 = ABSENT


class Thing(Document):
    at: Int64
    names: list[str] = ABSENT
    loud: bool = False


@THINGS.post(
    "/things/{name}",
    summary="Does things",
    status_code=201,
    response_model=Status,
    response_description="Done",
    responses=told({200: {"model": Status, "description": "Done before"}}, {409: "It is there"}, {409: "It has gone"}),
    openapi_extra=needs("write", {JSON: {}, ARROW: {}}),
)
async def do_things(
    call: Call, name: Annotated[str, Path(examples=["x"])], asked: Annotated[Things, Query()]
) -> dict[str, Any]:
    """More about it."""
    return {}


@THINGS.get("/things", summary="Shows things", response_model=Status)
async def show_things(call: Call) -> dict[str, Any]:
    return {}


@THINGS.delete("/things", summary="Takes a thing", response_model=Status, openapi_extra=needs("admin"))
async def take_thing(call: Call, thing: Thing) -> dict[str, Any]:
    return {}


DO, SHOW, TAKE = THINGS.routes


@pytest.fixture(scope="module")
def documented():
    app = FastAPI(separate_input_output_schemas=False)
    app.router.routes += THINGS.routes
    Described.describe()
    return operations(app.openapi())


def test_the_documentation_of_a_route_follows_from_its_declaration(documented):
    document = documented["post", "/things/{name}"]
    assert document["operationId"] == "do_things"
    assert document["description"] == "More about it."
    assert document["x-sash-right"] == "write"
    assert list(document["requestBody"]["content"]) == [JSON, ARROW]
    parameters = document["parameters"]
    assert [(each["name"], each["in"], each["required"]) for each in parameters] == [
        ("name", "path", True),
        ("count", "query", True),
        ("loud", "query", False),
        ("tag", "query", False),
        ("note", "query", False),
    ]
    for each in parameters:
        each["schema"].pop("title")
    assert parameters[0]["schema"] == {"type": "string", "examples": ["x"]}
    assert parameters[1]["description"] == "How many."
    assert parameters[1]["schema"].items() >= {"type": "integer", "format": "int64", "minimum": 1}.items()
    assert parameters[2]["schema"].items() >= {"type": "boolean", "default": False}.items()
    assert parameters[3]["schema"].items() >= {"type": "array", "items": {"type": "string"}}.items()
    assert parameters[4]["schema"] == {"type": "string"}


def test_the_errors_of_a_route_follow_from_its_declaration(documented):
    responses = documented["post", "/things/{name}"]["responses"]
    errors = ["400", "401", "403", "404", "409", "413", "415", "429", "500", "503", "507"]
    assert sorted(responses) == sorted(["201", "200", "422", *errors])
    assert responses["409"]["description"].startswith("It is there. Or it has gone. Or another server")
    assert sorted(documented["get", "/things"]["responses"]) == ["200", "503"]
    responses = documented["delete", "/things"]["responses"]
    assert set(errors) - set(responses) == {"404"}
    assert responses["415"]["description"] == "The Content-Type is not taken here"


def test_the_media_types_of_a_body():
    assert (DO.kinds, SHOW.kinds, TAKE.kinds) == ((JSON, ARROW), (), (JSON,))


@pytest.mark.parametrize(
    ("query", "kind", "given"),
    [
        ("count=3", JSON, {"count": 3}),
        ("count=-9223372036854775808&&loud=false&", JSON, {"count": -(2**63), "loud": False}),
        ("count=1&loud=true&tag=a&tag=&tag=b%26c+d", JSON, {"count": 1, "loud": True, "tag": ("a", "", "b&c d")}),
        ("n%6fte=%C3%BC&count=1", JSON, {"count": 1, "note": "ü"}),
        ("note&count=1", JSON, {"count": 1, "note": ""}),
    ],
)
def test_parameters_are_parsed_as_declared(query, kind, given):
    assert Things.read(query.encode(), kind).model_dump(exclude_unset=True) == given


@pytest.mark.parametrize(
    ("query", "field", "detail"),
    [
        ("", "count", "count is missing"),
        ("loud=true", "count", "count is missing"),
        ("count=1&count=1", "count", "count is given twice"),
        ("count=1&nope=1", "nope", "'nope' is unknown; did you mean 'note'? This path takes count, loud, tag, note"),
        ("count=1&name=y", "name", "'name' is unknown; this path takes count, loud, tag, note"),
        ("count=", "count", "count must be an integer, not ''"),
        ("count=1.0", "count", "count must be an integer, not '1.0'"),
        ("count=+1", "count", "count must be an integer, not ' 1'"),
        ("count=%D9%A1", "count", "count must be an integer, not '١'"),
        ("count=1%0A", "count", "count must be an integer, not '1\\n'"),
        ("count=9223372036854775808", "count", "count 9223372036854775808 is out of range"),
        ("count=1&loud=1", "loud", "loud must be true or false, not '1'"),
        ("count=1&loud=", "loud", "loud must be true or false, not ''"),
    ],
)
def test_parameters_that_are_not_as_declared(query, field, detail):
    with pytest.raises(InvalidArgument) as refused:
        Things.read(query.encode(), JSON)
    assert (refused.value.field, refused.value.message) == (field, detail)


@given(st.lists(st.text() | st.text("&=+%;#12ab")), st.text("&=+%;1a\xff"))
def test_any_query_string_means_what_it_means_to_the_standard_library(tags, rest):
    written = f"count=1&{urlencode([('tag', tag) for tag in tags], errors='surrogatepass')}&tag={rest}"
    expected = parse_qsl(written, keep_blank_values=True)
    if any(name != "tag" for name, _ in expected[1:]):
        with pytest.raises(InvalidArgument):
            Things.read(written.encode("latin-1"), JSON)
    else:
        assert Things.read(written.encode("latin-1"), JSON).tag == tuple([value for _, value in expected[1:]])


def test_parameters_that_a_json_body_has_as_members():
    assert Beside.read(b"stream=2", ARROW).stream == 2
    assert Beside.read(b"", JSON).stream is None
    with pytest.raises(InvalidArgument, match="'stream' is unknown; this path takes no parameters with this body"):
        Beside.read(b"stream=2", JSON)


@pytest.mark.parametrize(
    ("document", "field", "detail", "limit"),
    [
        ({}, "at", "at is missing", None),
        ({"at": 1, "nope": 1}, "nope", "'nope' is unknown; this path takes at, names, loud", None),
        ({"at": 1.0}, "at", "at must be an integer, not a float", None),
        ({"at": True}, "at", "at must be an integer, not a bool", None),
        ({"at": "1"}, "at", "at must be an integer, not a string", None),
        ({"at": None}, "at", "at must be an integer, not null", None),
        ({"at": 2**63}, "at", "at 9223372036854775808 is out of range", "-2^63 to 2^63 - 1"),
        ({"at": -(2**63) - 1}, "at", "at -9223372036854775809 is out of range", "-2^63 to 2^63 - 1"),
        ({"at": 2.0**63}, "at", "at is out of range", "-2^63 to 2^63 - 1"),
        ({"at": 1, "names": ["a", 2, 3]}, "names[1]", "names[1] must be a string, not an integer", None),
        ({"at": 1, "names": "a"}, "names", "names must be a list, not a string", None),
        ({"at": 1, "names": None}, "names", "names must be a list, not null", None),
        ({"at": 1, "loud": 1}, "loud", "loud must be true or false, not an integer", None),
        ({"at": 1, "loud": "true"}, "loud", "loud must be true or false, not a string", None),
    ],
)
def test_a_document_that_is_not_as_declared(document, field, detail, limit):
    with pytest.raises(InvalidArgument) as refused:
        Thing.read(document)
    assert (refused.value.field, refused.value.message, refused.value.limit) == (field, detail, limit)


def test_a_document_that_is_as_declared():
    assert Thing.read({"at": -(2**63)}).model_dump() == {"at": -(2**63), "names": None, "loud": False}
    assert Thing.read({"at": 2**63 - 1, "names": [], "loud": True}).names == []


# -------------------------------------------------------------------- rights


def test_each_route_says_which_right_it_needs():
    rights = {right: {route.name for route in ROUTES if route.right == right} for right in ("admin", "write", None)}
    assert rights == {
        "admin": {"create_window", "delete_window", "add_aggregates", "import_window", "move_shard"},
        "write": {"insert", "bulk_insert", "admit", "bulk_evict", "retract", "update", "punctuate", "stage", "commit"},
        None: {"healthz", "readyz"},
    }
    assert all(route.right == "read" for route in ROUTES if route.method == "GET" and route.right is not None)


def app_with(admit):
    registry, clock = CollectorRegistry(), SystemClock()
    metrics = Metrics(registry)
    plane = Plane.of(Storage(Catalogue(clock=clock), clock), metrics, clock)
    return create_app(plane, Settings(), registry, metrics, admit=admit)


@pytest.mark.parametrize("route", [route for route in ROUTES if route.right], ids=lambda route: route.name)
async def test_a_right_is_asked_for_before_the_body_is_read(route):
    asked, read = [], []

    def admit(scope, right, window):
        asked.append((right, window))
        raise PermissionDenied("not you")

    async def receive():
        read.append(True)
        return {"type": "http.request", "body": b"{}"}

    sent = []

    async def send(message):
        sent.append(message)

    path = route.path.replace("{name}", "w")
    scope = {"type": "http", "method": route.method, "path": path, "query_string": b"nope=1", "headers": []}
    await app_with(admit)(scope, receive, send)
    assert sent[0]["status"] == 403
    assert asked == [(route.right, "w" if "{name}" in route.path else None)]
    assert not read


async def test_health_needs_no_right():
    def admit(scope, right, window):
        raise PermissionDenied("not you")

    transport = httpx.ASGITransport(app_with(admit))
    async with httpx.AsyncClient(transport=transport, base_url="http://sash") as http:
        assert (await http.get("/healthz")).status_code == 200
        assert problem(await http.get("/metrics"))["status"] == 403


# -------------------------------------------------------------------- paths


@pytest.mark.parametrize(
    ("method", "path", "status", "allow"),
    [
        ("PUT", "/v1/windows", 405, "GET, POST"),
        ("HEAD", "/v1/windows", 405, "GET, POST"),
        ("POST", "/v1/windows/w", 405, "DELETE, GET"),
        ("GET", "/v1/windows/w/insert", 405, "POST"),
        ("POST", "/metrics", 405, "GET, HEAD"),
        ("GET", "/v1/windows/import", 405, "POST"),
        ("DELETE", "/v1/windows/import", 405, "POST"),
        ("PATCH", "/v1/windows/import", 405, "POST"),
        ("DELETE", "/v1/windows/w/query", 405, "GET"),
        ("OPTIONS", "/v1/windows/w", 405, "DELETE, GET"),
        ("OPTIONS", "/v1/windows/import", 405, "POST"),
        ("POST", "/docs", 405, "GET, HEAD"),
        ("GET", "/v1/windows/", 404, None),
        ("GET", "/v1/windows//query", 404, None),
        ("GET", "/v1/windows/w/query/", 404, None),
        ("GET", "/v1/windows/w/x/query", 404, None),
        ("GET", "/v1", 404, None),
        ("GET", "/metrics/", 404, None),
        ("GET", "/nope", 404, None),
        ("GET", "/v1/windows/a/b/c", 404, None),
    ],
)
def test_paths_and_methods_that_there_are_not(http, method, path, status, allow):
    response = http.request(method, path)
    assert (response.status_code, response.headers.get("allow")) == (status, allow)
    if method != "HEAD":
        assert path in problem(response)["detail"]


def test_a_window_called_import_has_its_paths(http):
    assert http.post("/v1/windows", json={"name": "import", "aggregates": {"n": {"function": "count"}}}).is_success
    assert http.get("/v1/windows/import").json()["spec"]["name"] == "import"
    assert http.get("/v1/windows/import/query").json()["answers"][0]["entries"] == 0
    assert http.delete("/v1/windows/import").status_code == 200


def test_parameters_of_an_arrow_body_are_unknown_with_json(http, window):
    response = http.post(f"/v1/windows/{window}/bulk-insert?producer=p", json={"time": [], "value": []})
    assert problem(response)["detail"] == "'producer' is unknown; this path takes no parameters with this body"


def test_the_document_has_the_declared_rights(openapi):
    found = operations(openapi)
    assert {path: operation.get("x-sash-right") for path, operation in found.items()} == {
        (route.method.lower(), route.path): route.right for route in ROUTES if route.include_in_schema
    }
