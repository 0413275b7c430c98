"""Bulks of one entry a line: NDJSON and CSV."""

import asyncio
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sash.rest.lines import blocks_of
from sash.rest.ndjson import NdjsonReader
from sash_engine.steps import finished
from sash_engine.windows.spec.window import WindowSpec
from tests.support.servers import problem
from tests.support.waiting import wait_until

NDJSON = "application/x-ndjson"
CSV = "text/csv"
NOTHING = {"inserted": 0, "late": 0, "evicted": 0, "duplicates": 0, "ahead": 0, "durability": "memory"}


def send(http, window, body, kind=NDJSON, **parameters):
    path = f"/v1/windows/{window}/bulk-insert"
    return http.post(path, content=body, params=parameters, headers={"content-type": kind})


def refused(http, window, body, kind=NDJSON, **parameters):
    return problem(send(http, window, body, kind, **parameters))


def ndjson(*entries):
    return "".join(json.dumps(each) + "\n" for each in entries).encode()


def collected(http, window, **parameters):
    response = http.get(f"/v1/windows/{window}/query", params=parameters)
    return response.json()["answers"][0]["aggregates"]


def count(http, window):
    return http.get(f"/v1/windows/{window}").json()["entries"]


TYPED = [
    {"time": 1, "key": "a", "f": 0.5, "i": -(2**63), "s": "ä", "b": True},
    {"time": 2, "key": "b:1", "f": "NaN", "i": 2**63 - 1, "s": ' ":" ', "b": False},
    {"time": 3, "key": "a", "f": 2, "i": 0, "s": "", "b": True},
]
AS_CSV = (
    b'b,time,key,f,i,s\ntrue,1,a,0.5,-9223372036854775808,\xc3\xa4\nfalse,2,b:1,NaN,9223372036854775807," "":"" "\n'
)
AS_CSV += b"true,3,a,2,0,\n"
IN_FIELDS = ndjson(*({"time": e.pop("time"), "key": e.pop("key"), "fields": e} for e in map(dict, TYPED)))


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (ndjson(*TYPED), NDJSON),
        (ndjson(*TYPED).rstrip(b"\n"), NDJSON),
        (ndjson(*TYPED).replace(b"\n", b"\r\n"), NDJSON),
        (b"\n" + ndjson(*TYPED).replace(b"\n", b"\n \n"), NDJSON),
        (ndjson(TYPED[0], dict(reversed(TYPED[1].items())), TYPED[2]), NDJSON),
        (ndjson(*TYPED).replace(b'": ', b'" : '), NDJSON),
        (IN_FIELDS, NDJSON),
        (IN_FIELDS + ndjson(*TYPED)[:0], "application/x-ndjson; charset=utf-8"),
        (AS_CSV, CSV),
        (AS_CSV.rstrip(b"\n"), CSV),
        (b"\xef\xbb\xbf" + AS_CSV.replace(b"\n", b"\r\n"), "text/csv; charset=utf-8"),
    ],
)
def test_every_type_and_key(http, typed, body, kind):
    assert send(http, typed, body, kind).json() == NOTHING | {"inserted": 3}
    of_a = {"n": 2, "f": [0.5, 2.0], "i": [-(2**63), 0], "s": ["ä", ""], "b": [True, True]}
    assert collected(http, typed, key="a") == of_a
    of_b = {"n": 1, "f": ["NaN"], "i": [2**63 - 1], "s": [' ":" '], "b": [False]}
    assert collected(http, typed, key="b:1") == of_b


def test_the_value_of_a_window_with_one_field(http):
    spec = {"name": "single", "fields": {"delay": "float64"}, "aggregates": {"n": {"function": "collect"}}}
    spec["aggregates"]["n"]["field"] = "delay"
    http.post("/v1/windows", json=spec)
    assert send(http, "single", ndjson({"time": 1, "value": 5}, {"time": 2, "value": 6})).json()["inserted"] == 2
    assert send(http, "single", ndjson({"time": 3, "value": 7}, {"time": 4, "delay": 8})).json()["inserted"] == 2
    assert collected(http, "single")["n"] == [5, 6, 7, 8]
    http.delete("/v1/windows/single")


@pytest.mark.parametrize("kind", [NDJSON, CSV])
@pytest.mark.parametrize("numbered", [False, True])
def test_no_entries(http, window, kind, numbered):
    origin = {"producer": "p", "sequence": 1} if numbered else {}
    body = b"time,value\n" if kind == CSV else b""
    assert send(http, window, body, kind, **origin).json() == NOTHING


