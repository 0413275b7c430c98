"""A handle on a window, and the operations that concern the window as a whole.

Operations are plans (see `plans`). The methods of `Window` and `aio.AsyncWindow` are these functions, which their
clients perform.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from sash_client.answers import WindowInfo
from sash_client.connection import Connection
from sash_client.grouping import fill_where
from sash_client.keys import text
from sash_client.plans import Ask, Plan
from sash_client.times import TimeLike, to_tick
from sash_client.wire import from_info, to_aggregates
from sash_proto.v1 import windows_pb2 as pb

__all__ = ["Handle", "add_aggregates", "describe", "keys", "known", "tick_of"]

_PAGE_KEYS = 10_000


class Handle:
    """A named window, and its spec once a call has needed that.

    Args:
        client: the connection.
        name: the window's name.
        spec: its spec, if it is known already.
    """

    def __init__(self, client: Connection, name: str, spec: pb.WindowSpec | None = None) -> None:
        self._client = client
        self._name = name
        self._message = spec

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._name!r})"

    @property
    def name(self) -> str:
        """The window's name."""
        return self._name


def describe(window: Handle) -> Plan[WindowInfo]:
    """Show the window as it is now."""
    message = yield Ask("GetWindow", pb.GetWindowRequest(name=window.name))
    window._message = message.spec
    return from_info(message)


def add_aggregates(window: Handle, aggregates: Mapping[str, Any] | str) -> Plan[WindowInfo]:
    """Add aggregates, and compute them from the window's entries. An aggregate that the window has stays as it is.

    Args:
        aggregates: by name, as in a spec: ``{"p95": {"function": "quantile", "q": 0.95}}``; or its YAML text.

    Raises:
        InvalidArgument: names the offending part in `field`.
        AlreadyExists: the window has an aggregate of that name with another definition.
    """
    request = pb.AddAggregatesRequest(window=window.name, aggregates=to_aggregates(aggregates))
    message = yield Ask("AddAggregates", request)
    window._message = message.spec
    return from_info(message)


def keys(window: Handle, prefix: str = "", *, limit: int | None = 1000, where: Any = None) -> Plan[list[str]]:
    """Return the keys that have entries and start with `prefix`, in the order of their first entries.

    They are fetched page by page, so that the service has time for others. A key that has entries from the first page
    to the last is listed once.

    Args:
        prefix: only keys that start with it.
        limit: at most so many; None: all.
        where: conditions on parts of keys, as of `query`: only keys for which they hold.
    """
    found: list[str] = []
    position: int | None = 0
    while position is not None:
        most = _PAGE_KEYS if limit is None else min(limit - len(found), _PAGE_KEYS)
        request = pb.ListKeysRequest(window=window.name, prefix=text(prefix, "prefix"), limit=most, position=position)
        fill_where(request, where)
        page = yield Ask("ListKeys", request)
        found += page.keys
        position = page.next if page.HasField("next") and len(found) != limit else None
    return found


def known(window: Handle) -> Plan[pb.WindowSpec]:
    """Return the window's spec, which is fetched once."""
    if window._message is None:
        yield from describe(window)
    assert window._message is not None
    return window._message


def tick_of(window: Handle, time: TimeLike, field: str) -> Plan[int]:
    """Return a time in ticks of the window."""
    # Ticks need no spec, which saves the first call of a producer that inserts single entries.
    ticks = isinstance(time, int | np.integer)
    unit = "none" if ticks else (yield from known(window)).time_unit or "us"
    return to_tick(time, unit, field)
