"""A window with a history over every edge: its spec, what replies count, and what questions are about."""

import json

import httpx
import pytest

from sash_client import InvalidArgument

SPEC = {
    "name": "kept",
    "time_unit": "s",
    "keyed": True,
    "aggregates": {"n": {"function": "count"}, "total": {"function": "sum"}},
    "slide": {"max_age": "10s"},
    "history": "1h",
}


def test_old_entries_are_counted_on_every_edge(sash, service, client):
    window = client.create_window(SPEC)
    url = f"{service.rest_url}/v1/windows/kept"
    assert httpx.get(url).json()["spec"]["history"] == "1h"
    assert window.describe().spec["history"] == "1h"
    plain = {"inserted": 1, "late": 0, "evicted": 0, "duplicates": 0, "ahead": 0}
    new = httpx.post(f"{url}/insert", json={"time": 5000, "key": "a", "value": 1.0}).json()
    assert new == plain | {"durability": new["durability"]}, "a count of nothing is left out"
    old = httpx.post(f"{url}/insert", json={"time": 4000, "key": "a", "value": 2.0}).json()
    assert old == new | {"history": 1}
    lines = "".join(f'{{"time": {time}, "key": "a", "value": 1.0}}\n' for time in (4001, 4999, 3))
    of_lines = {"Content-Type": "application/x-ndjson"}
    bulk = httpx.post(f"{url}/bulk-insert", content=lines, headers=of_lines).json()
    assert (bulk["inserted"], bulk["late"], bulk["history"]) == (2, 1, 1)
    assert window.insert(4002, 1.0, key="a").history == 1
    done = window.bulk_insert([4003, 5000, 1000], [1.0] * 3, keys="a")
    assert (done.inserted, done.late, done.history) == (2, 1, 1)
    said = sash("insert", "kept", "1.0", "--time", "4004", "--key", "a", service=service).out
    assert said == "the entry is inserted into the history: it is too old for the slide\n"
    said = json.loads(sash("insert", "kept", "1.0", "--time", "4005", "--key", "a", "--json", service=service).out)
    assert said["history"] == 1
    said = json.loads(sash("insert", "kept", "1.0", "--time", "5000", "--key", "a", "--json", service=service).out)
    assert "history" not in said

    assert window.query(key="a")[0].entries == 4
    assert window.query(key="a", as_of=6000)[0].entries == 10
    asked = httpx.get(f"{url}/query", params={"key": "a", "as_of": 4999, "lookback": "1h"}).json()
    assert asked["answers"][0]["entries"] == 7
    answered = window.insert(4006, 1.0, key="a", answer=True)
    assert answered.answers[0].entries == 4, "the answer of an insert is about the slide"
    info = window.describe()
    assert (info.entries, info.counts.inserted, info.counts.late) == (11, 11, 2)
    assert sash("query", "kept", "--key", "a", "--as-of", "4100", service=service).out.split()[-3:] == ["7", "7", "8"]


def test_a_wrong_history_is_refused_on_every_edge(service, client):
    wrong = {**SPEC, "history": "9s"}
    with pytest.raises(InvalidArgument, match="9s is shorter than the slide") as caught:
        client.create_window(wrong)
    assert (caught.value.field, caught.value.limit) == ("history", "at least 10s")
    refused = httpx.post(f"{service.rest_url}/v1/windows", json=wrong)
    assert (refused.status_code, refused.json()["field"]) == (400, "history")
    info = client.create_window({**SPEC, "name": "ticks", "history": 3600}).describe()
    assert info.spec["history"] == "3600"