def many(n, kind):
    if kind == CSV:
        return b"time,value\n" + b"".join(b"%d,%d\n" % (i, i) for i in range(n))
    return b"".join(b'{"time":%d,"value":%d}\n' % (i, i) for i in range(n))


@pytest.mark.parametrize("kind", [NDJSON, CSV])
@pytest.mark.parametrize("announced", [False, True])
def test_a_body_of_more_than_the_limits_is_taken_in_parts(http, window, kind, announced):
    """The limits of the service are 20,000 entries and 1 MiB."""
    n = 120_000
    body = many(n, kind)
    assert len(body) > 1 << 20
    sent = body if announced else (body[i : i + 7919] for i in range(0, len(body), 7919))
    assert send(http, window, sent, kind).json() == NOTHING | {"inserted": n}
    assert collected(http, window)["total"] == n * (n - 1) / 2


@pytest.mark.parametrize(("kind", "first"), [(NDJSON, 1), (CSV, 2)])
def test_the_first_error_names_its_line_and_what_is_applied(http, window, kind, first):
    lines = many(60_000, kind).splitlines(keepends=True)
    for at in (50_000, 50_001):
        lines[at] = b"x" + lines[at]
    found = refused(http, window, b"".join(lines), kind)
    assert (found["status"], found["line"]) == (400, 50_001)
    assert f"line {50_001}" in found["detail"]
    applied = found["applied"]
    assert 0 < applied["entries"] == applied["inserted"] == count(http, window) <= 50_000
    # What is left can be sent again from there.
    rest = many(60_000, kind).splitlines(keepends=True)[first - 1 + applied["entries"] :]
    header = [b"time,value\n"] if kind == CSV else []
    assert send(http, window, b"".join(header + rest), kind).json()["inserted"] == 60_000 - applied["entries"]
    assert collected(http, window)["total"] == math.comb(60_000, 2)


GOOD = b'{"time":1,"key":"a","f":1,"i":1,"s":"x","b":true}\n'


@pytest.mark.parametrize(
    ("line", "field", "says"),
    [
        (b"nothing", "body", "not JSON"),
        (b"[1]", "body", "object"),
        (b'{"time":1', "body", "not JSON"),
        (
            b'{"time":1.0,"key":"a","f":1,"i":1,"s":"x","b":true}',
            "time",
            "a time, not a float: write ticks (ms), such as",
        ),
        (b'{"key":"a","f":1,"i":1,"s":"x","b":true}', "time", "missing"),
        (b'{"time":1,"f":1,"i":1,"s":"x","b":true}', "key", "missing"),
        (b'{"time":1,"key":"","f":1,"i":1,"s":"x","b":true}', "key", "empty"),
        (b'{"time":1,"key":"a","f":1,"i":1,"s":"x"}', "b", "missing"),
        (b'{"time":1,"key":"a","f":1,"i":1,"s":"x","b":true,"u":1}', "u", "no field"),
        (b'{"time":1,"key":"a","f":"x","i":1,"s":"x","b":true}', "f", "must be a number"),
        (b'{"time":1,"key":"a","f":NaN,"i":1,"s":"x","b":true}', "f", "NaN"),
        (b'{"time":1,"key":"a","f":1,"i":true,"s":"x","b":true}', "i", "not a bool"),
        (b'{"time":1,"key":"a","f":1,"i":1,"s":null,"b":true}', "s", "not null"),
        (b'{"time":1,"key":"a","f":1,"i":1,"s":"x","b":1}', "b", "true or false"),
        (b'{"time":1,"key":"a","f":1,"f":2,"i":1,"s":"x","b":true}', "f", "twice"),
        (b'{"time":1,"key":"a","f":1,"i":1,"s":"x","b":true},' + GOOD[:-1], "body", "not JSON"),
    ],
)
@pytest.mark.parametrize("numbered", [False, True])
def test_a_line_that_is_wrong(http, typed, line, field, says, numbered):
    origin = {"producer": "p", "sequence": 1} if numbered else {}
    found = refused(http, typed, GOOD * 2 + line + b"\n" + GOOD + line + b"\n", **origin)
    assert (found["line"], found["field"]) == (3, field)
    assert found["detail"].startswith("line 3: ")
    assert says in found["detail"]
    assert found.get("applied") == (None if numbered else {"entries": 0})
    assert count(http, typed) == 0


