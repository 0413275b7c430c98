"""Several keys, series, keys by name, further aggregates, and inserts that are answered."""

import json
import math

import numpy as np
import pyarrow as pa
import pytest

from tests.rest.conftest import made
from tests.support.refusals import refuse

ARROW = "application/vnd.apache.arrow.stream"
PATH = "/v1/windows/delays"
TOTALS = {"n": {"function": "count"}, "mean": {"function": "mean"}}


@pytest.fixture
def delays(http):
    """JFK and LGA, commutative aggregates only.

    time   0   5  10  15  20  25  30
    JFK    1       3       5
    LGA       10              20
    """
    for _ in made(http, name="delays", time_unit="s", keyed=True, aggregates=TOTALS):
        entries = {"time": [0, 10, 20, 5, 25], "key": ["JFK", "JFK", "JFK", "LGA", "LGA"], "value": [1, 3, 5, 10, 20]}
        assert http.post(f"{PATH}/bulk-insert", json=entries).json()["inserted"] == 5
        yield PATH


def get(http, path, **parameters):
    response = http.get(path, params=parameters)
    assert response.status_code == 200, response.text
    return response.json()


def rows(document):
    return [(each["key"], each["entries"], each["aggregates"]["mean"]) for each in document["answers"]]


# ---------------------------------------------------------------- several keys


def test_several_keys_are_answered_one_after_the_other(http, delays):
    both = [("LGA", 2, 15.0), ("JFK", 3, 3.0)]
    assert rows(get(http, f"{delays}/query", key=["LGA", "JFK"])) == both
    assert rows(get(http, f"{delays}/query", all_keys="true")) == both[::-1]
    assert rows(get(http, f"{delays}/query", key="LGA", all_keys="false")) == both[:1]
    found = get(http, f"{delays}/query", key=["LGA", "JFK"], lookback=["6s", "1m"])["answers"]
    assert [(each["key"], each["lookback"], each["end"], each["entries"]) for each in found] == [
        ("LGA", "6s", 25, 1),
        ("LGA", "1m", 25, 2),
        ("JFK", "6s", 20, 1),
        ("JFK", "1m", 20, 3),
    ]


def test_keys_are_combined_into_one_answer(http, delays):
    for which in ({"all_keys": "true"}, {"key": ["JFK", "LGA"]}):
        everything, recent = (
            get(http, f"{delays}/query", combine="true", **which, **more)["answers"][0]
            for more in ({}, {"lookback": "10s"})
        )
        assert (everything["key"], everything["start"], everything["end"]) == (None, 0, 25)
        assert everything["aggregates"] == {"n": 5, "mean": 7.8}
        assert (recent["start"], recent["end"], recent["aggregates"]) == (16, 25, {"n": 2, "mean": 12.5})
    assert get(http, f"{delays}/query", key="LGA", combine="true")["answers"][0]["aggregates"]["mean"] == 15
    ranged = get(http, f"{delays}/range", key=["JFK", "LGA"], start=5, end=10)
    assert (ranged["key"], ranged["aggregates"]) == (None, {"n": 2, "mean": 6.5})
    assert get(http, f"{delays}/range", all_keys="true", start=5, end=10)["entries"] == 2


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("query?key=JFK&all_keys=true", "all_keys"),
        ("query?all_keys=yes", "all_keys"),
        ("query?all_keys=true&all_keys=true", "all_keys"),
        ("query?combine=1&all_keys=true", "combine"),
        ("query?combine=true", "combine"),
        ("query?key=JFK&key=", "key"),
        ("query?keys=JFK", "keys"),
        ("query", "key"),
        ("range?start=1&end=2&key=JFK&all_keys=true", "all_keys"),
        ("range?start=1&end=2&combine=true", "combine"),
        ("series?start=1&end=2&step=1&key=JFK&all_keys=true", "all_keys"),
        ("series?end=2&step=1&key=JFK", "start"),
        ("series?start=1&step=1&key=JFK", "end"),
        ("series?start=1&end=2&key=JFK", "step"),
        ("series?start=1&end=2&step=0&key=JFK", "step"),
        ("series?start=1&end=2&step=soon&key=JFK", "step"),
        ("series?start=1&end=2&step=1&width=&key=JFK", "width"),
        ("series?start=1&end=2&step=1&width=-1&key=JFK", "width"),
        ("series?start=2&end=2&step=1&key=JFK", "start"),
        ("series?start=x&end=2&step=1&key=JFK", "start"),
        ("series?start=1&end=9223372036854775808&step=1&key=JFK", "end"),
        ("series?start=1&end=2&step=1", "key"),
        ("series?start=1&end=2&step=1&lookback=5s&key=JFK", "lookback"),
        ("keys?limit=0", "limit"),
        ("keys?limit=-1", "limit"),
        ("keys?limit=many", "limit"),
        ("keys?limit=9223372036854775807", "limit"),
        ("keys?prefix=a&prefix=b", "prefix"),
        ("keys?start=1", "start"),
    ],
)
def test_a_wrong_question(http, delays, path, field):
    refuse(http, "GET", f"{delays}/{path}", 400, field)


