"""Keys by their parts, and questions that select and group them, over REST: JSON, lines, CSV and Arrow."""

import csv
import io

import httpx
import pyarrow as pa
import pytest

ROWS = [(10, "JFK", "AA", 1.0), (11, "JFK", "B6", 2.0), (12, "LGA", "AA", 4.0), (13, "JFK", "a|b", 8.0)]
SPEC = {
    "name": "flights",
    "time_unit": "s",
    "keys": ["airport", "carrier"],
    "fields": {"delay": "float64"},
    "aggregates": {"n": {"function": "count"}, "sum": {"function": "sum"}},
}
PATH = "/v1/windows/flights"
TIMES, AIRPORTS, CARRIERS, DELAYS = (list(column) for column in zip(*ROWS, strict=True))


@pytest.fixture
def flights(http):
    created = http.post("/v1/windows", json=SPEC)
    assert created.status_code == 201
    assert created.json()["spec"]["keys"] == ["airport", "carrier"]
    assert created.json()["spec"]["keyed"] is True
    yield http
    http.delete(PATH)


def columns_beside(http):
    return http.post(
        f"{PATH}/bulk-insert", json={"time": TIMES, "airport": AIRPORTS, "carrier": CARRIERS, "delay": DELAYS}
    )


def columns_in_the_key(http):
    key = {"carrier": CARRIERS, "airport": AIRPORTS}
    return http.post(f"{PATH}/bulk-insert", json={"time": TIMES, "key": key, "fields": {"delay": DELAYS}})


def keys_as_texts(http):
    keys = ["JFK|AA", "JFK|B6", "LGA|AA", "JFK|a\\|b"]
    return http.post(f"{PATH}/bulk-insert", json={"time": TIMES, "key": keys, "delay": DELAYS})


def entries_one_by_one(http):
    for i, (time, airport, carrier, delay) in enumerate(ROWS):
        parts = {"airport": airport, "carrier": carrier}
        given = parts if i % 2 else {"key": parts}
        last = http.post(f"{PATH}/insert", json={"time": time, **given, "delay": delay, "answer": True})
        assert last.json()["answers"][0]["parts"] == parts
    return last


def lines(http, *texts):
    body = "\n".join(texts) + "\n"
    return http.post(f"{PATH}/bulk-insert", content=body, headers={"content-type": "application/x-ndjson"})


def ndjson(http):
    return lines(
        http,
        *(
            f'{{"carrier": "{carrier}", "time": {time}, "airport": "{airport}", "delay": {delay}}}'
            for time, airport, carrier, delay in ROWS
        ),
    )


def ndjson_of_many_forms(http):
    return lines(
        http,
        '{"time": 10, "key": "JFK|AA", "delay": 1}',
        '{"time": 11, "key": {"airport": "JFK", "carrier": "B6"}, "value": 2}',
        '{"time": 12, "airport": "LGA", "carrier": "AA", "fields": {"delay": 4}}',
        '{"time": 13, "airport": "JFK", "carrier": "a|b", "value": 8}',
    )


def separated(http):
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([["carrier", "time", "delay", "airport"], *((c, t, d, a) for t, a, c, d in ROWS)])
    return http.post(f"{PATH}/bulk-insert", content=text.getvalue(), headers={"content-type": "text/csv"})


def arrow_of(table):
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def arrow(http):
    table = pa.table(
        {"time": TIMES, "airport": AIRPORTS, "delay": DELAYS, "carrier": pa.array(CARRIERS).dictionary_encode()}
    )
    headers = {"content-type": "application/vnd.apache.arrow.stream"}
    return http.post(f"{PATH}/bulk-insert", content=arrow_of(table), headers=headers)


WRITES = [
    *(columns_beside, columns_in_the_key, keys_as_texts, entries_one_by_one),
    *(ndjson, ndjson_of_many_forms, separated, arrow),
]


@pytest.mark.parametrize("write", WRITES, ids=lambda write: write.__name__)
def test_each_way_to_give_the_parts_means_the_same(flights, write):
    written = write(flights)
    assert written.status_code == 200, written.text
    found = flights.get(f"{PATH}/query", params={"all_keys": "true"}).json()["answers"]
    assert [(a["parts"]["airport"], a["parts"]["carrier"], a["aggregates"]["sum"]) for a in found] == [
        (airport, carrier, delay) for _, airport, carrier, delay in ROWS
    ]
    assert [answer["key"] for answer in found] == ["JFK|AA", "JFK|B6", "LGA|AA", "JFK|a\\|b"]