def test_lines_that_are_json_only_together(http, typed):
    """Lines that would be as many entries if their line breaks were commas."""
    for body in (
        b'{"time":1,"key":"a","f":1\n"i":1,"s":"x","b":true},' + GOOD,
        b'{"time":1,"key":"a","f":1,"i":1,"s":["x"\n{"y"],"b":true}\n' + GOOD[:-1] + b"," + GOOD,
        b'{"time":1,"key":"a","f":1,"i":1,"s":"},\n{","b":true}\n' + GOOD[:-1] + b"," + GOOD,
        b'{"time":1,"key":"a","f":1\n,"i":1,"s":"x","b":true}\n' + GOOD[:-1] + b"," + GOOD,
        b'{"time":1,"key":"a","f":1,"i":1,"s":[{}\n{}],"b":true}\n' + GOOD[:-1] + b"," + GOOD,
    ):
        assert refused(http, typed, body)["line"] == 1
        assert count(http, typed) == 0


HEAD = b"time,key,f,i,s,b\n"
ROW = b"1,a,1,1,x,true\n"


@pytest.mark.parametrize(
    ("body", "line", "field"),
    [
        (b"", 1, "time"),
        (b"time,key,f,i,s\n", 1, "b"),
        (b"time,key,f,i,s,b,u\n", 1, "u"),
        (b"time,key,f,i,s,b,b\n", 1, "b"),
        (b'time,"key\n', 1, "body"),
        (b"\xff,key\n", 1, "body"),
        (HEAD + ROW + b"1.0,a,1,1,x,true\n", 3, "time"),
        (HEAD + ROW * 2 + b"1,a,,1,x,true\n", 4, "f"),
        (HEAD + ROW + b"1,a,x,1,x,true\n" + b"y,a,1,1,x,true\n", 3, "f"),
        (HEAD + ROW + b"1,a,1,1,x,1\n" + b"y,a,1,1,x,true\n", 3, "b"),
        (HEAD + ROW + b"1,a,1,1,x\n", 3, "body"),
        (HEAD + ROW + b"1,a,1,99999999999999999999,x,true\n", 3, "i"),
        (HEAD + ROW + b"1,\xff,1,1,x,true\n", 3, "key"),
        (HEAD + ROW + b"\n" + ROW, 3, "time"),
        (HEAD + ROW + b'1,a,1,1,"x\ny",true\n' + ROW, 3, "body"),
        (HEAD + ROW + b'1,a,1,1,"x,true\n' + ROW, 3, "body"),
    ],
)
def test_csv_that_is_wrong(http, typed, body, line, field):
    found = refused(http, typed, body, CSV)
    assert (found["line"], found["field"], found["applied"]["entries"]) == (line, field, 0), found
    assert count(http, typed) == 0


@pytest.mark.parametrize("kind", [NDJSON, CSV])
def test_a_numbered_body_is_one_write(http, window, kind):
    body, same_as_json = many(3, kind), {"time": [0, 1, 2], "value": [0, 1, 2], "producer": "p", "sequence": 1}
    assert send(http, window, body, kind, producer="p", sequence=1).json() == NOTHING | {"inserted": 3}
    again = NOTHING | {"already_applied": True}
    assert send(http, window, body, kind, producer="p", sequence=1).json() == again
    assert http.post(f"/v1/windows/{window}/bulk-insert", json=same_as_json).json() == again
    assert refused(http, window, many(4, kind), kind, producer="p", sequence=1)["reason"] == "SEQUENCE_REUSED"
    assert refused(http, window, body, kind, producer="p", sequence=3)["limit"] == "2"
    assert count(http, window) == 3


@pytest.mark.parametrize("kind", [NDJSON, CSV])
@pytest.mark.parametrize(("n", "limit"), [(20_001, "20000 entries"), (90_000, "1 MiB")])
def test_a_numbered_body_keeps_to_the_limits(http, window, kind, n, limit):
    found = refused(http, window, many(n, kind), kind, producer="p", sequence=1)
    if kind == NDJSON or n == 20_001:
        assert (found["status"], found["limit"]) == (413, limit)
    assert count(http, window) == 0


