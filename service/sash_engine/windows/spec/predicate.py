"""The slide policy `when`: a CEL expression over the aggregates of all entries and of those that would leave.

    total.sum = 17      | 3 | 9 | 4 | 1 |
    old.sum   = 3, 12 …   ^ the candidate prefix: the longest one for which the expression holds leaves

It is evaluated while other calls wait. So its cost must be bounded by its length and the length of the answers. It may
have no macros, because ten nested ones make 10^10 passes, and no regular expressions, because 30 bytes can take 50 ms
to compile. Where answers may be long, it may have few additions.

Source: the window slide policy of Villalba, Berral, Carrera, TPDS 2019, section 3.3; the language is Google's Common
Expression Language, whose expressions always end and can reach nothing but the values they are given.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from sash_engine.errors import InvalidArgument
from sash_engine.monoids.base import FieldType, Monoid
from sash_wire.meant import instead

FIELD = "slide.when"
MAX_LENGTH = 1000
MAX_SUMS = 8
"""Additions where an answer may be long: 250 of them, of a text of 1 MB, would copy 31 GB."""
_LONG = (list, dict, bytes, str)
_SAMPLES: dict[FieldType, Any] = {"float64": 1.5, "int64": 1, "string": "a", "bool": True}
_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1
# It is refused within a string as well, which is no loss.
_MACRO = re.compile(r"\b(all|exists|exists_one|map|filter)\s*(?:\(|//)")
_PART = re.compile(r"\b(total|old)\s*(?:\.\s*(\w+)|\[\s*['\"](\w+)['\"]\s*\])")


class Predicate:
    """A compiled expression.

    It must be *monotone*: if it holds for a prefix, it holds for every shorter one (`total` stays the same and `old`
    shrinks). The engine asks O(log n) times and relies on that. If an expression is not monotone, the prefix that
    leaves is one for which it held, but may not be the longest.

    Args:
        source: the expression; it names aggregates as ``total.sum`` and ``old.sum``, and has ``total.entries`` and
            ``old.entries`` besides.
        aggregates: the window's aggregates by name, none of which may be called ``entries``.

    Raises:
        InvalidArgument: it does not compile, names what is not there or is not taken, cannot be evaluated over the
            answers of three entries, or is no condition.
    """

    def __init__(self, source: str, aggregates: Mapping[str, Monoid]) -> None:
        self.source = source
        if len(source) > MAX_LENGTH:
            raise InvalidArgument("when: the expression is too long", field=FIELD, limit=f"{MAX_LENGTH} characters")
        if "entries" in aggregates:
            raise InvalidArgument(
                "when has `entries` of its own, how many they are: call the aggregate otherwise",
                field="aggregates.entries",
            )
        import cel  # here: it takes a third of the time that a spec takes to import, and most have no `when`

        try:
            self._program = cel.compile(source)
        except ValueError as error:
            raise InvalidArgument(f"when does not compile: {str(error).splitlines()[0]}", field=FIELD) from None
        found = _MACRO.search(source)
        name = found.group(1) if found else "matches" if "matches" in self._program.functions() else None
        if name is not None:
            raise InvalidArgument(
                f"when takes no {name!r}, which may take as long as it likes",
                field=FIELD,
                limit="no macros (all, exists, exists_one, filter, map) and no matches",
            )
        for name in self._program.variables():
            if name not in ("total", "old"):
                raise InvalidArgument(f"when knows `total` and `old`, not {name!r}", field=FIELD)
        known = [*aggregates, "entries"]
        for whole, dotted, indexed in _PART.findall(source):
            if (dotted or indexed) not in known:
                no = f"no {dotted or indexed!r}{instead(dotted or indexed, known, 'it has')}"
                raise InvalidArgument(f"when: {whole} has {no}", field=FIELD)
        long = [name for name, monoid in aggregates.items() if monoid.answer in _LONG or "string" in monoid.types]
        if long and source.count("+") > MAX_SUMS:
            raise InvalidArgument(
                f"when has {source.count('+')} additions, each of which copies texts and lists, and the answers of "
                f"{long[0]!r} may be long",
                field=FIELD,
                limit=f"{MAX_SUMS} additions",
            )
        self._try(aggregates)

    def holds(self, total: Mapping[str, Any], old: Mapping[str, Any]) -> bool:
        """Whether the prefix with the answers `old` may leave a window with the answers `total`.

        An expression that cannot be evaluated (a mean of nothing compared with a number, the second of one) does not
        hold: the write that asks has been applied. Integers beyond int64 count as its ends, so that they stay integers.
        """
        try:
            return self._evaluate(total, old) is True
        except Exception:  # the language has errors of many kinds, and whichever it is would come after the write
            return False

    def _evaluate(self, total: Mapping[str, Any], old: Mapping[str, Any]) -> Any:
        return self._program.execute({"total": _clamped(total), "old": _clamped(old)})

    def _try(self, aggregates: Mapping[str, Monoid]) -> None:
        """Evaluate over three made-up entries, which finds operands of the wrong type."""
        answers: dict[str, Any] = {"entries": 3}
        for name, monoid in aggregates.items():
            samples = tuple(_SAMPLES[kind] for kind in monoid.types)
            one = monoid.lift(samples[0] if len(samples) == 1 else samples)
            answer = monoid.lower(monoid.combine(monoid.combine(one, one), one))
            # Three equal entries have no slope and no correlation. Others do.
            answers[name] = 1.5 if answer is None and monoid.answer is float else answer
        try:
            found = self._evaluate(answers, answers)
        except Exception as error:
            raise InvalidArgument(f"when cannot be evaluated: {error}", field=FIELD) from None
        if not isinstance(found, bool):
            raise InvalidArgument(f"when is no condition: it gives a {type(found).__name__}", field=FIELD)


def _clamped(answers: Mapping[str, Any]) -> Mapping[str, Any]:
    """Answers whose integers are int64: larger ones would be of other types there, which nothing adds to."""
    return {
        name: min(max(answer, _INT64_MIN), _INT64_MAX) if type(answer) is int else answer
        for name, answer in answers.items()
    }
