"""The same entries in Sash and in a real Prometheus: both answer the same expressions alike."""

from __future__ import annotations

import math
from collections.abc import Iterator
from random import Random
from typing import Any

import httpx
import pytest

from tests.prometheus.conftest import create, insert
from tests.prometheus.expressions import AT_INSTANTS, EXPRESSIONS, LOOKBACKS
from tests.support.prometheus import prometheus_of
from tests.support.servers import running_service

START = 1_700_000_000
TIMES = (START + 1800, START + 3600, START + 7300)
RANGE = {"start": START - 600, "end": START + 7950, "step": 300}
"""The end is behind the last step."""

Both = tuple[httpx.Client, httpx.Client]
Result = dict[frozenset[tuple[str, str]], dict[float, float]]


def entries() -> dict[str, list[tuple[float, float, float]]]:
    """Two hours of each key: seconds, a gauge, a counter that is reset now and then. No time is a whole second."""
    random, found = Random(7), dict[str, list[tuple[float, float, float]]]()
    for key in "abcde":
        at, counter, rows = START + 0.3, 0.0, []
        while at < START + 7200:
            if not (key == "d" and at > START + 3000) and not (key == "c" and 2000 < at - START < 3500):
                rows.append((round(at, 3), round(random.gauss(0, 30), 3), counter))
            counter = 0.0 if random.random() < 0.01 else counter + random.randrange(9)
            at += 15 if key != "b" else random.choice((1, 15, 40))
        found[key] = rows
    rows = found["e"]
    rows[30], rows[200] = (rows[30][0], math.nan, rows[30][2]), (rows[200][0], math.inf, rows[200][2])
    return found


def hard() -> dict[str, list[tuple[float, float, float]]]:
    """An hour of each key, as `entries`; both fields are the same."""
    random, found = Random(11), dict[str, list[tuple[float, float, float]]]()
    for key in ("resets", "nan", "inf", "cancels", "same", "large", "wide", "gaps", "close"):
        at, counter, rows = START * 1000 + 301, 1000.0, []
        while at < (START + 3600) * 1000 and len(rows) < 2000:
            gauge = random.gauss(0, 30)
            value = {
                "resets": counter,
                "nan": math.nan if random.random() < 0.1 else gauge,
                "inf": math.inf if random.random() < 0.02 else gauge,
                "cancels": (1e16, 1.0, -1e16, 1.0)[len(rows) % 4],
                "same": 7.25,
                "large": 1e15 + random.random(),
                "wide": gauge * 10 ** random.uniform(-12, 12),
            }.get(key, gauge)
            rows.append((at / 1000, value, value))
            # Far above zero: newer versions of Prometheus extrapolate rates to it in another order.
            draw = random.random()
            counter = 1e18 if draw < 0.03 else 1000.0 if draw < 0.15 or counter >= 1e18 else counter + draw / 1000
            at += random.choice((1, 1, 2, 40_001)) if key == "close" else random.choice((15_001, 14_999, 1003, 60_007))
            at += 400_003 if key == "gaps" and random.random() < 0.1 else 0
        found[key] = rows
    return found


def written(value: float) -> float | str:
    return value if math.isfinite(value) else {"nan": "NaN", "inf": "Infinity"}[str(value)]


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    given, given_hard = entries(), hard()
    functions = {
        "mean": "mean",
        "total": "sum",
        "low": "min",
        "high": "max",
        "deviation": "stddev_population",
        "variance": "variance_population",
        "last": "last",
    }
    aggregates: dict[str, Any] = {
        f"{name}{suffix}": {"function": function, "field": field}
        for name, function in functions.items()
        for suffix, field in (("", "v"), ("_c", "c"))
    }
    aggregates["n"] = {"function": "count"}
    fields = {"v": "float64", "c": "float64"}
    windows: dict[str, Any] = {
        "raw": {"keyed": True, "fields": fields},
        "agg": {"keyed": True, "fields": fields, "aggregates": aggregates},
        "hard": {"keyed": True, "fields": fields},
        "one": {"fields": fields},
    }
    samples: dict[str, Any] = {}
    with running_service() as running:
        sash = running.http()
        for window, spec in windows.items():
            create(sash, window, time_unit="ms", **spec)
            of_window = given_hard if window == "hard" else {"a": given["a"]} if window == "one" else given
            for key, rows in of_window.items():
                keys = {} if window == "one" else {"key": [key] * len(rows)}
                columns = {"v": [written(v) for _, v, _ in rows], "c": [written(c) for _, _, c in rows]}
                insert(sash, window, [round(at * 1000) for at, _, _ in rows], [], fields=columns, **keys)
                labels = {"key": key} if window != "one" else {}
                samples.setdefault(f"{window}:v", []).extend((labels, at, v) for at, v, _ in rows)
                samples.setdefault(f"{window}:c", []).extend((labels, at, c) for at, _, c in rows)
        with prometheus_of(tmp_path_factory.mktemp("prometheus"), samples) as prometheus:
            yield sash, prometheus


