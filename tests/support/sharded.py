"""A plane over several shards in this process, and one over a single store, to be compared."""

from __future__ import annotations

from typing import Any

from prometheus_client import CollectorRegistry

from sash.durability.catalogue import Catalogue
from sash.durability.storage import Storage
from sash.durability.tier import ColdTier
from sash.metrics import Metrics
from sash.plane import Plane
from sash.shards.hosted import HostedShard, HostedShards
from sash.shards.sharded_plane import ShardedPlane
from sash_engine.clock import Clock, ManualClock

__all__ = ["hosted_shard", "in_process", "single"]


def single(clock: Clock) -> Plane:
    """A plane without shards, in memory."""
    return Plane(Catalogue(clock=clock), Metrics(CollectorRegistry()), clock)


def hosted_shard(plane: ShardedPlane, clock: Clock, tier: ColdTier | None = None) -> HostedShard:
    """A shard of a plane, in memory or on a tier; its storage is not started."""
    catalogue = Catalogue(clock=clock)
    storage = Storage(catalogue, clock, tier, **({} if tier is None else TINY))
    return HostedShard.of(catalogue, storage, clock, plane.held, plane.turns)


TINY: dict[str, Any] = {"cache_bytes": 1000, "checkpoint_bytes": 2000, "store_entries": 8, "block": 4}


def in_process(count: int, clock: Clock | None = None) -> ShardedPlane:
    """A plane over shards of this process, in memory."""
    clock = clock or ManualClock()
    shards = HostedShards(count)
    plane = ShardedPlane(shards, Metrics(CollectorRegistry()), clock)
    for shard in range(count):
        shards.hosted[shard] = hosted_shard(plane, clock)
    return plane
