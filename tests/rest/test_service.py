"""Health, metrics, documentation and the page."""

import re
from importlib.metadata import version

import httpx
import pytest
from fastapi.openapi.models import OpenAPI
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from sash.durability.catalogue import Catalogue
from sash.durability.storage import Storage
from sash.plane import Plane
from sash.rest.app import create_app
from sash.rest.documentation import SCHEMAS
from sash.runtime.clock import SystemClock
from sash.runtime.metrics import Metrics
from sash.settings import Settings
from sash_engine.version import engine
from tests.support.servers import problem


def operations(document):
    return {(method, path): operation for path, item in document["paths"].items() for method, operation in item.items()}


def references(item):
    if isinstance(item, dict):
        if isinstance(item.get("$ref"), str):
            yield item["$ref"]
        for value in item.values():
            yield from references(value)
    elif isinstance(item, list):
        for value in item:
            yield from references(value)


def test_the_document_is_valid_openapi(openapi):
    OpenAPI.model_validate(openapi)
    assert openapi["openapi"].startswith("3.1")
    found = operations(openapi)
    ids = [operation["operationId"] for operation in found.values()]
    assert len(set(ids)) == len(ids)
    for (_, path), operation in found.items():
        declared = {each["name"] for each in operation.get("parameters", []) if each["in"] == "path"}
        assert declared == set(re.findall(r"{(\w+)}", path))
        assert any(status.startswith("2") for status in operation["responses"])
        if "422" in operation["responses"]:  # FastAPI's own, of a validation that is not used here, has no place
            ours = {"query", "answers-at", "range", "series", "watch", "entries", "aggregates", "export"}
            assert path.rsplit("/")[-1] in ours | {"admit", "bulk-evict", "retract", "update", "punctuate", "move"}
    for reference in references(openapi):
        assert reference.removeprefix("#/components/schemas/") in openapi["components"]["schemas"]


@pytest.mark.parametrize("name", SCHEMAS)
def test_examples_are_valid(openapi, name):
    """Nulls included."""
    schema = openapi["components"]["schemas"][name]
    for example in schema.get("examples", []):
        SCHEMAS[name].model_validate(example)
        assert set(schema.get("required", ())) <= set(example) <= set(schema.get("properties", example))


def test_errors_are_documented_as_problems(openapi):
    for operation in operations(openapi).values():
        for status, response in operation["responses"].items():
            if int(status) >= 400:
                assert list(response["content"]) == ["application/problem+json"]


def test_the_examples_are_taken(http, openapi):
    """What the documentation shows as a request is one that the service takes."""
    found = operations(openapi)
    spec = found["post", "/v1/windows"]["requestBody"]["content"]
    assert http.post("/v1/windows", json=spec["application/json"]["example"]).status_code == 201
    yaml = {"content-type": "application/yaml"}
    created = http.post("/v1/windows", content=spec["application/yaml"]["example"], headers=yaml)
    assert created.status_code == 201
    plain, keyed = "/v1/windows/latency", "/v1/windows/departure_delay"
    entry = found["post", "/v1/windows/{name}/insert"]["requestBody"]["content"]["application/json"]["examples"]
    assert http.post(f"{plain}/insert", json=entry["one field"]["value"]).status_code == 200
    assert http.post(f"{keyed}/insert", json=entry["several fields, keyed"]["value"]).status_code == 200
    answered = http.post(f"{plain}/insert", json=entry["with the answer after it"]["value"])
    assert len(answered.json()["answers"]) == 2
    once = [
        http.post(f"{plain}/insert", json=entry["applied once, however often it is sent"]["value"]) for _ in range(2)
    ]
    assert [each.json().get("already_applied", False) for each in once] == [False, True]
    http.post(f"{plain}/bulk-evict", json={"time": 19})
    columns = found["post", "/v1/windows/{name}/bulk-insert"]["requestBody"]["content"]["application/json"]
    assert http.post(f"{plain}/bulk-insert", json=columns["example"]).json()["inserted"] == 3
    eviction, commit, aggregates = (
        openapi["components"]["schemas"][name]["examples"][0] for name in ("Eviction", "Commit", "Aggregates")
    )
    assert http.post(f"{plain}/bulk-evict", json=eviction).json()["evicted"] == 1
    assert http.post(f"{plain}/commit", json=commit).json()["inserted"] == 0
    added = http.post(f"{keyed}/aggregates", json=aggregates).json()
    assert set(aggregates) < set(added["spec"]["aggregates"])
    for route in ("query", "range", "series", "keys"):
        parameters = found["get", f"/v1/windows/{{name}}/{route}"]["parameters"]
        schemas = {each["name"]: each["schema"] for each in parameters if each["in"] == "query"}
        asked = {name: schema["examples"][0] for name, schema in schemas.items() if "examples" in schema}
        response = http.get(f"{keyed}/{route}", params=asked)
        assert response.status_code == 200, response.text
    for path in (plain, keyed):
        http.delete(path)


