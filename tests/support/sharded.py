"""A plane over several shards in this process, and one over a single store, to be compared."""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from typing import Any

from prometheus_client import CollectorRegistry

from sash.calls import each
from sash.durability.catalogue import Catalogue
from sash.durability.storage import Storage
from sash.limits.loop_time import LoopTime
from sash.plane import Plane
from sash.runtime.metrics import Metrics
from sash.shards.deployment import Deployment
from sash.shards.host import Host
from sash.shards.hosted import HostedShard, HostedShards
from sash.shards.layout import Share
from sash_engine.clock import Clock, ManualClock


class ShardedPlane(Plane):
    """A plane over shards of this process, with its parts."""

    def __init__(self, shards: HostedShards, clock: Clock) -> None:
        metrics = Metrics(CollectorRegistry())
        self.shards, self.deployment = shards, Deployment(shards, clock)
        turns = self.deployment.slices.turns
        self.held = LoopTime(clock, metrics.observe_held, turns)
        super().__init__(self.deployment, metrics, clock, turns=turns)


def single(clock: Clock) -> Plane:
    """A plane without shards, in memory."""
    return Plane.of(Storage(Catalogue(clock=clock), clock), Metrics(CollectorRegistry()), clock)


def in_process(count: int, clock: Clock | None = None) -> ShardedPlane:
    """A plane over shards of this process, in memory."""
    clock = clock or ManualClock()
    shards = HostedShards(count)
    plane = ShardedPlane(shards, clock)
    for shard in range(count):
        shards.hosted[shard] = HostedShard(Storage(Catalogue(clock=clock), clock), plane.held)
    return plane


@contextlib.contextmanager
def without(plane: ShardedPlane, shard: int) -> Iterator[HostedShard]:
    """A shard is away inside the `with` block."""
    away = plane.shards.hosted.pop(shard)
    yield away
    plane.shards.hosted[shard] = away


async def file_of(windows: Any, name: str = "w") -> bytes:
    """The export of a window, of a plane or a shard."""
    return b"".join([part async for part in each(await windows.export(name))])


async def pieces(data: bytes, size: int = sys.maxsize) -> AsyncIterator[bytes]:
    """An export as it comes, in pieces."""
    for at in range(0, len(data), size):
        yield data[at : at + size]


@contextlib.asynccontextmanager
async def hosts(count: int, processes: int = 2, clock: Clock | None = None) -> AsyncIterator[list[Host]]:
    """Hosts on this loop that call each other over sockets; shard i is on host i modulo their number."""
    clock = clock or ManualClock()

    def opened(_: int) -> Storage:
        return Storage(Catalogue(clock=clock), clock)

    with tempfile.TemporaryDirectory() as folder:
        made = [
            Host(Share(number, processes, count, folder), opened, Metrics(CollectorRegistry()), clock)
            for number in range(processes)
        ]
        try:
            for host in made:
                await host.start()
            yield made
        finally:
            for host in reversed(made):
                await host.stop()


class Turns:
    """Asks one plane after the other."""

    def __init__(self, planes: list[Plane]) -> None:
        self._planes = planes
        self._next = 0

    def __getattr__(self, name: str) -> Any:
        self._next += 1
        return getattr(self._planes[self._next % len(self._planes)], name)
