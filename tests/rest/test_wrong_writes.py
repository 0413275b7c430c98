"""Bodies, entries and columns that are wrong: a problem document names the field, and nothing changes."""

import pytest

from tests.support.refusals import JSON, refuse
from tests.support.servers import problem

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
    """White space fills it, in runs that are short enough: a single one may have 64 KiB."""
    n = 20
    rest = '], "value": [' + ",".join(["2"] * n) + "]}"
    spaces = (1 << 20) - len('{"time": [' + ",".join(["1"] * n) + rest)
    times = [" " * (spaces // n) + "1" for _ in range(n - 1)] + [" " * (spaces - spaces // n * (n - 1)) + "1"]
    full = ('{"time": [' + ",".join(times) + rest).encode()
    assert len(full) == 1 << 20
    found = http.post(f"/v1/windows/{window}/bulk-insert", content=full, headers=JSON)
    assert (found.status_code, found.json().get("inserted")) == (200, n)
    over = http.post(f"/v1/windows/{window}/bulk-insert", content=full + b" ", headers=JSON)
    assert problem(over)["status"] == 413


# ---------------------------------------------------------------- one entry


@pytest.mark.parametrize(
    ("document", "field"),
    [
        ({}, "time"),
        ({"time": None, "value": 1}, "time"),
        ({"time": "noon", "value": 1}, "time"),
        ({"time": 1.5, "value": 1}, "time"),
        ({"time": 1.0, "value": 1}, "time"),
        ({"time": True, "value": 1}, "time"),
        ({"time": [1], "value": 1}, "time"),
        ({"time": {}, "value": 1}, "time"),
        ({"time": 2**63, "value": 1}, "time"),
        ({"time": 2**64, "value": 1}, "time"),
        ({"time": 10**40, "value": 1}, "time"),
        ({"time": -(2**63) - 1, "value": 1}, "time"),
        ({"time": 1, "value": None}, "value"),
        ({"time": 1, "value": True}, "value"),
        ({"time": 1, "value": "1"}, "value"),
        ({"time": 1, "value": "nan"}, "value"),
        ({"time": 1, "value": [1]}, "value"),
        ({"time": 1, "value": 1, "key": None}, "key"),
        ({"time": 1, "value": 1, "key": 7}, "key"),
        ({"time": 1, "value": 1, "other": 1}, "other"),
        ({"time": 1, "fields": {}}, "value"),
        ({"time": 1, "fields": 7}, "fields"),
    ],
)
def test_a_wrong_entry(http, unchanged, document, field):
    refuse(http, "POST", f"/v1/windows/{unchanged}/insert", 400, field, json=document)


@pytest.mark.parametrize("time", [2**63, 2**64, -(2**63) - 1])
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


def test_value_where_there_are_several_fields(http, unchanged, typed):
    found = problem(http.post(f"/v1/windows/{typed}/insert", json={"time": 1, "key": "k", "value": 1}))
    assert found["status"] == 400
    assert "value" in found["detail"] or found["field"] in GOOD


@pytest.mark.parametrize("key", [7, True])
def test_a_wrong_key(http, unchanged, typed, key):
    path = f"/v1/windows/{typed}"
    refuse(http, "POST", f"{path}/insert", 400, "key", json={"time": 1, "fields": GOOD, "key": key})
    rows = {name: [value] for name, value in GOOD.items()}
    found = problem(http.post(f"{path}/bulk-insert", json={"time": [1], "key": [key], **rows}))
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
        ({"time": [1, 1.5], "value": [1, 2]}, "time[1]"),
        ({"time": [True], "value": [1]}, "time[0]"),
        ({"time": [1, None], "value": [1, 2]}, "time[1]"),
        ({"time": ["noon"], "value": [1]}, "time[0]"),
        ({"time": [1, 2**63], "value": [1, 2]}, "time[1]"),
        ({"time": [1, 2**70], "value": [1, 2]}, "time[1]"),
        ({"time": [1, 2], "value": [1, None]}, "value[1]"),
        ({"time": [1, 2], "value": [1, True]}, "value[1]"),
        ({"time": [1, 2], "value": ["NaN", "nan"]}, "value[1]"),
        ({"time": [1, 2], "value": [1, [2]]}, "value[1]"),
        ({"time": [1], "value": [1], "key": "k"}, "key"),
        ({"time": [1], "value": [1], "other": [1]}, "other"),
        ({"time": [1], "other": [1]}, "other"),
        ({"time": [1], "fields": {"value": [1]}, "other": [1]}, "other"),
    ],
)
def test_wrong_columns(http, unchanged, document, field):
    refuse(http, "POST", f"/v1/windows/{unchanged}/bulk-insert", 400, field, json=document)


@pytest.mark.parametrize(
    ("document", "field"),
    [({"time": 1.5}, "time"), ({"time": 2**63}, "time"), ({"time": 1, "key": 1}, "key"),
     ({"time": 1, "keys": "k"}, "keys")],
)  # fmt: skip
def test_a_wrong_eviction(http, unchanged, document, field):
    refuse(http, "POST", f"/v1/windows/{unchanged}/bulk-evict", 400, field, json=document)