def test_too_many_buckets_names_the_limit(http, delays):
    refuse(http, "GET", f"{delays}/series?start=0&end=1000000001&step=1&key=JFK", 400, "step", "buckets")


def test_a_window_without_keys_has_none_to_ask_for(http, window):
    path = f"/v1/windows/{window}"
    refuse(http, "GET", f"{path}/query?all_keys=true", 400, "keys")
    refuse(http, "GET", f"{path}/query?key=a&key=b", 400, "keys")
    refuse(http, "GET", f"{path}/series?start=1&end=2&step=1&key=a", 400, "key")
    refuse(http, "GET", f"{path}/keys", 400, "window")


def test_what_depends_on_order_is_not_combined(http, typed):
    path = f"/v1/windows/{typed}"
    for question in ("query?combine=true&", "range?start=1&end=2&", "series?start=1&end=2&step=1&"):
        found = refuse(http, "GET", f"{path}/{question}all_keys=true", 422, "keys")
        assert found["type"] == "urn:sash:error:unsupported"
        assert "order" in found["detail"]


@pytest.mark.parametrize("path", ["/series?start=1&end=2&step=1", "/keys"])
def test_an_unknown_window(http, path):
    refuse(http, "GET", f"/v1/windows/unknown{path}", 404, "window")


# ---------------------------------------------------------------- series


def test_a_series_over_overlapping_buckets(http, delays):
    found = get(http, f"{delays}/series", start=0, end=25, step="10s", width=15, key="JFK")
    # bucket 0 .. 15: 1, 3    10 .. 25: 3, 5    20 .. 35: 5
    assert found == {
        "key": "JFK",
        "start": 0,
        "end": 25,
        "step": 10,
        "width": 15,
        "time": [0, 10, 20],
        "entries": [2, 2, 1],
        "aggregates": {"n": [2, 2, 1], "mean": [2.0, 4.0, 5.0]},
    }


def test_a_series_with_nothing_in_it(http, delays):
    for key in ("JFK", "nobody"):
        found = get(http, f"{delays}/series", start=100, end=103, step=2, key=key)
        assert found["time"] == [100, 102]
        assert found["entries"] == [0, 0]
        assert found["aggregates"] == {"n": [0, 0], "mean": [None, None]}


def test_a_series_over_all_keys(http, delays):
    found = get(http, f"{delays}/series", start=0, end=30, step="10s", all_keys="true")
    assert (found["key"], found["width"], found["entries"]) == (None, 10, [2, 1, 2])
    assert found["aggregates"]["mean"] == [5.5, 3.0, 12.5]
    two = get(http, f"{delays}/series", start=0, end=30, step="10s", key=["LGA", "JFK"])
    assert two == found


