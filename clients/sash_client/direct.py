"""Clients that go straight to the process that has a key, and follow shards that move.

    DirectClient         ── query(key=…), insert(key=…) ──▶ the owner of the key's shard
    AsyncDirectClient    ── bulk_insert, stage ───────────▶ each owner gets the rows of its keys, at the same time
                         └─ everything else ──────────────▶ the process that it was given

    DirectProducer       ──▶ a Producer for each shard, which numbers its writes by itself: one commit on one shard
    AsyncDirectProducer

Through any process, a write of a producer costs a commit on every shard, because each shard must see all its numbers.
Here each shard has numbers of its own. So use a producer's name either with direct clients, or with the others.
`owners.py` finds the way of each call, for both clients.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self, Unpack

from sash_client.aio import AsyncClient, AsyncProducer, AsyncWindow
from sash_client.answers import WriteResult
from sash_client.calls.connection import Connection
from sash_client.calls.owners import Owners
from sash_client.calls.plans import Ask, Plan
from sash_client.client import Client, Window
from sash_client.data.bulks import Rows, bulk_of, checked
from sash_client.data.times import TimeLike
from sash_client.errors import FailedPrecondition, InvalidArgument, SashClientError
from sash_client.windows.handle import Handle, created, parts_joined, spec_of
from sash_client.windows.keys import Key, text
from sash_client.windows.producer import Producer
from sash_client.windows.writes import messages_of
from sash_proto.v1 import windows_pb2 as pb
from sash_wire.placement import shard_of, shards_of


class _DirectConnection(Connection):
    """A connection that knows the map."""

    def __init__(self, target: str, **options: Any) -> None:
        super().__init__(target, **options)
        if self._http is not None:
            raise InvalidArgument("a direct client needs the address of gRPC: HOST:PORT", field="target")
        self.owners = self._owners = Owners(self.target, self.timeout_s)


class DirectClient(_DirectConnection, Client):
    """As `Client`, for services of several processes; it reaches each of them by gRPC.

    Args:
        target, options: as of `Client`; the target is an address of gRPC.
    """

    def create_window(self, spec: Mapping[str, Any] | str) -> DirectWindow:
        """Create a window, as `Client.create_window`."""
        made = self._perform(created(spec))
        return DirectWindow(self, made.name, made)

    def window(self, name: str) -> DirectWindow:
        """Return a handle on a window, as `Client.window`."""
        return DirectWindow(self, name)


class DirectWindow(Window):
    """A window whose producers number their writes for each shard."""

    def producer(self, name: str, **options: Any) -> Any:
        """Return a producer of this window, see `DirectProducer`."""
        return DirectProducer(self, name, **options)


class AsyncDirectClient(_DirectConnection, AsyncClient):
    """As `AsyncClient`, for services of several processes; it reaches each of them by gRPC.

    Args:
        target, options: as of `AsyncClient`; the target is an address of gRPC.
    """

    async def create_window(self, spec: Mapping[str, Any] | str) -> AsyncDirectWindow:
        """Create a window, as `AsyncClient.create_window`."""
        made = await self._perform(created(spec))
        return AsyncDirectWindow(self, made.name, made)

    def window(self, name: str) -> AsyncDirectWindow:
        """Return a handle on a window, as `AsyncClient.window`."""
        return AsyncDirectWindow(self, name)


class AsyncDirectWindow(AsyncWindow):
    """A window whose producers number their writes for each shard."""

    def producer(self, name: str, **options: Any) -> AsyncDirectProducer:
        """Return a producer of this window, see `AsyncDirectProducer`."""
        return AsyncDirectProducer(self, name, **options)


class DirectProducer:
    """Sends entries to one window, each exactly once, and straight to the processes that have their keys.

    Close it, or use it as a context manager. Entries of one key arrive in the order in which they were taken.

    Args:
        window: of a `DirectClient`.
        name, options: as of `Producer`; `start` is by shard: what `acknowledged` said. `buffer_bytes` and
            `bulk_entries` are for each shard.
    """

    def __init__(self, window: Handle, name: str, *, start: Mapping[int, int] | None = None, **options: Any) -> None:
        self._window, self._name, self._options = window, text(name, "producer"), options
        self._client = window._client
        self._spec = spec_of(window)
        owners = self._client._owners
        if owners is None:
            raise InvalidArgument("a direct producer is for windows of a direct client", field="window")
        self._shards = self._client._perform(owners.learnt())
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
        self._at(key).insert(time, value, fields=fields, key=key)

    def bulk_insert(self, times: Any, columns: Any = None, **rows: Unpack[Rows]) -> None:
        """Take n entries, or a data frame; as `Producer.bulk_insert`. Each shard gets its entries in their order."""
        self._client._check_process()
        bulk = checked(bulk_of(times, columns, **rows), self._spec)
        if bulk.keys is None:
            parts = [(shard_of(self._window.name, None, self._shards), bulk)]
        else:
            shards = shards_of(self._window.name, list(bulk.keys.dictionary), self._shards)
            parts = list(bulk.split(shards[bulk.keys.codes]))
        for shard, part in parts:
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

    def _at(self, key: Key | None) -> Producer:
        """The producer for entries of a key."""
        self._client._check_process()
        whole = parts_joined(key, self._spec) if isinstance(key, Mapping) else key
        return self._of(shard_of(self._window.name, whole if isinstance(whole, str) else None, self._shards))

    def _of(self, shard: int) -> Producer:
        with self._lock:
            if self._closed:
                raise FailedPrecondition(f"producer {self._name!r} is closed")
            if shard not in self._producers:
                window = Handle(self._client, self._window.name, self._spec)
                start = self._start.get(shard, 0)
                self._producers[shard] = _ShardProducer(shard, window, self._name, start=start, **self._options)
            return self._producers[shard]


class AsyncDirectProducer(AsyncProducer):
    """As `DirectProducer`, for asyncio.

    Args:
        window: of an `AsyncDirectClient`.
        name, options: as of `DirectProducer`.
    """

    _made = DirectProducer


class _ShardProducer(Producer):
    """Sends its messages to one shard, wherever that is."""

    def __init__(self, shard: int, window: Handle, name: str, **options: Any) -> None:
        self._shard = shard
        super().__init__(window, name, **options)

    def _asked(self, message: pb.BulkInsertRequest) -> Any:
        return self._window._client._perform(_alone(Ask("BulkInsert", message, owner=self._shard, alone=True)))


def _alone(ask: Ask) -> Plan[Any]:
    return (yield ask)
