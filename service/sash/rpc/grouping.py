"""Messages that select and group keys, as the engine's questions have them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypedDict

from sash_engine.windows.questions import Having, Top, Where

__all__ = ["Grouping", "grouped_of", "where_of"]

_TOP = 10


class Grouping(TypedDict):
    """The arguments of a `Grouped`."""

    where: Sequence[Where]
    by: Sequence[str] | None
    top: Top | None
    having: Sequence[Having]
    limit: int | None
    position: str
    aggregates: Sequence[str]


_PLAIN: Grouping = {"where": (), "by": None, "top": None, "having": (), "limit": None, "position": "", "aggregates": ()}


def where_of(request: Any) -> Sequence[Where]:
    """Return the conditions on keys of a request."""
    return tuple([Where(each.part, each.op or "=", list(each.values)) for each in request.where])


def grouped_of(request: Any) -> Grouping:
    """Return how a request selects and groups keys; the window checks it."""
    if not (
        request.where
        or request.by
        or request.having
        or request.position
        or request.aggregates
        or request.HasField("top")
        or request.HasField("limit")
    ):
        return _PLAIN
    top = request.top
    return {
        "where": where_of(request),
        "by": list(request.by) or None,
        "top": Top(top.by, top.n or _TOP, top.order or "desc") if request.HasField("top") else None,
        "having": tuple(
            [
                Having(each.aggregate, each.op, each.integer if each.HasField("integer") else each.value)
                for each in request.having
            ]
        ),
        "limit": request.limit if request.HasField("limit") else None,
        "position": request.position,
        "aggregates": list(request.aggregates),
    }