def test_questions_by_parts(flights):
    columns_beside(flights)

    def answers(**asked):
        return flights.get(f"{PATH}/query", params=asked).json()

    assert [(a["parts"], a["key"], a["entries"]) for a in answers(by="airport")["answers"]] == [
        ({"airport": "JFK"}, None, 3),
        ({"airport": "LGA"}, None, 1),
    ]
    top = answers(by=["carrier", "airport"], top="sum", n=2, having="n >= 1")["answers"]
    assert [answer["key"] for answer in top] == ["JFK|a\\|b", "LGA|AA"]
    assert [a["key"] for a in answers(where=["carrier in (AA, B6)", "airport=~J.*"])["answers"]] == ["JFK|AA", "JFK|B6"]
    page = answers(by="carrier", limit=2)
    assert [answer["parts"]["carrier"] for answer in page["answers"]] == ["AA", "B6"]
    rest = answers(by="carrier", limit=2, position=page["next"])
    assert ([answer["parts"]["carrier"] for answer in rest["answers"]], "next" in rest) == (["a|b"], False)
    assert answers(where="airport!=JFK", combine="true")["answers"][0]["entries"] == 1


def test_ranges_series_keys_and_entries_by_parts(flights):
    columns_beside(flights)
    groups = flights.get(f"{PATH}/range", params={"start": 11, "end": 13, "by": "airport"}).json()["groups"]
    assert [(group["parts"]["airport"], group["aggregates"]["sum"]) for group in groups] == [
        ("JFK", 10.0),
        ("LGA", 4.0),
    ]
    one = flights.get(f"{PATH}/range", params={"start": 0, "end": 99, "where": "airport=JFK"}).json()
    assert (one["entries"], one["key"]) == (3, None)
    asked = {"start": 10, "end": 14, "step": "2", "by": "airport"}
    series = flights.get(f"{PATH}/series", params=asked).json()
    assert (series["time"], series["width"]) == ([10, 12], 2)
    assert [(s["parts"], s["entries"], s["aggregates"]["sum"]) for s in series["groups"]] == [
        ({"airport": "JFK"}, [2, 1], [3.0, 8.0]),
        ({"airport": "LGA"}, [0, 1], [0.0, 4.0]),
    ]
    accept = {"accept": "application/vnd.apache.arrow.stream"}
    table = pa.ipc.open_stream(flights.get(f"{PATH}/series", params=asked, headers=accept).content).read_all()
    assert table.to_pydict() == {
        "airport": ["JFK", "JFK", "LGA", "LGA"],
        "time": [10, 12, 10, 12],
        "entries": [2, 1, 0, 1],
        "aggregates.n": [2, 1, 0, 1],
        "aggregates.sum": [3.0, 8.0, 0.0, 4.0],
    }
    assert flights.get(f"{PATH}/keys", params={"where": "carrier=AA"}).json()["keys"] == ["JFK|AA", "LGA|AA"]
    where = {"where": "carrier=a|b"}
    (bulk,) = flights.get(f"{PATH}/entries", params=where).json()["bulks"]
    assert bulk == {"time": [13], "key": {"airport": ["JFK"], "carrier": ["a|b"]}, "fields": {"delay": [8.0]}}
    table = pa.ipc.open_stream(flights.get(f"{PATH}/entries", params=where, headers=accept).content).read_all()
    assert table.to_pydict() == {"time": [13], "airport": ["JFK"], "carrier": ["a|b"], "delay": [8.0]}
    again = flights.post(f"{PATH}/bulk-insert", content=arrow_of(table), headers={"content-type": accept["accept"]})
    assert again.json()["inserted"] == 1
    gone = flights.post(f"{PATH}/bulk-evict", json={"time": 99, "key": {"airport": "JFK", "carrier": "a|b"}})
    assert gone.json()["evicted"] == 2


