"""Implementations of `sash.durability.tier.ColdTier`, and the choice between them.

    memory.py   a dictionary, for tests, and as the simplest tier
    lmdb.py     a directory on this machine
    redis.py    a Redis or Valkey server, or a cluster

They have the methods of the protocol and do not import it: tiers and windows do not know each other. mypy checks that a
tier fits where the service passes it to the storage.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from sash.tiers.lmdb import LmdbTier
from sash_engine.errors import InvalidArgument

if TYPE_CHECKING:
    from sash.tiers.redis import RedisTier
    from sash.tiers.redis_link import Pool

__all__ = ["LmdbTier", "open_tier"]

_REDIS = ("redis", "rediss")


def open_tier(
    address: str,
    prefix: str = "sash",
    *,
    max_bytes: int | None = None,
    lease_s: float = 10.0,
    replicas: int = 0,
    pool: Pool | None = None,
) -> LmdbTier | RedisTier | None:
    """Make the tier of an address. It is not acquired yet.

    Args:
        address: a directory; ``redis://…`` or ``rediss://…``; or ``memory``, for no tier (a directory of that name is
            ``./memory``).
        prefix: separates this server's keys from others in Redis.
        max_bytes: most bytes that a directory may take.
        lease_s: how long a server that vanished with its machine keeps others off a prefix.
        replicas: on how many replicas of Redis a commit must be on disk before it is answered.
        pool: of the tiers of a process whose shards the lease table says: they share its connections.

    Returns:
        None for ``memory``.

    Raises:
        InvalidArgument: the address is none of these.
    """
    if address == "memory":
        return None
    scheme = re.match(r"([A-Za-z][A-Za-z0-9+.-]*)://", address)
    if scheme is None and address:
        return LmdbTier(Path(address), max_bytes=max_bytes)
    if scheme is None or scheme[1] not in _REDIS:
        raise InvalidArgument(
            f"{address!r} is not a place to store windows: it must be a directory, redis://…, rediss://… or memory",
            field="data",
        )
    from sash.tiers.redis import RedisTier  # redis-py takes 0.1 s to import, and only this needs it

    return RedisTier(address, prefix, lease_s=lease_s, replicas=replicas, pool=pool, leased=pool is not None)
