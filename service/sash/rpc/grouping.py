"""Messages that select and group keys, as the engine's questions have them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sash_engine.windows.questions import EVERYTHING, Grouped, Having, Top, Where

_TOP = 10


def where_of(request: Any) -> Sequence[Where]:
    """Return the conditions on keys of a request."""
    return tuple([Where(each.part, each.op or "=", list(each.values)) for each in request.where])


def grouped_of(request: Any) -> Grouped:
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
        return EVERYTHING
    top = request.top
    return Grouped(
        where=where_of(request),
        by=list(request.by) or None,
        top=Top(top.by, top.n or _TOP, top.order or "desc") if request.HasField("top") else None,
        having=tuple(
            [
                Having(each.aggregate, each.op, each.integer if each.HasField("integer") else each.value)
                for each in request.having
            ]
        ),
        limit=request.limit if request.HasField("limit") else None,
        position=request.position,
        aggregates=list(request.aggregates),
    )
