"""What each route does when all is well."""

import json
import time

import pytest

NOTHING = {"inserted": 0, "late": 0, "evicted": 0, "duplicates": 0, "ahead": 0, "durability": "memory"}


def entries(answer):
    return answer["aggregates"]["all"]


def query(http, window, **parameters):
    response = http.get(f"/v1/windows/{window}/query", params=parameters)
    assert response.status_code == 200, response.text
    return response.json()["answers"]


def test_a_window_is_created_once(http):
    spec = {"name": "once", "aggregates": {"n": {"function": "count"}}}
    first, again = http.post("/v1/windows", json=spec), http.post("/v1/windows", json=spec)
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json() == again.json()
    document = first.json()
    assert document["spec"]["fields"] == {"value": "float64"}
    assert (document["entries"], document["keys"], document["oldest"], document["newest"]) == (0, 0, None, None)
    assert document["counts"] == {"inserted": 0, "late": 0, "evicted": 0, "duplicates": 0, "ahead": 0}
    other = http.post("/v1/windows", json={**spec, "keyed": True})
    assert other.status_code == 409
    assert http.get("/v1/windows/once").json() == document
    assert http.delete("/v1/windows/once").json() == {"entries": 0}
    assert http.get("/v1/windows/once").status_code == 404


@pytest.mark.parametrize("media_type", ["application/yaml", "application/yaml; charset=utf-8", "text/yaml"])
def test_a_window_is_created_from_yaml(http, media_type):
    text = "name: from_yaml\naggregates: {n: {function: count}}\nslide: {max_age: 6h}\n"
    response = http.post("/v1/windows", content=text, headers={"content-type": media_type})
    assert response.status_code == 201
    assert response.json()["spec"]["slide"] == {"max_age": "6h", "clock": "event"}
    http.delete("/v1/windows/from_yaml")


def test_windows_are_listed_by_name(http):
    for name in ("b", "a", "c"):
        http.post("/v1/windows", json={"name": name, "aggregates": {"n": {"function": "count"}}})
    assert [each["spec"]["name"] for each in http.get("/v1/windows").json()["windows"]] == ["a", "b", "c"]
    for name in "abc":
        http.delete(f"/v1/windows/{name}")


def test_entries_go_in_and_answers_come_out(http, window):
    path = f"/v1/windows/{window}"
    assert http.post(f"{path}/insert", json={"time": 10, "value": 1}).json() == {**NOTHING, "inserted": 1}
    bulk = http.post(f"{path}/bulk-insert", json={"time": [30, 20, 40], "value": [3, 2.5, "NaN"]})
    assert bulk.json() == {**NOTHING, "inserted": 3}
    # time   10  20  30  40
    #                 |---|    the last 11 seconds
    #             |---|        as of 30
    assert query(http, window, lookback=["11s", "1m"]) == [
        {
            "key": None,
            "lookback": "11s",
            "start": 30,
            "end": 40,
            "entries": 2,
            "aggregates": {"n": 2, "total": "NaN", "all": [3.0, "NaN"]},
        },
        {
            "key": None,
            "lookback": "1m",
            "start": -19,
            "end": 40,
            "entries": 4,
            "aggregates": {"n": 4, "total": "NaN", "all": [1.0, 2.5, 3.0, "NaN"]},
        },
    ]
    assert entries(query(http, window, lookback="11s", as_of=30)[0]) == [2.5, 3.0]
    ranged = http.get(f"{path}/range", params={"start": 10, "end": 30}).json()
    assert (ranged["start"], ranged["end"], ranged["lookback"]) == (10, 30, None)
    assert ranged["aggregates"] == {"n": 3, "total": 6.5, "all": [1.0, 2.5, 3.0]}
    tile = http.get(f"{path}/range", params={"start": 10, "end": 30, "end_exclusive": "true"}).json()
    assert (tile["start"], tile["end"], entries(tile)) == (10, 29, [1.0, 2.5])
    found = http.get(f"{path}/entries", params={"start": 10, "end": 30, "end_exclusive": "true"}).json()
    assert found["bulks"][0]["time"] == [10, 20]
    assert http.post(f"{path}/bulk-evict", json={"time": 20}).json() == {"evicted": 2, "durability": "memory"}
    assert entries(query(http, window)[0]) == [3.0, "NaN"]
    shown = http.get(path).json()
    assert (shown["entries"], shown["oldest"], shown["newest"], shown["high_water_mark"]) == (2, 30, 40, 40)
    assert shown["counts"] == {"inserted": 4, "late": 0, "evicted": 2, "duplicates": 0, "ahead": 0}
    http.post(f"{path}/bulk-evict", json={"time": 40})
    shown = http.get(path).json()
    assert (shown["entries"], shown["oldest"], shown["newest"], shown["high_water_mark"]) == (0, None, None, 40)


def test_an_empty_window_answers_with_nothing(http, window):
    (answer,) = query(http, window)
    assert answer["entries"] == 0
    assert answer["aggregates"] == {"n": 0, "total": 0.0, "all": []}


def test_infinities_go_through_both_ways(http, window):
    path = f"/v1/windows/{window}"
    http.post(f"{path}/insert", json={"time": 1, "value": "Infinity"})
    http.post(f"{path}/bulk-insert", json={"time": [2, 3], "value": ["-Infinity", "NaN"]})
    answer = query(http, window)[0]
    assert answer["aggregates"]["all"] == ["Infinity", "-Infinity", "NaN"]
    assert answer["aggregates"]["total"] == "NaN"


