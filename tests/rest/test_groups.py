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
    *(columns_beside, entries_one_by_one),
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


def test_series_and_entries_by_parts_as_arrow(flights):
    columns_beside(flights)
    asked = {"start": 10, "end": 14, "step": "2", "by": "airport"}
    accept = {"accept": "application/vnd.apache.arrow.stream"}
    table = pa.ipc.open_stream(flights.get(f"{PATH}/series", params=asked, headers=accept).content).read_all()
    assert table.to_pydict() == {
        "airport": ["JFK", "JFK", "LGA", "LGA"],
        "time": [10, 12, 10, 12],
        "entries": [2, 1, 0, 1],
        "aggregates.n": [2, 1, 0, 1],
        "aggregates.sum": [3.0, 8.0, 0.0, 4.0],
    }
    where = {"where": "carrier=a|b"}
    (bulk,) = flights.get(f"{PATH}/entries", params=where).json()["bulks"]
    assert bulk == {"time": [13], "key": {"airport": ["JFK"], "carrier": ["a|b"]}, "fields": {"delay": [8.0]}}
    table = pa.ipc.open_stream(flights.get(f"{PATH}/entries", params=where, headers=accept).content).read_all()
    assert table.to_pydict() == {"time": [13], "airport": ["JFK"], "carrier": ["a|b"], "delay": [8.0]}
    again = flights.post(f"{PATH}/bulk-insert", content=arrow_of(table), headers={"content-type": accept["accept"]})
    assert again.json()["inserted"] == 1


@pytest.mark.parametrize(
    ("path", "asked", "field"),
    [
        ("query", {"where": "carrier"}, "where"),
        ("query", {"where": 'carrier in ("a)'}, "where"),
        ("query", {"having": "sum"}, "having"),
        ("query", {"having": "sum>x"}, "having"),
        ("query", {"top": "sum", "n": 0}, "top.n"),
        ("query", {"order": "up"}, "top.order"),
    ],
)
def test_wrong_questions_name_the_field(flights, path, asked, field):
    refused = flights.get(f"{PATH}/{path}", params=asked)
    assert (refused.status_code, refused.json()["field"]) == (400, field)


@pytest.mark.parametrize(
    ("document", "field"),
    [
        ({"time": 1, "airport": "a", "delay": 1}, "parts.carrier"),
        ({"time": 1, "key": {"airport": "a", "carrier": 7}, "delay": 1}, "parts.carrier"),
        ({"time": 1, "key": "a|b", "airport": "a", "delay": 1}, "airport"),
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


def test_a_window_of_parts_is_keyed(http):
    for wrong, field in (({"keyed": False}, "keyed"), ({"keys": []}, "keys")):
        assert http.post("/v1/windows", json={**SPEC, **wrong}).json()["field"] == field
