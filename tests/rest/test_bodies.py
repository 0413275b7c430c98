"""Bodies as the edge parses them: JSON whose objects have each name once, on every path that takes JSON."""

import asyncio
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sash import calls
from sash.rest import bodies
from sash.rest.bodies import parse_json
from sash_engine.errors import InvalidArgument, TooLarge
from tests.support.refusals import COUNT, JSON, refuse
from tests.support.servers import problem


@pytest.mark.parametrize(
    "key",
    ["a", "host:7071", ":", "a :b", '":', '"a":1', "\\", '\\":', "\n:", '{"time": 1, "time": 2}'],
    ids=repr,
)
def test_text_that_looks_like_names(http, key):
    """Colons and quotes in text are no names: such a write is taken, and a name twice beside it is found."""
    assert http.post("/v1/windows", json={"name": "keyed", "keyed": True, "aggregates": COUNT}).status_code == 201
    bulk = json.dumps({"time": [1, 2], "key": [key, "b"], "value": [1, 2]})
    assert http.post("/v1/windows/keyed/bulk-insert", content=bulk.encode(), headers=JSON).json()["inserted"] == 2
    assert http.get("/v1/windows/keyed/keys").json()["keys"] == [key, "b"]
    twice = f'{bulk[:-1]}, "key": ["a", "b"]}}'
    refuse(http, "POST", "/v1/windows/keyed/bulk-insert", 400, "key", content=twice.encode(), headers=JSON)
    assert http.delete("/v1/windows/keyed").json() == {"entries": 2}


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("separators", [(",", ":"), (", ", " : "), (",\n", "\t:\r\n")])
@pytest.mark.parametrize("key", ["JFK", "host:7071", "a: b"])
def test_a_body_without_a_name_twice_is_not_parsed_again(monkeypatch, key, separators, indent):
    """All others cost two counts at most, however deep they are and however they are laid out."""
    monkeypatch.setattr(bodies, "_duplicate_path", lambda body: pytest.fail("it is parsed again"))
    entry = {"time": 1, "key": key, "fields": {"delay": 1.5, "carrier": key}, "answer": True, "lookbacks": [key]}
    bulk = {"time": [1, 2], "key": [key, key], "partials": {"mean": {"count": [1, 2], "sum": [1, 2]}, "n": {}}}
    for document in (entry, bulk, {}, {"a": {"b": {"c": {}, "d": key}}, "e": {"f": 1}}):
        body = json.dumps(document, indent=indent, separators=separators).encode()
        assert parse_json(body) == document


@pytest.mark.parametrize(
    ("body", "wrong"),
    [
        (b'{"a":1' + b',"a":1' * 20_000 + b"}", "a name is given twice"),
        (b'{"a":[{"b":":"}' + b',{"b":1}' * 20_000 + b',{"b":1,"b":1}]}', "a name is given twice"),
        (b'{"a":[' + b"1," * 40_000 + b"NaN]}", "NaN and Infinity are not JSON numbers"),
    ],
)
def test_a_long_body_is_not_searched_for_a_mistake(monkeypatch, body, wrong):
    """A parse in Python of 64 MB held the event loop for 15 s."""
    monkeypatch.setattr(bodies.json, "loads", lambda *_, **__: pytest.fail("it is parsed again"))
    with pytest.raises(InvalidArgument, match=wrong) as refused:
        parse_json(body)
    assert refused.value.field == "body"


def test_text_with_colons_in_a_long_body(monkeypatch):
    monkeypatch.setattr(bodies.json, "loads", lambda *_, **__: pytest.fail("it is parsed again"))
    text = ['":', '\\":', 'a "b": \\\\', ":"] * 5_000
    document = {"a:b": text, "c": [{"d": text}, {"d": [[{"e": ":"}]]}]}
    assert parse_json(json.dumps(document).encode()) == document


