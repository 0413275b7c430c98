"""A client that goes straight to the process that has a key, and follows shards that move.

    DirectClient ── query(key=…), insert(key=…) ──▶ the owner of the key's shard
                 └─ everything else ──────────────▶ the process that it was given

    DirectProducer ──▶ a Producer for each shard, which numbers its writes by itself: one commit on one shard

Through any process, a write of a producer costs a commit on every shard, because each shard must see all its numbers.
Here each shard has numbers of its own. So use a producer's name either with `DirectClient`, or with `Client`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any, Self, TypeVar, cast

import grpc
import numpy as np

from sash_client.answers import Topology, WriteResult
from sash_client.blocking import BlockingConnection, BlockingHandle
from sash_client.bulks import Columns, checked
from sash_client.client import Client
from sash_client.errors import DeadlineExceeded, FailedPrecondition, InvalidArgument, SashClientError, Unavailable
from sash_client.frames import bulk_of
from sash_client.keys import Key, text
from sash_client.owners import AGAIN_S, Owners, is_safe_elsewhere
from sash_client.parts import parts_joined
from sash_client.plans import Plan
from sash_client.producer import Producer
from sash_client.times import TimeLike
from sash_client.window import Window
from sash_client.windows import topology_of
from sash_client.writes import messages_of
from sash_proto.v1 import windows_pb2 as pb
from sash_wire.coded import Coded
from sash_wire.placement import shard_of, shards_of

__all__ = ["DirectClient", "DirectProducer", "DirectWindow"]


R = TypeVar("R")


class DirectClient(Client):
    """As `Client`, for services of several processes; it reaches each of them by gRPC.

    Args:
        target, options: as of `Client`; the target is an address of gRPC.
    """

    def __init__(self, target: str, **options: Any) -> None:
        super().__init__(target, **options)
        if self._http is not None:
            raise InvalidArgument("a direct client needs the address of gRPC: HOST:PORT", field="target")
        self.owners = Owners(self._learnt, self.target, self._opened_to)

    def _learnt(self) -> Topology:
        """Ask the process that it was given; where that one does not answer, ask the others that it knows."""
        try:
            return self.topology()
        except (Unavailable, DeadlineExceeded):
            for stub in self.owners.stubs():
                with suppress(grpc.RpcError, ValueError):  # gone, too; or closed
                    request = pb.GetTopologyRequest()
                    return topology_of(stub.GetTopology(request, timeout=self.timeout_s, metadata=self._said()))
            raise

    def _opened_to(self, address: str) -> grpc.Channel:
        return self._opened(address, list(self._options.items()))

    def close(self) -> None:
        """Close all connections; closing twice does nothing."""
        self.owners.close()
        super().close()

    def window(self, name: str) -> DirectWindow:
        """Return a handle on a window, as `Client.window`."""
        return DirectWindow(self, name)

    def _call(self, method: str, request: Any, timeout_s: float | None = None) -> Any:
        shard = self.owners.shard(method, request)
        if shard is None:
            return super()._call(method, request, timeout_s)
        try:
            return self._call_shard(shard, method, request, timeout_s)
        except SashClientError as error:
            if not is_safe_elsewhere(method, error):
                raise
        return super()._call(method, request, timeout_s)

    def _call_shard(
        self, shard: int, method: str, request: Any, timeout_s: float | None = None, alone: bool = False
    ) -> Any:
        """Make a call to the process that has a shard; `alone`: the call is for this shard, and is not passed on."""
        metadata = self._said() + ((("sash-shard", str(shard)),) if alone else ())
        return self.owners.call(shard, method, request, self.timeout_s if timeout_s is None else timeout_s, metadata)


class DirectWindow(Window):
    """A window whose producers number their writes for each shard."""

    def producer(self, name: str, **options: Any) -> Any:
        """Return a producer of this window, see `DirectProducer`."""
        return DirectProducer(self, name, **options)


class DirectProducer:
    """Sends entries to one window, each exactly once, and straight to the processes that have their keys.

    Close it, or use it as a context manager. Entries of one key arrive in the order in which they were taken.

    Args:
        window: of a `DirectClient`.
        name, options: as of `Producer`; `start` is by shard: what `acknowledged` said. `buffer_bytes` and
            `bulk_entries` are for each shard.
    """

    def __init__(
        self, window: DirectWindow, name: str, *, start: Mapping[int, int] | None = None, **options: Any
    ) -> None:
        self._window, self._name, self._options = window, text(name, "producer"), options
        self._client = cast("DirectClient", window._client)
        self._spec = window._spec()
        self._shards = self._client.owners.learnt()
        if not self._shards:
            raise Unavailable("the service has not said yet how many shards it has", retry_after_s=AGAIN_S)
        self._start = dict(start or {})
        self._producers: dict[int, Producer] = {}
        self._closed = False
        self._lock = threading.Lock()
        for shard in self._start:
            self._of(shard)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
            return
        for producer in self._all():
            producer.__exit__(kind, error, trace)

    @property
    def acknowledged(self) -> dict[int, int]:
        """By shard, the last number that the service has answered: `start` for the next producer of this name."""
        with self._lock:
            return {shard: producer.acknowledged for shard, producer in self._producers.items()}

    @property
    def result(self) -> WriteResult:
        """The outcome of all entries that were answered so far."""
        return sum((producer.result for producer in self._all()), WriteResult())

    def insert(
        self,
        time: TimeLike,
        value: float | None = None,
        *,
        fields: Mapping[str, Any] | None = None,
        key: Key | None = None,
    ) -> None:
        """Take one entry, to be sent soon; as `Producer.insert`."""
        self._client._check_process()
        whole = parts_joined(key, self._spec) if isinstance(key, Mapping) else key
        self._of(shard_of(self._window.name, whole if isinstance(whole, str) else None, self._shards)).insert(
            time, value, fields=fields, key=key
        )

    def bulk_insert(
        self,
        times: Any,
        columns: Any = None,
        *,
        keys: Any = None,
        partials: Mapping[str, Any] | None = None,
        entries: Any = None,
        time: str | None = None,
        key: str | None = None,
    ) -> None:
        """Take n entries, or a data frame; as `Producer.bulk_insert`. Each shard gets its entries in their order."""
        self._client._check_process()
        bulk = checked(bulk_of(times, columns, keys, partials, entries, time, key), self._spec)
        for shard, part in _split(self._window.name, bulk, self._shards):
            self._of(shard)._take(list(messages_of(self._window, part)))

    def flush(self, timeout_s: float | None = None) -> WriteResult:
        """Send all entries taken so far and wait for the answers; return `result`. Raises as `Producer.flush`."""
        for producer in self._all():
            producer.flush(timeout_s)
        return self.result

    def close(self, timeout_s: float | None = None) -> None:
        """Flush and end; closing twice does nothing. Raises the first error, with all that was not applied."""
        with self._lock:
            self._closed = True
        first: SashClientError | None = None
        for producer in self._all():
            try:
                producer.close(timeout_s)
            except SashClientError as error:
                if first is None:
                    first = error
                else:
                    first.unapplied += error.unapplied
        if first is not None:
            raise first

    def _all(self) -> list[Producer]:
        """The producers so far; other threads may add one at any time."""
        with self._lock:
            return list(self._producers.values())

    def _of(self, shard: int) -> Producer:
        with self._lock:
            if self._closed:
                raise FailedPrecondition(f"producer {self._name!r} is closed")
            if shard not in self._producers:
                client = cast("BlockingConnection", _OneShard(self._client, shard))
                handle = BlockingHandle(client, self._window.name, self._spec)
                start = self._start.get(shard, 0)
                self._producers[shard] = Producer(handle, self._name, start=start, **self._options)
            return self._producers[shard]


class _OneShard:
    """What a producer needs of its client, for writes to one shard."""

    def __init__(self, client: DirectClient, shard: int) -> None:
        self._client, self._shard = client, shard
        self.timeout_s = client.timeout_s
        self.bulk_entries_max, self.bulk_bytes_max = client.bulk_entries_max, client.bulk_bytes_max

    @property
    def _is_closed(self) -> bool:
        return self._client._is_closed

    def _check_process(self) -> None:
        self._client._check_process()

    def _perform(self, plan: Plan[R]) -> R:
        return self._client._perform(plan)

    def _call(self, method: str, request: Any, timeout_s: float | None = None) -> Any:
        return self._client._call_shard(self._shard, method, request, timeout_s, alone=True)


def _split(window: str, bulk: Columns, shards: int) -> Iterator[tuple[int, Columns]]:
    """The parts of a bulk, by shard."""
    if bulk.keys is None or shards == 1:
        yield shard_of(window, None, shards), bulk
        return
    of = shards_of(window, list(bulk.keys.dictionary), shards)[bulk.keys.codes]
    for shard in np.unique(of).tolist():
        yield shard, _rows(bulk, np.flatnonzero(of == shard))


def _rows(bulk: Columns, rows: Any) -> Columns:
    return Columns(
        bulk.times[rows],
        {name: _picked(column, rows) for name, column in bulk.fields.items()},
        None if bulk.keys is None else _picked(bulk.keys, rows),
        {name: [_picked(part, rows) for part in parts] for name, parts in bulk.partials.items()},
        None if bulk.entries is None else bulk.entries[rows],
    )


def _picked(column: Any, rows: Any) -> Any:
    if isinstance(column, Coded):
        return column.rows(rows)
    return [column[row] for row in rows.tolist()] if isinstance(column, list) else column[rows]
