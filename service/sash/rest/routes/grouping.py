"""Parameters of questions that select and group keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, cast

from sash.calls import refusing
from sash.rest.parameters import Parameter
from sash_engine.windows.choosing import check_top
from sash_engine.windows.costs import MAX_ANSWERS
from sash_engine.windows.questions import EVERYTHING, Comparison, Grouped, Having, Matcher, Top, Where
from sash_wire.labels import read_condition, read_having

__all__ = [
    "Aggregates",
    "By",
    "HavingTexts",
    "Limit",
    "N",
    "Order",
    "Position",
    "TopBy",
    "WhereTexts",
    "grouping",
    "where_of",
]

WhereTexts = Annotated[
    Sequence[str],
    Parameter(
        "Only keys for which this holds: `part=value`, `part!=value`, `part in (a, b)`, `part not in (a, b)`, "
        "`part=~regex` or `part!~regex` (RE2, of the whole value). May be repeated: all must hold. Without `key`, all "
        "keys are asked for.",
    ),
]
By = Annotated[
    Sequence[str],
    Parameter(
        "A part of keys: an answer for each group of keys that agree in it, over all their entries. May be repeated.",
    ),
]
TopBy = Annotated[
    str | None, Parameter("Only the first answers by this aggregate, or by `entries`; with lookbacks, by the first.")
]
N = Annotated[int, Parameter("With `top`: how many.", limits={"minimum": 1, "maximum": MAX_ANSWERS})]
Order = Annotated[str, Parameter("With `top`: the largest first, or the smallest.", limits={"enum": ["desc", "asc"]})]
HavingTexts = Annotated[
    Sequence[str],
    Parameter(
        "Only answers for which this holds: an aggregate, `=`, `!=`, `<`, `<=`, `>` or `>=`, and a number. May be "
        "repeated.",
    ),
]
Limit = Annotated[
    int | None,
    Parameter("The largest number of groups, or of keys, to answer.", limits={"minimum": 1, "maximum": MAX_ANSWERS}),
]
Position = Annotated[str, Parameter("Where to go on: `next` of the previous answer.")]
Aggregates = Annotated[
    Sequence[str],
    Parameter(
        "The name of an aggregate: only those that are named are computed and answered. May be repeated; without it, "
        "all. `top` and `having` may compare others.",
    ),
]


_N = 10
"""How many with `top`, where nothing is said."""


@refusing
def where_of(texts: Sequence[str]) -> Sequence[Where]:
    """Return conditions that are given as texts."""
    found = [read_condition(text) for text in texts]
    return tuple([Where(part, cast(Matcher, op), values) for part, op, values in found])


@refusing
def grouping(
    where: Sequence[str],
    by: Sequence[str],
    top: str | None,
    n: int,
    order: str,
    having: Sequence[str],
    limit: int | None,
    position: str,
    aggregates: Sequence[str],
) -> Grouped:
    """Return how a question selects and groups keys; the window checks it."""
    if not (where or by or having or top is not None or limit is not None or position) and (n, order) == (_N, "desc"):
        return Grouped(aggregates=aggregates) if aggregates else EVERYTHING
    first = Top(top or "entries", n, cast(Any, order))
    check_top(first)
    comparisons = [read_having(text) for text in having]
    return Grouped(
        where=where_of(where),
        by=by or None,
        top=None if top is None else first,
        having=tuple([Having(name, cast(Comparison, op), value) for name, op, value in comparisons]),
        limit=limit,
        position=position,
        aggregates=aggregates,
    )