def test_what_no_json_number_is_goes_through_a_series(http):
    aggregates = {name: {"function": name} for name in ("sum", "max", "collect", "last")}
    for _ in made(http, name="specials", time_unit="none", aggregates=aggregates):
        values = [1, "Infinity", "-Infinity", "NaN", -0.0]
        http.post("/v1/windows/specials/bulk-insert", json={"time": list(range(5)), "value": values})
        response = http.get("/v1/windows/specials/series", params={"start": 0, "end": 6, "step": 1})
        columns = response.json()["aggregates"]
        assert columns["sum"][:4] == [1.0, "Infinity", "-Infinity", "NaN"]
        assert columns["collect"] == [[1.0], ["Infinity"], ["-Infinity"], ["NaN"], [-0.0], []]
        assert columns["last"] == [1.0, "Infinity", "-Infinity", "NaN", -0.0, None]
        assert math.copysign(1, columns["last"][4]) == -1


def test_wide_integers_in_a_series_are_json_integers(http):
    spec = {"name": "wide", "fields": {"i": "int64"}, "aggregates": {"total": {"function": "sum"}}}
    for _ in made(http, **spec):
        http.post("/v1/windows/wide/bulk-insert", json={"time": [1, 1, 1, 2], "i": [2**63 - 1] * 3 + [7]})
        path = "/v1/windows/wide/series?start=1&end=3&step=1"
        assert json.loads(http.get(path).text)["aggregates"]["total"] == [3 * (2**63 - 1), 7]
        found = refuse(http, "GET", path, 422, "aggregates.total", headers={"accept": ARROW})
        assert "JSON" in found["detail"]


def test_a_long_series_is_the_fold(http, window):
    path, n = f"/v1/windows/{window}", 10_000
    random = np.random.default_rng(3)
    times, values = np.sort(random.integers(0, 5000, n)), random.integers(-99, 99, n).astype(float)
    http.post(f"{path}/bulk-insert", json={"time": times.tolist(), "value": values.tolist()})
    found = get(http, f"{path}/series", start=-50, end=5100, step=1, width=60)
    starts = np.arange(-50, 5100)
    running = np.concatenate([[0], np.cumsum(values)])
    first, last = np.searchsorted(times, starts), np.searchsorted(times, starts + 60)
    assert found["entries"] == (last - first).tolist()
    assert found["aggregates"]["total"] == (running[last] - running[first]).tolist()


@pytest.mark.parametrize(
    ("accept", "arrow"),
    [
        (ARROW, True),
        (f"{ARROW};q=0.9, */*", True),
        (f"text/html, {ARROW.upper()}, application/json", True),
        (f"application/json, {ARROW}", False),
        ("*/*", False),
    ],
)
def test_a_series_as_arrow(http, delays, accept, arrow):
    parameters = {"start": 0, "end": 40, "step": "10s", "key": "JFK"}
    response = http.get(f"{delays}/series", params=parameters, headers={"accept": accept})
    assert response.headers["content-type"] == (ARROW if arrow else "application/json")
    if arrow:
        table = pa.ipc.open_stream(response.content).read_all()
        assert table.to_pydict() == {
            "time": [0, 10, 20, 30],
            "entries": [1, 1, 1, 0],
            "aggregates.n": [1, 1, 1, 0],
            "aggregates.mean": [1.0, 3.0, 5.0, None],
        }
        assert table.schema.metadata == {b"width": b"10", b"key": b"JFK"}


def test_a_series_of_every_type_as_arrow(http, typed):
    path = f"/v1/windows/{typed}"
    entry = {"time": 1, "key": "k", "fields": {"f": 0.5, "i": 2**60, "s": "ä", "b": True}}
    http.post(f"{path}/insert", json=entry)
    parameters = {"start": 0, "end": 2, "step": 1, "key": "k"}
    response = http.get(f"{path}/series", params=parameters, headers={"accept": ARROW})
    table = pa.ipc.open_stream(response.content).read_all()
    assert table["aggregates.i"].to_pylist() == [[], [2**60]]
    assert table["aggregates.s"].to_pylist() == [[], ["ä"]]
    assert table["aggregates.b"].to_pylist() == [[], [True]]


# ---------------------------------------------------------------- keys by name


