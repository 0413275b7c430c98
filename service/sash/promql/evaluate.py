"""Evaluates an expression at all of its times at once, from the leaves up.

    sum by (key) (rate(w:v[5m])) / 2
      │                            └ Scalar
      └ aggregated ◀── Queryable.over_time ◀── Vector

Selectors ask a `Queryable`. All else is arithmetic of columns, in slices.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, Protocol, TypeVar

import numpy as np
import promql_parser

from sash.promql.aggregations import AGGREGATIONS, PARAMETERS, aggregated, picked
from sash.promql.errors import BadData, Refused
from sash.promql.functions import DATES, INSTEAD, OF_VALUES, clamped, joined, replaced, rounded, sorted_by_value
from sash.promql.matchers import Matchers
from sash.promql.operators import Matching, binary
from sash.promql.ranges import RANGES
from sash.promql.times import Times
from sash.promql.values import Array, Room, Scalar, Text, Value, Vector, bytes_of, listed, without_name
from sash_engine.steps import Steps

R = TypeVar("R")
V = TypeVar("V", bound=Value)

_TIMES_GIVEN = 3
"""An operation makes a result as large as what it is given, and has as much again meanwhile, twice at most."""


_OTHERS = (
    *("absent", "absent_over_time", "clamp", "clamp_max", "clamp_min", "label_join", "label_replace", "pi", "round"),
    *("scalar", "sort", "sort_desc", "time", "timestamp", "vector"),
)
SERVED = frozenset((*RANGES, *OF_VALUES, *DATES, *_OTHERS))
"""Functions, by PromQL's names."""
NAMES = (*SERVED, *AGGREGATIONS, *PARAMETERS)
"""Of functions and aggregations."""


class Queryable(Protocol):
    """The port that an expression is evaluated over: all that the evaluator knows of where samples are."""

    room: Room
    """What the expression may take."""

    def expect(self, expr: Any) -> None:
        """Note which series an expression names, so that they are asked for together."""

    async def instant(self, selector: promql_parser.VectorSelector, times: Times) -> Vector:
        """The values of a selector at each time."""

    async def over_time(
        self, function: str, matrix: promql_parser.MatrixSelector, times: Times, parameters: Sequence[Array] = ()
    ) -> Vector:
        """A function of the ranges behind each time; `parameters` are those of the function, each float64 (n,)."""

    async def grouped(self, expr: Any, by: tuple[str, ...], without: bool, times: Times) -> Vector | None:
        """An aggregation that needs no value of each series; None where it does."""

    async def in_slices(self, steps: Steps[R]) -> R:
        """Take steps, and give turns to others between them."""


