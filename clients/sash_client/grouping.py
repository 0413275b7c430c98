"""Questions that select keys by their parts and group them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypedDict

from sash_client.errors import InvalidArgument, refusing
from sash_client.keys import text
from sash_proto.v1 import windows_pb2 as pb
from sash_wire.labels import conditions_of, read_having

__all__ = ["Grouping", "fill_aggregates", "fill_grouping", "fill_where"]


class Grouping(TypedDict, total=False):
    """How a question selects and groups keys.

    Args:
        where: conditions on parts of keys, all of which must hold: a mapping ``{"carrier": ["AA", "B6"]}``, a text
            ``"airport=~J.*"``, or a list of these. Without `key` and `keys`, of all keys.
        by: names of parts: an answer for each group of keys that agree in these, over all their entries.
        top: only the first `n` answers by this aggregate, or by "entries"; with lookbacks, by the first one.
        n: with `top`: how many; 10 if left out.
        order: with `top`: "desc" (the largest first) or "asc".
        having: comparisons of aggregates with numbers, all of which must hold: ``"mean > 10"``, or a list of these.
        limit: at most so many groups, or keys.
        position: where to go on: `next` of the answers before.
        aggregates: names: only these aggregates are computed and answered; all if left out or empty. `top` and `having`
            may compare others.
    """

    where: Any
    by: str | Sequence[str]
    top: str
    n: int
    order: str
    having: str | Sequence[str]
    limit: int
    position: str
    aggregates: str | Sequence[str]


@refusing
def fill_where(request: Any, where: Any) -> None:
    """Write conditions into a request; None: there are none."""
    for part, op, values in conditions_of(() if where is None else where):
        request.where.add(part=part, op=op, values=values)


def fill_aggregates(request: Any, aggregates: str | Sequence[str] | None) -> None:
    """Write into a request which aggregates it asks for; None or empty: all."""
    names = [aggregates] if isinstance(aggregates, str) else aggregates or ()
    request.aggregates.extend([text(name, "aggregates") for name in names])


@refusing
def fill_grouping(request: Any, grouping: Grouping) -> None:
    """Write into a request how it selects and groups keys.

    Raises:
        InvalidArgument: a condition or comparison is none, or a value is of a wrong type.
        TypeError: there is no such argument.
    """
    for name in grouping:
        if name not in Grouping.__annotations__:
            raise TypeError(f"unexpected argument {name!r}")
    fill_where(request, grouping.get("where"))
    fill_aggregates(request, grouping.get("aggregates"))
    by = grouping.get("by", ())
    request.by.extend([text(name, "by") for name in ([by] if isinstance(by, str) else by)])
    if (top := grouping.get("top")) is not None:
        try:
            request.top.CopyFrom(pb.Top(by=top, n=grouping.get("n", 0), order=grouping.get("order", "")))
        except (TypeError, ValueError) as error:
            raise InvalidArgument(f"top: {error}", field="top") from None
    elif "n" in grouping or "order" in grouping:
        raise InvalidArgument("n and order go with top", field="top")
    having = grouping.get("having", ())
    for each in [having] if isinstance(having, str) else having:
        aggregate, op, number = read_having(text(each, "having"))
        made = request.having.add(aggregate=aggregate, op=op, value=number)
        if isinstance(number, int) and int(made.value) != number and abs(number) < 2**63:
            made.integer = number
    for name in ("limit", "position"):
        if (value := grouping.get(name)) is not None:
            try:
                setattr(request, name, value)
            except (TypeError, ValueError) as error:
                raise InvalidArgument(f"{name}: {error}", field=name) from None
