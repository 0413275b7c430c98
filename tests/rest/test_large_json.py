"""Long bodies of JSON are read in steps as they would be read at once, and no step is long."""

import json

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sash.rest import bodies, columns, large_json
from sash.rest import lists as json_lists
from sash.rest.bodies import parse_json
from sash.rest.large_json import (
    LISTED_MAX,
    REST_BYTES_MAX,
    STRETCH_BYTES_MAX,
    TEXT_BYTES_MAX,
    VALUES_MAX,
    LongList,
    is_long,
    parse_long_json,
)
from sash_engine.errors import InvalidArgument
from sash_engine.steps import finished
from sash_engine.windows.spec.window import WindowSpec

SPEC = WindowSpec.parse(
    {
        "name": "w",
        "keyed": True,
        "fields": {"v": "float64", "n": "int64", "ok": "bool", "s": "string"},
        "aggregates": {"sum": {"function": "sum", "field": "v"}},
    }
)

plain = st.none() | st.booleans() | st.integers(-9, 9) | st.floats(allow_nan=False, allow_infinity=False) | st.text(
    st.sampled_from('\\",:[]{}aé\n'), max_size=4
)  # fmt: skip
lists = st.lists(plain, max_size=9)
documents = st.dictionaries(
    st.text(max_size=3),
    plain | lists | st.dictionaries(st.text(max_size=2), lists | plain, max_size=3) | st.lists(lists, max_size=3),
    max_size=5,
)


@pytest.fixture(scope="module", autouse=True)
def all_is_long():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(large_json, "_PIECE_BYTES", 7)
        patch.setattr(large_json, "_FEW", 1)
        patch.setattr(large_json, "_LONG_TEXT", 3)
        patch.setattr(json_lists, "ROWS", 3)
        yield


def outcome(read):
    try:
        return read()
    except InvalidArgument as error:
        return error.field


@given(documents, st.booleans(), st.sampled_from([None, 0, 2]))
def test_a_document_in_steps_is_the_document(document, ascii_only, indent):
    body = json.dumps(document, ensure_ascii=ascii_only, indent=indent).encode("utf-8", "replace")
    assert finished(parse_long_json(body)) == parse_json(body)
    found = finished(parse_long_json(body, None))
    assert {name: whole(value) for name, value in found.items()} == parse_json(body)


def whole(value):
    if isinstance(value, LongList):
        values = [each for piece in value.pieces() for each in piece]
        assert len(values) == len(value) > 1
        return values
    if isinstance(value, dict):
        return {name: whole(each) for name, each in value.items()}
    return [whole(each) for each in value] if isinstance(value, list) else value


@example({"x": [[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]]}, 37, "}")
@given(documents, st.integers(0, 200), st.sampled_from(list('\\",:[]{}1a')))
def test_a_wrong_body_is_refused_as_it_is_at_once(document, at, character):
    text = json.dumps(document)
    body = (text[:at] + character + text[at + 1 :]).encode()
    assert outcome(lambda: finished(parse_long_json(body))) == outcome(lambda: parse_json(body))


@pytest.mark.parametrize(
    "body",
    [
        b'{"time":[1,2,3,,4,5,6]}',
        b'{"time":[1,2,3,4,5,6,7,8,9,]}',
        b'{"time":[,1,2,3,4,5,6,7,8,9]}',
        b'{"time":[1,2,3,4,5,6,7,8,9}',
        b'{"time":[1,2,3,4,5,6,7,8,9]]}',
        b']{"time":[1,2,3,4,5,6,7,8,9]}',
        b'{"time":[1,2,3,4,5,6,7,8,9]',
        b'{"time":["1,2,3,4,5,6,7,8,9]}',
        b'{"time":[1,2,3,\\"4,5,6,7,8,9]}',
        b'{"time":[1,2,3],"time":[1,2,3]}',
        b"[1,2,3,4,5,6,7,8,9]",
        b"",
    ],
)
def test_what_is_no_json_is_refused(body):
    with pytest.raises(InvalidArgument) as error:
        finished(parse_long_json(body))
    assert error.value.field in ("body", "time")


