"""The lease table in Redis: which processes there are, and which shards each has.

    {PREFIX}:table    a hash   p:ID      deadline, number and description of a process; it renews them (a heartbeat)
                               s:SHARD   the id of the process that has the shard; empty: none
                               w:SHARD   the id of the process that shall have it
                               secret    what processes prove to each other
    {PREFIX}:deployment        the id of the deployment, written once; "ID lost" once Redis was emptied

A process runs as long as its heartbeats change its row. The monotonic clock of who looks measures that, see `Lives`.
Redis' clock may jump: a row that is seen for the first time counts for a lease at least, and the deadlines of a process
only grow, so that each of its heartbeats changes its row.

The table only says who should serve a shard. Whether a write is allowed, the fence of the shard's own prefix decides.
So a table that is lost, late or wrong costs time, and no data. A row that nobody can read counts as absent.
"""

from __future__ import annotations

import functools
import json
import logging
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from redis.exceptions import RedisError, ResponseError

from sash.shards.fair import Member, Table
from sash.shards.redis_layout import LOST, deployment_key, lost_data, table_key
from sash.tiers.redis_errors import not_acquired, text_of
from sash.tiers.redis_link import Argument, Link, Pool
from sash_engine.errors import DataLoss, InvalidArgument, SashError, Unavailable

_log = logging.getLogger(__name__)

_TIMEOUT_MOST_S = 5.0
_CONNECTIONS = 12
_RETRY_S = 1.0
_DOCUMENT = ("address", "grpc", "rest", "group", "owner")
_FORGET_S = 60.0
"""A process that is gone stays in the table for so long, so that others can say that it is."""
_NUMBER_MAX = 10**6
_ODD_MAX = 100

# KEYS: table, deployment, number of shards. ARGV: id, lease in ms, description; a secret and an id of the deployment to
# take if there is none; the id of the deployment of this process (empty: whatever is there); then, in turns, rows to
# forget and what they must say. It answers with Redis' time in ms, the table, and the deployment. A process of another
# deployment changes nothing and gets no table.
_BEAT = b"""
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local there = redis.call('GET', KEYS[2])
if not there then
  there = ARGV[6] == '' and ARGV[5] or ARGV[6]
  if ARGV[6] ~= '' and not redis.call('GET', KEYS[3]) then there = there .. ' lost' end
  redis.call('SET', KEYS[2], there)
end
local known = ARGV[6] == '' and there or ARGV[6]
if there ~= known and there ~= known .. ' lost' or ARGV[6] == '' and string.match(there, ' lost$') then
  return {string.format('%.0f', now), {}, there}
end
for i = 7, #ARGV, 2 do
  if redis.call('HGET', KEYS[1], ARGV[i]) == ARGV[i + 1] then redis.call('HDEL', KEYS[1], ARGV[i]) end
end
local all = redis.call('HGETALL', KEYS[1])
local used, number, last = {}, nil, 0
for i = 1, #all, 2 do
  local id = string.match(all[i], '^p:(.+)$')
  local ends, its
  if id then ends, its = string.match(all[i + 1], '^(%d+) (%d+) ') end
  if its and id == ARGV[1] then
    number = #its < 7 and tonumber(its) or nil
    last = #ends < 16 and tonumber(ends) or 0
  elseif its then used[tonumber(its)] = true end
end
if not number or used[number] then
  number = 0
  while used[number] do number = number + 1 end
end
local due = string.format('%.0f', math.max(now + tonumber(ARGV[2]), last + 1))
redis.call('HSET', KEYS[1], 'p:' .. ARGV[1], due .. ' ' .. number .. ' ' .. ARGV[3])
if not string.match(redis.call('HGET', KEYS[1], 'secret') or '', '^%x+$') then
  redis.call('HSET', KEYS[1], 'secret', ARGV[4])
end
return {string.format('%.0f', now), redis.call('HGETALL', KEYS[1]), there}
"""
# KEYS: table. ARGV: new value (empty: none); number of conditions; then, in turns, fields and the values that they must
# have (empty: none): first the conditions, of which each must hold, then fields that change if they have that value. A
# condition also holds for the row of a process whose description is that value. It answers with the fields that have
# the new value.
_SWAP = b"""
local done, first = {}, 3 + 2 * tonumber(ARGV[2])
for i = 3, first - 1, 2 do
  local row = redis.call('HGET', KEYS[1], ARGV[i]) or ''
  if row ~= ARGV[i + 1] and string.match(row, '^%d+ %d+ (.*)$') ~= ARGV[i + 1] then return done end
end
for i = first, #ARGV, 2 do
  if (redis.call('HGET', KEYS[1], ARGV[i]) or '') == ARGV[i + 1] then
    if ARGV[1] == '' then redis.call('HDEL', KEYS[1], ARGV[i]) else redis.call('HSET', KEYS[1], ARGV[i], ARGV[1]) end
    done[#done + 1] = ARGV[i]
  end
end
return done
"""


