"""The laws of an aggregate: a library for the tests of Sash and of packages that add aggregates.

    law                 says
    definition          lift, combine and lower work; the answer is None, or has the type `answer` and the form
                        `schema`; large partials are one object
    identity            identity ∘ p == p == p ∘ identity
    associativity       (p ∘ q) ∘ r == p ∘ (q ∘ r)
    commutativity       p ∘ q == q ∘ p, if `commutative`
    inverse             uncombine(p ∘ q, p) == q, if `invertible`; otherwise it raises NotImplementedError
    reduction, segments, lifting, suffixes, pairing, folding, lowering
                        each column form equals the scalar definition, row by row, and with no rows if that is
                        allowed; its columns have the declared dtypes
    packing             pack, unpack, take, put
    coding              decode(encode(p)) == p

No law may change values or partials.

Two partials are equal if their parts are equal, or if no answer differs: alone, and combined on either side with other
partials. Floats are equal up to a tolerance relative to the larger one, and to 1. NaN equals NaN.

A test of your own aggregate looks like this. `hypothesis` makes good samples; keep them short, up to some ten rows::

    from sash_engine.monoids import laws

    def test_my_aggregate():
        laws.check(MyAggregate("int64"), [np.array([3, 1, 1, -7, 2])])

Source: the habit of shipping laws as a library is that of algebird-test and discipline.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from sash_engine.monoids.base import PYTHON_TYPES, Monoid, Partial, Partials, Schema, Values, rows

TOLERANCE = 1e-9
"""The default tolerance for aggregates that are not exact."""
_SCALARS: Mapping[str, type] = {**{str(kind): python for kind, python in PYTHON_TYPES.items()}, "bytes": bytes}
_MOST_PARTIALS = 6
"""The greatest number of sample partials: six make 216 triples for associativity."""


class LawBroken(AssertionError):
    """An aggregate breaks a law.

    Args:
        law: the name of the law, as in `LAWS`.
        monoid: the aggregate.
        what: the call, and its values.
        expected, found: partials or answers.
    """

    def __init__(self, law: str, monoid: Monoid, what: str, expected: Any, found: Any) -> None:
        super().__init__(
            f"{monoid!r} ({monoid.function}) breaks {law}: {what}\n"
            f"  expected  {_shown(expected)}\n  found     {_shown(found)}"
        )
        self.law = law
        self.monoid = monoid


def check(
    monoid: Monoid,
    values: Values,
    *,
    tolerance: float | None = None,
    laws: Sequence[str] | None = None,
) -> None:
    """Check an aggregate on some sample rows.

    Args:
        monoid: the aggregate.
        values: n >= 0 sample rows, one array per column read, in order of time.
        tolerance: how far floats may be apart; None: 0 for exact aggregates and 1e-9 for others.
        laws: the names of the laws to check; None: all. The definition is always checked.

    Raises:
        LawBroken: a law does not hold. The message has the values that show it.
    """
    if tolerance is None:
        tolerance = 0.0 if monoid.exact else TOLERANCE
    sample = _Sample(monoid, values, tolerance)
    for name in LAWS if laws is None else ("definition", *laws):
        sample.law = name
        LAWS[name](sample)
        sample.is_unchanged()


class _Sample:
    """Sample rows, partials of them, and the comparison of partials."""

    law = ""

    def __init__(self, monoid: Monoid, values: Values, tolerance: float) -> None:
        self.monoid = monoid
        self.values = values
        self.tolerance = tolerance
        self.n = len(values[0])
        self.rows = rows(values)
        self.lifted: list[Partial] = [monoid.lift(row) for row in self.rows]
        self.partials = self._partials()
        self._values_before = [column.tolist() for column in values]
        self._partials_before = [monoid.encode(partial) for partial in self.partials]

    def _partials(self) -> list[Partial]:
        """Return partials of single rows and of longer runs, from all parts of the sample."""
        cuts = sorted({0, self.n // 4, self.n // 2, self.n - self.n // 4, self.n})
        longer = [self.folded(a, b) for a, b in itertools.pairwise(cuts)]
        return [*self.lifted[:2], *longer, *self.lifted[-1:]][:_MOST_PARTIALS]

    def folded(self, start: int, stop: int) -> Partial:
        """Fold rows start..stop one by one, by the scalar definition."""
        total = self.monoid.identity
        for partial in self.lifted[start:stop]:
            total = self.monoid.combine(total, partial)
        return total

    def equal(self, expected: Partial, found: Partial) -> bool:
        if close(expected, found, self.tolerance):
            return True
        lower, combine = self.monoid.lower, self.monoid.combine
        return close(lower(expected), lower(found), self.tolerance) and all(
            close(lower(combine(other, expected)), lower(combine(other, found)), self.tolerance)
            and close(lower(combine(expected, other)), lower(combine(found, other)), self.tolerance)
            for other in self.partials[:3]
        )

    def expect(self, expected: Partial, found: Partial, what: str, *shown: Any) -> None:
        """Compare partials; `what` has a place `{}` for each value that is shown if they differ."""
        if not self.equal(expected, found):
            raise LawBroken(self.law, self.monoid, what.format(*map(_shown, shown)), expected, found)

    def expect_rows(self, expected: Sequence[Partial], found: Partials, what: str) -> None:
        """Compare columns with the expected partials, row by row; they must have the declared dtypes."""
        dtypes = tuple(column.dtype for column in found)
        if dtypes != tuple(self.monoid.dtypes):
            raise LawBroken(self.law, self.monoid, f"dtypes of {what}", self.monoid.dtypes, dtypes)
        if any(len(column) != len(expected) for column in found):
            sizes = [len(column) for column in found]
            raise LawBroken(self.law, self.monoid, f"rows of {what}", len(expected), sizes)
        for i, partial in enumerate(expected):
            self.expect(partial, self.monoid.take(found, i), f"row {i} of {what}")

    def is_unchanged(self) -> None:
        if not close(self._values_before, [column.tolist() for column in self.values], 0.0):
            raise LawBroken(self.law, self.monoid, "values were changed", self._values_before, self.values)
        after = [self.monoid.encode(partial) for partial in self.partials]
        if after != self._partials_before:
            raise LawBroken(self.law, self.monoid, "arguments were changed", self._partials_before, after)


# -------------------------------------------------------------------- scalars


def _definition(sample: _Sample) -> None:
    monoid = sample.monoid
    if monoid.large and monoid.dtypes != (np.dtype(object),):
        raise LawBroken(sample.law, monoid, "dtypes of large partials", (np.dtype(object),), monoid.dtypes)
    for partial in (monoid.identity, *sample.partials):
        answer = monoid.lower(partial)
        if answer is not None and type(answer) is not monoid.answer:
            raise LawBroken(sample.law, monoid, f"type of lower({_shown(partial)})", monoid.answer, answer)
        if answer is not None and monoid.schema is not None and not _has_schema(answer, monoid.schema):
            raise LawBroken(sample.law, monoid, f"schema of lower({_shown(partial)})", monoid.schema, answer)
    # Find a combine that changes its arguments now, before its effects reach the other laws.
    for p, q in itertools.pairwise(sample.partials):
        monoid.combine(p, q)


def _has_schema(answer: Any, schema: Schema) -> bool:
    if isinstance(schema, list):
        return type(answer) is list and all(_has_schema(item, schema[0]) for item in answer)
    if isinstance(schema, dict):
        return (
            type(answer) is dict
            and list(answer) == list(schema)
            and all(_has_schema(answer[name], of) for name, of in schema.items())
        )
    return type(answer) is _SCALARS[schema]


def _identity(sample: _Sample) -> None:
    monoid = sample.monoid
    for p in (*sample.partials, monoid.identity):
        sample.expect(p, monoid.combine(monoid.identity, p), "combine(identity, {})", p)
        sample.expect(p, monoid.combine(p, monoid.identity), "combine({}, identity)", p)


def _associativity(sample: _Sample) -> None:
    combine = sample.monoid.combine
    for p, q, r in itertools.product(sample.partials, repeat=3):
        sample.expect(combine(combine(p, q), r), combine(p, combine(q, r)), "on {}, {} and {}", p, q, r)


def _commutativity(sample: _Sample) -> None:
    if not sample.monoid.commutative:
        return
    combine = sample.monoid.combine
    for p, q in itertools.combinations(sample.partials, 2):
        sample.expect(combine(p, q), combine(q, p), "on {} and {}", p, q)


def _inverse(sample: _Sample) -> None:
    monoid = sample.monoid
    for p, q in itertools.product(sample.partials, repeat=2):
        total = monoid.combine(p, q)
        try:
            found = monoid.uncombine(total, p)
        except NotImplementedError:
            if monoid.invertible:
                raise LawBroken(sample.law, monoid, "uncombine", "an inverse", "NotImplementedError") from None
            continue
        if not monoid.invertible:
            raise LawBroken(sample.law, monoid, "uncombine is not flagged", "NotImplementedError", found)
        sample.expect(q, found, "uncombine({}, {})", total, p)


# -------------------------------------------------------------------- columns of values


def _reduction(sample: _Sample) -> None:
    for start, stop in {(0, 0), (0, 1), (0, sample.n), (sample.n // 2, sample.n), (sample.n // 3, sample.n)}:
        if stop <= sample.n:
            found = sample.monoid.reduce([column[start:stop] for column in sample.values])
            sample.expect(sample.folded(start, stop), found, f"reduce of rows {start}..{stop}")
            reducer = sample.monoid.reducer()
            if reducer is not None:
                found = reducer(sample.values[0], start, stop)
                sample.expect(sample.folded(start, stop), found, f"reducer of rows {start}..{stop}")


def _segments(sample: _Sample) -> None:
    n = sample.n
    if not n:
        return
    cuts = {(0,), tuple(range(n)), (0, n // 2), tuple(range(0, n, 2)), (0, 1, n // 2, n - 1)}
    for cut in sorted(cuts):
        starts = np.array(sorted({row for row in cut if row < n}), np.int64)
        bounds = [*starts.tolist(), n]
        expected = [sample.folded(a, b) for a, b in itertools.pairwise(bounds)]
        found = sample.monoid.reduce_segments(sample.values, starts)
        sample.expect_rows(expected, found, f"reduce_segments at {bounds[:-1]}")


def _lifting(sample: _Sample) -> None:
    if sample.n:
        sample.expect_rows(sample.lifted, sample.monoid.lift_columns(sample.values), "lift_columns")


def _suffixes(sample: _Sample) -> None:
    if not sample.n:
        return
    found = sample.monoid.scan_suffix(sample.values)
    if len(found) != sample.n:
        raise LawBroken(sample.law, sample.monoid, "length of scan_suffix", sample.n, len(found))
    for i, partial in enumerate(found):
        sample.expect(sample.folded(i, sample.n), partial, f"scan_suffix at row {i}")


# -------------------------------------------------------------------- columns of partials


def _pairing(sample: _Sample) -> None:
    monoid = sample.monoid
    pairs = list(itertools.product(sample.partials, repeat=2))
    for chosen in (pairs, pairs[:1], []):
        older, newer = monoid.pack([p for p, _ in chosen]), monoid.pack([q for _, q in chosen])
        before = _contents(older), _contents(newer)
        found = monoid.combine_columns(older, newer)
        sample.expect_rows([monoid.combine(p, q) for p, q in chosen], found, "combine_columns")
        if not close(before, (_contents(older), _contents(newer)), 0.0):
            raise LawBroken(sample.law, monoid, "combine_columns changed its arguments", before, (older, newer))


def _folding(sample: _Sample) -> None:
    monoid = sample.monoid
    for chosen in ([], sample.lifted[:1], sample.partials, sample.lifted * 5):
        total = monoid.identity
        for partial in chosen:
            total = monoid.combine(total, partial)
        sample.expect(total, monoid.fold(monoid.pack(chosen)), f"fold of {len(chosen)} partials")


def _lowering(sample: _Sample) -> None:
    monoid = sample.monoid
    for chosen in ([], sample.partials, sample.lifted):
        found = monoid.lower_columns(monoid.pack(chosen)).tolist()
        expected = [monoid.lower(partial) for partial in chosen]
        if not close(expected, found, sample.tolerance):
            raise LawBroken(sample.law, monoid, "lower_columns", expected, found)


def _packing(sample: _Sample) -> None:
    monoid = sample.monoid
    columns = monoid.pack(sample.partials)
    sample.expect_rows(sample.partials, columns, "pack")
    unpacked = monoid.unpack(columns)
    if len(unpacked) != len(sample.partials):
        raise LawBroken(sample.law, monoid, "length of unpack", len(sample.partials), len(unpacked))
    for i, (partial, found) in enumerate(zip(sample.partials, unpacked, strict=True)):
        sample.expect(partial, found, f"row {i} of unpack")
    for i, partial in enumerate(reversed(sample.partials)):
        monoid.put(columns, i, partial)
        sample.expect(partial, monoid.take(columns, i), f"put and take at row {i}")
    put, take = monoid.putter(columns), monoid.taker(columns)
    for i, partial in enumerate(sample.partials):
        put(i, partial)
        sample.expect(partial, take(i), f"putter and taker at row {i}")
        sample.expect(partial, monoid.take(columns, i), f"putter at row {i}")


def _coding(sample: _Sample) -> None:
    for partial in sample.partials:
        data = sample.monoid.encode(partial)
        if not isinstance(data, bytes):
            raise LawBroken(sample.law, sample.monoid, "encode", bytes, type(data))
        sample.expect(partial, sample.monoid.decode(data), f"decode of {len(data)} bytes")


LAWS: dict[str, Callable[[_Sample], None]] = {
    "definition": _definition,
    "identity": _identity,
    "associativity": _associativity,
    "commutativity": _commutativity,
    "inverse": _inverse,
    "reduction": _reduction,
    "segments": _segments,
    "lifting": _lifting,
    "suffixes": _suffixes,
    "pairing": _pairing,
    "folding": _folding,
    "lowering": _lowering,
    "packing": _packing,
    "coding": _coding,
}
"""Every law by its name."""


# -------------------------------------------------------------------- comparing and showing


def close(a: Any, b: Any, tolerance: float) -> bool:
    """Return whether partials or answers are equal: part by part, numbers up to the tolerance, NaN equal to NaN."""
    if isinstance(a, dict) and isinstance(b, dict):
        return list(a) == list(b) and close(list(a.values()), list(b.values()), tolerance)
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(close(x, y, tolerance) for x, y in zip(a, b, strict=True))
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return a.dtype == b.dtype and close(a.tolist(), b.tolist(), tolerance)
    if isinstance(a, (bool, np.bool_)) or isinstance(b, (bool, np.bool_)):
        return type(a) is type(b) and bool(a == b)
    if isinstance(a, float) or isinstance(b, float):
        if not isinstance(a, (int, float)) or not isinstance(b, (int, float)):
            return False
        if a == b or (a != a and b != b):
            return True
        # An infinity equals only itself: its distance to others, and the tolerance relative to it, are infinite.
        return math.isfinite(a) and math.isfinite(b) and abs(a - b) <= tolerance * max(1.0, abs(a), abs(b))
    return bool(a == b)


def _contents(partials: Partials) -> list[list[Any]]:
    return [column.tolist() for column in partials]


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}… ({len(text)} characters)"
