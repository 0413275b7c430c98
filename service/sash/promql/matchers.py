"""Label matchers. Regular expressions are RE2's, matched against the whole value, in linear time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

import promql_parser
import re2

from sash.promql.errors import BadData
from sash.promql.parsing import pattern_of
from sash.promql.values import LOOKBACK, NAME, Labels
from sash_engine.steps import Steps

Operator = Literal["=", "!=", "=~", "!~"]

_OPERATORS: Mapping[str, Operator] = {
    "MatchOp.Equal": "=",
    "MatchOp.NotEqual": "!=",
    "MatchOp.Re": "=~",
    "MatchOp.NotRe": "!~",
}
_REGEX_MEMORY = 1 << 19
"""Some 9,000 instructions; a pattern that needs less compiles within 5 ms."""

MATCHERS_MAX = 500
"""Matchers of a selector."""

_STEP_NS = 1_500_000
_SERIES_NS, _MATCHER_NS = 2_000, 400
_HARD = 100
"""A character takes up to 10 ns for each of so many instructions of RE2, and 1.5 ns for each of the others."""


class Matcher:
    """One matcher, of a label that is the empty text where a series lacks it."""

    def __init__(self, name: str, operator: Operator, value: str) -> None:
        self.name, self.operator, self.value = name, operator, value
        self._regex: Any = None
        if operator in ("=~", "!~"):
            try:
                self._regex = compiled(value)
            except re2.error as error:
                raise BadData(
                    f"{name}: the regular expression is refused: {_text(error)}", field="query", limit="512 KiB of RE2"
                ) from None

    def work_ns(self, value: str) -> float:
        """About how long it takes at worst to match a value."""
        return _MATCHER_NS if self._regex is None else _MATCHER_NS + regex_ns(self._regex, value)

    @property
    def needs_value(self) -> bool:
        """Whether a series that lacks the label does not match."""
        return not self.matches("")

    def matches(self, value: str) -> bool:
        """Whether a value matches."""
        if self._regex is None:
            return (value == self.value) == (self.operator == "=")
        return (self._regex.fullmatch(value) is not None) == (self.operator == "=~")


class Matchers:
    """All matchers of a selector: groups, of which one must match whole; mostly there is one group."""

    def __init__(self, groups: list[list[Matcher]], lookback: str | None) -> None:
        self._groups = groups
        self.lookback = lookback

    @classmethod
    def of(cls, selector: promql_parser.VectorSelector) -> Matchers:
        """The matchers of a parsed selector."""
        found = selector.matchers
        count = len(found.matchers) + sum(len(group) for group in found.or_matchers)
        if count > MATCHERS_MAX:
            raise BadData(f"{count} matchers in one selector", field="query", limit=f"{MATCHERS_MAX} matchers")
        groups = [[_made(each) for each in group] for group in (found.or_matchers or [found.matchers])]
        if selector.name is None and not any(each.needs_value for group in groups for each in group):
            raise BadData("vector selector must contain at least one non-empty matcher", field="query")
        named = [] if selector.name is None else [Matcher(NAME, "=", selector.name)]
        lookbacks = [each for group in groups for each in group if each.name == LOOKBACK]
        if len(groups) > 1 and lookbacks:
            raise BadData(f"{LOOKBACK} cannot be combined with 'or'", field="query")
        if len(lookbacks) > 1 or any(each.operator != "=" for each in lookbacks):
            raise BadData(f'{LOOKBACK} takes one duration, as {LOOKBACK}="5m"', field="query")
        groups = [[*named, *(each for each in group if each.name != LOOKBACK)] for group in groups]
        return cls(groups, lookbacks[0].value if lookbacks else None)

    @property
    def alone(self) -> list[Matcher] | None:
        """The only group; None where there are several."""
        return self._groups[0] if len(self._groups) == 1 else None

    def equal(self, name: str) -> str | None:
        """The value that a label must have; None where several may do."""
        return next((each.value for each in self.alone or () if each.name == name and each.operator == "="), None)

    def constants(self) -> dict[str, str]:
        """The labels, but the name, that have exactly one matcher, by equality: those of a series that is absent."""
        group = self.alone or []
        names = [each.name for each in group]
        return {
            each.name: each.value
            for each in group
            if each.operator == "=" and each.value and each.name != NAME and names.count(each.name) == 1
        }

    def matches(self, labels: Labels) -> bool:
        """Whether a series matches."""
        return any(all(each.matches(labels.get(each.name, "")) for each in group) for group in self._groups)

    def which(self, series: Iterable[Labels]) -> Steps[list[bool]]:
        """Whether each of many series matches."""
        return _which(self._groups, series)

    def which_names(self, names: Iterable[str]) -> Steps[list[bool]]:
        """Whether series of metrics of these names may match, whatever their other labels are."""
        groups = [[each for each in group if each.name == NAME] for group in self._groups]
        if not all(groups):  # one of them takes all names
            groups = [[]]
        return _which(groups, ({NAME: name} for name in names))


def compiled(pattern: str) -> Any:
    """A regular expression; raises re2.error where it is none, or needs too much memory."""
    options = re2.Options()
    options.log_errors = False
    options.max_mem = _REGEX_MEMORY
    options.dot_nl = True
    return re2.compile(pattern, options)


def regex_ns(regex: Any, value: str) -> float:
    """About how long a regular expression of RE2 takes at worst with a value."""
    instructions = int(regex.programsize)
    return 1_000 + len(value) * (10 * min(instructions, _HARD) + 1.5 * max(instructions - _HARD, 0))


def _which(groups: list[list[Matcher]], series: Iterable[Labels]) -> Steps[list[bool]]:
    found, work = list[bool](), 0.0
    for labels in series:
        work += _SERIES_NS
        matches = False
        for group in groups:
            matches = True
            for each in group:
                value = labels.get(each.name, "")
                work += each.work_ns(value)
                if work > _STEP_NS:
                    yield
                    work = 0.0
                if not each.matches(value):
                    matches = False
                    break
            if matches:
                break
        found.append(matches)
    return found


def _made(matcher: promql_parser.Matcher) -> Matcher:
    operator = _OPERATORS[str(matcher.op)]
    return Matcher(matcher.name, operator, pattern_of(matcher.value) if operator in ("=~", "!~") else matcher.value)


def _text(error: Any) -> str:
    said = error.args[0] if error.args else ""
    return said.decode("utf-8", "replace") if isinstance(said, bytes) else str(said)