@pytest.mark.parametrize(
    ("path", "asked", "field"),
    [
        ("query", {"where": "carrier"}, "where"),
        ("query", {"where": 'carrier in ("a)'}, "where"),
        ("query", {"where": "carrier=~("}, "where"),
        ("query", {"having": "sum"}, "having"),
        ("query", {"having": "sum>x"}, "having"),
        ("query", {"by": "nope"}, "by"),
        ("query", {"top": "nope"}, "top.by"),
        ("query", {"top": "sum", "n": 0}, "top.n"),
        ("query", {"order": "up"}, "top.order"),
        ("query", {"limit": 0}, "limit"),
        ("range", {"start": 0, "end": 1, "limit": 1}, "by"),
        ("series", {"start": 0, "end": 1, "step": "1", "top": "n"}, "by"),
        ("keys", {"where": "nope=x"}, "where"),
        ("entries", {"where": "nope=x"}, "where"),
    ],
)
def test_wrong_questions_name_the_field(flights, path, asked, field):
    refused = flights.get(f"{PATH}/{path}", params=asked)
    assert (refused.status_code, refused.json()["field"]) == (400, field)


@pytest.mark.parametrize(
    ("document", "field"),
    [
        ({"time": 1, "airport": "a", "delay": 1}, "parts.carrier"),
        ({"time": 1, "key": {"airport": "a"}, "delay": 1}, "parts.carrier"),
        ({"time": 1, "key": {"airport": "a", "carrier": "b", "x": "c"}, "delay": 1}, "parts.x"),
        ({"time": 1, "key": {"airport": "a", "carrier": 7}, "delay": 1}, "parts.carrier"),
        ({"time": 1, "key": "a", "delay": 1}, "key"),
        ({"time": 1, "key": "a|b\\x", "delay": 1}, "key"),
        ({"time": 1, "key": "a|b", "airport": "a", "delay": 1}, "airport"),
        ({"time": 1, "delay": 1}, "key"),
    ],
)
def test_wrong_parts_name_the_field_and_change_nothing(flights, document, field):
    refused = flights.post(f"{PATH}/insert", json=document)
    assert (refused.status_code, refused.json()["field"]) == (400, field)
    bulk = {name: [value] for name, value in document.items() if name != "key"}
    if "key" in document:
        given = document["key"]
        bulk["key"] = {k: [v] for k, v in given.items()} if isinstance(given, dict) else [given]
    assert flights.post(f"{PATH}/bulk-insert", json=bulk).status_code == 400
    assert lines(flights, httpx.Request("POST", "http://x", json=document).content.decode()).status_code == 400
    assert flights.get(PATH).json()["counts"]["inserted"] == 0


@pytest.mark.parametrize(
    ("keys", "field"),
    [
        ([], "keys"),
        (["time"], "keys.0"),
        (["a", "a"], "keys.1"),
        (["delay"], "keys.0"),
        (["n"], "keys.0"),
        (["no spaces"], "keys.0"),
        ([f"k{i}" for i in range(17)], "keys"),
    ],
)
def test_names_of_parts_are_checked(http, keys, field):
    refused = http.post("/v1/windows", json={**SPEC, "keys": keys})
    assert (refused.status_code, refused.json()["field"]) == (400, field)


def test_a_window_of_parts_is_keyed(http):
    assert http.post("/v1/windows", json={**SPEC, "keyed": False}).json()["field"] == "keyed"


def test_having_compares_large_integers_exactly(http):
    spec = {**SPEC, "fields": {"delay": "int64"}}
    assert http.post("/v1/windows", json=spec).status_code == 201
    values = [2**53, 2**53 + 1, 2**53 + 2, 2**53 + 3]
    key = {"carrier": list("abcd"), "airport": ["x"] * 4}
    assert http.post(f"{PATH}/bulk-insert", json={"time": TIMES, "key": key, "delay": values}).status_code == 200
    for having, left in (
        (f"sum>{2**53 + 1}", "cd"),
        (f"sum={2**53 + 1}", "b"),
        (f"sum<={2**53 + 1}", "ab"),
        (f"sum<{10**39}", "abcd"),
        (f"sum<{10**60}", "abcd"),
        ("sum>1e300", ""),
        (f"sum!={2**53 + 3}", "abc"),
        ("n=1", "abcd"),
    ):
        found = http.get(f"{PATH}/query", params={"by": "carrier", "having": having}).json()["answers"]
        assert [each["parts"]["carrier"] for each in found] == list(left), having
    assert http.delete(PATH).status_code == 200
