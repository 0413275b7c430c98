"""Binary operators: arithmetic, comparisons, and sets, of scalars and vectors.

    on(a) group_left(b)      many ──┐
                                    ├─ same values of a ──▶ many's labels, and b of the one
                              one ──┘

Series match by a signature of their labels. Pairs of series with the same signature are operated on at all times at
once; where one has no sample, there is no result.

Source: Prometheus' documentation of its operators; promql/engine.go for names that are kept and for errors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import promql_parser

from sash.promql.errors import Refused
from sash.promql.values import (
    NAME,
    Array,
    Labels,
    LabelsMade,
    Scalar,
    Value,
    Vector,
    check_cells,
    listed,
    merged,
    per_step,
    without_name,
)
from sash_engine.steps import Steps

Operate = Callable[[Any, Any], Any]

_ARITHMETIC: Mapping[str, Operate] = {
    "+": np.add,
    "-": np.subtract,
    "*": np.multiply,
    "/": np.divide,
    "%": np.fmod,
    "^": np.power,
    "atan2": np.arctan2,
}
COMPARISONS: Mapping[str, Operate] = {
    "==": np.equal,
    "!=": np.not_equal,
    ">": np.greater,
    "<": np.less,
    ">=": np.greater_equal,
    "<=": np.less_equal,
}
_ROWS_PER_STEP = 500
_MANY = "multiple matches for labels: many-to-one matching must be explicit (group_left/group_right)"
_GROUPED = "multiple matches for labels: grouping labels must ensure unique matches"


@dataclass(frozen=True)
class Matching:
    """How series of both sides match.

    Args:
        labels: that decide.
        on: they alone; else all but them.
        many: which side may have several series of a signature: "left", "right" or "".
        include: labels of the one side that the result gets.
        returns_bool: a comparison answers 0 or 1 instead of leaving series out.
    """

    labels: tuple[str, ...] = ()
    on: bool = False
    many: str = ""
    include: tuple[str, ...] = ()
    returns_bool: bool = False

    @classmethod
    def of(cls, modifier: promql_parser.BinModifier | None) -> Matching:
        """Return the matching that a parsed modifier asks for."""
        if modifier is None:
            return cls()
        fill = modifier.fill_values
        if fill is not None and (fill.lhs is not None or fill.rhs is not None):
            raise Refused("fill is not supported; use `or vector(0)` for series that are missing", field="query")
        by, card = modifier.matching, str(modifier.card).rpartition(".")[2]
        many = {"ManyToOne": "left", "OneToMany": "right"}.get(card, "")
        return cls(
            () if by is None else listed("on() or ignoring()", by.labels),
            by is not None and str(by.type).endswith("Include"),
            many,
            listed(f"group_{many}()", modifier.group_labels or ()),
            bool(modifier.return_bool),
        )

    def signature(self, labels: Labels) -> frozenset[tuple[str, str]]:
        """The labels that two series must have in common."""
        if self.on:
            return frozenset((name, labels[name]) for name in self.labels if name in labels)
        left_out = (*self.labels, NAME)
        return frozenset(item for item in labels.items() if item[0] not in left_out)

    def kept(self, labels: Labels) -> dict[str, str]:
        """The labels of a result of one series each."""
        if self.on:
            return {name: value for name, value in labels.items() if name in self.labels}
        return {name: value for name, value in labels.items() if name not in self.labels}


def binary(operator: str, left: Value, right: Value, matching: Matching) -> Steps[Value]:
    """Apply an operator.

    Raises:
        Refused: series match that must not; or the result is too large.
    """
    if isinstance(left, Scalar) and isinstance(right, Scalar):
        yield
        return Scalar(_applied(operator, left.values, right.values).astype(np.float64))
    if isinstance(left, Vector) and isinstance(right, Vector):
        if operator in ("and", "or", "unless"):
            return (yield from _set(operator, left, right, matching))
        return (yield from _vectors(operator, left, right, matching))
    if isinstance(left, Vector) and isinstance(right, Scalar):
        return (yield from _with_scalar(operator, left, right.values, matching, flipped=False))
    if isinstance(left, Scalar) and isinstance(right, Vector):
        return (yield from _with_scalar(operator, right, left.values, matching, flipped=True))
    raise Refused(f"operator {operator} takes no strings", field="query")


def _applied(operator: str, left: Any, right: Any) -> Any:
    with np.errstate(all="ignore"):
        return (_ARITHMETIC.get(operator) or COMPARISONS[operator])(left, right)


def _with_scalar(operator: str, vector: Vector, scalar: Array, matching: Matching, flipped: bool) -> Steps[Vector]:
    pair = (scalar, vector.values) if flipped else (vector.values, scalar)
    found = _applied(operator, *pair)
    yield
    if operator in COMPARISONS and not matching.returns_bool:
        return vector.with_values(vector.values, vector.there & found)
    return (yield from without_name(vector.with_values(found.astype(np.float64))))


def _set(operator: str, left: Vector, right: Vector, matching: Matching) -> Steps[Vector]:
    here, there = (yield from _signatures(left, matching)), (yield from _signatures(right, matching))
    if operator == "or":
        present = yield from _present(left, here)
        kept = right.there.copy()
        for row, signature in enumerate(there):
            if signature in present:
                kept[row] &= ~present[signature]
            if not row % _ROWS_PER_STEP:
                yield
        check_cells(len(left.labels) + len(right.labels), left.there.shape[1])
        both = Vector(
            [*left.labels, *right.labels],
            np.concatenate((left.values, right.values)),
            np.concatenate((left.there, kept)),
        )
        return (yield from merged(both))
    present = yield from _present(right, there)
    kept, keeps = left.there.copy(), operator == "and"
    for row, signature in enumerate(here):
        if signature in present:
            kept[row] &= present[signature] if keeps else ~present[signature]
        elif keeps:
            kept[row] = False
        if not row % _ROWS_PER_STEP:
            yield
    return left.with_values(left.values, kept)


def _vectors(operator: str, left: Vector, right: Vector, matching: Matching) -> Steps[Vector]:
    left, right = _both_there(left, right)
    flipped = matching.many == "right"
    many, one = (right, left) if flipped else (left, right)
    one = yield from _unique(one, matching)
    of_many, of_one = (yield from _signatures(many, matching)), (yield from _signatures(one, matching))
    rows_of = dict[frozenset[tuple[str, str]], list[int]]()
    for row, signature in enumerate(of_one):
        rows_of.setdefault(signature, []).append(row)
    count = sum(len(rows_of.get(signature, ())) for signature in of_many)
    check_cells(count, left.there.shape[1])
    yield
    pairs = [(i, j) for i, signature in enumerate(of_many) for j in rows_of.get(signature, ())]
    i, j = np.array([p[0] for p in pairs], np.int64), np.array([p[1] for p in pairs], np.int64)
    there = many.there[i] & one.there[j]
    yield
    a, b = (one.values[j], many.values[i]) if flipped else (many.values[i], one.values[j])
    values = _applied(operator, a, b)
    yield
    filters = operator in COMPARISONS and not matching.returns_bool
    if filters:
        there = there & values
        values = a
    made, at_once = LabelsMade(f"group_{matching.many}"), per_step(many.labels)
    for m, o in pairs:
        found = dict(many.labels[m]) if matching.many else matching.kept(many.labels[m])
        if not filters:
            found.pop(NAME, None)
        for name in matching.include:
            found.pop(name, None)
            if value := one.labels[o].get(name):
                found[name] = value
        if matching.include:
            last = matching.include[-1]
            made.check(found, last, len(found.get(last, "")))
        made.append(found)
        if not len(made.labels) % at_once:
            yield
    if not matching.many:
        yield from _check_single(of_many, i, there)
    result = Vector(made.labels, values.astype(np.float64), there)
    return (yield from merged(result, _GROUPED if matching.many else _MANY))


def _both_there(left: Vector, right: Vector) -> tuple[Vector, Vector]:
    """Return both sides, with only the times at which both have samples; at others nothing can match."""
    times = left.there.any(0) & right.there.any(0)
    found = []
    for side in (left, right):
        there = side.there & times
        rows, some = np.flatnonzero(there.any(1)), side.with_values(side.values, there)
        found.append(some if len(rows) == len(there) else some.picked(rows))
    return found[0], found[1]


def _unique(one: Vector, matching: Matching) -> Steps[Vector]:
    """The side of which one series matches: the labels that decide, and those that the result gets.

    Raises:
        Refused: two of its series match the same ones at the same time.
    """
    side = "left" if matching.many == "right" else "right"
    problem = (
        f"found duplicate series for the match group on the {side} hand-side of the operation; many-to-many "
        "matching not allowed: matching labels must be unique on one side"
    )
    signatures = yield from _signatures(one, matching)
    labels: list[Labels] = [dict(each) for each in signatures]
    yield
    found = yield from merged(Vector(labels, one.values, one.there), problem)
    if not matching.include:
        return found
    names, at_once = frozenset(matching.include), per_step(one.labels)
    for row, each in enumerate(one.labels):
        labels[row] = {**labels[row], **{name: value for name, value in each.items() if name in names}}
        if not row % at_once:
            yield
    return (yield from merged(Vector(labels, one.values, one.there), problem))


def _check_single(signatures: list[frozenset[tuple[str, str]]], rows: Array, there: Array) -> Steps[None]:
    """Refuse several results of one signature at a time: their labels may differ, by the name that a filter keeps."""
    groups = dict[frozenset[tuple[str, str]], list[int]]()
    for at, row in enumerate(rows.tolist()):
        groups.setdefault(signatures[row], []).append(at)
        if not at % _ROWS_PER_STEP:
            yield
    for group in groups.values():
        if len(group) > 1 and (there[group].sum(0) > 1).any():
            raise Refused(_MANY, field="query")


def _signatures(vector: Vector, matching: Matching) -> Steps[list[frozenset[tuple[str, str]]]]:
    found, at_once = [], per_step(vector.labels)
    for labels in vector.labels:
        found.append(matching.signature(labels))
        if not len(found) % at_once:
            yield
    return found


def _present(
    vector: Vector, signatures: list[frozenset[tuple[str, str]]]
) -> Steps[dict[frozenset[tuple[str, str]], Array]]:
    """Where each signature has a sample."""
    found = dict[frozenset[tuple[str, str]], Array]()
    for row, signature in enumerate(signatures):
        before = found.get(signature)
        found[signature] = vector.there[row] if before is None else before | vector.there[row]
        if not row % _ROWS_PER_STEP:
            yield
    return found
