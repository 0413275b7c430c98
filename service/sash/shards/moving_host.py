"""Moves of shards to the processes that somebody names, on top of a lease table."""

from __future__ import annotations

import asyncio
import time

from sash.shards.fair import Member, Table
from sash.shards.heartbeat import Heartbeat
from sash.shards.host import Host
from sash.shards.lease_table import LeaseTable
from sash_engine.errors import InvalidArgument, Unavailable

__all__ = ["MovingHost"]

_MOVE_S = 30.0


class MovingHost(Host):
    """A `Host` that writes into the lease table who shall have a shard, and waits until that process has it."""

    _me: Member
    _table: Table
    _told_s: float
    _lease_table: LeaseTable
    _beats: Heartbeat
    _news: asyncio.Event

    async def move(self, shard: int, process: int) -> None:
        """Have a process take a shard; returns when it has it.

        Raises:
            InvalidArgument: there is no such shard or process.
            Unavailable: it does not have it in time, and may take it later; or it has ended, or another move came.
        """
        target = self._member(process)
        if not 0 <= shard < self.shards.count:
            raise InvalidArgument(f"there is no shard {shard}", field="shard", limit=f"0 to {self.shards.count - 1}")
        if target is None or not target.alive:
            known = sorted(each.number for each in self._table.members.values() if each.alive)
            raise InvalidArgument(f"there is no process {process}", field="process", limit=", ".join(map(str, known)))
        if target.pinned is not None:
            raise InvalidArgument(f"process {process} takes only the shards that it was told to", field="process")
        wished = self._table.wishes.get(shard, "")
        if not await asyncio.to_thread(self._lease_table.wish, shard, wished, target.id) and wished != target.id:
            raise Unavailable(f"shard {shard} is being moved by somebody else", field="shard", retry_after_s=1.0)
        wished_s = time.monotonic()
        self._beats.now()
        owner = self._table.owner(shard)
        await asyncio.gather(
            *(self._asked(each.address, "look") for each in (owner, target) if each is not None and each.address)
        )
        try:
            async with asyncio.timeout(_MOVE_S):
                while self._table.owners.get(shard) != target.id or not await self._serves(target, shard):
                    self._news.clear()
                    self._beats.now()
                    await self._news.wait()
                    if self._told_s > wished_s:
                        await self._check_move(shard, target)
        except TimeoutError:
            raise Unavailable(
                f"process {process} has not taken shard {shard} within {_MOVE_S:g} s; it may do so later",
                field="shard",
                retry_after_s=1.0,
            ) from None

    async def _check_move(self, shard: int, target: Member) -> None:
        """Raise Unavailable for a move that can succeed no more."""
        if self._table.wishes.get(shard) != target.id:
            problem = f"another move of shard {shard} has taken the place of this one"
        elif self._table.members.get(target.id, self._me).alive:
            return
        else:
            problem = f"process {target.number} has ended, or stands still: shard {shard} is not moved"
            await asyncio.to_thread(self._lease_table.wish, shard, target.id, "")
        raise Unavailable(problem, field="shard", retry_after_s=1.0)

    async def _serves(self, member: Member, shard: int) -> bool:
        if member.id == self._me.id:
            return shard in self.shards.hosted
        state = await self._asked(member.address, "state")
        return state is not None and str(shard) in state

    def _member(self, process: int) -> Member | None:
        found = [each for each in self._table.members.values() if each.number == process]
        return max(found, key=lambda each: each.alive, default=None)
