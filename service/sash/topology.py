"""Which processes serve the windows, and which shards each has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from sash.access.access import Access
from sash_engine.errors import Unsupported


@dataclass(frozen=True, slots=True)
class ServingProcess:
    """One process.

    Attributes:
        up: whether it answers.
        grpc_port: the port of gRPC that only this process listens on; 0 if there is none, or it is not known.
        address: host and port by which clients on any machine reach it; empty: the machine is the one that was asked.
        sizes: by shard, as far as it answers: entries, and bytes of writes that wait for a commit.
    """

    number: int
    up: bool
    grpc_port: int
    shards: Sequence[int]
    address: str = ""
    sizes: Mapping[int, tuple[int, int]] = field(default_factory=dict)


def shown(shards: int, processes: Sequence[ServingProcess], access: Access) -> Topology:
    """Return the topology that the caller of this call may see: sizes count all windows, so not all may see them."""
    return Topology(shards, processes if access.sees_every_window else [replace(one, sizes={}) for one in processes])


def stays() -> Unsupported:
    """The error of a move where shards stay where they are."""
    return Unsupported(
        "shards move only between processes that share them over Redis (SASH_DATA, SASH_SHARDS)", field="shard"
    )


@dataclass(frozen=True, slots=True)
class Topology:
    """All processes of a service."""

    shards: int
    processes: Sequence[ServingProcess]
