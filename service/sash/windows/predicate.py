"""The slide policy `when`: a CEL expression over the aggregates of the whole and of what would leave.

    total.sum = 17      | 3 | 9 | 4 | 1 |
    old.sum   = 3, 12 …   ^ the candidate prefix: the longest one for which the expression holds leaves

Source: the window slide policy of Villalba, Berral, Carrera, TPDS 2019, section 3.3; the language is Google's Common
Expression Language, whose expressions always end and can reach nothing but the values they are given.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import cel

from sash.errors import InvalidArgument
from sash.monoids.base import FieldType, Monoid

__all__ = ["Predicate"]

FIELD = "slide.when"
MAX_LENGTH = 1000
_SAMPLES: dict[FieldType, Any] = {"float64": 1.5, "int64": 1, "string": "a", "bool": True}
_PART = re.compile(r"\b(total|old)\s*(?:\.\s*(\w+)|\[\s*['\"](\w+)['\"]\s*\])")


class Predicate:
    """A compiled expression.

    It must be *monotone*: where it holds for a prefix it holds for every shorter one, as `total` stays the same and
    `old` shrinks. The engine asks O(log n) times and takes that for granted; where it is not so, a prefix that leaves
    is one for which it held, but need not be the longest.

    Args:
        source: the expression; it names aggregates as ``total.sum`` and ``old.sum``, and has ``total.entries`` and
            ``old.entries`` besides.
        aggregates: the window's aggregates by name.

    Raises:
        InvalidArgument: it does not compile, names what is not there, or is no condition.
    """

    def __init__(self, source: str, aggregates: Mapping[str, Monoid]) -> None:
        self.source = source
        if len(source) > MAX_LENGTH:
            raise InvalidArgument("when: the expression is too long", field=FIELD, limit=f"{MAX_LENGTH} characters")
        try:
            self._program = cel.compile(source)
        except ValueError as error:
            raise InvalidArgument(f"when does not compile: {str(error).splitlines()[0]}", field=FIELD) from None
        for name in self._program.variables():
            if name not in ("total", "old"):
                raise InvalidArgument(f"when knows `total` and `old`, not {name!r}", field=FIELD)
        known = [*aggregates, "entries"]
        for whole, dotted, indexed in _PART.findall(source):
            if (dotted or indexed) not in known:
                raise InvalidArgument(
                    f"when: {whole} has no {dotted or indexed!r}; it has {', '.join(known)}", field=FIELD
                )
        self._try(aggregates)

    def holds(self, total: Mapping[str, Any], old: Mapping[str, Any]) -> bool:
        """Whether the prefix with the answers `old` may leave a window with the answers `total`.

        An expression that cannot be evaluated (a mean of nothing compared with a number) does not hold.
        """
        try:
            return self._program.execute({"total": total, "old": old}) is True
        except (ArithmeticError, KeyError, RuntimeError, TypeError, ValueError):
            return False

    def _try(self, aggregates: Mapping[str, Monoid]) -> None:
        """Evaluate over three made-up entries, which finds operands of the wrong type."""
        answers: dict[str, Any] = {"entries": 3}
        for name, monoid in aggregates.items():
            samples = tuple(_SAMPLES[kind] for kind in monoid.types)
            one = monoid.lift(samples[0] if len(samples) == 1 else samples)
            answers[name] = monoid.lower(monoid.combine(monoid.combine(one, one), one))
        try:
            found = self._program.execute({"total": answers, "old": answers})
        except (ArithmeticError, KeyError, RuntimeError, TypeError, ValueError) as error:
            raise InvalidArgument(f"when cannot be evaluated: {error}", field=FIELD) from None
        if not isinstance(found, bool):
            raise InvalidArgument(f"when is no condition: it gives a {type(found).__name__}", field=FIELD)
