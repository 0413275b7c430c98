"""Keys by their parts, and questions that select and group them, over REST: JSON, lines, CSV and Arrow."""

import json

import pyarrow as pa
import pytest

from tests.support.arrow import ARROW, batch, stream

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


COLUMNS = {"time": TIMES, "airport": AIRPORTS, "carrier": CARRIERS, "delay": DELAYS}
NDJSON = [dict(zip(COLUMNS, row, strict=True)) for row in ROWS]
MANY_FORMS = [
    {"time": 10, "key": "JFK|AA", "delay": 1},
    {"time": 11, "key": {"airport": "JFK", "carrier": "B6"}, "value": 2},
    {"time": 12, "airport": "LGA", "carrier": "AA", "fields": {"delay": 4}},
    {"time": 13, "airport": "JFK", "carrier": "a|b", "value": 8},
]
CSV = "carrier,time,delay,airport\n" + "".join(f"{c},{t},{d},{a}\n" for t, a, c, d in ROWS)
CODED = pa.array(CARRIERS).dictionary_encode()
BULKS = {
    "columns beside the times": (json.dumps(COLUMNS), "application/json"),
    "lines": ("\n".join(map(json.dumps, NDJSON)), "application/x-ndjson"),
    "lines of many forms": ("\n".join(map(json.dumps, MANY_FORMS)), "application/x-ndjson"),
    "separated": (CSV, "text/csv"),
    "arrow": (stream(batch(**COLUMNS | {"carrier": CODED})), ARROW["content-type"]),
}


@pytest.mark.parametrize("way", [*BULKS, "entries one by one"])
def test_each_way_to_give_the_parts_means_the_same(flights, way):
    if way in BULKS:
        content, kind = BULKS[way]
        written = flights.post(f"{PATH}/bulk-insert", content=content, headers={"content-type": kind})
        assert written.json()["inserted"] == 4, written.text
    else:
        for i, row in enumerate(NDJSON):
            parts = {name: row[name] for name in SPEC["keys"]}
            entry = {"time": row["time"], "delay": row["delay"], "answer": True} | (parts if i % 2 else {"key": parts})
            assert flights.post(f"{PATH}/insert", json=entry).json()["answers"][0]["parts"] == parts
    found = flights.get(f"{PATH}/query", params={"all_keys": "true"}).json()["answers"]
    assert [(a["parts"]["airport"], a["parts"]["carrier"], a["aggregates"]["sum"]) for a in found] == [
        (airport, carrier, delay) for _, airport, carrier, delay in ROWS
    ]
    assert [answer["key"] for answer in found] == ["JFK|AA", "JFK|B6", "LGA|AA", "JFK|a\\|b"]


def test_series_and_entries_by_parts_as_arrow(flights):
    flights.post(f"{PATH}/bulk-insert", json=COLUMNS).raise_for_status()
    asked = {"start": 10, "end": 14, "step": "2", "by": "airport"}
    accept = {"accept": ARROW["content-type"]}
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
    content = flights.get(f"{PATH}/entries", params=where, headers=accept).content
    table = pa.ipc.open_stream(content).read_all()
    assert table.to_pydict() == {"time": [13], "airport": ["JFK"], "carrier": ["a|b"], "delay": [8.0]}
    again = flights.post(f"{PATH}/bulk-insert", content=content, headers=ARROW)
    assert again.json()["inserted"] == 1
