"""Keys by their parts, and questions that select and group them, over REST: JSON, lines, CSV and Arrow."""

import csv
import io

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
