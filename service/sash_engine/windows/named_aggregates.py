"""Questions that name aggregates: a part of the reader that folds and answers only these answers them.

window   n  sum  mean  p50  p99  distinct  …        the reader has all
asked    [n, p99]  ──▶  its part for (n, p99)       kept for the next question that names these two
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import wraps
from typing import Self, TypeVar

from sash_engine.errors import InvalidArgument
from sash_engine.windows.questions import GroupedQuestion

__all__ = ["NamedAggregates", "named", "narrowed"]

_KEPT = 64
"""So many parts of a reader are kept: some KiB each."""


class NamedAggregates:
    """A reader that has parts.

    Args:
        window: its name.
        known: the aggregates that it answers.
    """

    def __init__(self, window: str, known: Collection[str]) -> None:
        self._window, self._known = window, known
        self._parts = dict[tuple[str, ...], Self]()

    def _part(self, names: Sequence[str]) -> Self:
        """A part that folds and answers only some aggregates."""
        raise NotImplementedError

    def _for(self, names: Sequence[str]) -> Self:
        """The part for the aggregates that a question names; raises as `named`."""
        wanted = named(names, self._known, self._window)
        if len(wanted) == len(self._known):
            return self
        found = self._parts.get(wanted)
        if found is None:
            if len(self._parts) >= _KEPT:
                self._parts.clear()
            found = self._parts[wanted] = self._part(wanted)
        return found


S = TypeVar("S", bound=NamedAggregates)
Q = TypeVar("Q", bound=GroupedQuestion)
R = TypeVar("R")


def narrowed(method: Callable[[S, Q], R]) -> Callable[[S, Q], R]:
    """Have the part of a reader answer that is for the aggregates that the question names."""

    @wraps(method)
    def call(self: S, question: Q) -> R:
        names = question.selection.aggregates
        return method(self._for(names) if names else self, question)

    return call


def named(names: Sequence[str], known: Collection[str], window: str) -> tuple[str, ...]:
    """The aggregates that a question names, each once, in the order of the spec.

    Raises:
        InvalidArgument: the window has no such aggregate, or the names are one text.
    """
    if isinstance(names, str):
        raise InvalidArgument("aggregates is a list of names", field="aggregates")
    asked = frozenset(names)
    if unknown := asked.difference(known):
        wrong, there = next(name for name in names if name in unknown), ", ".join(known)
        raise InvalidArgument(
            f"aggregates: window {window!r} has no aggregate {str(wrong)[:140]!r}; it has {there}",
            field="aggregates",
            limit=there,
        )
    return tuple([name for name in known if name in asked])
