"""Which keys a question is about: one, several or all of them, those that meet conditions, and groups of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, Final, TypedDict

from sash_client.data.times import Duration
from sash_client.errors import InvalidArgument, refusing
from sash_proto.v1 import windows_pb2 as pb
from sash_wire.labels import conditions_of, read_having

Key = str | Mapping[str, str]
"""A key: a text, or its parts by name."""


class AllKeys(Enum):
    """Stands for every key there is."""

    ALL_KEYS = "all_keys"


ALL_KEYS: Final = AllKeys.ALL_KEYS
"""For `keys`: every key there is."""


def set_keys(request: Any, key: str | None, keys: Sequence[str] | AllKeys | None) -> None:
    """Write into a request which keys it is about.

    Args:
        request: a message with `key`, `keys` and `all_keys`.
        key: the one key.
        keys: several keys, or `ALL_KEYS`; instead of `key`.

    Raises:
        InvalidArgument: both are given, or `keys` is empty or no list of strings.
    """
    if key is not None:
        if keys is not None:
            raise InvalidArgument("give either key or keys", field="keys")
        request.key = text(key)
        return
    if keys is None:
        return
    if isinstance(keys, AllKeys):
        request.all_keys = True
        return
    if isinstance(keys, str):
        raise InvalidArgument("keys is a list: ['JFK', 'LGA']", field="keys")
    named = [text(item, "keys") for item in keys]
    if not named:
        # On the wire no key in the list and no list are the same.
        raise InvalidArgument("keys is empty", field="keys")
    request.keys.extend(named)


def text(key: Any, field: str = "key") -> str:
    """Return a key as it is; raises InvalidArgument if it is not a string."""
    if not isinstance(key, str):
        raise InvalidArgument(f"{field}: {key!r:.80} is not a string", field=field)
    return str(key)


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


class Pairing(TypedDict, total=False):
    """How a question about pairs names keys, lookbacks and aggregates; `Window.answers_at` describes it."""

    keys: Any
    key: str | None
    lookbacks: Sequence[Duration]
    where: Any
    aggregates: str | Sequence[str] | None
    partial: str
    known_at: Any


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
