"""Every way to be wrong: a problem document that names the field or the limit, and nothing has changed."""

import json

import httpx
import pytest
from google.rpc import error_details_pb2, status_pb2

from sash.rest.problems import of_error
from sash.rpc.errors import status_of
from sash_engine import errors
from tests.support.servers import json_head, problem

JSON = {"content-type": "application/json"}
COUNT = {"n": {"function": "count"}}


@pytest.fixture
def unchanged(http, window, typed):
    """Checks after the test that no window has changed."""
    http.post(f"/v1/windows/{window}/insert", json={"time": 1, "value": 1})
    before = http.get("/v1/windows").json()
    yield window
    assert http.get("/v1/windows").json() == before


def refuse(http, method, path, status, field=None, limit=None, **request):
    found = problem(http.request(method, path, **request))
    assert found["status"] == status, found
    assert found.get("field") == field, found
    if limit is not None:
        assert limit in found["limit"], found
    return found


# ---------------------------------------------------------------- specs


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"aggregates": COUNT}, "name"),
        ({"name": "", "aggregates": COUNT}, "name"),
        ({"name": "no spaces", "aggregates": COUNT}, "name"),
        ({"name": "../etc", "aggregates": COUNT}, "name"),
        ({"name": "x" * 129, "aggregates": COUNT}, "name"),
        ({"name": 7, "aggregates": COUNT}, "name"),
        ({"name": None, "aggregates": COUNT}, "name"),
        ({"name": "w"}, "aggregates"),
        ({"name": "w", "aggregates": {}}, "aggregates"),
        ({"name": "w", "aggregates": {"n": {"function": "nope"}}}, "aggregates.n.function"),
        ({"name": "w", "aggregates": {"n": {}}}, "aggregates.n.function"),
        ({"name": "w", "aggregates": {"n": {"function": "sum", "field": "no"}}}, "aggregates.n.field"),
        ({"name": "w", "aggregates": {"n": {"function": "sum", "q": 1}}}, "aggregates.n.q"),
        ({"name": "w", "aggregates": COUNT, "fields": {"f": "float16"}}, "fields.f"),
        ({"name": "w", "aggregates": COUNT, "fields": {"time": "int64"}}, "fields.time"),
        ({"name": "w", "aggregates": COUNT, "time_unit": "fortnight"}, "time_unit"),
        ({"name": "w", "aggregates": COUNT, "keyed": "yes"}, "keyed"),
        ({"name": "w", "aggregates": COUNT, "slide": {"max_count": 0}}, "slide.max_count"),
        ({"name": "w", "aggregates": COUNT, "slide": {"max_age": "soon"}}, "slide.max_age"),
        ({"name": "w", "aggregates": COUNT, "order": {"late": "maybe"}}, "order.late"),
        ({"name": "w", "aggregates": COUNT, "colour": "red"}, "colour"),
    ],
)
def test_a_bad_spec(http, unchanged, spec, field):
    refuse(http, "POST", "/v1/windows", 400, field, json=spec)


def test_a_bad_name_says_what_names_are(http, unchanged):
    refuse(http, "POST", "/v1/windows", 400, "name", "128", json={"name": "a b", "aggregates": COUNT})


@pytest.mark.parametrize("text", ["{", "- a\n- b", "name: [", "\tx: 1", "!!python/object:os.system {}", "null"])
def test_a_spec_that_is_no_yaml_mapping(http, unchanged, text):
    headers = {"content-type": "application/yaml"}
    refuse(http, "POST", "/v1/windows", 400, "spec", content=text.encode(), headers=headers)


@pytest.mark.parametrize("text", ["name: 2020-99-99", "name: !!bool maybe", "[" * 900, "a: &a [*a]"])
def test_a_spec_that_cannot_be_read(http, unchanged, text):
    headers = {"content-type": "application/yaml"}
    refuse(http, "POST", "/v1/windows", 400, "spec", content=text.encode(), headers=headers)


@pytest.mark.parametrize("kind", ["application/json", "application/yaml"])
def test_a_spec_that_is_too_large(http, unchanged, kind):
    """As JSON and as YAML: a list of numbers takes seconds to read and to check."""
    text = json.dumps({"name": "w", "aggregates": {"q": {"function": "quantile", "q": [0.5] * 14_000}}})
    refuse(
        http,
        "POST",
        "/v1/windows",
        413,
        "body",
        "65536 bytes",
        content=text.encode(),
        headers={"content-type": kind},
    )


