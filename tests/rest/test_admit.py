"""Writes that decide, over REST: what a body says, and what its answer does."""

import pytest

from tests.rest.conftest import made

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