def test_keys_are_listed(http, delays):
    more = {"time": [30, 31], "key": ["JAX", "LAX"], "value": [0, 0]}
    http.post(f"{delays}/bulk-insert", json=more)
    assert get(http, f"{delays}/keys") == {"keys": ["JFK", "LGA", "JAX", "LAX"]}
    assert get(http, f"{delays}/keys", prefix="J") == {"keys": ["JFK", "JAX"]}
    assert get(http, f"{delays}/keys", prefix="J", limit=1) == {"keys": ["JFK"], "next": 1}
    assert get(http, f"{delays}/keys", prefix="J", limit=1, position=1) == {"keys": ["JAX"], "next": 3}
    assert get(http, f"{delays}/keys", prefix="J", position=3) == {"keys": []}
    refuse(http, "GET", f"{delays}/keys?position=-1", 400, "position")
    refuse(http, "GET", f"{delays}/keys?position=soon", 400, "position")
    assert get(http, f"{delays}/keys", prefix="nobody") == {"keys": []}


# ---------------------------------------------------------------- aggregates


def test_an_aggregate_is_added_to_a_live_window(http, delays):
    added = http.post(f"{delays}/aggregates", json={"longest": {"function": "max"}})
    assert added.status_code == 200
    assert added.json()["spec"]["aggregates"]["longest"] == {"function": "max"}
    assert added.json()["entries"] == 5
    again = http.post(f"{delays}/aggregates", json={"longest": {"function": "max"}})
    assert again.json() == added.json() == http.get(delays).json()
    answer = get(http, f"{delays}/query", key="JFK")["answers"][0]
    assert answer["aggregates"] == {"n": 3, "mean": 3.0, "longest": 5.0}


@pytest.mark.parametrize(
    ("document", "status", "field"),
    [
        ({"mean": {"function": "max"}}, 409, "aggregates.mean"),
        ({"p": {"function": "nope"}}, 400, "aggregates.p.function"),
        ({"p": {}}, 400, "aggregates.p.function"),
        ({"p": {"function": "max", "field": "no"}}, 400, "aggregates.p.field"),
        ({"p": {"function": "max", "q": 1}}, 400, "aggregates.p.q"),
        ({"a b": {"function": "max"}}, 400, "aggregates.a b"),
        ({"p": 7}, 400, "aggregates.p"),
    ],
)
def test_an_aggregate_that_is_refused_changes_nothing(http, delays, document, status, field):
    before = http.get(delays).json()
    refuse(http, "POST", f"{delays}/aggregates", status, field, json={"good": {"function": "min"}, **document})
    assert http.get(delays).json() == before


def test_aggregates_that_are_no_object(http, delays):
    refuse(http, "POST", f"{delays}/aggregates", 400, "body", json=[])
    refuse(http, "POST", f"{delays}/aggregates", 415, "Content-Type", content=b"{}", headers={"content-type": ARROW})
    refuse(http, "POST", "/v1/windows/unknown/aggregates", 404, "window", json={"p": {"function": "max"}})


# ---------------------------------------------------------------- inserts that are answered


def test_an_insert_is_answered(http, delays):
    entry = {"time": 30, "key": "JFK", "value": 7}
    assert "answers" not in http.post(f"{delays}/insert", json=entry).json()
    done = http.post(f"{delays}/insert", json={**entry, "answer": True, "lookbacks": ["1s", 21]}).json()
    assert (done["inserted"], len(done["answers"])) == (1, 2)
    assert done["answers"] == get(http, f"{delays}/query", key="JFK", lookback=["1s", "21"])["answers"]
    assert [each["aggregates"]["mean"] for each in done["answers"]] == [7.0, 5.5]
    whole = http.post(f"{delays}/insert", json={**entry, "answer": True}).json()
    assert [each["entries"] for each in whole["answers"]] == [6]


