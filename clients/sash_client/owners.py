"""Which process has which shard, and calls that go straight to it.

    call for one key ──▶ shard ──▶ map ──▶ the owner's channel        the map: GetTopology, again after an error
    any other call   ─────────────────────▶ the client's own channel

A call that goes to the wrong process is answered all the same: the process passes it on. Only a call that says which
shard it is for (`sash-shard`) is not.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import grpc

from sash_client.answers import Topology
from sash_client.errors import SashClientError, Unavailable, from_rpc
from sash_proto.v1 import windows_pb2_grpc
from sash_wire.placement import shard_of

__all__ = ["AGAIN_S", "Owners", "is_safe_elsewhere", "targets_of"]

AGAIN_S = 0.2
"""So long a map is not asked for again."""
_ONE_KEY = frozenset({"Insert", "BulkEvict", "Query", "RangeQuery", "Series"})


class Owners:
    """The map, as it was learnt last, and a channel to each owner.

    Args:
        learn: asks the service for its processes.
        service: its address, for processes that do not say where they are.
        opened: opens a channel to an address.
    """

    def __init__(self, learn: Callable[[], Topology], service: str, opened: Callable[[str], grpc.Channel]) -> None:
        self._learn, self._service, self._opened = learn, service, opened
        self._lock = threading.Lock()
        self._targets: Mapping[int, str] | None = None
        self._asked_s = float("-inf")
        self._channels: dict[str, tuple[grpc.Channel, Any]] = {}
        self.shards = 0
        """How many there are; 0 until the map was learnt."""

    def learnt(self) -> int:
        """Learn the map if that has not happened, and return the number of shards. Raises as `Client.topology`."""
        with self._lock:
            if self._targets is None and time.monotonic() - self._asked_s > AGAIN_S:
                self._asked_s = time.monotonic()
                found = self._learn()
                self.shards, self._targets = found.shards, targets_of(found, self._service)
        return self.shards

    def stubs(self) -> list[Any]:
        """The methods of each process that was called."""
        return [stub for _, stub in list(self._channels.values())]

    def forget(self) -> None:
        """Learn the map again before the next call."""
        self._targets = None

    def shard(self, method: str, request: Any) -> int | None:
        """The shard that a call is for; None if it is for several, or nobody knows."""
        if method not in _ONE_KEY or not request.HasField("key") or not self.learnt():
            return None
        return shard_of(request.window, request.key, self.shards)

    def stub(self, shard: int) -> Any:
        """The methods of the process that has a shard; raises Unavailable if there is none."""
        self.learnt()
        target = (self._targets or {}).get(shard)
        if target is None:
            self.forget()
            away = Unavailable(f"nobody says that it has shard {shard}", retry_after_s=AGAIN_S)
            away.unreachable = True
            raise away
        with self._lock:
            if target not in self._channels:
                channel = self._opened(target)
                self._channels[target] = channel, windows_pb2_grpc.WindowsStub(channel)  # type: ignore[no-untyped-call]
            return self._channels[target][1]

    def call(self, shard: int, method: str, request: Any, timeout_s: float, metadata: Any) -> Any:
        """Make a call to the process that has a shard; raises as the client's calls do."""
        try:
            return getattr(self.stub(shard), method)(request, timeout=timeout_s, metadata=metadata)
        except grpc.RpcError as error:
            found = from_rpc(error)
        except ValueError as error:
            found = Unavailable(f"the client is closed: {error}")
        if isinstance(found, Unavailable) or found.code in ("CANCELLED", "DEADLINE_EXCEEDED"):
            self.forget()
        raise found

    def close(self) -> None:
        """Close all channels."""
        with self._lock:
            for channel, _ in self._channels.values():
                channel.close()
            self._channels.clear()


def targets_of(topology: Topology, service: str) -> dict[int, str]:
    """The address of the process that has a shard, by shard; of those that answer."""
    found: dict[int, str] = {}
    host = service.rpartition(":")[0]
    for process in topology.processes:
        target = process.address or (f"{host}:{process.grpc_port}" if process.grpc_port else service)
        if process.up:
            found |= dict.fromkeys(process.shards, target)
    return found


def is_safe_elsewhere(method: str, error: SashClientError) -> bool:
    """Whether a call may be made over another process after an error: it changes nothing, or never arrived."""
    reads = method in ("Query", "RangeQuery", "Series")
    return isinstance(error, Unavailable) and (reads or error.unreachable)
