"""Windows of all kinds as metrics: time units, types of fields, panes, names."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from sash_engine.windows.reading import reader
from tests.prometheus.conftest import T, create, insert

TOTAL = {"n": {"function": "count"}, "total": {"function": "sum", "field": "v"}}
QUERIES = (
    "{window}:n",
    '{window}:n{{__lookback__="10s"}}',
    "{window}:total",
    "{window}:v",
    "sum_over_time({window}:v[10s])",
    "min_over_time({window}:v[10s])",
    "rate({window}:v[20s])",
    "{window}:v[7s]",
)


def data(http: httpx.Client, query: str, path: str = "query", **more: Any) -> Any:
    form = {"query": query, "time": T + 60, "start": T, "end": T + 60, "step": 10, **more}
    answer = http.post(f"/prometheus/api/v1/{path}", data=form).json()
    assert answer["status"] == "success", answer
    return answer


def test_all_time_units_answer_alike(http: httpx.Client) -> None:
    per_second = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
    for unit, ticks in per_second.items():
        create(http, f"u{unit}", time_unit=unit, aggregates=TOTAL)
        insert(http, f"u{unit}", [(T + 3 * i) * ticks for i in range(20)], [float(i) for i in range(20)])
    for query in QUERIES:
        for path in ("query", "query_range") if "[7s]" not in query else ("query",):
            found = [
                str(data(http, query.format(window=f"u{unit}"), path)).replace(f"u{unit}:", "") for unit in per_second
            ]
            assert len(set(found)) == 1, query
            assert "'values': []" not in found[0]


@pytest.mark.parametrize("nullable", [None, ["v"]])
def test_a_rank_of_an_aggregate_of_several(http: httpx.Client, nullable: list[str] | None) -> None:
    name, ranks = f"ranks-{nullable is None}", {"function": "quantile", "field": "v", "q": [0.0, 0.5, 1.0]}
    create(http, name, aggregates={"ranks": ranks}, nullable=nullable)
    insert(http, name, [T + 50, T + 55, T + 60], [1.0, 2.0, 9.0])
    for rank, value in ((0.0, 1.0), (0.5, 2.0), (1.0, 9.0)):
        query = f'quantile_over_time({rank}, {{__name__="{name}:v"}}[15s])'
        for path, key in (("query", "value"), ("query_range", "values")):
            (found,) = data(http, query, path)["data"]["result"]
            last = found[key] if path == "query" else found[key][-1]
            assert float(last[1]) == value
    if nullable:
        insert(http, name, [T + 500], [None])
        nothing = data(http, f'quantile_over_time(0.5, {{__name__="{name}:v"}}[5s])', time=T + 500)
        assert nothing["data"]["result"] == []


@pytest.mark.parametrize(("unit", "per_ms"), [("ms", 1), ("us", 10**3), ("ns", 10**6)])
@pytest.mark.parametrize("base", [0, T])
def test_samples_have_the_milliseconds_of_their_entries(http: httpx.Client, unit: str, per_ms: int, base: int) -> None:
    name = f"exact-{unit}-{base}"
    create(http, name, time_unit=unit)
    ms = [base * 1000 + 1_237 * i for i in range(1, 200)]
    insert(http, name, [each * per_ms for each in ms], [1.0] * len(ms))
    selector = f'{{__name__="{name}:v"}}'
    (found,) = data(http, f"{selector}[10m]", time=ms[-1] / 1000)["data"]["result"]
    assert [round(at * 1000) for at, _ in found["values"]] == ms
    asked = {"start": ms[0] / 1000, "end": ms[-1] / 1000, "step": "1237ms"}
    (found,) = data(http, f"timestamp({selector})", "query_range", **asked)["data"]["result"]
    assert [round(float(value) * 1000) for _, value in found["values"]] == ms


def test_a_step_is_a_whole_number_of_ticks(http: httpx.Client) -> None:
    create(http, "seconds")
    form = {"query": "seconds:n", "start": T, "end": T + 1, "step": "0.5"}
    answer = http.post("/prometheus/api/v1/query_range", data=form)
    assert answer.status_code == 422
    assert "multiples" in answer.text or "whole number" in answer.text


@pytest.mark.parametrize(("kind", "values"), [("int64", [2**60, 3]), ("bool", [True, False])])
def test_fields_of_other_types_are_numbers(http: httpx.Client, kind: str, values: list[Any]) -> None:
    create(http, f"typed_{kind}", fields={"v": kind})
    insert(http, f"typed_{kind}", [T, T + 1], values)
    found = data(http, f"typed_{kind}:v[2m]")["data"]["result"][0]["values"]
    assert [float(value) for _, value in found] == [float(value) for value in values]


def test_sums_of_integers_beyond_int64_are_numbers(http: httpx.Client) -> None:
    create(http, "large", fields={"v": "int64"}, aggregates={"total": {"function": "sum", "field": "v"}})
    insert(http, "large", [T, T + 1, T + 2], [2**62] * 3)
    ((value,),) = [[each["value"][1] for each in data(http, "large:total")["data"]["result"]]]
    assert float(value) == 3 * 2.0**62
    assert data(http, "large:total", "query_range")["data"]["result"][0]["values"][-1][1] == value


def test_panes_have_aggregates_and_no_entries(http: httpx.Client) -> None:
    create(http, "panes", granularity="10s", slide={"max_age": "1h"}, aggregates=TOTAL)
    insert(http, "panes", [T + i for i in range(60)], [1.0] * 60)
    found = data(http, 'panes:total{__lookback__="20s"}')
    assert found["data"]["result"][0]["value"][1] in ("10", "20")
    assert "whole panes" in found["warnings"][0]
    assert data(http, "sum_over_time(panes:v[1m])")["data"]["result"]
    for query in ("panes:v", "min_over_time(panes:v[1m])"):
        answer = http.post("/prometheus/api/v1/query", data={"query": query, "time": T + 60})
        assert answer.status_code == 422
        assert "keeps panes" in answer.json()["error"]
    # Nobody named it.
    assert data(http, '{__name__=~"panes:.+"}')["data"]["result"]


def test_an_aggregate_and_a_field_may_have_one_name(http: httpx.Client) -> None:
    create(http, "both", aggregates={"v": {"function": "sum", "field": "v"}})
    insert(http, "both", [T, T + 1], [2.0, 3.0])
    assert data(http, "both:v")["data"]["result"][0]["value"][1] == "5"
    assert data(http, "both:v:raw")["data"]["result"][0]["value"][1] == "3"
    assert data(http, "sum_over_time(both:v:raw[2m])")["data"]["result"][0]["value"][1] == "5"


def test_names_that_promql_does_not_spell_are_asked_for_in_braces(http: httpx.Client) -> None:
    create(http, "a-b.c")
    insert(http, "a-b.c", [T], [2.0])
    (found,) = data(http, '{__name__="a-b.c:n"}')["data"]["result"]
    assert found["metric"] == {"__name__": "a-b.c:n"}
    assert b"a-b" not in http.get("/prometheus/federate", params={"match[]": '{__name__=~".+"}'}).content


def test_labels_that_the_text_format_does_not_spell_are_left_out_of_it(http: httpx.Client) -> None:
    create(http, "spelt", keys=["a-b", "c"])
    insert(http, "spelt", [T, T], [2.0, 3.0], key={"a-b": ["x", ""], "c": ["y", "z"]})
    (found,) = data(http, 'spelt:n{"a-b"="x"}')["data"]["result"]
    assert found["metric"] == {"__name__": "spelt:n", "a-b": "x", "c": "y"}
    scraped = http.get("/prometheus/federate", params={"match[]": "spelt:n"}).text.splitlines()
    assert [line.rpartition(" ")[0] for line in scraped] == ["# TYPE spelt:n", 'spelt:n{c="z"} 1']


@pytest.mark.parametrize("part", ["__name__", "__lookback__"])
def test_no_series_goes_by_the_name_of_another_window(http: httpx.Client, part: str) -> None:
    victim = f"victim{part}"
    create(http, victim, keyed=True, aggregates=TOTAL)
    name = "posing" + part
    create(http, name, keys=[part, "b"], aggregates=TOTAL)
    insert(http, victim, [T], [2.0], key=["a"])
    insert(http, name, [T], [99.0], key={part: [f"{victim}:total"], "b": [name]})
    assert data(http, f'{{b="{name}"}}')["data"]["result"] == []
    assert data(http, f"{name}:total")["data"]["result"] == []
    (found,) = data(http, f'{{__name__=~"{victim}:total"}}')["data"]["result"]
    assert found["value"][1] == "2"
    labels = http.get("/prometheus/api/v1/label/__name__/values").json()["data"]
    assert [each for each in labels if each.startswith(name)] == []


def test_windows_of_logical_time_have_no_metrics(http: httpx.Client) -> None:
    create(http, "logical", time_unit="none")
    insert(http, "logical", [1], [2.0])
    assert data(http, "logical:n")["data"]["result"] == []


def test_keys_may_be_any_text(http: httpx.Client) -> None:
    create(http, "texts", keyed=True)
    keys = ['"', "\\", "\n", "é", "a" * 128, "{}", "$1"]
    insert(http, "texts", [T] * len(keys), [1.0] * len(keys), key=keys)
    assert http.get("/prometheus/api/v1/label/key/values", params={"match[]": "texts:n"}).json()["data"] == sorted(keys)
    found = data(http, "texts:n")["data"]["result"]
    assert {each["metric"]["key"] for each in found} == set(keys)
    assert len(data(http, r'texts:n{key=~"\n|\\\\|\""}')["data"]["result"]) == 3
    text = http.get("/prometheus/federate", params={"match[]": "texts:n"}).text
    assert r'texts:n{key="\n"} 1 ' in text
    assert r'texts:n{key="\\"} 1 ' in text


def test_times_at_the_ends_of_time(http: httpx.Client) -> None:
    create(http, "far", time_unit="ns", order={"ahead": "none"})
    insert(http, "far", [-(2**63) + 1, 2**63 - 2], [1.0, 2.0])
    for at in (-9e12, 0, 9e12):
        for query in ("far:n", "far:v", "sum_over_time(far:v[1000y])", "far:n offset 200y", "far:n @ 9000000000000"):
            answer = http.post("/prometheus/api/v1/query", data={"query": query, "time": at})
            assert answer.status_code in (200, 400, 422), answer.text
            form = {"query": query, "start": at, "end": at + 100, "step": 10}
            assert http.post("/prometheus/api/v1/query_range", data=form).status_code in (200, 400, 422)


def test_too_many_series_are_refused_and_not_left_out(http: httpx.Client) -> None:
    create(http, "many", keyed=True)
    insert(http, "many", [T] * 10_001, [1.0] * 10_001, key=[str(i) for i in range(10_001)])
    for path in ("query", "query_range"):
        form = {"query": "many:n + 0", "time": T + 60, "start": T, "end": T + 1, "step": 1}
        answer = http.post(f"/prometheus/api/v1/{path}", data=form)
        assert answer.status_code == 422
        assert "10,000 series" in answer.json()["error"]
        for operator in ("sum", "sum without (key)", "sum by (other)"):
            found = data(http, f'{operator} (many:n{{key!~"[0-9]"}})', path)["data"]["result"]
            assert found[0].get("value", found[0].get("values", [None])[-1])[1] == "9991"
    assert len(data(http, 'many:n{key!="0"}')["data"]["result"]) == 10_000
    values = http.get("/prometheus/api/v1/label/key/values", params={"match[]": "many:n"}).json()
    assert len(values["data"]) == 10_000
    assert values["warnings"] == ["results truncated due to limit"]
    few = http.get("/prometheus/api/v1/label/key/values", params={"match[]": 'many:n{key=~"1.?"}', "limit": 11}).json()
    assert len(few["data"]) == 11
    assert "warnings" not in few


# ---------------------------------------------------------------- what an expression asks a window for


@pytest.fixture(scope="module")
def hosts(http: httpx.Client) -> str:
    functions = {"n": "count", "total": "sum", "low": "min"}
    aggregates: dict[str, Any] = {name: {"function": function} for name, function in functions.items()}
    aggregates["p99"] = {"function": "quantile", "q": 0.99}
    create(http, "hosts", keys=["host"], fields={"v": "int64"}, aggregates=aggregates)
    times = list(range(T, T + 40))
    insert(http, "hosts", times, times, key={"host": ["ab"[i % 2] for i in range(40)]})
    return "hosts"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The aggregates that are asked for, in the order of their names."""
    found, original = list[list[str]](), reader.named
    monkeypatch.setattr(reader, "named", lambda names, *more: found.append(sorted(names)) or original(names, *more))
    return found