@pytest.mark.parametrize(
    ("question", "field"),
    [
        ({"answer": "yes"}, "answer"),
        ({"answer": 1}, "answer"),
        ({"answer": None}, "answer"),
        ({"lookbacks": ["5s"]}, "lookbacks"),
        ({"answer": False, "lookbacks": ["5s"]}, "lookbacks"),
        ({"answer": True, "lookbacks": "5s"}, "lookbacks"),
        ({"answer": True, "lookbacks": None}, "lookbacks"),
        ({"answer": True, "lookbacks": ["5s", 1.5]}, "lookbacks[1]"),
        ({"answer": True, "lookbacks": [True]}, "lookbacks[0]"),
        ({"answer": True, "lookbacks": ["soon"]}, "lookback"),
        ({"answer": True, "lookbacks": ["1s"] * 65}, "lookbacks"),
    ],
)
def test_a_wrong_question_of_an_insert_changes_nothing(http, delays, question, field):
    before = http.get(delays).json()
    refuse(http, "POST", f"{delays}/insert", 400, field, json={"time": 30, "key": "JFK", "value": 7, **question})
    assert http.get(delays).json() == before


def test_fields_that_are_called_as_the_question_is(http):
    fields = {"answer": "bool", "lookbacks": "int64"}
    aggregates = {"yes": {"function": "collect", "field": "answer"}, "n": {"function": "sum", "field": "lookbacks"}}
    for name in made(http, name="quiz", fields=fields, aggregates=aggregates):
        path = f"/v1/windows/{name}/insert"
        assert "answers" not in http.post(path, json={"time": 1, "answer": True, "lookbacks": 3}).json()
        nested = {"time": 2, "fields": {"answer": False, "lookbacks": 4}, "answer": True}
        assert http.post(path, json=nested).json()["answers"][0]["aggregates"] == {"yes": [True, False], "n": 7}


def test_duplicates_are_answered_for(http):
    spec = {"name": "latest", "time_unit": "s", "order": {"equal_times": "last"}}
    for name in made(http, **spec):
        path = f"/v1/windows/{name}"
        assert http.get(path).json()["spec"]["order"]["equal_times"] == "last"
        done = http.post(f"{path}/bulk-insert", json={"time": [1, 2, 2], "value": [1, 2, 3]}).json()
        assert done == {"inserted": 2, "late": 0, "evicted": 0, "duplicates": 1, "ahead": 0, "durability": "memory"}
        assert http.post(f"{path}/insert", json={"time": 1, "value": 9}).json()["duplicates"] == 1
        assert get(http, f"{path}/query")["answers"][0]["aggregates"]["all"] == [9.0, 3.0]
        assert http.get(path).json()["counts"] == {"inserted": 2, "late": 0, "evicted": 0, "duplicates": 2, "ahead": 0}
        assert f'sash_entries_total{{outcome="duplicates",window="{name}"}} 2.0' in http.get("/metrics").text


@pytest.mark.parametrize(
    ("order", "second"),
    [({"out_of_order": "reject"}, 9), ({"equal_times": "reject"}, 10)],
    ids=["out of order", "equal times"],
)
def test_an_order_that_is_rejected(http, order, second):
    for name in made(http, name="strict", time_unit="s", order=order):
        path = f"/v1/windows/{name}"
        http.post(f"{path}/insert", json={"time": 10, "value": 1})
        before = http.get(path).json()
        refuse(http, "POST", f"{path}/insert", 409, "time", json={"time": second, "value": 1})
        refuse(http, "POST", f"{path}/bulk-insert", 409, "time", json={"time": [20, second], "value": [1, 2]})
        assert http.get(path).json() == before


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"slide": {"clock": "sun"}}, "slide.clock"),
        ({"slide": {"when": "total.n >"}}, "slide.when"),
        ({"slide": {"when": "total.nothing > 3"}}, "slide.when"),
        ({"slide": {"clock": "wall", "max_age": 9}, "time_unit": "none"}, "slide.clock"),
        ({"order": {"out_of_order": "sometimes"}}, "order.out_of_order"),
        ({"order": {"equal_times": "all"}}, "order.equal_times"),
        ({"idle_expiry": "soon"}, "idle_expiry"),
        ({"idle_expiry": 30}, "idle_expiry"),
        ({"algorithm": "magic"}, "algorithm"),
        ({"algorithm": 1}, "algorithm"),
    ],
)
def test_a_bad_policy(http, spec, field):
    refuse(http, "POST", "/v1/windows", 400, field, json={"name": "w", "aggregates": TOTALS, **spec})
