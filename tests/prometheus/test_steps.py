"""Work that takes long has many steps, so that other calls have their turns."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import numpy as np

from sash.promql.aggregations import aggregated, picked
from sash.promql.functions import replaced
from sash.promql.matchers import Matchers
from sash.promql.parsing import parsed_selector
from sash.promql.values import NAME, Vector
from tests.support.counted import counted

HARD = "(?:[ab]?){800}c"
"""Takes RE2 some milliseconds for a value of 500 characters."""
SERIES = [{NAME: "w:n", "key": f"{i:03}" + 497 * "a"} for i in range(50)]


def run(steps: Generator[None, None, Any]) -> tuple[int, Any]:
    count, found = counted(steps)
    return count + 1, found


def test_each_match_of_a_hard_expression_is_a_step() -> None:
    matchers = Matchers.of(parsed_selector(f'w:n{{key!~"{HARD}",key!~"x{HARD}"}}'))
    count, found = run(matchers.which(SERIES))
    assert count >= 2 * len(SERIES)
    assert found == [True] * len(SERIES)


def test_many_alternatives_take_steps() -> None:
    alternatives = " or ".join(f'key="{i}"' for i in range(400))
    count, found = run(Matchers.of(parsed_selector(f"{{{alternatives}}}")).which([*SERIES, {NAME: "w:n", "key": "7"}]))
    assert count > 5
    assert found == [False] * len(SERIES) + [True]


def test_names_of_metrics_match_in_steps_and_other_labels_do_not_matter() -> None:
    names = ["w:n", "v:n", *(each["key"] for each in SERIES)]
    for selector, wanted in (
        (f'{{__name__!~"{HARD}",key="a"}}', names),
        ('{__name__=~"w:.*",key="a"}', ["w:n"]),
        ('{__name__=~"w:.*",key="a" or __name__=~"v:.*"}', ["w:n", "v:n"]),
        ('{__name__=~"w:.*" or key="a"}', names),
    ):
        count, found = run(Matchers.of(parsed_selector(selector)).which_names(names))
        assert [name for name, fits in zip(names, found, strict=True) if fits] == wanted
        assert count > len(SERIES) or HARD not in selector


def test_label_replace_takes_steps() -> None:
    vector = Vector(SERIES, np.ones((len(SERIES), 1)), np.ones((len(SERIES), 1), np.bool_))
    count, found = run(replaced(vector, "x", "$1", "key", HARD))
    assert count >= len(SERIES)
    assert found.labels == SERIES


def test_sorting_takes_steps() -> None:
    shape = series, times = 3_000, 100
    rng = np.random.default_rng(7)
    values, there = rng.permuted(np.tile(np.arange(series, dtype=float)[:, None], times), axis=0), np.ones(shape, bool)
    there[values < 100] = False
    vector = Vector([{"key": str(i)} for i in range(series)], values, there)
    count, found = run(aggregated("quantile", vector, (), False, np.full(times, 0.5)))
    assert count > 10
    assert found.values.tolist() == [[1549.5] * times]
    for operator, kept in (("topk", values >= series - 7), ("bottomk", (values >= 100) & (values < 107))):
        count, found = run(picked(operator, vector, (), False, np.full(times, 7.0)))
        assert count > 10
        rows = [int(labels["key"]) for labels in found.labels]
        assert found.there.tolist() == kept[rows].tolist()
        assert kept[rows].sum() == 7 * times
        first = values[rows, 0][:7].tolist()
        assert first == sorted(first, reverse=operator == "topk")
