"""A handle on a window, and the operations that concern windows as a whole: create, list, describe and delete them.

Operations are plans (see `plans`), which `Client` and `aio.AsyncClient` perform. The methods of `Window` and
`aio.AsyncWindow` are these functions, and those of `questions` and `writes`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sash_client.answers import Topology, WindowInfo
from sash_client.calls.plans import Ask, Plan
from sash_client.data.times import TimeLike, to_tick
from sash_client.data.wire import from_info, from_topology, to_aggregates, to_spec
from sash_client.errors import refusing
from sash_client.windows.keys import AllKeys, Key, fill_where, text
from sash_proto.v1 import windows_pb2 as pb
from sash_wire.key_parts import key_of_parts

_PAGE_KEYS = 10_000


class Handle:
    """A named window, and its spec once a call has needed that.

    Args:
        client: the connection.
        name: the window's name.
        spec: its spec, if it is known already.
    """

    def __init__(self, client: Any, name: str, spec: pb.WindowSpec | None = None) -> None:
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
        where: conditions on parts of keys, as of `query`: only keys that meet them.
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


def spec_of(window: Handle) -> pb.WindowSpec:
    """Return the window's spec by a client that blocks; one that is known makes no call."""
    found: pb.WindowSpec = window._client._perform(known(window)) if window._message is None else window._message
    return found


def tick_of(window: Handle, time: TimeLike, field: str) -> Plan[int]:
    """Return a time in ticks of the window."""
    # Ticks need no spec, which saves the first call of a producer that inserts single entries.
    ticks = isinstance(time, int | np.integer)
    unit = "none" if ticks else (yield from known(window)).time_unit or "us"
    return to_tick(time, unit, field)


def key_text(window: Handle, key: Key | None) -> Plan[str | None]:
    """Return a key as it travels: its parts are joined."""
    if key is None:
        return None
    if not isinstance(key, Mapping):
        return text(key)
    return parts_joined(key, (yield from known(window)))


def keys_texts(window: Handle, keys: Sequence[Key] | AllKeys | None) -> Plan[Sequence[str] | AllKeys | None]:
    """Return the keys of a question as they travel."""
    if keys is None or isinstance(keys, str | AllKeys):
        return keys
    found = list[Any]()
    for key in keys:
        found.append((yield from key_text(window, key)) if isinstance(key, Mapping) else key)
    return found


@refusing
def parts_joined(key: Mapping[str, str], spec: pb.WindowSpec) -> str:
    """Return the key that has these parts, by name."""
    return key_of_parts(key, spec.keys, f"window {spec.name!r}")


def created(spec: Mapping[str, Any] | str) -> Plan[pb.WindowSpec]:
    """Create a window; return its spec. See `Client.create_window`."""
    response = yield Ask("CreateWindow", pb.CreateWindowRequest(spec=to_spec(spec)))
    made: pb.WindowSpec = response.window.spec
    return made


def list_windows(client: Any) -> Plan[list[WindowInfo]]:
    """Show all windows."""
    response = yield Ask("ListWindows", pb.ListWindowsRequest())
    return [from_info(window) for window in response.windows]


def delete_window(client: Any, name: str) -> Plan[int]:
    """Delete a window and its entries; return how many it had. Raises NotFound."""
    response = yield Ask("DeleteWindow", pb.DeleteWindowRequest(name=name))
    return int(response.entries)


def topology(client: Any) -> Plan[Topology]:
    """Show which processes serve the windows, and which shards each has."""
    return from_topology((yield Ask("GetTopology", pb.GetTopologyRequest())))


def move_shard(client: Any, shard: int, process: int) -> Plan[Topology]:
    """Have a process take a shard, where processes share them by leases; returns when it has it.

    Raises:
        InvalidArgument: there is no such shard or process.
        Unavailable: the process does not have it in time.
        Unsupported: shards stay where they are.
    """
    return from_topology((yield Ask("MoveShard", pb.MoveShardRequest(shard=shard, process=process))))