def test_a_spec_that_is_no_text(http, unchanged):
    headers = {"content-type": "application/yaml"}
    refuse(http, "POST", "/v1/windows", 400, "body", content=b"\xff\xfe", headers=headers)


def test_another_spec_of_the_same_name(http, unchanged):
    found = refuse(http, "POST", "/v1/windows", 409, "name", json={"name": unchanged, "aggregates": COUNT})
    assert found["type"] == "urn:sash:error:already-exists"


def test_too_many_windows(http, service, unchanged):
    present = len(http.get("/v1/windows").json()["windows"])
    made = [f"filler{i}" for i in range(50 - present)]
    for name in made:
        assert http.post("/v1/windows", json={"name": name, "aggregates": COUNT}).status_code == 201
    refuse(http, "POST", "/v1/windows", 429, "name", "50 windows", json={"name": "more", "aggregates": COUNT})
    for name in made:
        http.delete(f"/v1/windows/{name}")


# ---------------------------------------------------------------- unknown things


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "", None),
        ("DELETE", "", None),
        ("POST", "/insert", {"time": 1, "value": 1}),
        ("POST", "/bulk-insert", {"time": [1], "value": [1]}),
        ("POST", "/bulk-evict", {"time": 1}),
        ("GET", "/query", None),
        ("GET", "/range?start=1&end=2", None),
    ],
)
@pytest.mark.parametrize("name", ["unknown", "no%20name", "%00", "x" * 2000])
def test_an_unknown_window(http, unchanged, method, path, body, name):
    refuse(http, method, f"/v1/windows/{name}{path}", 404, "window", json=body)


@pytest.mark.parametrize("path", ["/nope", "/v1", "/v1/windows/", "/v1/windows/plain/nope", "/v1/windows/a/b/c"])
def test_an_unknown_path(http, unchanged, path):
    found = refuse(http, "GET", path, 404)
    assert path in found["detail"]


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("PUT", "/v1/windows", "GET, POST"),
        ("POST", "/v1/windows/plain", "DELETE, GET"),
        ("GET", "/v1/windows/plain/insert", "POST"),
        ("DELETE", "/v1/windows/plain/query", "GET"),
        ("POST", "/metrics", "GET, HEAD"),
        ("OPTIONS", "/v1/windows/plain", "DELETE, GET"),
        ("OPTIONS", "/v1/windows/import", "POST"),
        ("PUT", "/v1/windows/import", "POST"),
        ("GET", "/v1/windows/import", "POST"),
        ("DELETE", "/v1/windows/import", "POST"),
    ],
)
def test_a_method_that_a_path_does_not_take(http, unchanged, method, path, allow):
    response = http.request(method, path)
    assert problem(response)["status"] == 405
    assert response.headers["allow"] == allow


def test_a_window_called_import(http, unchanged):
    """It is shown and deleted at the path that imports others."""
    assert http.post("/v1/windows", json={"name": "import", "aggregates": COUNT}).status_code == 201
    assert http.get("/v1/windows/import").json()["spec"]["name"] == "import"
    assert http.delete("/v1/windows/import").json() == {"entries": 0}
    refuse(http, "GET", "/v1/windows/import", 405)


# ---------------------------------------------------------------- bodies


@pytest.mark.parametrize("route", ["insert", "bulk-insert", "bulk-evict"])
@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"nonsense", b"[1, 2]", b"17", b'"text"', b"null", b'{"time": 1,}', b"\xff\xfe", b"[" * 50_000],
    ids=lambda content: repr(content[:12]),
)
def test_a_body_that_is_no_json_object(http, unchanged, route, content):
    refuse(http, "POST", f"/v1/windows/{unchanged}/{route}", 400, "body", content=content, headers=JSON)


@pytest.mark.parametrize(
    ("route", "content", "field"),
    [
        ("insert", '{"time": NaN, "value": 1}', "time"),
        ("insert", '{"time": 1, "value": Infinity}', "value"),
        ("insert", '{"time": 1, "fields": {"value": -Infinity}}', "fields.value"),
        ("bulk-insert", '{"time": [1, NaN], "value": [1, 2]}', "time[1]"),
        ("bulk-insert", '{"time": [1, 2], "value": [1, Infinity]}', "value[1]"),
        ("bulk-evict", '{"time": NaN}', "time"),
    ],
)
def test_literals_that_json_does_not_have(http, unchanged, route, content, field):
    found = refuse(http, "POST", f"/v1/windows/{unchanged}/{route}", 400, field, content=content.encode(), headers=JSON)
    assert '"NaN"' in found["detail"]


