"""Implementations of `sash.durability.tier.ColdTier`, and the choice between them.

    memory.py   a dictionary: for tests, and as the plainest statement of what a tier does
    lmdb.py     a directory on this machine
    redis.py    a Redis or Valkey server, or a cluster of them

They have the shape of the protocol and do not import it: tiers and windows do not know each other. Where `main` hands
one to the windows, mypy checks that it fits.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from sash.tiers.lmdb import LmdbTier
from sash_engine.errors import InvalidArgument

if TYPE_CHECKING:
    from sash.tiers.redis import RedisTier

__all__ = ["LmdbTier", "open_tier"]

_REDIS = ("redis", "rediss")


def open_tier(address: str, prefix: str = "sash", *, max_bytes: int | None = None) -> LmdbTier | RedisTier | None:
    """The tier of an address, not acquired yet.

    Args:
        address: a directory; ``redis://…`` or ``rediss://…``; or ``memory``, for no tier at all (a directory of that
            name is ``./memory``).
        prefix: what sets this server's keys apart in Redis.
        max_bytes: most bytes that a directory may take.

    Returns:
        None for ``memory``.

    Raises:
        InvalidArgument: it is none of these.
    """
    if address == "memory":
        return None
    scheme = re.match(r"([A-Za-z][A-Za-z0-9+.-]*)://", address)
    if scheme is None and address:
        return LmdbTier(Path(address), max_bytes=max_bytes)
    if scheme is None or scheme[1] not in _REDIS:
        raise InvalidArgument(
            f"{address!r} is no place to keep windows: it must be a directory, redis://…, rediss://… or memory",
            field="data",
        )
    from sash.tiers.redis import RedisTier  # redis-py takes 0.1 s to import, and only this needs it

    return RedisTier(address, prefix)