class OtherDeployment(DataLoss):
    """Redis has another deployment under the prefix than the one that this process belongs to."""


class Lives:
    """Which processes run, from how their rows change; no wall clock shortens that.

    Args:
        lease_s: within that it looks again.
        clock: seconds that never jump.
    """

    def __init__(self, lease_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._lease_s = lease_s
        self._blind_s = max(lease_s, _FORGET_S / 2)
        self._clock = clock
        self._looked_s = float("-inf")
        self._seen: dict[str, tuple[bytes, float, float]] = {}
        """By field: the row, since when it says that, and until when it counts."""

    def now_s(self) -> float:
        """Return the time of the clock, in seconds."""
        return self._clock()

    def look(self, rows: Mapping[str, tuple[bytes, float]], asked_s: float | None = None) -> set[str]:
        """Note the rows of all processes, each with the seconds that it has left; return the fields of who runs.

        Args:
            asked_s: when Redis was asked; now where None. What a row has become since, nobody here knows: a process is
                gone only if it was gone then. So a slow answer makes nobody gone.
        """
        now_s = self._clock()
        asked_s = now_s if asked_s is None else asked_s
        blind = now_s - self._looked_s > self._blind_s  # nobody could say that it runs, perhaps
        before, self._seen = {} if blind else self._seen, {}
        self._looked_s = now_s
        for field, (row, left_s) in rows.items():
            known = before.get(field)
            if known is not None and known[0] == row:
                self._seen[field] = known
            else:
                # It is new here, or was renewed. Redis' clock may have jumped since, and would call it over.
                self._seen[field] = (row, now_s, now_s + max(left_s, self._lease_s))
        return {field for field, (_, _, until_s) in self._seen.items() if asked_s < until_s}

    def forgotten(self) -> list[tuple[str, bytes]]:
        """The rows that have said the same for so long that they can go."""
        early_s = self._clock() - _FORGET_S
        return [
            (field, row) for field, (row, since_s, until_s) in self._seen.items() if max(since_s, until_s) < early_s
        ]


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
            # An answer that comes later than the lease ends is worth nothing; one that comes before keeps it.
            self._link = Link(url, prefix, min(lease_s, _TIMEOUT_MOST_S), _CONNECTIONS)
        except ValueError as error:
            raise InvalidArgument(f"The address of Redis is wrong: {error}", field="data") from None
        self._key, self._deployment_key = table_key(prefix).encode(), deployment_key(prefix).encode()
        self._shards_key = f"{{{prefix}}}:shards".encode()
        self._deployment = ""  # as it was when this process came
        self._lease_ms = int(lease_s * 1000)
        self._lives = Lives(lease_s)
        self._lock = threading.Lock()
        self._sent = 0  # how many heartbeats
        self._seen = 0  # number of the last one whose answer was read
        self._table = Table()
        self._odd: set[str] = set()
        self._located = False

    def beat(self, member: Member) -> Table:
        """Say that a process runs, and return the table; its processes are `alive` as far as their heartbeats say.

        Several may be on their way at a time.

        Raises:
            SashError: as `call`.
        """
        with self._lock:
            forget = [part for row in self._lives.forgotten() for part in row]
            self._sent += 1
            number = self._sent
        asked_s = self._lives.now_s()
        arguments = (member.id, self._lease_ms, self._description(member), secrets.token_hex(16), secrets.token_hex(8))
        keys = (self._key, self._deployment_key, self._shards_key)
        told = self._asked(lambda: ["EVAL", _BEAT, 3, *keys, *arguments, self._deployment, *forget])
        with self._lock:
            return self._read(number, asked_s, told)

    def _description(self, member: Member) -> str:
        document = {"lease_ms": self._lease_ms} | {name: getattr(member, name) for name in _DOCUMENT}
        if member.pinned is not None:
            document["pinned"] = sorted(member.pinned)
        if member.doubts:
            document["doubts"] = member.doubts
        return json.dumps(document)

    def _read(self, number: int, asked_s: float, told: Sequence[Any]) -> Table:
        """The table, as the answer to a heartbeat says; answers may come in another order than they were asked for."""
        there = told[2].decode(errors="replace")
        if not self._deployment and not there.endswith(LOST):
            self._deployment = there
        if not self._deployment:
            raise DataLoss(lost_data(self._deployment_key.decode()))
        if there.removesuffix(LOST) != self._deployment:
            raise OtherDeployment(
                f"Redis was emptied, and has another deployment now: {self._deployment_key.decode()} says {there!r}, "
                f"and this process is of {self._deployment!r}. Start it again to have it join"
            )
        if number > self._seen:
            table = self._parsed(int(told[0]), asked_s, dict(zip(told[1][::2], told[1][1::2], strict=True)))
            self._seen, self._table = number, replace(table, lost=True) if there.endswith(LOST) else table
        return self._table

    def _parsed(self, now: int, asked_s: float, fields: Mapping[bytes, bytes]) -> Table:
        members: dict[str, Member] = {}
        owners: dict[int, str] = {}
        wishes: dict[int, str] = {}
        rows: dict[str, tuple[bytes, float]] = {}
        secret = ""
        for field, value in fields.items():
            try:
                name, text = field.decode(), value.decode()
                kind, _, rest = name.partition(":")
                if kind == "p":
                    members[rest], left_ms = _member(rest, text, now)
                    rows[name] = (value, left_ms / 1000)
                elif kind == "s":
                    owners[_shard(rest)] = text
                elif kind == "w":
                    wishes[_shard(rest)] = text
                elif name == "secret":
                    secret = text
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                self._complain(repr(field), error)
        alive = self._lives.look(rows, asked_s)
        members |= {id: replace(each, alive=False) for id, each in members.items() if f"p:{id}" not in alive}
        said = {field[2:].decode(): row for field, row in fields.items() if field.startswith(b"p:") and _is_text(field)}
        return Table(members, owners, wishes, secret, said)

    def _complain(self, field: str, error: Exception) -> None:
        if field not in self._odd and len(self._odd) < _ODD_MAX:
            self._odd.add(field)
            _log.error("the lease table says something under %s that nobody can read: %s", field[:200], error)

    def take(self, shards: Mapping[int, str], new: str, table: Table) -> list[int]:
        """As `swap`, from processes that are gone by a table: nothing changes if one of them has renewed its row since.

        So a process whose heartbeat comes after this, and no sooner, learns with its answer who has its shards.
        """
        gone: dict[str, Argument] = {f"p:{old}": table.rows.get(old, b"") for old in shards.values() if old}
        return self._swapped(shards, new, gone)

    def give(self, shard: int, member: Member) -> None:
        """Give a shard of a process to nobody, if it has it, and the table describes it as `member` does."""
        self._swapped({shard: member.id}, "", {f"p:{member.id}": self._description(member)})

    def swap(self, shards: Mapping[int, str], new: str) -> list[int]:
        """Give shards to a process (empty: to none), each if it is of who is named now; return those that it got."""
        return self._swapped(shards, new, {})

    def _swapped(self, shards: Mapping[int, str], new: str, conditions: Mapping[str, Argument]) -> list[int]:
        must = [part for pair in conditions.items() for part in pair]
        pairs = [part for shard, old in shards.items() for part in (f"s:{shard}", old)]
        return [int(field[2:]) for field in self._call(_SWAP, new, len(conditions), *must, *pairs)]

    def wish(self, shard: int, old: str, new: str) -> bool:
        """Say who shall have a shard, if it is `old` now; return whether that is so."""
        return bool(self._call(_SWAP, new, 0, f"w:{shard}", old))

    def measure(self, pool: Pool) -> None:
        """Have a pool take note of the memory of the server."""
        pool.measure(self._asked(lambda: ["INFO", "memory"]).decode(errors="replace"))

    def check_kept(self) -> None:
        """Raise DataLoss if Redis no longer has this deployment: then it has lost the shards, too."""
        there = self._asked(lambda: ["GET", self._deployment_key])
        if there is None or there.decode(errors="replace") != self._deployment:
            raise DataLoss(lost_data(self._deployment_key.decode()))

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
            raise Unavailable(f"Redis cannot be reached: {text_of(error)}", retry_after_s=_RETRY_S) from error

    def _lost(self) -> None:
        self._located = False  # another server may have the table now
        self._link.drop()


def _member(id: str, text: str, now: int) -> tuple[Member, int]:
    """A process, from its row; and for how many ms it counts as running. Raises ValueError and the like."""
    due, number, rest = text.split(" ", 2)
    if not 0 <= int(number) <= _NUMBER_MAX:
        raise ValueError(f"{number[:80]} is no number of a process")
    member, lease_ms = _described(id, int(number), rest)
    return member, min(max(int(due) - now, 0), lease_ms)


@functools.lru_cache(4096)
def _described(id: str, number: int, text: str) -> tuple[Member, int]:
    """A process, and its lease in ms: each of its heartbeats says the same. Raises ValueError and the like."""
    document = json.loads(text)
    known = {name: document[name] for name in _DOCUMENT if name in document}
    for value in known.values():
        value.encode()  # of a string, and of one that can be sent
    pins = document.get("pinned")
    pinned = None if pins is None else frozenset(map(int, pins))
    return Member(id, number, pinned=pinned, **known), int(document["lease_ms"])


def _is_text(field: bytes) -> bool:
    try:
        field.decode()
    except UnicodeDecodeError:
        return False
    return True


def _shard(text: str) -> int:
    """The number of a shard; raises ValueError unless it is written as the others write it."""
    if str(int(text)) != text:
        raise ValueError(f"{text[:80]!r} is no number of a shard")
    return int(text)