def test_every_type_goes_through(http, typed):
    path = f"/v1/windows/{typed}"
    extreme = 2**63 - 1
    one = {"time": 1, "key": "k", "fields": {"f": 1, "i": -(2**63), "s": "ä\u0000", "b": True}}
    assert http.post(f"{path}/insert", json=one).json()["inserted"] == 1
    beside = {
        "time": [2, 3],
        "key": ["k", "j"],
        "f": [0.5, -0.0],
        "i": [extreme, 0],
        "s": ["", "x"],
        "b": [False, True],
    }
    assert http.post(f"{path}/bulk-insert", json=beside).json()["inserted"] == 2
    nested = {"time": [4], "key": ["k"], "fields": {"f": [1e300], "i": [7], "s": ["y"], "b": [True]}}
    assert http.post(f"{path}/bulk-insert", json=nested).json()["inserted"] == 1
    (answer,) = query(http, typed, key="k")
    assert answer["key"] == "k"
    assert answer["aggregates"] == {
        "n": 3,
        "f": [1.0, 0.5, 1e300],
        "i": [-(2**63), extreme, 7],
        "s": ["ä\u0000", "", "y"],
        "b": [True, False, True],
    }
    assert query(http, typed, key="j")[0]["aggregates"]["f"] == [-0.0]


def test_one_field_is_called_value_whatever_its_name(http):
    spec = {"name": "renamed", "fields": {"delay": "int64"}, "aggregates": {"all": {"function": "collect"}}}
    http.post("/v1/windows", json=spec)
    for document in ({"value": 1}, {"delay": 2}, {"fields": {"delay": 3}}):
        assert http.post("/v1/windows/renamed/insert", json={"time": 1, **document}).status_code == 200
    for document in ({"value": [4]}, {"delay": [5]}, {"fields": {"delay": [6]}}):
        assert http.post("/v1/windows/renamed/bulk-insert", json={"time": [2], **document}).status_code == 200
    assert entries(query(http, "renamed")[0]) == [1, 2, 3, 4, 5, 6]
    http.delete("/v1/windows/renamed")


def test_an_integer_larger_than_any_machine_word_is_a_json_integer(http):
    spec = {"name": "wide", "fields": {"i": "int64"}, "aggregates": {"total": {"function": "sum"}}}
    http.post("/v1/windows", json=spec)
    largest = 2**63 - 1
    http.post("/v1/windows/wide/bulk-insert", json={"time": [1, 2, 3], "i": [largest] * 3})
    text = http.get("/v1/windows/wide/query").text
    assert json.loads(text)["answers"][0]["aggregates"]["total"] == 3 * largest
    http.delete("/v1/windows/wide")


def test_an_empty_bulk_is_no_error(http, window):
    response = http.post(f"/v1/windows/{window}/bulk-insert", json={"time": [], "value": []})
    assert response.json() == NOTHING


def test_late_and_evicted_entries_are_answered_for(http):
    spec = {"name": "slide", "aggregates": {"n": {"function": "count"}}, "slide": {"max_age": "10"}}
    http.post("/v1/windows", json=spec)
    path = "/v1/windows/slide"
    assert http.post(f"{path}/bulk-insert", json={"time": [1, 2, 20], "value": [0, 0, 0]}).json()["evicted"] == 2
    assert http.post(f"{path}/insert", json={"time": 5, "value": 0}).json() == {**NOTHING, "late": 1}
    assert http.get(path).json()["counts"] == {"inserted": 3, "late": 1, "evicted": 2, "duplicates": 0, "ahead": 0}
    http.delete(path)


def test_entries_too_far_ahead_are_answered_for(http):
    tomorrow = time.time_ns() // 10**9 + 86_400
    spec = {"name": "guarded", "time_unit": "s", "aggregates": {"n": {"function": "count"}}, "order": {"ahead": "5m"}}
    path = "/v1/windows/guarded"
    made = http.post("/v1/windows", json=spec).json()
    assert made["spec"]["order"]["ahead"] == "5m"
    assert made["spec"]["order"]["too_far_ahead"] == "drop"
    assert http.post(f"{path}/insert", json={"time": tomorrow, "value": 0}).json() == {**NOTHING, "ahead": 1}
    done = http.post(f"{path}/bulk-insert", json={"time": [1, tomorrow, 2], "value": [0, 0, 0]}).json()
    assert done == {**NOTHING, "inserted": 2, "ahead": 1}
    shown = http.get(path).json()
    assert (shown["counts"]["ahead"], shown["high_water_mark"]) == (2, 2)
    assert 'sash_entries_total{outcome="ahead",window="guarded"} 2.0' in http.get("/metrics").text
    http.delete(path)
    http.post("/v1/windows", json={**spec, "order": {"ahead": "5m", "too_far_ahead": "reject"}})
    refused = http.post(f"{path}/insert", json={"time": tomorrow, "value": 0})
    assert (refused.status_code, refused.json()["field"]) == (409, "time")
    assert http.get(path).json()["counts"]["ahead"] == 0
    http.delete(path)
