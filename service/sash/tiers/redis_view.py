"""A Redis tier, to be read while no server has it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from redis.exceptions import RedisError

from sash.tiers.owner import Owner
from sash.tiers.redis_errors import keys_of, not_acquired, text_of
from sash.tiers.redis_link import Argument, Link
from sash_engine.errors import FailedPrecondition, InvalidArgument, Unavailable


class RedisView:
    """Reads what is stored under a prefix, while no server has it: a `TierView`.

    Args:
        url, prefix, timeout_s: as for `RedisTier`.

    Raises:
        InvalidArgument: the address is wrong, or nothing is stored there.
        FailedPrecondition: a server has it.
        Unavailable: Redis cannot be reached.
    """

    name = "redis"

    def __init__(self, url: str, prefix: str = "sash", *, timeout_s: float = 10.0) -> None:
        self._prefix = prefix
        self._fence_key, owner_key, self._stem = keys_of(prefix)
        try:
            self._link = Link(url, prefix, timeout_s, 1)
            self._link.locate()
            token = self._link.call(lambda: ["GET", owner_key])
            self._fence = self._link.call(lambda: ["GET", self._fence_key])
        except ValueError as error:
            raise InvalidArgument(f"The address of Redis is wrong: {error}", field="url") from None
        except (RedisError, OSError) as error:
            raise not_acquired(error) from error
        owner = None if token is None else Owner.parse(token)
        if token is not None and (owner is None or not owner.gone()):
            raise FailedPrecondition(
                f"A server has {prefix!r} on this Redis: {owner or 'one that does not say who it is'}. Stop it first; "
                "if it is gone, wait some seconds for its lease to run out",
                field="prefix",
            )
        if self._fence is None and next(self.keys(), None) is None:
            raise InvalidArgument(f"Nothing is stored under {prefix!r} on this Redis", field="prefix")

    def keys(self) -> Iterator[bytes]:
        """Iterate over all keys, see `TierView`."""
        pattern = re.sub(rb"([*?\[\]\\])", rb"\\\1", self._stem) + b"*"
        cursor, seen = b"0", set[bytes]()
        while True:
            cursor, found = self._answer("SCAN", cursor, "MATCH", pattern, "COUNT", 1000)
            for key in found:
                if key not in seen:
                    seen.add(key)
                    yield key.removeprefix(self._stem)
            if cursor == b"0":
                return

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return values by key, see `TierView`."""
        return list(self._answer("MGET", *(self._stem + key for key in keys))) if keys else []

    def problems(self) -> list[str]:
        """Return what is wrong with the store itself, see `TierView`."""
        if self._answer("GET", self._fence_key) != self._fence:
            raise FailedPrecondition(f"A server has taken {self._prefix!r} on this Redis meanwhile", field="prefix")
        return []

    def close(self) -> None:
        """Close the connection, see `TierView`."""
        self._link.drop()

    def _answer(self, *question: Argument) -> Any:
        try:
            return self._link.call(lambda: question)
        except (RedisError, OSError) as error:
            raise Unavailable(f"Redis cannot be read: {text_of(error)}") from error
