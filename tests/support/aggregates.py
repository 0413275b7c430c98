"""Every aggregate in every shape it can be had in, and sample columns for it."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
from hypothesis import strategies as st

from sash_engine.monoids import BUILT_IN, Monoid, Read
from sash_engine.monoids.base import NUMERIC, NUMPY_TYPES, FieldType, Values
from tests.support.profile import THOROUGH

PARAMETERS: dict[str, list[dict[str, Any]]] = {
    "histogram": [{"bounds": [-1, 0, 2.5, 40]}, {"bounds": [0]}],
    "bloom": [{"capacity": 20, "error": 0.1}],
    "distinct_count": [{}, {"lg_k": 4}],
    "quantile": [{"q": 0.5}, {"q": [0, 0.25, 1.0], "k": 300}, {"q": [0.1, 0.999], "accuracy": "tail"}],
    "frequent_items": [{"limit": 100}],
    "time_weighted_mean": [{}, {"method": "linear"}],
    "increase": [{}, {"range": 30}],
    "rate": [{"per": 10}, {"range": 7, "per": 3}],
    "decayed_sum": [{"half_life": 4}],
    "median": [{}, {"distinct": 3}],
    "mode": [{}, {"distinct": 3}],
    "largest": [{"n": 3}],
    "smallest": [{"n": 3}],
    "join": [{}, {"separator": "-", "limit": 5}],
    "count_min": [{"error": 0.2}],
    "theta_sketch": [{}, {"lg_k": 5}],
    "naive_bayes": [{}, {"labels": 2, "values": 2}],
}

# Wide enough that rounding shows, so narrow that what is ill-conditioned (a skewness of nearly equal values, a
# mean that cancels) does not drown the laws in it.
QUARTERS = st.integers(-200, 200).map(lambda quarter: quarter / 4)
SPECIAL = st.sampled_from([float("nan"), float("inf"), float("-inf"), -0.0, 0.0])
POSITIVE = st.integers(1, 200).map(lambda quarter: quarter / 4)
SMALL = st.integers(-100, 100)
INT64 = st.one_of(st.integers(-(2**63), 2**63 - 1), st.sampled_from([-(2**63), 2**63 - 1]), st.integers(-3, 3))
TEXT = st.one_of(st.sampled_from(["a", "b", "ab", ""]), st.text(st.characters(exclude_categories=["Cs"]), max_size=40))

ILL_CONDITIONED = {"relative_variation": POSITIVE, "geometric_mean": POSITIVE}


class RootMeanSquare(Monoid):
    """An aggregate as other packages have them, with all that a monoid need not say left out: the README's."""

    function = "rms"
    reads = (Read("field", NUMERIC),)
    commutative = True
    answer = float
    identity = (0, 0.0)

    def lift(self, value: Any) -> Any:
        return 1, float(value) ** 2

    def combine(self, older: Any, newer: Any) -> Any:
        return older[0] + newer[0], older[1] + newer[1]

    def lower(self, partial: Any) -> float | None:
        entries, squares = partial
        return math.sqrt(squares / entries) if entries else None


class LargeRootMeanSquare(RootMeanSquare):
    """The same, said to be large."""

    large = True


def every_case() -> list[Monoid]:
    """One instance of each built-in aggregate for all types it can read and the parameters above.

    Of many combinations of types, `make soak` has all; else each type of each column is in one of them.
    """
    return [
        monoid(*types, **parameters)
        for monoid in BUILT_IN
        for types in _types(monoid)
        for parameters in PARAMETERS.get(monoid.function, [{}])
    ]


def _types(monoid: type[Monoid]) -> list[tuple[FieldType, ...]]:
    accepts = [read.accepts for read in monoid.reads]
    every = list(itertools.product(*accepts))
    if THOROUGH or len(every) <= 4:
        return every
    return [tuple(kinds[i % len(kinds)] for kinds in accepts) for i in range(max(map(len, accepts)))]


FIELDS = {"x": "float64", "n": "int64", "s": "string"}


def every_spec() -> dict[str, dict[str, Any]]:
    """Aggregates of a window with FIELDS: each with all parameters above; over strings again, some over integers."""
    out: dict[str, dict[str, Any]] = {}
    integers = ("mean", "range", "m4", "frequent_items")  # their partials are of another form
    for monoid in BUILT_IN:
        others = {
            read.option: ["n"] if read.many else "n"
            for read in monoid.reads[1:]
            if read.option not in ("time", "returns")
        }
        for i, parameters in enumerate(PARAMETERS.get(monoid.function, [{}])):
            for field in ("x", "n", "s") if monoid.function in integers else ("x", "s"):
                if monoid.function == "count" or FIELDS[field] in monoid.reads[0].accepts:
                    named = {} if monoid.function == "count" else {"field": field}
                    out[f"{monoid.function}_{field}{i}"] = {"function": monoid.function} | named | others | parameters
    out["who"] = {"function": "arg_max", "field": "x", "returns": "s"}
    return out


HALVES = [
    {"sum_of_n": {"function": "sum", "field": "n"}} | dict(list(every_spec().items())[half::2]) for half in (0, 1)
]
"""All of `every_spec`, in two parts, because a window has at most 64 aggregates."""


def label(monoid: Monoid) -> str:
    """A test id."""
    return f"{monoid.function}-{'-'.join(monoid.types)}"


def column(kind: str, items: list[Any]) -> np.ndarray:
    """A column as a window keeps it."""
    return np.fromiter(items, NUMPY_TYPES[kind], len(items))  # type: ignore[index]


@st.composite
def samples(draw: Any, monoid: Monoid, *, special: bool = False, max_size: int = 9) -> Values:
    """Rows for an aggregate: times sorted (with ties), values from a small set, so that ties happen."""
    n = draw(st.integers(0, max_size))
    columns = []
    for read, kind in zip(monoid.reads, monoid.types, strict=True):
        if read.option == "time":
            start = draw(st.sampled_from([0, -5, 2**60, -(2**63) + 1]))
            steps = draw(st.lists(st.integers(0, 3), min_size=n, max_size=n))
            items: list[Any] = [start + step for step in itertools.accumulate(steps)]
        else:
            items = draw(st.lists(_items(monoid, kind, special), min_size=n, max_size=n))
        columns.append(column(kind, items))
    return columns


def _items(monoid: Monoid, kind: str, special: bool) -> st.SearchStrategy[Any]:
    if kind == "float64":
        usual = ILL_CONDITIONED.get(monoid.function, QUARTERS)
        return st.one_of(usual, SPECIAL) if special else usual
    if kind == "int64":
        if monoid.function in ILL_CONDITIONED:
            return st.integers(1, 100)
        return INT64 if monoid.exact else SMALL
    return TEXT if kind == "string" else st.booleans()
