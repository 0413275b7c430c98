"""Windows whose keys have parts: each part is a label."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.prometheus.conftest import T, create
from tests.prometheus.test_remote_write import HEADERS, URL, body_of
from tests.support.profile import THOROUGH
from tests.support.servers import running_service

FLIGHTS = [("JFK", "AA", 5.0), ("JFK", "B6", 7.0), ("LGA", "AA", 11.0), ("", "AA", 13.0), ("a|b", "", 17.0)]


@pytest.fixture(scope="module")
def http() -> Iterator[httpx.Client]:
    functions = {"total": "sum", "highest": "max", "lowest": "min"}
    aggregates = {name: {"function": function, "field": "delay"} for name, function in functions.items()}
    aggregates["n"] = {"function": "count"}
    spec: dict[str, Any] = {"time_unit": "ms", "fields": {"delay": "float64"}, "order": {"equal_times": "first"}}
    with running_service() as running:
        client = running.http()
        create(
            client, "flights", keys=["airport", "carrier"], aggregates={"n": {"function": "count"}} | aggregates, **spec
        )
        series = [
            ({"__name__": "flights:delay", "airport": airport, "carrier": carrier, "job": "x"}, [(T * 1000 + 1, delay)])
            for airport, carrier, delay in FLIGHTS
        ]
        assert client.post(URL, content=body_of(*series), headers=HEADERS).status_code == 204
        yield client


def ask(http: httpx.Client, query: str, path: str = "query") -> list[tuple[dict[str, str], list[str]]]:
    form: dict[str, Any] = {"query": query, "time": T + 60}
    if path == "query_range":
        form |= {"start": T + 30, "end": T + 90, "step": 30}
    answer = http.post(f"/prometheus/api/v1/{path}", data=form)
    assert answer.status_code == 200, answer.text
    return [
        (each["metric"], [value for _, value in each.get("values") or [each["value"]]])
        for each in answer.json()["data"]["result"]
    ]


def test_parts_are_labels_and_an_empty_one_is_not_there(http: httpx.Client) -> None:
    found = ask(http, "flights:total + 0")
    assert sorted(map(str, found)) == sorted(
        str(({name: value for name, value in (("airport", airport), ("carrier", carrier)) if value}, [f"{delay:.0f}"]))
        for airport, carrier, delay in FLIGHTS
    )


@pytest.mark.parametrize("path", ["query", "query_range"])
@pytest.mark.parametrize(
    ("matchers", "total"),
    [
        ('airport="JFK"', 12),
        ('airport="JFK",carrier="B6"', 7),
        ('airport=""', 13),
        ('airport="",carrier="AA"', 13),
        ('airport=~"J.*|L.*"', 23),
        ('airport!~"J.*|L.*"', 30),
        ('airport!=""', 40),
        ('carrier!="AA"', 24),
        ('airport="a|b",carrier=""', 17),
        ('airport=~"JFK|' + "x" * 1100 + '"', 12),
        ('airport="JFK" or carrier=""', 29),
        ('airport=~"J.*",carrier=~"A."', 5),
    ],
)
def test_matchers_on_parts(http: httpx.Client, matchers: str, total: int, path: str) -> None:
    ((_, values),) = ask(http, f"sum(flights:total{{{matchers}}})", path)
    assert set(values) == {str(total)}
    ((_, values),) = ask(http, f"sum(sum_over_time(flights:delay{{{matchers}}}[5m]))", path)
    assert set(values) == {str(total)}


@pytest.mark.parametrize("path", ["query", "query_range"])
def test_aggregations_by_parts(http: httpx.Client, path: str) -> None:
    def by(query: str) -> dict[tuple[str, ...], str]:
        return {tuple(sorted(labels.values())): values[0] for labels, values in ask(http, query, path)}

    assert by("sum by (carrier) (flights:total)") == {("AA",): "29", ("B6",): "7", (): "17"}
    assert by("sum without (airport) (flights:total)") == {("AA",): "29", ("B6",): "7", (): "17"}
    assert by("count by (airport) (flights:n)") == {("JFK",): "2", ("LGA",): "1", ("a|b",): "1", (): "1"}
    assert by("sum by (carrier) (flights:total) / sum by (carrier) (flights:n)")[("AA",)] == str(29 / 3)
    assert by("sum by (nothing) (flights:n)") == {(): "5"}


SELECTORS = [
    "flights:total",
    'flights:n{airport!="JFK"}',
    'flights:n{airport=~".*"} offset 10s',
    f"flights:n @ {T + 45}",
    'flights:total{__lookback__="1m"}',
    "rate(flights:n[1m])",
    "(increase(flights:total[5m]))",
    'flights:n{airport="nowhere"}',
    'flights:n{other="x"}',
    'flights:n{airport="JFK" or carrier=""}',
    "flights:highest",
    "flights:lowest",
]
MODIFIERS = ["", "by (carrier)", "by (nothing)", "without (airport)", "by (airport, carrier)"]
GROUPED = [
    (selector, modifier, path)
    for i, selector in enumerate(SELECTORS)
    for j, modifier in enumerate(MODIFIERS)
    for k, path in enumerate(("query", "query_range"))
    if THOROUGH or (i + j + k) % 2
]
"""Each selector, and each modifier, on both paths; not all of them with each other."""


@pytest.mark.parametrize(("selector", "modifier", "path"), GROUPED)
def test_groups_of_keys_are_what_their_keys_are_together(
    http: httpx.Client, selector: str, modifier: str, path: str
) -> None:
    """A product is evaluated for each key, and a selector alone by groups."""
    for operator in ("sum", "max", "min", "count"):
        by_groups = ask(http, f"{operator} {modifier} ({selector})", path)
        by_keys = ask(http, f"{operator} {modifier} (1 * {selector})", path)
        assert sorted(map(str, by_groups)) == sorted(map(str, by_keys)), operator


def test_labels_of_parts(http: httpx.Client) -> None:
    def get(path: str, **parameters: str) -> Any:
        return http.get(f"/prometheus/api/v1/{path}", params=parameters).json()["data"]

    assert get("labels") == ["__name__", "airport", "carrier"]
    assert get("label/airport/values") == ["JFK", "LGA", "a|b"]
    assert get("label/carrier/values", **{"match[]": 'flights:n{airport="JFK"}'}) == ["AA", "B6"]
    assert get("label/key/values") == []
    assert get("series", **{"match[]": 'flights:n{carrier="B6"}'}) == [
        {"__name__": "flights:n", "airport": "JFK", "carrier": "B6"}
    ]