@pytest.mark.parametrize("route", ["insert", "bulk-insert", "bulk-evict"])
def test_a_content_type_that_is_not_taken(http, unchanged, route):
    headers = {"content-type": "text/plain"}
    path = f"/v1/windows/{unchanged}/{route}"
    found = refuse(http, "POST", path, 415, "Content-Type", content=b'{"time": 1}', headers=headers)
    assert "application/json" in found["detail"]


def test_a_content_encoding_is_not_taken(http, unchanged):
    headers = {**JSON, "content-encoding": "gzip"}
    path = f"/v1/windows/{unchanged}/insert"
    refuse(http, "POST", path, 415, "Content-Encoding", content=b"\x1f\x8b", headers=headers)


@pytest.mark.parametrize(
    ("path", "limit"),
    [
        ("/v1/windows", "65536 bytes"),
        ("/v1/windows/plain/aggregates", "65536 bytes"),
        ("/v1/windows/plain/insert", "1 MiB"),
        ("/v1/windows/plain/bulk-insert", "1 MiB"),
    ],
)
@pytest.mark.parametrize("chunked", [False, True], ids=["announced", "chunked"])
def test_a_body_that_is_too_large(http, unchanged, path, limit, chunked):
    size = 5 << 20

    def chunks():
        for _ in range(size >> 16):
            yield b" " * (1 << 16)

    content = chunks() if chunked else b" " * size
    found = refuse(http, "POST", path, 413, "body", limit, content=content, headers=JSON)
    assert found["type"] == "urn:sash:error:too-large"


def test_a_body_of_just_the_allowed_size(http, window):
    body = b'{"time": 1, "value": 2}'
    full = body + b" " * ((1 << 20) - len(body))
    assert http.post(f"/v1/windows/{window}/insert", content=full, headers=JSON).status_code == 200
    over = http.post(f"/v1/windows/{window}/insert", content=full + b" ", headers=JSON)
    assert problem(over)["status"] == 413


def test_too_many_entries(http, unchanged):
    document = {"time": [1] * 20_001, "value": [1] * 20_001}
    refuse(http, "POST", f"/v1/windows/{unchanged}/bulk-insert", 413, "time", "20000 entries", json=document)


# ---------------------------------------------------------------- one entry


@pytest.mark.parametrize(
    ("document", "field"),
    [
        ({}, "time"),
        ({"value": 1}, "time"),
        ({"time": None, "value": 1}, "time"),
        ({"time": "1", "value": 1}, "time"),
        ({"time": 1.5, "value": 1}, "time"),
        ({"time": 1.0, "value": 1}, "time"),
        ({"time": True, "value": 1}, "time"),
        ({"time": [1], "value": 1}, "time"),
        ({"time": {}, "value": 1}, "time"),
        ({"time": 2**63, "value": 1}, "time"),
        ({"time": 2**64, "value": 1}, "time"),
        ({"time": 10**40, "value": 1}, "time"),
        ({"time": -(2**63) - 1, "value": 1}, "time"),
        ({"time": -(2**63), "value": 1}, "time"),
        ({"time": 2**63 - 1, "value": 1}, "time"),
        ({"time": 1}, "value"),
        ({"time": 1, "value": None}, "value"),
        ({"time": 1, "value": True}, "value"),
        ({"time": 1, "value": "1"}, "value"),
        ({"time": 1, "value": "nan"}, "value"),
        ({"time": 1, "value": [1]}, "value"),
        ({"time": 1, "value": 1, "key": "k"}, "key"),
        ({"time": 1, "value": 1, "key": None}, "key"),
        ({"time": 1, "value": 1, "key": 7}, "key"),
        ({"time": 1, "value": 1, "other": 1}, "other"),
        ({"time": 1, "value": 1, "fields": {"value": 1}}, "value"),
        ({"time": 1, "fields": {"value": 1, "other": 2}}, "other"),
        ({"time": 1, "fields": {}}, "value"),
        ({"time": 1, "fields": 7}, "fields"),
    ],
)
def test_a_wrong_entry(http, unchanged, document, field):
    refuse(http, "POST", f"/v1/windows/{unchanged}/insert", 400, field, json=document)