def test_an_empty_name_that_is_given_twice():
    with pytest.raises(InvalidArgument, match="the name '' is given twice") as refused:
        parse_json(b'{"": 1, "": 2}')
    assert refused.value.field == "body"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b'{"a": [1, {"b": 1}, {"b": {"c": 1, "c": 2}}, {"d": 1, "d": 2}], "e": 1, "e": 2}', "a[2].b.c"),
        (b'{"a": [1, [2, NaN], Infinity]}', "a[1][1]"),
        (b"NaN", "body"),
    ],
)
def test_the_first_of_several_is_named(body, field):
    with pytest.raises(InvalidArgument) as refused:
        parse_json(body)
    assert refused.value.field == field


def test_a_body_of_just_the_depth_that_the_parser_takes():
    """It is parsed a second time where a name is there twice, which some versions of Python do less deep."""
    lists = b"[" * 1020 + b"]" * 1020
    assert parse_json(b'{"a:b": ' + lists + b"}")
    assert parse_json(b'{"a": ":", "b": ' + lists + b"}")["a"] == ":"
    with pytest.raises(InvalidArgument, match=r"'b' is given twice|the body is nested too deep"):
        parse_json(b'{"b": ":", "b": ' + lists + b"}")


NAMES = st.text('ab":\\ \n', max_size=3)
VALUES = st.recursive(
    st.none() | st.integers(-3, 3) | st.text('ab":\\ {},', max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.lists(st.tuples(NAMES, inner), max_size=3).map(tuple),
    max_leaves=12,
)
BLANKS = st.sampled_from(["", " ", "\n", "\t ", "\r\n"])


@given(st.lists(st.tuples(NAMES, VALUES), max_size=3).map(tuple), BLANKS, st.booleans())
def test_any_document(members, blank, ascii_only):
    """What has every name once is parsed as Python's parser does; what has one twice is refused."""

    def written(value):
        if isinstance(value, tuple):  # an object, as its members
            inside = (f"{json.dumps(name, ensure_ascii=ascii_only)}{blank}:{written(each)}" for name, each in value)
            return "{" + f",{blank}".join(inside) + "}"
        if isinstance(value, list):
            return "[" + ",".join(map(written, value)) + "]"
        return json.dumps(value, ensure_ascii=ascii_only)

    def unique(value):
        if isinstance(value, tuple):
            return len({name for name, _ in value}) == len(value) and all(unique(each) for _, each in value)
        return all(map(unique, value)) if isinstance(value, list) else True

    body = written(members).encode()
    if unique(members):
        assert parse_json(body) == json.loads(body)
    else:
        with pytest.raises(InvalidArgument, match="is given twice"):
            parse_json(body)


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


@pytest.mark.parametrize("parts", [[b"abcdef"], [b"abc", b"d"], [b"abc", b"de"], [b"", b""]])
async def test_long_parts_are_joined_beside_the_event_loop(parts, monkeypatch):
    """30 MB of a body took 20 ms of the loop in one go."""
    threads, to_thread = [], asyncio.to_thread

    async def beside(*call):
        threads.append(call)
        return await to_thread(*call)

    monkeypatch.setattr(calls, "_JOINED_BYTES", 5)
    monkeypatch.setattr(asyncio, "to_thread", beside)
    assert await calls.joined(parts) == b"".join(parts)
    assert len(threads) == (len(parts) > 1 and sum(map(len, parts)) >= 5)


@pytest.mark.parametrize(("bytes_max", "whole"), [(6, True), (5, False)])
async def test_a_body_in_parts_may_be_as_long_as_the_limit(bytes_max, whole):
    parts = [b"abc", b"", b"def"]

    async def receive():
        return {"type": "http.request", "body": parts.pop(0), "more_body": bool(parts)}

    too_large = TooLarge("too large")
    if whole:
        assert await bodies.whole_body(receive, bytes_max, too_large) == b"abcdef"
    else:
        with pytest.raises(TooLarge):
            await bodies.whole_body(receive, bytes_max, too_large)


async def test_a_body_of_a_caller_that_has_gone_is_none():
    messages = [{"type": "http.request", "body": b"abc", "more_body": True}, {"type": "http.disconnect"}]

    async def receive():
        return messages.pop(0)

    with pytest.raises(bodies.Gone):
        await bodies.whole_body(receive, 10, TooLarge("too large"))