def bulk(n):
    return {
        "time": list(range(n)),
        "key": [f'k"{i % 7},[' for i in range(n)],
        "fields": {
            "v": [["NaN", 1, 2.5, "-Infinity"][i % 4] for i in range(n)],
            "n": [-i for i in range(n)],
            "ok": [i % 2 == 0 for i in range(n)],
            "s": ["\\", '\\"', "", "a,b"][:n] * (n // 4) + ["x"] * (n % 4),
        },
    }


@pytest.mark.parametrize("n", [0, 1, 4, 40])
def test_columns_in_steps_are_the_columns(n):
    body = json.dumps(bulk(n)).encode()
    found = columns.batch_of(finished(parse_long_json(body, None)), SPEC, 100)
    expected = columns.batch_of(parse_json(body), SPEC, 100)
    np.testing.assert_array_equal(found.times, expected.times)
    assert found.keys.decode().tolist() == bulk(n)["key"] == expected.keys.decode().tolist()
    assert found.keys.dictionary == expected.keys.dictionary
    for name, column in found.columns.items():
        if name == "s":
            assert column.decode().tolist() == bulk(n)["fields"]["s"]
        else:
            np.testing.assert_array_equal(column, expected.columns[name])
            assert column.dtype == expected.columns[name].dtype


@pytest.mark.parametrize(("name", "wrong"), [("v", None), ("v", "nan"), ("n", 1.5), ("ok", 0), ("s", 5), ("key", True)])
def test_the_first_wrong_value_is_named(name, wrong):
    document = bulk(40)
    into = document if name == "key" else document["fields"]
    into[name][17] = into[name][31] = wrong
    body = json.dumps(document).encode()
    errors = []
    for parse in (lambda: parse_json(body), lambda: finished(parse_long_json(body, None))):
        with pytest.raises(InvalidArgument) as error:
            columns.batch_of(parse(), SPEC, 100)
        errors.append((error.value.field, error.value.message))
    assert errors[0] == errors[1]
    assert errors[0][0] == f"{name}[17]"


def test_nan_without_quotation_marks_is_explained():
    with pytest.raises(InvalidArgument, match="NaN and Infinity are not JSON numbers"):
        finished(parse_long_json(b'{"time":[1,2,3,4,5,NaN,7]}'))


@pytest.fixture
def steps_as_they_are():
    """Bodies of megabytes are not read in pieces of seven bytes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(large_json, "_PIECE_BYTES", 1 << 16)
        patch.setattr(large_json, "_FEW", 64)
        patch.setattr(large_json, "_LONG_TEXT", 1 << 12)
        yield patch


@pytest.mark.parametrize("each", [b"{}", b"[]", b"[1]", b'{"a":1}'])
def test_lists_of_lists_and_objects_are_refused_before_they_are_parsed(each, steps_as_they_are, monkeypatch):
    """Six megabytes of them held the event loop for 0.7 s."""
    monkeypatch.setattr(large_json, "parse_json", None)
    body = b'{"time":[' + b",".join([each] * (VALUES_MAX + 1)) + b"]}"
    with pytest.raises(InvalidArgument, match="too many values outside of lists") as error:
        finished(parse_long_json(body))
    assert error.value.limit == f"{VALUES_MAX} values"


@pytest.fixture
def parsed_bytes(steps_as_they_are):
    """How many bytes each call of the parser has."""
    found = []
    real = large_json.orjson.loads

    def loads(data):
        found.append(len(data))
        return real(data)

    for module in (large_json, bodies):
        steps_as_they_are.setattr(module.orjson, "loads", loads)
    return found


TEXT = b'"' + b"x" * 1_000_000 + b'"'


@pytest.mark.parametrize(
    ("body", "limit"),
    [
        (b'{"a":1' + b" " * 70_000 + b"}", STRETCH_BYTES_MAX),
        (b" " * 70_000 + b'{"a":1}', STRETCH_BYTES_MAX),
        (b'{"a":1}' + b"\n" * 70_000, STRETCH_BYTES_MAX),
        (b'{"a":"b"' + b" " * 70_000 + b"}", STRETCH_BYTES_MAX),
        (b'{"a":' + b"1" * 70_000 + b"}", STRETCH_BYTES_MAX),
        (b'{"a":[' + b"1," * 100 + b"1" * 70_000 + b"]}", STRETCH_BYTES_MAX),
        (b'{"a":[' + b"1," * 100 + b" " * 70_000 + b"1]}", STRETCH_BYTES_MAX),
        (b'{"a":"' + b"x" * 4_200_000 + b'"}', TEXT_BYTES_MAX),
        (b'{"a":["' + b"x" * 4_200_000 + b'",' + b"1," * 100 + b"1]}", TEXT_BYTES_MAX),
        (b'{"' + b"x" * 2_200_000 + b'":1}', REST_BYTES_MAX),
        (b'{"a":[[' + b"],[".join([b'"' + b"x" * 4000 + b'"'] * 600) + b"]]}", REST_BYTES_MAX),
        (b'{"a":[[' + b"],[".join([b" " * 60_000] * 40) + b"]]}", REST_BYTES_MAX),
    ],
    ids=lambda value: str(value)[:16],
)
def test_what_the_parser_would_take_in_one_go_is_refused(body, limit, parsed_bytes):
    with pytest.raises(InvalidArgument) as caught:
        finished(parse_long_json(body))
    assert (caught.value.field, caught.value.limit) == ("body", f"{limit} bytes")
    assert not parsed_bytes


@pytest.mark.parametrize(
    "body",
    [
        b'{"a":[' + b",".join([TEXT] * 20) + b'],"b":{"c":' + TEXT + b"}}",
        b'{"a":[' + b",".join([TEXT] * 70) + b"]}",
        b'{"a":' + b" " * 60_000 + TEXT + b" " * 60_000 + b',"\\"":' + TEXT.replace(b"x", b'\\"') + b"}",
        b'{"a":["' + b"x" * (TEXT_BYTES_MAX - 2) + b'"]}',
    ],
    ids=range(4),
)
def test_long_texts_are_parsed_one_by_one(body, parsed_bytes):
    assert finished(parse_long_json(body)) == json.loads(body)
    assert max(parsed_bytes) <= TEXT_BYTES_MAX + 2 * STRETCH_BYTES_MAX
    assert sum(parsed_bytes) < len(body) + 10_000


def test_many_names_and_short_lists_are_refused(steps_as_they_are):
    for body in (
        b"{" + b",".join(b'"%d":1' % i for i in range(VALUES_MAX)) + b"}",
        b'{"a":[1],' + b",".join(b'"%d":[]' % i for i in range(VALUES_MAX // 2)) + b"}",
        b"[" * (VALUES_MAX + 1),
    ):
        with pytest.raises(InvalidArgument, match="too many values outside of lists"):
            finished(parse_long_json(body))


def test_a_body_without_columns_has_fewer_values(steps_as_they_are):
    body = b'{"stages":[' + b",".join([b"1"] * LISTED_MAX) + b"]}"
    assert finished(parse_long_json(body)) == {"stages": [1] * LISTED_MAX}
    with pytest.raises(InvalidArgument, match="too many values") as error:
        finished(parse_long_json(body.replace(b"[", b"[0,")))
    assert error.value.limit == f"{LISTED_MAX} values"


def test_a_long_bulk_over_http_is_applied_and_refused_like_a_short_one(http, monkeypatch):
    monkeypatch.setattr(large_json, "_PIECE_BYTES", 1 << 12)
    monkeypatch.setattr(json_lists, "ROWS", 1 << 12)
    http.post("/v1/windows", json={"name": "long", "aggregates": {"n": {"function": "count"}}})
    n = 9_000
    monkeypatch.setattr(large_json, "LONG_BYTES", 1 << 16)
    written = http.post("/v1/windows/long/bulk-insert", json={"time": list(range(n)), "value": [1.5] * n})
    assert (written.status_code, written.json().get("inserted")) == (200, n), written.text
    refused = http.post(
        "/v1/windows/long/bulk-insert", json={"time": list(range(n)), "value": [1.5] * (n - 1) + [None]}
    )
    assert (refused.status_code, refused.json()["field"]) == (400, f"value[{n - 1}]")
    shorter = http.post("/v1/windows/long/bulk-insert", json={"time": list(range(n)), "value": [1.5] * (n - 1)})
    assert (shorter.status_code, shorter.json()["field"]) == (400, "value")
    assert http.get("/v1/windows/long/query").json()["answers"][0]["entries"] == n


def test_a_body_of_middle_length_is_long_if_it_has_many_brackets():
    numbers = b'{"time":[' + b"1," * 50_000 + b"1]}"
    assert not is_long(numbers)
    assert is_long(numbers.replace(b"1,", b"1,1,1,"))
    assert is_long(b'{"time":[' + b"[]," * 30_000 + b"[]]}")
    assert not is_long(b"[" * 60_000)