@pytest.mark.parametrize("time", [2**63, 2**64, -(2**63) - 1, -(2**63), 2**63 - 1])
def test_a_time_out_of_range_names_the_limit(http, unchanged, time):
    refuse(http, "POST", f"/v1/windows/{unchanged}/insert", 400, "time", "2^63", json={"time": time, "value": 1})
    bulk = {"time": [time], "value": [1]}
    found = problem(http.post(f"/v1/windows/{unchanged}/bulk-insert", json=bulk))
    assert (found["status"], found["field"].removesuffix("[0]")) == (400, "time")
    assert "2^63" in found["limit"]


GOOD = {"f": 1.0, "i": 1, "s": "x", "b": True}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("f", "x"),
        ("f", False),
        ("f", None),
        ("i", 1.5),
        ("i", 1.0),
        ("i", True),
        ("i", "1"),
        ("i", 2**63),
        ("i", "NaN"),
        ("s", 1),
        ("s", None),
        ("s", True),
        ("b", 1),
        ("b", 0.0),
        ("b", "true"),
        ("b", None),
    ],
)
def test_a_value_of_the_wrong_type(http, unchanged, typed, name, value):
    path = f"/v1/windows/{typed}"
    entry = {"time": 1, "key": "k", "fields": {**GOOD, name: value}}
    refuse(http, "POST", f"{path}/insert", 400, name, json=entry)
    columns = {"time": [1, 2], "key": ["k", "k"]} | {n: [v, v] for n, v in GOOD.items()}
    columns[name] = [GOOD[name], value]
    refuse(http, "POST", f"{path}/bulk-insert", 400, f"{name}[1]", json=columns)


@pytest.mark.parametrize("name", list(GOOD))
def test_a_field_that_is_missing(http, unchanged, typed, name):
    fields = {n: v for n, v in GOOD.items() if n != name}
    path = f"/v1/windows/{typed}"
    refuse(http, "POST", f"{path}/insert", 400, name, json={"time": 1, "key": "k", "fields": fields})
    columns = {n: [v] for n, v in fields.items()}
    refuse(http, "POST", f"{path}/bulk-insert", 400, name, json={"time": [1], "key": ["k"], **columns})


def test_value_where_there_are_several_fields(http, unchanged, typed):
    found = problem(http.post(f"/v1/windows/{typed}/insert", json={"time": 1, "key": "k", "value": 1}))
    assert found["status"] == 400
    assert "value" in found["detail"] or found["field"] in GOOD


@pytest.mark.parametrize("key", [None, "", "k" * 513, "ü" * 257, 7, True])
def test_a_wrong_key(http, unchanged, typed, key):
    path = f"/v1/windows/{typed}"
    keyed = {} if key is None else {"key": key}
    refuse(http, "POST", f"{path}/insert", 400, "key", json={"time": 1, "fields": GOOD, **keyed})
    keyed = {} if key is None else {"key": [key]}
    found = problem(http.post(f"{path}/bulk-insert", json={"time": [1], **{n: [v] for n, v in GOOD.items()}, **keyed}))
    assert (found["status"], found["field"].removesuffix("[0]")) == (400, "key")


# ---------------------------------------------------------------- columns


@pytest.mark.parametrize(
    ("document", "field"),
    [
        ({}, "time"),
        ({"value": [1]}, "time"),
        ({"time": 1, "value": [1]}, "time"),
        ({"time": None, "value": [1]}, "time"),
        ({"time": [1], "value": 1}, "value"),
        ({"time": [1, 2], "value": [1]}, "value"),
        ({"time": [1], "value": [1, 2]}, "value"),
        ({"time": [], "value": [1]}, "value"),
        ({"time": [1, 1.5], "value": [1, 2]}, "time[1]"),
        ({"time": [True], "value": [1]}, "time[0]"),
        ({"time": [1, None], "value": [1, 2]}, "time[1]"),
        ({"time": ["1"], "value": [1]}, "time[0]"),
        ({"time": [1, 2**63], "value": [1, 2]}, "time[1]"),
        ({"time": [1, 2**70], "value": [1, 2]}, "time[1]"),
        ({"time": [1, 2], "value": [1, None]}, "value[1]"),
        ({"time": [1, 2], "value": [1, True]}, "value[1]"),
        ({"time": [1, 2], "value": ["NaN", "nan"]}, "value[1]"),
        ({"time": [1, 2], "value": [1, [2]]}, "value[1]"),
        ({"time": [1], "value": [1], "key": ["k"]}, "key"),
        ({"time": [1], "value": [1], "key": "k"}, "key"),
        ({"time": [1], "value": [1], "other": [1]}, "other"),
        ({"time": [1], "other": [1]}, "other"),
        ({"time": [1]}, "value"),
        ({"time": [1], "fields": {"value": [1]}, "other": [1]}, "other"),
    ],
)
def test_wrong_columns(http, unchanged, document, field):
    refuse(http, "POST", f"/v1/windows/{unchanged}/bulk-insert", 400, field, json=document)