def test_the_documentation_page_loads_nothing_from_elsewhere(http):
    page = http.get("/docs")
    assert page.status_code == 200
    assert not re.search(r"""(?:src|href)=["'](?:https?:)?//""", page.text)
    for path in re.findall(r"""(?:src|href)=["'](/[^"']+)""", page.text):
        assert http.get(path).status_code == 200


@pytest.mark.parametrize(
    ("path", "media_type"),
    [
        ("/", "text/html"),
        ("/ui/page.css", "text/css"),
        ("/ui/page.js", "text/javascript"),
        ("/ui/core/ask.js", "text/javascript"),
        ("/ui/views/overview.js", "text/javascript"),
    ],
)
def test_the_page(http, path, media_type):
    response = http.get(path)
    assert response.status_code == 200
    assert response.headers["content-type"].startswith(media_type)
    assert "default-src 'self'" in response.headers["content-security-policy"]
    assert "innerHTML" not in response.text
    assert not re.search(r"https?://", response.text)


def samples(http):
    response = http.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain")
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(response.text)
        for sample in family.samples
    }


def test_metrics_count_what_happened(http, window):
    before = samples(http)
    path = f"/v1/windows/{window}"
    http.post(f"{path}/bulk-insert", json={"time": [1, 2, 3], "value": [1, 2, 3]})
    http.post(f"{path}/bulk-evict", json={"time": 1})
    http.get(f"{path}/query?lookback=nope")
    after = samples(http)

    def grown(name, **labels):
        key = (name, tuple(sorted(labels.items())))
        return after[key] - before.get(key, 0)

    assert grown("sash_operation_seconds_count", operation="bulk_insert", window_class="plain") == 1
    assert grown("sash_operation_seconds_bucket", operation="bulk_insert", window_class="plain", le="+Inf") == 1
    assert grown("sash_operation_seconds_sum", operation="bulk_insert", window_class="plain") > 0
    assert grown("sash_operation_errors_total", operation="query", kind="InvalidArgument") == 1
    assert grown("sash_requests_rejected_total", edge="rest", code="400") == 1
    for outcome, expected in (("inserted", 3), ("evicted", 1), ("late", 0), ("duplicates", 0), ("ahead", 0)):
        assert after["sash_entries_total", (("outcome", outcome), ("window", window))] == expected
    assert after["sash_window_entries", (("window", window),)] == 2
    assert after["sash_window_keys", (("window", window),)] == 1
    assert after["sash_windows", ()] == 1


def test_metrics_speak_openmetrics_to_whoever_asks(http, openapi):
    documented = operations(openapi)["get", "/metrics"]["responses"]["200"]["content"]
    assert list(documented) == ["text/plain", "application/openmetrics-text"]
    for kind in documented:
        response = http.get("/metrics", headers={"accept": f"{kind}; version=1.0.0"})
        assert response.headers["content-type"].startswith(kind)
        assert response.text.endswith("# EOF\n") == (kind == "application/openmetrics-text")


def test_health(http):
    assert http.get("/healthz").json() == {"status": "alive"}
    assert http.get("/readyz").json() == {"status": "ready"}


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics", "/"])
def test_monitors_may_ask_with_head(http, path):
    asked, got = http.head(path), http.get(path)
    assert (asked.status_code, asked.content) == (200, b"")
    assert asked.headers["content-type"] == got.headers["content-type"]


def test_the_version_is_that_of_the_package(http):
    installed = version("sash")
    assert http.get("/openapi.json").json()["info"]["version"] == installed
    assert f'sash_build_info{{engine="{engine()}",version="{installed}"}} 1.0' in http.get("/metrics").text


async def test_it_says_why_it_is_not_ready():
    registry = CollectorRegistry()
    metrics, clock, reasons = Metrics(registry), SystemClock(), [None]
    plane = Plane.of(Storage(Catalogue(clock=clock), clock), metrics, clock)
    app = create_app(plane, Settings(), registry, metrics, not_ready=lambda: reasons[-1])
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://sash") as http:
        assert (await http.get("/readyz")).status_code == 200
        reasons.append("the tier is away")
        found = problem(await http.get("/readyz"))
        assert (found["status"], found["detail"]) == (503, "the tier is away")
        assert (await http.get("/healthz")).status_code == 200