@pytest.mark.parametrize(
    ("query", "named"),
    [
        ('w:total{host="a"}', ["total"]),
        ("w:total / w:n", ["n", "total"]),
        ("sum(w:n)", ["n"]),
        ("sum by (host) (rate(w:total[9s]))", ["total"]),
        ("avg(w:low)", ["low"]),
        ("min_over_time(w:v[9s]) + sum_over_time(w:v[9s])", ["low", "total"]),
        ("count_over_time(w:v[9s])", ["n"]),
        ('{__name__=~"w:n|w:p99"}', ["n", "p99"]),
    ],
)
@pytest.mark.parametrize("path", ["query", "query_range"])
def test_only_the_aggregates_that_are_needed_are_asked_for(
    http: httpx.Client, hosts: str, asked: list[list[str]], query: str, named: list[str], path: str
) -> None:
    form = {"time": T + 39, "start": T + 30, "end": T + 39, "step": 3}
    assert data(http, query.replace("w:", f"{hosts}:"), path, **form)["data"]["result"]
    assert {tuple(each) for each in asked} == {tuple(named)}


def test_federation_asks_once_for_all_that_it_names(http: httpx.Client, hosts: str, asked: list[list[str]]) -> None:
    selectors = [f"{hosts}:low", f'{hosts}:n{{host="a"}}']
    assert http.get("/prometheus/federate", params={"match[]": selectors}).status_code == 200
    assert {tuple(each) for each in asked} == {("low", "n")}
