"""Writes that decide, over REST: what a body says, and what its answer does."""

import pytest

from tests.rest.conftest import made
from tests.support.refusals import refuse

PATH = "/v1/windows/limited/admit"
TWO = {"aggregate": "n", "lookback": 10, "value": 2}
ONE = {"time": 1, "key": "a|x", "value": 1, "limits": [TWO]}


@pytest.fixture
def limited(http):
    yield from made(
        http,
        name="limited",
        time_unit="none",
        keys=["tenant", "user"],
        aggregates={"n": {"function": "count"}, "sum": {"function": "sum"}},
    )


@pytest.fixture(autouse=True)
def _there(limited):
    """It is there for every test."""


def admit(http, **more):
    return http.post(PATH, json=ONE | more).raise_for_status().json()


def test_one_entry(http, answered):
    assert admit(http) == {
        "admitted": [True],
        "retry_after": [None],
        "limits": [{"answers": [1], "remaining": [1], "holds": [True]}],
        "refused": 0,
        "inserted": 1,
        "late": 0,
        "evicted": 0,
        "ahead": 0,
        "durability": "memory",
    }
    admit(http, key={"tenant": "a", "user": "x"})
    third = admit(http, time=5)
    assert (third["admitted"], third["refused"], third["retry_after"]) == ([False], 1, [6])
    assert third["limits"] == [{"answers": [2], "remaining": [0], "holds": [False]}]


def test_columns_groups_and_comparisons(http):
    by_tenant = {"aggregate": "sum", "lookback": "10", "op": "<", "value": 3, "by": ["tenant"]}
    rows = {"time": [1, 2, 3, 4], "tenant": ["a", "a", "b", "a"], "user": ["x", "y", "x", "x"], "value": [1] * 4}
    found = http.post(PATH, json=rows | {"limits": [by_tenant]}).json()
    assert found["admitted"] == [True, True, True, False]
    assert found["retry_after"] == [None, None, None, 7]
    assert found["limits"][0]["answers"] == [1.0, 2.0, 1.0, 2.0]
    everybody = {"aggregate": "entries", "lookback": 10, "value": 3, "by": []}
    assert admit(http, time=5, limits=[everybody])["admitted"] == [False]
    never = {"aggregate": "sum", "lookback": 10, "value": 4}
    assert admit(http, time=5, value=5, limits=[never, everybody])["retry_after"] == [None]
    infinite = {"aggregate": "sum", "lookback": 10, "value": "Infinity"}
    assert admit(http, time=5, limits=[infinite])["limits"][0]["remaining"] == ["Infinity"]


def test_a_number_has_one_decision(http):
    sent = [{"producer": "p", "sequence": sequence} for sequence in (1, 2, 3)]
    first, again = ([admit(http, **each)["admitted"] for each in sent] for _ in range(2))
    assert first == again == [[True], [True], [False]]
    told = admit(http, **sent[2])
    assert told["already_applied"]
    assert told.keys().isdisjoint(("limits", "retry_after"))
    refuse(http, "POST", PATH, 409, "sequence", json=ONE | sent[2] | {"limits": [TWO | {"value": 3}]})


def test_refused_entries_are_counted(http):
    def counted():
        return [line for line in http.get("/metrics").text.splitlines() if 'outcome="refused",window="limited"' in line]

    assert counted() == ['sash_entries_total{outcome="refused",window="limited"} 0.0']
    for sequence in (1, 1, 2, 2, 3):
        admit(http, time=[1, 2, 3], key=["a|x"] * 3, value=[1] * 3, producer="p", sequence=sequence)
    assert counted() == ['sash_entries_total{outcome="refused",window="limited"} 7.0']


def test_a_window_may_have_a_field_of_that_name(http):
    spec = {"name": "fielded", "fields": {"limits": "float64"}, "aggregates": {"sum": {"function": "sum"}}}
    http.post("/v1/windows", json=spec)
    body = {"time": 1, "fields": {"limits": 4}, "limits": [{"aggregate": "sum", "lookback": "1s", "value": 5}]}
    path = "/v1/windows/fielded/admit"
    assert [http.post(path, json=body).json()["admitted"] for _ in range(2)] == [[True], [False]]
    http.delete("/v1/windows/fielded")


@pytest.mark.parametrize(
    ("change", "field", "limit"),
    [
        ({"limits": []}, "limits", "1 to 16 limits"),
        ({"limits": 7}, "limits", None),
        ({"limits": [7]}, "limits[0]", None),
        ({"limits": [{"aggregate": "n", "lookback": 10}]}, "limits[0].value", None),
        ({"limits": [{"aggregate": "n", "value": 10}]}, "limits[0].lookback", None),
        ({"limits": [{"lookback": 10, "value": 10}]}, "limits[0].aggregate", None),
        ({"limits": [TWO, TWO | {"more": 1}]}, "limits[1].more", None),
        ({"limits": [TWO | {"value": "x"}]}, "limits[0].value", None),
        ({"limits": [TWO | {"value": True}]}, "limits[0].value", None),
        ({"limits": [TWO | {"value": "NaN"}]}, "limits.value", None),
        ({"limits": [TWO | {"lookback": 1.5}]}, "limits[0].lookback", None),
        ({"limits": [TWO | {"lookback": 0}]}, "limits.lookback", None),
        ({"limits": [TWO | {"op": "="}]}, "limits.op", "<=, <, >=, >"),
        ({"limits": [TWO | {"by": "tenant"}]}, "limits[0].by", None),
        ({"limits": [TWO | {"by": ["x"]}]}, "by", None),
        ({"limits": [TWO | {"aggregate": "m"}]}, "limits.aggregate", None),
        ({"time": "soon"}, "time", None),
        ({"time": [1]}, "key", None),
        ({"producer": "p"}, "sequence", None),
        ({"more": 1}, "more", None),
    ],
)
def test_what_is_wrong_is_named(http, change, field, limit):
    found = refuse(http, "POST", PATH, 400, field, json=ONE | change)
    assert limit is None or found["limit"] == limit
    assert http.get("/v1/windows/limited").json()["entries"] == 0


def test_limits_are_needed(http):
    refuse(http, "POST", PATH, 400, "limits", json={"time": 1, "key": "a|x", "value": 1})
