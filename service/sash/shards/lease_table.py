"""The lease table in Redis: which processes there are, and which shards each has.

    {PREFIX}:table    a hash   p:ID      deadline, number and description of a process; it renews them (a heartbeat)
                               s:SHARD   the id of the process that has the shard; empty: none
                               w:SHARD   the id of the process that shall have it
                               secret    what processes prove to each other

Redis' clock says when a heartbeat is due. The table only says who should serve a shard. Whether a write is allowed, the
fence of the shard's own prefix decides. So a table that is lost, late or wrong costs time, and no data.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from redis.exceptions import RedisError, ResponseError

from sash.shards.fair import Member, Table
from sash.tiers.redis_errors import not_acquired, text_of
from sash.tiers.redis_link import Argument, Link
from sash_engine.errors import InvalidArgument, SashError, Unavailable

__all__ = ["LeaseTable"]

_TIMEOUT_S = 1.0
_DOCUMENT = ("address", "grpc", "rest", "group", "owner")
_FORGET_MS = 60_000
"""A process that is gone stays in the table for so long, so that others can say that it is."""

# KEYS: table. ARGV: id, lease in ms, description, a secret to take if there is none, ms after which to forget.
# It answers with Redis' time in ms, and the table.
_BEAT = b"""
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local all = redis.call('HGETALL', KEYS[1])
local used, number = {}, nil
for i = 1, #all, 2 do
  local id = string.match(all[i], '^p:(.+)$')
  if id then
    local due, its = string.match(all[i + 1], '^(%d+) (%d+) ')
    if id == ARGV[1] then number = tonumber(its)
    elseif tonumber(due) + tonumber(ARGV[5]) < now then redis.call('HDEL', KEYS[1], all[i])
    else used[tonumber(its)] = true end
  end
end
if not number or used[number] then
  number = 0
  while used[number] do number = number + 1 end
end
local due = string.format('%.0f', now + tonumber(ARGV[2]))
redis.call('HSET', KEYS[1], 'p:' .. ARGV[1], due .. ' ' .. number .. ' ' .. ARGV[3])
redis.call('HSETNX', KEYS[1], 'secret', ARGV[4])
return {string.format('%.0f', now), redis.call('HGETALL', KEYS[1])}
"""
# KEYS: table. ARGV: field, value that it must have (empty: none), new value (empty: none). It answers 1 or 0.
_SWAP = b"""
if (redis.call('HGET', KEYS[1], ARGV[1]) or '') ~= ARGV[2] then return 0 end
if ARGV[3] == '' then redis.call('HDEL', KEYS[1], ARGV[1]) else redis.call('HSET', KEYS[1], ARGV[1], ARGV[3]) end
return 1
"""


class LeaseTable:
    """The table of one prefix. All methods block, and may be called from several threads.

    Args:
        url: of Redis.
        prefix: of the deployment.
        lease_s: how long a process counts as running after a heartbeat.

    Raises:
        InvalidArgument: the address is malformed.
    """

    def __init__(self, url: str, prefix: str, lease_s: float) -> None:
        try:
            self._link = Link(url, prefix, _TIMEOUT_S, 4)
        except ValueError as error:
            raise InvalidArgument(f"The address of Redis is wrong: {error}", field="data") from None
        self._key = f"{{{prefix}}}:table".encode()
        self._lease_ms = int(lease_s * 1000)
        self._located = False

    def beat(self, member: Member) -> Table:
        """Say that a process runs, and return the table; its processes are `alive` as far as Redis' clock says.

        Raises:
            SashError: as `call`.
        """
        document = {name: getattr(member, name) for name in _DOCUMENT}
        if member.pinned is not None:
            document["pinned"] = sorted(member.pinned)
        told = self._call(_BEAT, member.id, self._lease_ms, json.dumps(document), secrets.token_hex(16), _FORGET_MS)
        now, flat = int(told[0]), [item.decode() for item in told[1]]
        fields = dict(zip(flat[::2], flat[1::2], strict=True))
        return _parsed(fields, now)

    def swap(self, shard: int, old: str, new: str) -> bool:
        """Give a shard to a process (empty: to none), if `old` has it now; return whether that is so."""
        return bool(self._call(_SWAP, f"s:{shard}", old, new))

    def wish(self, shard: int, old: str, new: str) -> bool:
        """Say who shall have a shard; as `swap`."""
        return bool(self._call(_SWAP, f"w:{shard}", old, new))

    def leave(self, member: str) -> None:
        """Remove a process."""
        self._asked(lambda: ["HDEL", self._key, f"p:{member}"])

    def close(self) -> None:
        """Close all connections."""
        self._link.drop()

    def _call(self, script: bytes, *arguments: Argument) -> Any:
        """Run a script; raises Unavailable if Redis cannot be reached, and InvalidArgument if it refuses for good."""
        return self._asked(lambda: ["EVAL", script, 1, self._key, *arguments])

    def _asked(self, command: Any) -> Any:
        try:
            if not self._located:
                self._link.locate()
                self._located = True
            return self._link.call(command)
        except SashError:
            raise
        except ResponseError as error:
            self._lost()
            found: SashError = not_acquired(error)
            raise found from error
        except (RedisError, OSError) as error:
            self._lost()
            raise Unavailable(f"Redis cannot be reached: {text_of(error)}", retry_after_s=_TIMEOUT_S) from error

    def _lost(self) -> None:
        self._located = False  # another server may have the table now
        self._link.drop()


def _parsed(fields: Mapping[str, str], now: int) -> Table:
    members: dict[str, Member] = {}
    owners: dict[int, str] = {}
    wishes: dict[int, str] = {}
    for name, value in fields.items():
        kind, _, rest = name.partition(":")
        if kind == "p":
            due, number, text = value.split(" ", 2)
            document = json.loads(text)
            pins = document.pop("pinned", None)
            pinned = None if pins is None else frozenset(pins)
            known = {name: document[name] for name in _DOCUMENT if name in document}
            members[rest] = replace(Member(rest, int(number), int(due) > now, **known), pinned=pinned)
        elif kind == "s":
            owners[int(rest)] = value
        elif kind == "w":
            wishes[int(rest)] = value
    return Table(members, owners, wishes, fields.get("secret", ""))