class Evaluator:
    """Evaluates one expression.

    Args:
        source: answers the selectors.
        times: when to evaluate.
    """

    def __init__(self, source: Queryable, times: Times) -> None:
        self._source = source
        self._room = source.room
        self._times = times

    async def evaluated(self, expr: Any) -> Value:
        """Return what a whole expression is worth; raises as `value`."""
        self._source.expect(expr)
        return await self.value(expr)

    async def value(self, expr: Any) -> Value:
        """Return what an expression, or a part of it, is worth.

        Raises:
            BadData: it is no expression.
            Refused: it uses what is not supported.
        """
        match expr:
            case promql_parser.NumberLiteral():
                return self._constant(expr.val)
            case promql_parser.StringLiteral():
                return Text(expr.val)
            case promql_parser.ParenExpr():
                return await self.value(expr.expr)
            case promql_parser.UnaryExpr():
                return await self._negative(expr)
            case promql_parser.BinaryExpr():
                matching = Matching.of(expr.modifier)
                left, right = await self._values([expr.lhs, expr.rhs])
                return await self._done(binary(str(expr.op), left, right, matching), left, right)
            case promql_parser.AggregateExpr():
                return await self._aggregate(expr)
            case promql_parser.Call():
                return await self._call(expr)
            case promql_parser.VectorSelector():
                return await self._source.instant(expr, self._times)
            case promql_parser.SubqueryExpr():
                raise Refused(
                    "subqueries are not supported; use a function of a selector's range, as max_over_time(w:v[1h])",
                    field="query",
                )
            case promql_parser.MatrixSelector():
                raise Refused("a range stands only within a function of ranges", field="query")
        raise BadData(f"{type(expr).__name__} is not supported", field="query")

    async def _values(self, parts: Sequence[Any]) -> list[Value]:
        """Evaluate some parts, one after the other; the memory of each is held until all are done."""
        found = list[Value]()
        with ExitStack() as waiting:
            for part in parts:
                if found:
                    waiting.enter_context(self._room.held(found[-1]))
                found.append(await self.value(part))
        return found

    async def _done(self, steps: Steps[V], *given: Value) -> V:
        """Take the steps of one operation on some values."""
        await asyncio.sleep(0)  # many short operations are long together
        with self._room.promised(_TIMES_GIVEN * sum(map(bytes_of, given))):
            return await self._source.in_slices(steps)

    def _constant(self, number: float) -> Scalar:
        return Scalar(np.full(self._times.count, float(number)))

    async def _negative(self, expr: Any) -> Value:
        found = await self.value(expr.expr)
        if isinstance(found, Scalar):
            return Scalar(-found.values)
        vector = _vector(found)
        return await self._unnamed(vector.with_values(-vector.values))

    async def _aggregate(self, expr: Any) -> Value:
        operator = str(expr.op)
        if operator not in AGGREGATIONS and operator not in PARAMETERS:
            raise Refused(f"aggregation {operator} is not supported; {INSTEAD.get(operator, 'use sum')}", field="query")
        modifier = expr.modifier
        by = () if modifier is None else listed(operator, modifier.labels)
        without = modifier is not None and str(modifier.type).endswith("Without")
        groups = await self._source.grouped(expr, by, without, self._times)
        if groups is not None:
            return groups
        parameter = None if expr.param is None else _scalar(await self.value(expr.param))
        vector = _vector(await self.value(expr.expr))
        if operator in ("topk", "bottomk"):
            assert parameter is not None
            return await self._done(picked(operator, vector, by, without, parameter), vector)
        return await self._done(aggregated(operator, vector, by, without, parameter), vector)

    async def _unnamed(self, vector: Vector) -> Vector:
        return await self._done(without_name(vector), vector)

    # ---------------------------------------------------------------- functions

    async def _call(self, expr: Any) -> Value:
        name, given = expr.func.name, list(expr.args)
        if name not in SERVED:
            hint = INSTEAD.get(name, "the documentation lists the functions that are")
            raise Refused(f"{name} is not supported; {hint}", field="query")
        if name in RANGES:
            return await self._of_range(name, given)
        if name in ("absent", "absent_over_time"):
            return await self._absent(name, given[0])
        if name == "time":
            return Scalar(self._times.ms / 1000)
        if name == "pi":
            return self._constant(np.pi)
        if name == "timestamp":
            return await self._timestamp(given[0])
        if name in DATES and not given:
            with np.errstate(all="ignore"):
                return Vector([{}], DATES[name](self._times.ms / 1000)[None, :], self._everywhere())
        arguments = await self._values(given)
        if name in OF_VALUES:
            vector = _vector(arguments[0])
            with np.errstate(all="ignore"):
                return await self._unnamed(vector.with_values(OF_VALUES[name](vector.values)))
        if name in DATES:
            vector = _vector(arguments[0])
            known = np.isfinite(vector.values) & (np.abs(vector.values) < 1e15)
            found = DATES[name](np.where(known, vector.values, 0.0))
            return await self._unnamed(vector.with_values(np.where(known, found, np.nan)))
        match name:
            case "round":
                vector = _vector(arguments[0])
                to = _scalar(arguments[1]) if len(arguments) > 1 else np.ones(self._times.count)
                return await self._unnamed(vector.with_values(rounded(vector.values, to)))
            case "clamp":
                low, high = _scalar(arguments[1]), _scalar(arguments[2])
                return await self._unnamed(clamped(_vector(arguments[0]), low, high))
            case "clamp_min":
                return await self._unnamed(clamped(_vector(arguments[0]), _scalar(arguments[1]), None))
            case "clamp_max":
                return await self._unnamed(clamped(_vector(arguments[0]), None, _scalar(arguments[1])))
            case "vector":
                return Vector([{}], _scalar(arguments[0])[None, :], self._everywhere())
            case "scalar":
                return _only(_vector(arguments[0]))
            case "sort" | "sort_desc":
                vector = _vector(arguments[0])
                return sorted_by_value(vector, name == "sort_desc") if self._times.count == 1 else vector
            case "label_replace":
                into, template, source, pattern = (_text(each) for each in arguments[1:])
                vector = _vector(arguments[0])
                return await self._done(replaced(vector, into, template, source, pattern), vector)
            case "label_join":
                into, between, *sources = (_text(each) for each in arguments[1:])
                vector = _vector(arguments[0])
                return await self._done(joined(vector, into, between, sources), vector)
        raise AssertionError(name)

    async def _of_range(self, name: str, given: list[Any]) -> Vector:
        at = 1 if name == "quantile_over_time" else 0
        found = await self._values([*given[:at], *given[at + 1 :]])
        return await self._source.over_time(
            name, _range(name, given[at]), self._times, [_scalar(each) for each in found]
        )

    async def _absent(self, name: str, given: Any) -> Vector:
        while isinstance(given, promql_parser.ParenExpr):
            given = given.expr
        selector = None
        if name == "absent_over_time":
            matrix = _range(name, given)
            selector = matrix.vector_selector
            vector = await self._source.over_time("present_over_time", matrix, self._times)
        else:
            vector = _vector(await self.value(given))
            if isinstance(given, promql_parser.VectorSelector):
                selector = given
        labels = {} if selector is None else Matchers.of(selector).constants()
        return Vector([labels], np.ones((1, self._times.count)), np.logical_not(vector.there.any(0))[None, :])

    async def _timestamp(self, given: Any) -> Vector:
        vector = _vector(await self.value(given))
        ms = self._times.ms[None, :] if vector.times_ms is None else vector.times_ms
        return await self._unnamed(vector.with_values(np.broadcast_to(ms / 1000, vector.values.shape)))

    def _everywhere(self) -> Array:
        return np.ones((1, self._times.count), np.bool_)


def _range(function: str, given: Any) -> promql_parser.MatrixSelector:
    while isinstance(given, promql_parser.ParenExpr):
        given = given.expr
    if not isinstance(given, promql_parser.MatrixSelector):
        raise Refused(
            f"{function} of a subquery is not supported; use it of a selector's range, as {function}(w:v[1h])",
            field="query",
        )
    return given


def _vector(found: Value) -> Vector:
    if not isinstance(found, Vector):
        raise BadData("an instant vector is expected", field="query")
    return found


def _scalar(found: Value) -> Array:
    if not isinstance(found, Scalar):
        raise BadData("a scalar is expected", field="query")
    return found.values


def _text(found: Value) -> str:
    if not isinstance(found, Text):
        raise BadData("a string is expected", field="query")
    return found.text


def _only(vector: Vector) -> Scalar:
    """The value of the only series that is there at a time; NaN where there is not one."""
    alone = vector.there.sum(0) == 1
    values = np.where(vector.there, vector.values, 0.0).sum(0)
    return Scalar(np.where(alone, values, np.nan))