def test_a_column_of_another_length_names_both(http, unchanged):
    document = {"time": [1, 2, 3], "value": [1, 2]}
    refuse(http, "POST", f"/v1/windows/{unchanged}/bulk-insert", 400, "value", "3", json=document)


@pytest.mark.parametrize(
    ("document", "field"),
    [({}, "time"), ({"time": 1.5}, "time"), ({"time": 2**63}, "time"), ({"time": 1, "key": 1}, "key"),
     ({"time": 1, "keys": "k"}, "keys"), ({"time": 1, "key": "k"}, "key")],
)  # fmt: skip
def test_a_wrong_eviction(http, unchanged, document, field):
    refuse(http, "POST", f"/v1/windows/{unchanged}/bulk-evict", 400, field, json=document)


# ---------------------------------------------------------------- reads


@pytest.mark.parametrize(
    ("question", "field"),
    [
        ("lookback=soon", "lookback"),
        ("lookback=", "lookback"),
        ("lookback=-5", "lookback"),
        ("lookback=0", "lookback"),
        ("lookback=5m&lookback=nope", "lookback"),
        ("as_of=x", "as_of"),
        ("as_of=1.5", "as_of"),
        ("as_of=9223372036854775808", "as_of"),
        ("as_of=" + "9" * 5000, "as_of"),
        ("as_of=1&as_of=2", "as_of"),
        ("key=k", "key"),
        ("key=a&key=b", "key"),
        ("lookbacks=5m", "lookbacks"),
    ],
)
def test_a_wrong_question(http, unchanged, question, field):
    found = problem(http.get(f"/v1/windows/{unchanged}/query?{question}"))
    assert found["status"] == 400
    assert found["field"].startswith(field)


@pytest.mark.parametrize(
    ("question", "field"),
    [
        ("", "start"),
        ("start=1", "end"),
        ("end=1", "start"),
        ("start=a&end=2", "start"),
        ("start=1&end=2.0", "end"),
        ("start=1&end=9223372036854775808", "end"),
        ("start=1&end=2&key=k", "key"),
        ("start=1&end=2&lookback=5m", "lookback"),
        ("start=1&start=2&end=3", "start"),
        ("start=1&end=1&end_exclusive=true", "start"),
        ("start=1&end=2&end_exclusive=1", "end_exclusive"),
    ],
)
def test_a_wrong_range(http, unchanged, question, field):
    refuse(http, "GET", f"/v1/windows/{unchanged}/range?{question}", 400, field)


def test_a_range_that_ends_before_it_starts(http, unchanged):
    found = problem(http.get(f"/v1/windows/{unchanged}/range?start=2&end=1"))
    assert found["status"] == 400
    assert found["field"] in ("start", "end")


def test_a_keyed_window_wants_a_key(http, unchanged, typed):
    refuse(http, "GET", f"/v1/windows/{typed}/query", 400, "key")
    refuse(http, "GET", f"/v1/windows/{typed}/range?start=1&end=2", 400, "key")
    refuse(http, "GET", f"/v1/windows/{typed}/query?key=", 400, "key")


# ---------------------------------------------------------------- what is left


def test_a_rejecting_window_refuses_late_entries(http, unchanged):
    spec = {"name": "strict", "aggregates": COUNT, "slide": {"max_count": 1}, "order": {"late": "reject"}}
    http.post("/v1/windows", json=spec)
    http.post("/v1/windows/strict/bulk-insert", json={"time": [10, 20], "value": [1, 2]})
    for path, body in (
        ("insert", {"time": 5, "value": 1}),
        ("bulk-insert", {"time": [30, 5], "value": [1, 1]}),
    ):
        found = problem(http.post(f"/v1/windows/strict/{path}", json=body))
        assert found["status"] == 409
    assert http.get("/v1/windows/strict").json()["entries"] == 1
    http.delete("/v1/windows/strict")