def test_a_line_without_end(http, window):
    found = refused(http, window, (b"x" * 65_536 for _ in range(20)))
    assert (found["line"], found["limit"]) == (1, "1048576 bytes")
    body = many(5, NDJSON) + b" " * 1_200_000
    assert refused(http, window, body)["line"] == 6


def test_a_part_that_the_window_refuses(http):
    """The last entry of the second part has a time that is there already."""
    spec = {"name": "strict", "order": {"equal_times": "reject"}}
    assert http.post("/v1/windows", json={**spec, "aggregates": {"n": {"function": "count"}}}).status_code == 201
    body = many(30_000, NDJSON) + b'{"time":29999,"value":1}\n'
    found = refused(http, "strict", body)
    applied = found["applied"]
    assert found["status"] == 409
    assert 16_384 <= applied["entries"] == applied["inserted"] <= 20_000
    assert found["detail"].startswith(f"entries {applied['entries'] + 1} to 30001: ")
    assert http.get("/v1/windows/strict").json()["newest"] == applied["entries"] - 1
    http.delete("/v1/windows/strict")


def test_long_lines_are_applied_in_parts_of_few_entries(http, typed):
    """So the memory that a body takes is bounded by its length, too."""
    lines = [json.dumps({**TYPED[0], "time": i, "s": "x" * 500_000}).encode() + b"\n" for i in range(20)]
    found = refused(http, typed, iter([*lines, b"x\n"]))
    assert found["line"] == 21
    assert 8 <= found["applied"]["entries"] < 20


def test_lines_without_entries_are_skipped(http, window):
    """So many of them that they are parts of their own."""
    body = (b" " * 999 + b"\n") * 5_000
    assert send(http, window, body).json() == NOTHING
    assert send(http, window, body + many(3, NDJSON) + body).json()["inserted"] == 3


def test_a_numbered_body_is_not_read_beyond_the_limit(http, window):
    found = refused(http, window, iter([many(10_000, NDJSON)] * 30), producer="p", sequence=1)
    assert (found["status"], found["limit"]) == (413, "1 MiB")


def test_an_unknown_window(http):
    assert refused(http, "nowhere", many(3, NDJSON))["status"] == 404


def blocks(body, cuts, block_bytes):
    async def parts():
        for start, stop in zip([0, *cuts], [*cuts, len(body)], strict=True):
            yield body[start:stop]

    async def collect():
        return [block async for block in blocks_of(parts(), block_bytes)]

    return asyncio.run(collect())


@given(
    st.lists(st.binary(max_size=12).map(lambda line: line.replace(b"\n", b"")), max_size=30),
    st.lists(st.integers(0, 400), max_size=10),
    st.integers(1, 40),
)
def test_blocks_are_whole_lines_of_a_bounded_size(lines, cuts, block_bytes):
    body = b"\n".join(lines)
    found = blocks(body, sorted(min(cut, len(body)) for cut in cuts), block_bytes)
    whole = body if not body or body.endswith(b"\n") else body + b"\n"
    assert b"".join(found) == whole
    for block in found:
        assert block.endswith(b"\n")
        assert len(block) <= block_bytes or block.count(b"\n") == 1


def test_small_parts_make_no_small_blocks():
    body = many(1000, NDJSON)
    found = blocks(body, list(range(1, len(body))), 4096)
    assert len(found) <= 2 * len(body) // 4096


def test_lines_that_are_parsed_one_by_one_are_parsed_in_steps():
    spec = WindowSpec.parse({"name": "w", "aggregates": {"n": {"function": "count"}}})
    reader = NdjsonReader(spec, int)
    alike, others = many(1000, NDJSON), many(1000, NDJSON).replace(b"{", b" {")
    steps = [sum(1 for _ in reader.read(block, 1)) for block in (alike, others)]
    assert steps[0] == 1
    assert steps[1] >= 4
    assert len(finished(reader.read(others, 1)).times) == 1000


def test_a_caller_that_hangs_up(service, http, window):
    """What was applied stays, and the service goes on."""

    def body():
        yield many(50_000, NDJSON)
        wait_until(lambda: count(http, window) > 0)
        raise ConnectionAbortedError

    with pytest.raises(ConnectionAbortedError):
        send(service.http(), window, body())
    # The service may still apply a part that it has: one question answers both.
    applied = collected(http, window)
    assert 16_384 <= applied["n"] <= 50_000
    assert applied["total"] == math.comb(applied["n"], 2)
