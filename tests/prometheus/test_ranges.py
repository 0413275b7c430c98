"""Functions of ranges against their definitions, one range after the other, in exact arithmetic where that matters."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import pairwise
from random import Random
from typing import Any

import numpy as np
import pytest

from sash.promql import ranges
from sash.promql.aggregations import aggregated
from sash.promql.errors import Refused
from sash.promql.ranges import RANGES, Samples, exact_mean, exact_sum
from sash.promql.values import Vector
from sash_engine.steps import finished
from tests.prometheus.conftest import Ask, T, create, insert
from tests.prometheus.test_steps import run
from tests.support.servers import running_service

Pairs = Sequence[tuple[Fraction, float]]
"""Seconds and values."""


def samples_of(
    rows: Sequence[tuple[int, float]], every_ms: int = 7_000, width_ms: int = 60_000, **given: Any
) -> Samples:
    """Ranges that end at every so many milliseconds."""
    times, values = np.array([at for at, _ in rows], np.int64), np.array([value for _, value in rows], np.float64)
    ends = np.arange(times[0], times[-1] + 2 * every_ms, every_ms)
    low, high = times.searchsorted(ends - width_ms, "right"), times.searchsorted(ends, "right")
    some = high > low
    ends = ends[some]
    parameters = [np.full(len(ends), each) for each in given.get("parameters", ())]
    return Samples(times, values, low[some], high[some], ends, width_ms, ends + 500, 1000, parameters)


def exactly(rows: Pairs) -> float:
    return float(sum(Fraction(value) for _, value in rows))


def variance(rows: Pairs) -> float:
    values = [Fraction(value) for _, value in rows]
    mean = sum(values) / len(values)
    return float(sum((each - mean) ** 2 for each in values) / len(values))


def increase(rows: Pairs, start_s: Fraction, end_s: Fraction) -> float | None:
    (first_s, first), (last_s, last) = rows[0], rows[-1]
    if len(rows) < 2 or first_s == last_s:
        return None
    change = last - first
    for (_, older), (_, newer) in pairwise(rows):
        change += older if newer < older else 0.0
    sampled = float(last_s - first_s)
    apart = sampled / (len(rows) - 1)
    to_start, to_end = float(first_s - start_s), float(end_s - last_s)
    to_start = to_start if to_start < apart * 1.1 else apart / 2
    if change > 0 and first >= 0:
        to_start = min(to_start, sampled * (first / change))
    to_end = to_end if to_end < apart * 1.1 else apart / 2
    return change * (sampled + to_start + to_end) / sampled


def line(rows: Pairs, at_s: Fraction) -> tuple[float, float]:
    times, values = [at - at_s for at, _ in rows], [Fraction(value) for _, value in rows]
    n, x, y = len(rows), sum(times), sum(values)
    slope = (sum(a * b for a, b in zip(times, values, strict=True)) - x * y / n) / (
        sum(a * a for a in times) - x * x / n
    )
    return float(slope), float(y / n - slope * x / n)


def smoothed(rows: Pairs, factor: float, trend_factor: float) -> float:
    values = [value for _, value in rows]
    before, found, trend = 0.0, values[0], values[1] - values[0]
    for i, value in enumerate(values[1:]):
        if i:
            trend = trend_factor * (found - before) + (1 - trend_factor) * trend
        before, found = found, factor * value + (1 - factor) * (found + trend)
    return found


def median(values: list[float]) -> float:
    ordered = sorted(values)
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2


def kinds(seed: int) -> dict[str, list[tuple[int, float]]]:
    random, found = Random(seed), dict[str, list[tuple[int, float]]]()
    for kind in ("counter", "gauge", "cancels", "large"):
        at, counter, rows = 1_700_000_000_301, 0.0, list[tuple[int, float]]()
        for i in range(300):
            value = {
                "counter": counter,
                "cancels": (1e16, 1.0, -1e16, random.random())[i % 4],
                "large": 1e15 + random.random() * 4,
            }.get(kind, random.gauss(0, 30))
            rows.append((at, value))
            counter = 1e18 if random.random() < 0.03 else 0.0 if random.random() < 0.1 else counter + random.random()
            at += random.choice((1, 2, 900, 5_000, 30_000))
        found[kind] = rows
    return found


Slow = Callable[[Pairs, Fraction, Fraction], float | None]

SLOW: dict[str, Slow] = {
    "sum_over_time": lambda rows, a, b: exactly(rows),
    "avg_over_time": lambda rows, a, b: float(sum(Fraction(value) for _, value in rows) / len(rows)),
    "stdvar_over_time": lambda rows, a, b: variance(rows),
    "stddev_over_time": lambda rows, a, b: math.sqrt(variance(rows)),
    "mad_over_time": lambda rows, a, b: median([abs(value - median([v for _, v in rows])) for _, value in rows]),
    "increase": increase,
    "rate": lambda rows, a, b: None if (found := increase(rows, a, b)) is None else found / 60,
    "resets": lambda rows, a, b: float(sum(new < old for (_, old), (_, new) in pairwise(rows))),
    "changes": lambda rows, a, b: float(sum(new != old for (_, old), (_, new) in pairwise(rows))),
    "deriv": lambda rows, a, b: line(rows, rows[0][0])[0] if len(rows) > 1 else None,
    "predict_linear": lambda rows, a, b: (
        (found := line(rows, b + Fraction(1, 2)))[0] * 90 + found[1] if len(rows) > 1 else None
    ),
    "double_exponential_smoothing": lambda rows, a, b: smoothed(rows, 0.3, 0.6) if len(rows) > 1 else None,
}
PARAMETERS = {"predict_linear": [90.0], "double_exponential_smoothing": [0.3, 0.6]}


@pytest.mark.parametrize("function", SLOW)
@pytest.mark.parametrize("seed", [1, 2])
def test_a_function_is_its_definition(function: str, seed: int) -> None:
    for kind, rows in kinds(seed).items():
        samples = samples_of(rows, parameters=PARAMETERS.get(function, ()))
        values, there = finished(RANGES[function](samples))
        for i, (low, high) in enumerate(zip(samples.low.tolist(), samples.high.tolist(), strict=True)):
            some = [(Fraction(at, 1000), value) for at, value in rows[low:high]]
            end_s = Fraction(int(samples.ends[i]), 1000)
            wanted = SLOW[function](some, end_s - 60, end_s)
            assert there[i] == (wanted is not None)
            if wanted is not None:
                # Lines are computed as Prometheus does: where samples are close and the line is long, digits are lost.
                size = max(abs(value) for _, value in some) if function in ("deriv", "predict_linear") else 0.0
                assert values[i] == pytest.approx(wanted, rel=1e-5 if size else 1e-9, abs=1e-9 + size * 1e-9), (kind, i)


def test_a_reset_does_not_matter_behind_its_range() -> None:
    rows = [(i * 1000, float(value)) for i, value in enumerate((5, 1e18, 0, 2e-4, 1e-4, 3e-4, 0, 1e-4))]
    samples = samples_of(rows, every_ms=1000, width_ms=5000)
    found, _ = finished(RANGES["increase"](samples))
    # From 2e-4 to 1e-4 in four seconds of five, with 2e-4 and 3e-4 before the resets.
    assert found[7] == pytest.approx((1e-4 - 2e-4 + 2e-4 + 3e-4) * 5 / 4, rel=1e-12)


def test_neighbours_are_as_far_apart_as_their_times_say() -> None:
    rows = [(1_700_000_000_000 + i, float(i)) for i in range(50)]
    values, there = finished(RANGES["irate"](samples_of(rows, every_ms=1, width_ms=10)))
    assert there.tolist()[:2] == [False, True]
    assert values[1:].tolist() == [1000.0] * (len(values) - 1)


@pytest.mark.parametrize(
    ("values", "total", "mean"),
    [
        ([1e16, 1.0, -1e16, 1.0], 2.0, 0.5),
        ([1e308, 1e308, -1e308], math.inf, 1e308 / 3),
        ([1e308, 1e308], math.inf, 1e308),
        ([-1e308, -1e308], -math.inf, -1e308),
        ([math.inf, 1.0], math.inf, math.inf),
        ([math.inf, -math.inf], math.nan, math.nan),
        ([math.inf, math.nan], math.nan, math.nan),
        ([0.1] * 10, 1.0, 0.1),
        ([7.0], 7.0, 7.0),
    ],
)
def test_sums_and_means(values: list[float], total: float, mean: float) -> None:
    given = np.array(values)
    assert finished(exact_sum(given)) == pytest.approx(total, rel=0, abs=0, nan_ok=True)
    assert finished(exact_mean(given)) == pytest.approx(mean, rel=1e-15, nan_ok=True)
    with np.errstate(all="ignore"):
        rows = [(i * 1000, value) for i, value in enumerate(values)]
        for function, wanted in (("sum_over_time", total), ("avg_over_time", mean)):
            found, _ = finished(RANGES[function](samples_of(rows)))
            assert found[-1] == pytest.approx(wanted, rel=1e-15, nan_ok=True)
        vector = Vector(
            [{"a": str(i)} for i in range(len(values))], given[:, None], np.ones((len(values), 1), np.bool_)
        )
        for operator, wanted in (("sum", total), ("avg", mean)):
            summed = finished(aggregated(operator, vector, (), False, None))
            assert summed.values[0, 0] == pytest.approx(wanted, rel=1e-15, nan_ok=True)


def test_sums_across_series_leave_out_what_is_not_there() -> None:
    values = np.array([[1e16, 1e16, 5.0], [1.0, 1.0, 6.0], [-1e16, -1e16, 7.0], [1.0, 99.0, 8.0]])
    there = np.array([[1, 1, 0], [1, 1, 0], [1, 1, 0], [1, 0, 0]], np.bool_)
    vector = Vector([{"a": str(i)} for i in range(4)], values, there)
    found = finished(aggregated("sum", vector, (), False, None))
    assert found.values[0, :2].tolist() == [2.0, 1.0]
    assert found.there.tolist() == [[True, True, False]]
    found = finished(aggregated("avg", vector, (), False, None))
    assert found.values[0, :2].tolist() == [0.5, 1 / 3]


def test_long_sums_take_steps_and_stay_exact() -> None:
    count = 50_001
    values = np.tile([1e16, 1.0, -1e16, 1.0], count)
    steps, found = run(exact_sum(values))
    assert steps >= 10
    assert found == 2.0 * count
    assert run(exact_mean(values))[1] == 0.5
    shape = (200, 1_000)
    vector = Vector(
        [{"a": str(i)} for i in range(200)], np.tile([[1e16], [1.0], [-1e16], [1.0]], (50, 1_000)), np.ones(shape, bool)
    )
    steps, result = run(aggregated("sum", vector, (), False, None))
    assert steps >= 10
    assert result.values.tolist() == [[100.0] * 1_000]


@pytest.mark.parametrize(
    "function", ["rate", "avg_over_time", "stddev_over_time", "deriv", "double_exponential_smoothing"]
)
def test_many_samples_take_steps(function: str) -> None:
    rows = [(i * 10, float((1e16, 1, -1e16, 1)[i % 4])) for i in range(30_000)]
    parameters = PARAMETERS.get(function, ())
    for every_ms, width_ms in ((20, 2_000), (100_000, 300_000))[: 1 if function == "rate" else 2]:
        samples = samples_of(rows, every_ms=every_ms, width_ms=width_ms, parameters=parameters)
        with np.errstate(all="ignore"):
            assert run(RANGES[function](samples))[0] > 2


def test_what_ranges_read_together_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [(i * 1000, float(i % 2)) for i in range(100)]
    samples = samples_of(rows, every_ms=1000, width_ms=10_000)
    read, resets = int(samples.counts.sum()), 0
    for low, high in zip(samples.low.tolist(), samples.high.tolist(), strict=True):
        resets += sum(rows[i][1] < rows[i - 1][1] for i in range(low + 1, high))
    monkeypatch.setattr(ranges, "_READ_MAX", read)
    monkeypatch.setattr(ranges, "_RESETS_MAX", resets)
    names = (
        "sum_over_time",
        "max_over_time",
        "stdvar_over_time",
        "mad_over_time",
        "deriv",
        "double_exponential_smoothing",
    )
    smoothing = samples_of(rows, every_ms=1000, width_ms=10_000, parameters=[0.5, 0.5])
    given = {name: smoothing if name == "double_exponential_smoothing" else samples for name in names}
    for name in names:
        finished(RANGES[name](given[name]))
    finished(RANGES["rate"](samples))
    monkeypatch.setattr(ranges, "_READ_MAX", read - 1)
    monkeypatch.setattr(ranges, "_RESETS_MAX", resets - 1)
    for name in names:
        with pytest.raises(Refused, match="samples together"):
            finished(RANGES[name](given[name]))
    with pytest.raises(Refused, match="resets of a counter together"):
        finished(RANGES["rate"](samples))


def test_samples_of_one_time_have_no_trend() -> None:
    with running_service() as running:
        http = running.http()
        create(http, "w")
        insert(http, "w", [T, T], [1.0, 2.0])

        def ask(query: str, at: int = T + 10) -> Any:
            found = http.post("/prometheus/api/v1/query", data={"query": query, "time": at}).json()["data"]["result"]
            return [each["value"][1] for each in found]

        assert ask("deriv(w:v[1m])") == ["NaN"]
        assert ask("rate(w:v[1m])") == ask("irate(w:v[1m])") == []
        insert(http, "w", [T + 2, T + 4], [3.0, 5.0])
        # Times are whole seconds: the trend is of those, and the time of the question of milliseconds.
        assert ask("irate(w:v[1m])") == ["1"]
        assert ask("deriv(w:v[3s])", T + 4) == ["1"]
        assert ask("predict_linear(w:v[3s], 0.5)", T + 4) == ["5.5"]
        found = http.post("/prometheus/api/v1/query", data={"query": "predict_linear(w:v[4s], 0)", "time": T + 4.5})
        assert found.json()["data"]["result"][0]["value"][1] == "5.5"


def test_the_end_is_what_was_asked_for(ask: Ask) -> None:
    form: dict[str, Any] = {"start": T, "end": T + 119, "step": "1m"}
    for at, wanted in (("end()", "59"), ("start()", None), (str(T + 119), "59"), ("end() offset 19s", "50")):
        result = ask("query_range", query=f'count_over_time(w:v{{key="b"}}[10m] @ {at})', **form).json()["data"][
            "result"
        ]
        assert [value for _, value in result[0]["values"]] == [wanted] * 2 if wanted else result == []
