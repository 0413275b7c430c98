"""What only REST says of questions: parameters that are texts, specials in JSON, series as Arrow, pages of keys."""

import json
import math

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


# ---------------------------------------------------------------- series


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
    response = http.get(f"{path}/series", params=parameters | {"aggregate": ["b", "i"]}, headers={"accept": ARROW})
    assert pa.ipc.open_stream(response.content).schema.names == ["time", "entries", "aggregates.i", "aggregates.b"]


# ---------------------------------------------------------------- keys by name


def test_keys_are_listed(http, delays):
    more = {"time": [30, 31], "key": ["JAX", "LAX"], "value": [0, 0]}
    http.post(f"{delays}/bulk-insert", json=more)
    assert get(http, f"{delays}/keys", prefix="J", limit=1) == {"keys": ["JFK"], "next": 1}
    assert get(http, f"{delays}/keys", prefix="J", limit=1, position=1) == {"keys": ["JAX"], "next": 3}
    assert get(http, f"{delays}/keys", prefix="J", position=3) == {"keys": []}
    refuse(http, "GET", f"{delays}/keys?position=soon", 400, "position")


def test_fields_that_are_called_as_the_question_is(http):
    fields = {"answer": "bool", "lookbacks": "int64"}
    aggregates = {"yes": {"function": "collect", "field": "answer"}, "n": {"function": "sum", "field": "lookbacks"}}
    for name in made(http, name="quiz", fields=fields, aggregates=aggregates):
        path = f"/v1/windows/{name}/insert"
        assert "answers" not in http.post(path, json={"time": 1, "answer": True, "lookbacks": 3}).json()
        nested = {"time": 2, "fields": {"answer": False, "lookbacks": 4}, "answer": True}
        assert http.post(path, json=nested).json()["answers"][0]["aggregates"] == {"yes": [True, False], "n": 7}