def test_what_the_caller_sent_is_quoted_in_part_only(http, unchanged):
    name = "n" * 100_000
    response = http.post(f"/v1/windows/{unchanged}/insert", json={"time": 1, name: 1})
    assert problem(response)["status"] == 400
    assert len(response.content) < 2000


def test_a_lone_surrogate_is_no_json(http, unchanged):
    body = b'{"time": 1, "value": 1, "\\ud800": 1}'
    assert problem(http.post(f"/v1/windows/{unchanged}/insert", content=body, headers=JSON))["status"] == 400


def test_a_failure_of_the_service_is_logged_and_not_shown(http, service, unchanged, monkeypatch, caplog):
    def fail(name):
        raise RuntimeError("secret")

    monkeypatch.setattr(service.plane, "describe", fail)
    response = http.get(f"/v1/windows/{unchanged}")
    assert problem(response)["status"] == 500
    assert "secret" not in response.text
    assert "secret" in caplog.text


def test_a_client_that_goes_away_does_no_harm(http, service, unchanged):
    import socket

    for ending in (b"", b'{"time": 1, "val'):
        with socket.create_connection(("127.0.0.1", service.rest_port)) as connection:
            head = json_head(f"/v1/windows/{unchanged}/insert", 50)
            connection.sendall(head + ending)
    assert http.get("/healthz").status_code == 200


def test_requests_beyond_those_allowed_are_refused():
    """A watcher holds the only place. A request whose body is on its way holds none, and monitors need none."""
    import socket

    from tests.support.servers import running_service

    with running_service(max_concurrent_calls=1) as small:
        http = small.http()
        http.post("/v1/windows", json={"name": "w", "aggregates": COUNT})
        with socket.create_connection(("127.0.0.1", small.rest_port)) as half:
            half.sendall(json_head("/v1/windows/w/insert", 23) + b'{"time": 1,')
            with http.stream("GET", "/v1/windows/w/watch") as watching:
                parts = watching.iter_raw()  # named: a generator that goes closes the stream
                next(parts)
                response = http.get("/v1/windows")
                assert problem(response)["limit"] == "SASH_MAX_CONCURRENT_CALLS: 1"
                assert (response.status_code, response.headers["retry-after"]) == (503, "1")
                for path in ("/healthz", "/readyz", "/metrics"):
                    assert http.get(path).status_code == 200
                half.sendall(b' "value": 2}')
                assert b"503 Service Unavailable" in half.recv(65536)
        while http.get("/v1/windows").status_code != 200:
            pass  # the service hears that the watcher has gone


def test_problem_documents_are_json_with_their_own_type(http):
    response = http.get("/v1/windows/unknown")
    assert response.headers["content-type"] == "application/problem+json"
    assert json.loads(response.content)["type"] == "urn:sash:error:not-found"
    assert isinstance(response, httpx.Response)


@pytest.mark.parametrize("name", [name for name in errors.__all__ if name != "SashError"])
def test_both_edges_give_an_error_the_same_reason(name):
    error = getattr(errors, name)("so it is")
    document = json.loads(of_error(error, "GET", "/").body)
    (detail,) = status_pb2.Status.FromString(status_of(error, "Insert").trailing_metadata[0][1]).details
    info = error_details_pb2.ErrorInfo()
    assert detail.Unpack(info)
    assert document["reason"] == info.reason == type(error).reason()


def test_a_defect_has_a_reason_on_both_edges():
    document = json.loads(of_error(ZeroDivisionError(), "GET", "/").body)
    (detail,) = status_pb2.Status.FromString(status_of(ZeroDivisionError(), "Insert").trailing_metadata[0][1]).details
    info = error_details_pb2.ErrorInfo()
    assert detail.Unpack(info)
    assert document["reason"] == info.reason == "INTERNAL"
    assert "ZeroDivisionError" not in document["detail"]


def test_reasons_are_the_names_of_errors_in_capitals():
    assert errors.OutOfRoom.reason() == "OUT_OF_ROOM"
    assert errors.Unavailable.reason() == "UNAVAILABLE"
