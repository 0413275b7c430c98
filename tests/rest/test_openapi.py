"""The OpenAPI document and the service agree: Schemathesis asks, and names are as long as the document says."""

import re
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
import schemathesis
from schemathesis.openapi.checks import JsonSchemaError

from sash.rest.bodies import ARROW, OCTETS
from tests.rest.test_service import operations
from tests.support.arrow import batch, stream
from tests.support.profile import THOROUGH
from tests.support.servers import running_service

SPECS = {
    "plain": {"time_unit": "s", "aggregates": {"n": {"function": "count"}, "all": {"function": "collect"}}},
    "typed": {
        "keyed": True,
        "identity": "i",
        "fields": {"f": "float64", "i": "int64", "s": "string", "b": "bool"},
        "aggregates": {name: {"function": "collect", "field": name} for name in "fisb"},
    },
    "panes": {
        "granularity": 10,
        "aggregates": {
            "mean": {"function": "mean"},
            "users": {"function": "distinct_count"},
            "tail": {"function": "quantile", "q": [0.5, 0.99]},
        },
    },
}
BULKS = {
    "plain": {"time": [1, 2, 3], "value": [1, "NaN", "-Infinity"]},
    "typed": {"time": [1, 2], "key": ["a", "b"], "f": [1, 2], "i": [2**62, -1], "s": ["", "ü"], "b": [True, False]},
    "panes": {"time": [1, 2, 30], "value": [1.5, 2, 3]},
}

FEW = [] if THOROUGH else ["--max-examples", "3"]


def test_schemathesis_finds_nothing(tmp_path, openapi):
    """No answer of 5xx, none that the document does not show, no request taken that it forbids, no other methods."""
    with running_service(max_body_bytes=1 << 20, max_windows=50) as service:
        http = service.http()
        for name, spec in SPECS.items():
            assert http.post("/v1/windows", json={"name": name, **spec}).status_code == 201
            assert http.post(f"/v1/windows/{name}/bulk-insert", json=BULKS[name]).status_code == 200
        settings = Path(__file__).with_name("schemathesis.toml")
        command = [sys.executable, "-m", "schemathesis.cli", "--config-file", str(settings), "run", "--no-color"]
        command += FEW
        # What it keeps between runs it keeps in its working directory.
        done = subprocess.run(
            [*command, f"{service.rest_url}/openapi.json"], cwd=tmp_path, capture_output=True, text=True, timeout=800
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert f"Tested: {len(operations(openapi))}" in done.stdout
        assert {window["spec"]["name"] for window in http.get("/v1/windows").json()["windows"]} >= set(SPECS)


def test_a_watch_up_to_its_end(http, window, openapi):
    """Schemathesis reads the first event only. This is all of a stream, up to the problem that ends it."""
    with http.stream("GET", f"/v1/windows/{window}/watch", params={"interval": 50}) as response:
        chunks = response.iter_raw()
        content = next(chunks)
        assert http.delete(f"/v1/windows/{window}").status_code == 200
        content += b"".join(chunks)
    assert content.count(b"data: ") == 2
    assert b"event: problem" in content
    operation = schemathesis.openapi.from_dict(openapi)["/v1/windows/{name}/watch"]["GET"]

    def validate(content):
        whole = httpx.Response(200, headers=response.headers, content=content, request=response.request)
        whole.elapsed = response.elapsed
        operation.validate_response(whole)

    validate(content)
    with pytest.raises(JsonSchemaError, match="there is no window"):
        validate(content.replace(b'"detail"', b'"message"'))


TEXTS = ["", "x", "x" * 128, "x" * 129, "x" * 200, "x" * 201, "1x", "x y"]
ENTRY, COLUMNS = {"time": 1, "value": 1}, {"time": [1], "value": [1]}


@pytest.mark.parametrize(
    ("schema", "path", "field", "rest"),
    [
        ("Entry", "/v1/windows/{name}/insert", "producer", {"sequence": 1, **ENTRY}),
        ("Columns", "/v1/windows/{name}/bulk-insert", "producer", {"sequence": 1, **COLUMNS}),
        ("Eviction", "/v1/windows/{name}/bulk-evict", "producer", {"sequence": 1, "time": 1}),
        ("Commit", "/v1/windows/{name}/commit", "query", {"batch": 0, "stages": []}),
        (None, "/v1/windows/{name}/bulk-insert", "producer", {"sequence": 1}),
        (None, "/v1/windows/{name}/stage", "query", {"batch": 0}),
        (None, "/v1/windows/import", "name", {}),
    ],
)
def test_a_name_is_refused_where_the_document_forbids_it(http, window, openapi, schema, path, field, rest):
    """As a member of a body, and as a parameter beside one that is no JSON."""
    if schema is None:
        names = next(each for each in operations(openapi)["post", path]["parameters"] if each["name"] == field)[
            "schema"
        ]
        kind = OCTETS if path.endswith("import") else ARROW
        body = {"content": stream(batch(**COLUMNS)) if kind == ARROW else b"", "headers": {"content-type": kind}}
    else:
        names = openapi["components"]["schemas"][schema]["properties"][field]
    for text in TEXTS:
        given = {field: text, **rest}
        sent = {"json": given} if schema is not None else {"params": given, **body}
        answer = http.post(path.format(name=window), **sent).json()
        assert (answer.get("field") == field) == forbidden(names, text), answer


def forbidden(schema, text):
    length = schema.get("minLength", 0) <= len(text) <= schema.get("maxLength", len(text))
    return not (length and re.search(schema.get("pattern", ""), text))


def test_no_line_of_a_description_is_an_item_of_a_list_by_chance(openapi):
    """Swagger UI reads Markdown: a line that begins with `9457) ` is an item of a list."""

    def descriptions(item):
        if isinstance(item, list):
            item = dict(enumerate(item))
        if isinstance(item, dict):
            for name, each in item.items():
                if name == "description" and isinstance(each, str):
                    yield from each.split("\n")
                yield from descriptions(each)

    items = [line for line in descriptions(openapi) if re.match(r"\s*([-*+]|\d+[.)])\s", line)]
    assert not items
