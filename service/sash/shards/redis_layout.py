"""How many shards a prefix in Redis has, and which deployment it is.

{PREFIX}:shards        the number, written once
{PREFIX}:deployment    a random id, written once. Each process remembers it, and looks at each heartbeat (see
                       `lease_table.py`). One that misses it writes "ID lost": nobody may then begin anew, as if
                       nothing had been stored.
"""

from __future__ import annotations

import json
import secrets
import time
from typing import Any

from sash.settings import Settings
from sash.tiers.owner import Owner
from sash_engine.errors import DataLoss, FailedPrecondition, InvalidArgument, SashError, Unavailable
from sash_wire.placement import SHARDS_MAX

LOST = " lost"
"""Stands behind the id of a deployment whose data is lost."""

PATIENCE_S = 30.0
"""So long a process that starts tries to reach Redis."""
_BEGIN = """
if redis.call('GET', KEYS[1]) then return end
redis.call('SET', KEYS[1], ARGV[1])
redis.call('SET', KEYS[2], ARGV[2])
"""
_TIMEOUT_S = 5.0
_PAUSE_S = 0.5


def deployment_key(prefix: str) -> str:
    """Where Redis has the id of a deployment."""
    return f"{{{prefix}}}:deployment"


def table_key(prefix: str) -> str:
    """Return the key of the lease table in Redis."""
    return f"{{{prefix}}}:table"


def lost_data(key: str) -> str:
    """Return the message of the error for a deployment that Redis has lost."""
    return (
        "Redis has lost what was stored for all shards: it was emptied, or went back to an early state. Processes that "
        "still run have their entries in memory: export the windows from there. To begin anew, stop all processes, and "
        f"DEL {key}"
    )


class RedisLayout:
    """The number of shards of a prefix.

    Args:
        settings: the address and the prefix.
        patience_s: how long it tries to reach Redis before it raises Unavailable.
    """

    def __init__(self, settings: Settings, patience_s: float = PATIENCE_S) -> None:
        self._patience_s = patience_s
        self._url, self._prefix = settings.data, settings.redis_prefix
        self._key = f"{{{self._prefix}}}:shards"

    def known(self) -> int | None:
        """Return the number; None if there is none.

        Raises:
            DataLoss: there are shards, and the number is lost.
        """
        found = self._number(self._asked("GET", self._key))
        if found is None and self._is_used(f"{self._prefix}/0"):
            raise DataLoss(
                f"{self._prefix!r} in Redis has shards, and {self._key} is missing, which says how many: write it "
                f"again, for example SET {self._key} 4, with the number of all shards"
            )
        return found

    def check_unleased(self) -> None:
        """Check that no process has shards by the lease table.

        Raises:
            FailedPrecondition: one has; it says which, and for how long its heartbeat counts.
        """
        rows = self._asked("HGETALL", table_key(self._prefix))
        seconds, micros = self._asked("TIME")
        now_ms = int(seconds) * 1000 + int(micros) // 1000
        for field, row in zip(rows[::2], rows[1::2], strict=True):
            if not field.startswith(b"p:"):
                continue
            try:
                due, _, document = row.split(b" ", 2)
                left_s = (int(due) - now_ms) / 1000
                owner = Owner.parse(json.loads(document)["owner"].encode())
            except (ValueError, TypeError, KeyError, AttributeError):
                continue  # it counts as absent for everybody
            if left_s > 0 and (owner is None or not owner.gone()):
                who = owner or "one that does not say who it is"
                raise FailedPrecondition(
                    f"A process has shards of {self._prefix!r} on this Redis: {who}; if it is gone, its lease runs out "
                    f"in {left_s:.1f} s.",
                    field="prefix",
                    retry_after_s=left_s,
                )

    def shards(self, new: int) -> int:
        """Return the number; a prefix without one gets `new`.

        Raises:
            InvalidArgument: the prefix is in use without shards.
            DataLoss: as `known`; or Redis was emptied while processes ran.
        """
        there = self._asked("GET", deployment_key(self._prefix))
        if there is not None and there.endswith(LOST.encode()):
            raise DataLoss(lost_data(deployment_key(self._prefix)))
        found = self.known()
        if found is None:
            if self._is_used(self._prefix):
                raise InvalidArgument(
                    f"what is stored under {self._prefix!r} has one shard, which never changes: take another "
                    "SASH_REDIS_PREFIX, and restore its exported windows there",
                    field="shards",
                    limit="1",
                )
            self.note(new)
            found = self.known()
        return new if found is None else found

    def note(self, shards: int) -> None:
        """Note a number, unless there is one."""
        # Together: a number without an id is of a deployment of before there were ids.
        keys = (self._key, deployment_key(self._prefix))
        self._asked("EVAL", _BEGIN, "2", *keys, str(shards), secrets.token_hex(8))

    @property
    def is_used(self) -> bool:
        """Whether something is stored there, in one shard or in several."""
        number = self._asked("GET", self._key)
        return number is not None or self._is_used(self._prefix) or self._is_used(f"{self._prefix}/0")

    def _is_used(self, prefix: str) -> bool:
        """Whether something is stored under a prefix."""
        return self._asked("GET", f"{{{prefix}}}:fence", tag=prefix) is not None

    def _number(self, value: bytes | None) -> int | None:
        if value is None:
            return None
        if not value.isdigit() or not 1 <= int(value) <= SHARDS_MAX:
            raise DataLoss(f"{self._key} in Redis does not say how many shards there are")
        return int(value)

    def _asked(self, *command: str, tag: str | None = None) -> Any:
        end_s = time.monotonic() + self._patience_s
        while True:
            try:
                return self._answer(command, tag or self._prefix)
            except Unavailable:
                if time.monotonic() > end_s:
                    raise
                time.sleep(_PAUSE_S)

    def _answer(self, command: tuple[str, ...], tag: str) -> Any:
        from redis.exceptions import RedisError  # it takes 0.1 s to import, and only this needs it

        from sash.tiers.redis_errors import not_acquired
        from sash.tiers.redis_link import Link

        try:
            link = Link(self._url, tag, _TIMEOUT_S, 1)
        except ValueError as error:
            raise InvalidArgument(f"The address of Redis is wrong: {error}", field="data") from None
        try:
            link.locate()
            return link.call(lambda: command)
        except (RedisError, OSError) as error:
            found: SashError = not_acquired(error)
            raise found from error
        finally:
            link.drop()
