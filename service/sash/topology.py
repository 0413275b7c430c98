"""Which processes serve the windows, and which shards each has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["ServingProcess", "Topology"]


@dataclass(frozen=True, slots=True)
class ServingProcess:
    """One process.

    Attributes:
        up: whether it answers.
        grpc_port: the port of gRPC that only this process listens on; 0 if there is none, or it is not known.
    """

    number: int
    up: bool
    grpc_port: int
    shards: Sequence[int]


@dataclass(frozen=True, slots=True)
class Topology:
    """All processes of a service."""

    shards: int
    processes: Sequence[ServingProcess]