def answer(http: httpx.Client, prefix: str, path: str, **form: Any) -> tuple[str, Result, list[Any]]:
    if not prefix:  # as this version calls it
        form["query"] = form["query"].replace("double_exponential_smoothing", "holt_winters")
    found = http.post(f"{prefix}/api/v1/{path}", data=form)
    assert found.status_code == 200, (form, found.text)
    data = found.json()["data"]
    if data["resultType"] == "scalar":
        return "scalar", {frozenset(): {data["result"][0]: float(data["result"][1])}}, []
    result: Result = {}
    for each in data["result"]:
        pairs = each.get("values") or [each["value"]]
        result[frozenset(each["metric"].items())] = {at: float(value) for at, value in pairs}
    return data["resultType"], result, [each["metric"] for each in data["result"]]


def close(a: float, b: float) -> bool:
    return (math.isnan(a) and math.isnan(b)) or math.isclose(a, b, rel_tol=1e-8, abs_tol=1e-8)


def check(ours: Result, theirs: Result) -> None:
    assert ours.keys() == theirs.keys()
    for labels, points in theirs.items():
        assert ours[labels].keys() == points.keys(), labels
        for at, value in points.items():
            assert close(ours[labels][at], value), (labels, at, ours[labels][at], value)


def unnamed(result: Result) -> Result:
    return {frozenset(item for item in labels if item[0] != "__name__"): points for labels, points in result.items()}


@pytest.mark.parametrize("query", EXPRESSIONS)
def test_the_same_expression(both: Both, query: str) -> None:
    sash, prometheus = both
    for at in TIMES:
        ours = answer(sash, "/prometheus", "query", query=query, time=at)
        theirs = answer(prometheus, "", "query", query=query, time=at)
        assert ours[0] == theirs[0]
        check(ours[1], theirs[1])
        if query.startswith(("sort", "topk", "bottomk")):
            assert ours[2] == theirs[2]
    check(
        answer(sash, "/prometheus", "query_range", query=query, **RANGE)[1],
        answer(prometheus, "", "query_range", query=query, **RANGE)[1],
    )


@pytest.mark.parametrize("query", AT_INSTANTS)
def test_the_same_at_an_instant(both: Both, query: str) -> None:
    sash, prometheus = both
    for at in TIMES:
        ours = answer(sash, "/prometheus", "query", query=query, time=at)
        assert ours[1]
        check(ours[1], answer(prometheus, "", "query", query=query, time=at)[1])


@pytest.mark.parametrize("factors", ["0, 0.5", "1, 0.5", "0.5, 0", "0.5, 1.5"])
def test_factors_that_are_refused(both: Both, factors: str) -> None:
    for http, prefix, name in zip(
        both, ("/prometheus", ""), ("double_exponential_smoothing", "holt_winters"), strict=True
    ):
        form = {"query": f"{name}(raw:v[10m], {factors})", "time": TIMES[0]}
        found = http.post(f"{prefix}/api/v1/query", data=form)
        assert found.status_code == 422
        assert "factor. Expected: 0 < " in found.json()["error"]
        form["query"] = form["query"].replace("raw:v", "nothing:v")
        assert http.post(f"{prefix}/api/v1/query", data=form).json()["data"]["result"] == []


@pytest.mark.parametrize(("query", "same"), LOOKBACKS)
def test_aggregates_are_functions_of_ranges(both: Both, query: str, same: str) -> None:
    sash, prometheus = both
    for at in TIMES:
        ours = answer(sash, "/prometheus", "query", query=query, time=at)[1]
        check(unnamed(ours), unnamed(answer(prometheus, "", "query", query=same, time=at)[1]))
    ours = answer(sash, "/prometheus", "query_range", query=query, **RANGE)[1]
    check(unnamed(ours), unnamed(answer(prometheus, "", "query_range", query=same, **RANGE)[1]))
