"""Parameters of questions that select and group keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from pydantic import Field

from sash.calls import refusing
from sash.rest.models import ABSENT, Int64, Parameters, Texts
from sash_engine.errors import InvalidArgument
from sash_engine.windows.questions import (
    ALL_KEYS,
    EVERYTHING,
    Comparison,
    Grouped,
    Having,
    KeyList,
    Matcher,
    Top,
    Where,
)
from sash_engine.windows.reading.choosing import check_top
from sash_engine.windows.reading.costs import MAX_ANSWERS
from sash_wire.labels import read_condition, read_having


class Conditions(Parameters):
    where: Texts = ()
    """Only keys for which this holds: `part=value`, `part!=value`, `part in (a, b)`, `part not in (a, b)`,
    `part=~regex` or `part!~regex` (RE2, of the whole value). May be repeated: all must hold. Without `key`, all keys
    are asked for."""

    @refusing
    def conditions(self) -> Sequence[Where]:
        """Return the conditions as values."""
        found = [read_condition(text) for text in self.where]
        return tuple([Where(part, cast(Matcher, op), values) for part, op, values in found])


class Selecting(Conditions):
    """Which keys a question is about."""

    key: Texts = Field((), examples=[["JFK"]])
    """The key. A keyed window needs this or `all_keys`. May be repeated."""
    all_keys: bool = False
    """Every key that has entries, instead of `key`."""

    def keys(self) -> tuple[str | None, KeyList]:
        """Return the one key, and the several keys, that are asked for: at most one of the two is there."""
        if self.all_keys:
            if self.key:
                raise InvalidArgument("give either key or all_keys", field="all_keys")
            return None, ALL_KEYS
        return (self.key[0] if self.key else None, ()) if len(self.key) < 2 else (None, self.key)


class Grouping(Selecting):
    """How a question groups the keys, and which of the answers it wants."""

    by: Texts = ()
    """A part of keys: an answer for each group of keys that agree in it, over all their entries. May be repeated."""
    top: str = ABSENT
    """Only the first answers by this aggregate, or by `entries`; with lookbacks, by the first."""
    n: Int64 = Field(10, json_schema_extra={"minimum": 1, "maximum": MAX_ANSWERS})
    """With `top`: how many."""
    order: str = Field("desc", json_schema_extra={"enum": ["desc", "asc"]})
    """With `top`: the largest first, or the smallest."""
    having: Texts = ()
    """Only answers for which this holds: an aggregate, `=`, `!=`, `<`, `<=`, `>` or `>=`, and a number. May be
    repeated."""
    limit: Int64 = Field(ABSENT, json_schema_extra={"minimum": 1, "maximum": MAX_ANSWERS})
    """The largest number of groups, or of keys, to answer."""
    position: str = ""
    """Where to go on: `next` of the previous answer."""
    aggregate: Texts = ()
    """The name of an aggregate: only those that are named are computed and answered. May be repeated; without it, all.
    `top` and `having` may compare others."""

    @refusing
    def selection(self) -> Grouped:
        """Return what the question selects; the window checks it."""
        if self.model_fields_set.isdisjoint(_GROUPING):
            return EVERYTHING
        first = Top(self.top or "entries", self.n, cast(Any, self.order))
        check_top(first)
        comparisons = [read_having(text) for text in self.having]
        return Grouped(
            where=self.conditions(),
            by=self.by or None,
            top=None if self.top is None else first,
            having=tuple([Having(name, cast(Comparison, op), value) for name, op, value in comparisons]),
            limit=self.limit,
            position=self.position,
            aggregates=self.aggregate,
        )


_GROUPING = frozenset(Grouping.model_fields) - {"key", "all_keys"}


class Partial(Grouping):
    partial: str = Field("", json_schema_extra={"enum": ["allow"]})
    """Answer also if some shards are away; `missing_shards` says which."""
