"""The shards of a process that shares a prefix of Redis with others, on any machine: they come and go.

    table ──▶ decide ──┬─ take   the table says that it is mine ──▶ recover ──▶ join ──▶ serve
                       └─ give   serve no more ──▶ calls end ──▶ checkpoint ──▶ the table says that it is free

A process whose heartbeats stop loses its shards in the table to others, which then wait for the lease of each shard's
prefix. It may itself run on: its fences refuse what it writes, and it answers nothing once its own lease is over.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from sash.access.access import Access
from sash.runtime.metrics import Metrics
from sash.settings import Settings
from sash.shards.fair import Member, Table, decide
from sash.shards.heartbeat import Heartbeat
from sash.shards.hosted import HOME, HostedShard, nobody
from sash.shards.layout import Share
from sash.shards.lease_table import LeaseTable
from sash.shards.members import has_ended, listens_at, reached_by
from sash.shards.peer_server import PEER_SECRET, PeerServer
from sash.shards.peer_tls import PeerTls
from sash.shards.peers import Peer
from sash.shards.redis_layout import PATIENCE_S
from sash.shards.serving import Open, Serving, sizes_of
from sash.tiers.owner import Owner
from sash.tiers.redis_link import Pool
from sash.topology import ServingProcess
from sash_engine.clock import Clock
from sash_engine.errors import DataLoss, FailedPrecondition, InvalidArgument, SashError, Unavailable

_log = logging.getLogger(__name__)

_LOOK_S = 0.25
"""So often it looks whether other processes of this machine have ended."""
_POLL_S = 0.02
_CALLS_S = 5.0
"""So long calls to a shard may take to end before it is given away."""
_AGAIN_S = 5.0
"""After so long it tries again to serve a shard that could not be recovered."""
_LOST = "Redis was emptied: writes fail, and questions are answered from memory"
_AT_ONCE = len(os.sched_getaffinity(0)) + 4
"""So many shards are recovered side by side, and given away: one for each core, and those that wait for Redis."""
_TAKEN_AT_ONCE = 2 * _AT_ONCE
"""So many shards are taken before the next ones: meanwhile others may come, for whom the rest is."""
_MOVE_S = 30.0
_MEASURE_S = 5.0
"""So often Redis is asked how full it is."""


class LeasedHost:
    """The shards of one process, as the lease table says. It has the methods of a `Host`.

    Args:
        settings: where the table is, and how this process is reached.
        share: how many shards there are; and the group of this process, if it shares its ports.
        open_storage, metrics, clock, access: as of `Host`.
        tls: for calls between processes; they have none where it is None.
        pool: the connections of the shards' tiers, if they share them.
    """

    def __init__(
        self,
        settings: Settings,
        share: Share,
        open_storage: Open,
        metrics: Metrics,
        clock: Clock,
        access: Access | None = None,
        tls: PeerTls | None = None,
        pool: Pool | None = None,
    ) -> None:
        self._share = share
        self.serving = Serving(share.shards, open_storage, metrics, clock, access, self._peer_of, self._peer)
        self.serving.deployment.processes = self._processes
        self.serving.deployment.move = self.move
        self.serving.operations |= {"look": self._look}
        self.plane, self.shards = self.serving.plane, self.serving.shards
        self.shards.on_taken = self._dropped
        self._settings, self._tls, self._pool = settings, tls, pool
        self._pem = None if tls is None else tls.pem
        self._lease_s = settings.lease_s
        owner = Owner.here()
        self._me = Member(owner.id, 0, group=share.folder or owner.id, pinned=frozenset(), owner=owner.token().decode())
        self._pinned = settings.shards_owned
        self._table = Table()
        self._lease_table = LeaseTable(settings.data, settings.redis_prefix, settings.lease_s)
        self._busy: dict[int, asyncio.Task[None]] = {}
        """What is done for each shard that comes or goes."""
        self._taking: Mapping[int, str] = {}
        """The shards that are being taken, and who had them."""
        self._giving: set[int] = set()
        self._due = True  # whether shards are due to this process, and not served yet
        self._ended_s = 0.0  # when a shard had come or gone last
        self._telling: asyncio.Task[None] | None = None
        self._tell_again = False
        self._problems: dict[int, str] = {}
        self._recovering = asyncio.Semaphore(_AT_ONCE)
        self._changed_s = 0.0  # when the table was changed last
        self._told_s = 0.0  # when the heartbeat was sent that the table is from
        self._decides = False
        self._over: str | None = None  # why this process serves nothing any more
        self._lost = False  # whether Redis was emptied
        self._news = asyncio.Event()

    # ---------------------------------------------------------------- life

    async def start(self, standby: bool = False) -> None:
        """Join the others; returns when the shards that are free, and due to this process, are served."""
        self._beats = Heartbeat(self._lease_table, lambda: self._me, self._lease_s, self._told, self._end_serving)
        self.shards.valid = self._beats.valid
        self._told(*await self._beats.first(PATIENCE_S))  # it takes no shard before others can call it
        credentials = None if self._tls is None else self._tls.server()
        self.serving.server = PeerServer(
            listens_at(self._settings), self.serving.resolve, self._table.secret, credentials
        )
        await self.serving.server.start()
        address = f"{reached_by(self._settings)}:{self.serving.server.port}"
        self._me = replace(self._me, address=address, pinned=self._pinned)
        self._decides = True
        self._told(*await self._beats.first(PATIENCE_S))
        self._beats.start()
        self.serving.spawn(self._watch())
        while self._is_coming():
            await asyncio.sleep(_POLL_S)

    def reachable(self, grpc: int, rest: int) -> None:
        """Tell others by which ports clients reach this process, and no other one."""
        self.serving.ports = (grpc, rest)
        name = reached_by(self._settings)
        self._me = replace(self._me, grpc=f"{name}:{grpc}", rest=f"{name}:{rest}")
        self._beats.now()

    async def hand_over(self) -> None:
        """Give all shards to others, and take no more."""
        self._decides = False
        self._me = replace(self._me, pinned=frozenset())
        for task in list(self._busy.values()):
            task.cancel()
        await asyncio.gather(*self._busy.values(), return_exceptions=True)
        if any(member.alive and member.id != self._me.id for member in self._table.members.values()):
            try:
                self._table, *_ = await asyncio.to_thread(self._beats.beat)
            except SashError:
                return
            await asyncio.gather(*(self._give(shard) for shard in list(self.shards.hosted)))

    async def stop(self, checkpoint: bool = True) -> None:
        self._decides = False
        await self.serving.end_tasks()
        shards = [*self.shards.hosted, *self.shards.joining]
        await self.serving.stop(checkpoint)
        await self._beats.stop()
        try:
            await asyncio.to_thread(self._lease_table.swap, dict.fromkeys(shards, self._me.id), "")
            await asyncio.to_thread(self._lease_table.leave, self._me.id)
        except SashError as error:
            _log.warning("the lease table does not know that this process ends: %s", error.message)
        self._lease_table.close()
        await self.serving.close()

    # ---------------------------------------------------------------- the table

    def _told(self, table: Table, sent_s: float, steady_s: float) -> None:
        """Take note of the table, and act on it."""
        if sent_s < max(self._changed_s, self._told_s):
            return  # it is of before the last change, or a later one was there before it
        # After a time without Redis all processes look as if they were gone.
        patient = time.monotonic() - steady_s < self._lease_s
        runs = {
            each.id: each.id == self._me.id or ((each.alive or patient) and not has_ended(each))
            for each in table.members.values()
        }
        members = {
            each.id: each if each.alive is runs[each.id] else replace(each, alive=runs[each.id])
            for each in table.members.values()
        }
        self._table, self._told_s = replace(table, members=members), sent_s
        if self._me.number != members[self._me.id].number:
            self._me = replace(self._me, number=members[self._me.id].number)
        if self.serving.server is not None:
            self.serving.server.also_admit(table.secret)  # it is another one after the table was lost
        if self._tls is not None and self._pem is not self._tls.pem:
            self._pem = self._tls.pem
            self.serving.renew()  # new connections need the new certificate
        there = {each.address for each in members.values() if each.alive}
        self.serving.forget(lambda address: address not in there)
        lapsed = not self._beats.valid()
        for shard in [*self.shards.hosted, *self.shards.joining]:
            if table.owners.get(shard) != self._me.id:
                if lapsed or shard in self.shards.joining:  # which waits for windows, and may do so for ever
                    self._dropped(shard)
                elif shard not in self._busy:
                    self._begin(shard, self._check(shard))
        if lapsed:
            self._beats.confirm(sent_s)
        self._news.set()
        if table.lost and not self._lost:
            _log.error("%s. Export the windows while this process runs", _LOST)
        self._lost = table.lost
        if not self._decides or table.lost:
            self._due = False
            return
        decision = decide(self._table, self._me.id, self.shards.count)
        held = self._table.held(self._me, self.shards.count)
        unserved = [
            shard
            for shard in held
            if shard not in self.shards.hosted and shard not in self.shards.joining and shard not in decision.give
        ]
        self._due = any(shard not in self._problems for shard in (*decision.take, *unserved))
        for shard in unserved:
            if shard not in self._busy and shard not in self._taking and self._room > 0:
                self._begin(shard, self._serve(shard))
        takes = [shard for shard in decision.take if shard not in self._busy][: self._room]
        if takes and not self._taking:
            self._taking = {shard: table.owners.get(shard, "") for shard in takes}
            self.serving.spawn(self._take(self._table))
        # One that is being taken may be this process' in the table already; it is served first.
        gives = [shard for shard in decision.give if shard not in self._busy and shard not in self._taking]
        for shard in gives[: max(_AT_ONCE - len(self._giving), 0)]:
            self._giving.add(shard)
            self._begin(shard, self._give(shard))

    @property
    def _room(self) -> int:
        """How many shards more may be taken and recovered now."""
        return max(_TAKEN_AT_ONCE - len(self._busy), 0)

    def _is_coming(self) -> bool:
        """Whether shards are due to this process that it does not serve yet, as far as it can."""
        if self._over is not None:
            return False
        coming = any(shard not in self._problems for shard in self._busy)
        return coming or bool(self._taking) or self._due or self._told_s < self._ended_s

    def _end_serving(self, reason: str) -> None:
        """Serve nothing any more: Redis has another deployment now."""
        _log.error("%s", reason)
        self._decides, self._over = False, reason
        for shard in [*self.shards.hosted, *self.shards.joining]:
            hosted = self.shards.gone(shard)
            if hosted is not None:
                self.serving.spawn(self._ended(shard, hosted))

    def _begin(self, shard: int, work: Any) -> None:
        task = self._busy[shard] = self.serving.spawn(work)

        def ended(_: asyncio.Task[None]) -> None:
            del self._busy[shard]
            self._giving.discard(shard)
            self._ended_s = time.monotonic()
            self._beats.now()  # there may be more to do

        task.add_done_callback(ended)

    async def _watch(self) -> None:
        """Notice at once what has ended on this machine; the lease would have to run out."""
        measured_s = time.monotonic()
        while True:
            await asyncio.sleep(min(_LOOK_S, self._lease_s / 6))
            if self._pool is not None and time.monotonic() - measured_s > _MEASURE_S:
                measured_s = time.monotonic()
                with suppress(SashError):
                    await asyncio.to_thread(self._lease_table.measure, self._pool)
            if any(member.alive and has_ended(member) for member in self._table.members.values()):
                self._beats.now()
            for shard, hosted in [*self.shards.hosted.items(), *self.shards.joining.items()]:
                if hosted.storage.taken:
                    self._dropped(shard)

    async def _swap(self, shards: Mapping[int, str], new: str) -> list[int]:
        try:
            return await asyncio.to_thread(self._lease_table.swap, shards, new)
        finally:
            self._changed()

    def _changed(self) -> None:
        self._changed_s = time.monotonic()
        self._beats.now()

    # ---------------------------------------------------------------- shards that come and go

    async def _take(self, table: Table) -> None:
        """Take `_taking` from who had them last, and is gone by a table."""
        try:
            await asyncio.to_thread(self._lease_table.check_kept)  # else they would be served without their entries
            taken = await asyncio.to_thread(self._lease_table.take, self._taking, self._me.id, table)
            if not self._decides:  # it has begun to stop meanwhile
                await asyncio.to_thread(self._lease_table.swap, dict.fromkeys(taken, self._me.id), "")
                return
            for shard in taken:
                self._begin(shard, self._serve(shard))
            if taken:
                self._tell_others()
        except SashError as error:
            for shard in self._taking:
                if self._problems.get(shard) != error.message:
                    _log.warning("shard %d cannot be taken now: %s", shard, error.message)
                self._problems[shard] = error.message
        finally:
            self._taking = {}
            self._ended_s = time.monotonic()
            self._changed()

    async def _serve(self, shard: int) -> None:
        began_s = time.monotonic()
        try:
            async with self._recovering:
                hosted = await self.serving.opened(shard, standby=True, beside=True)
                # This process may have stood still meanwhile, and taken the prefix from the present owner of the shard.
                if not await asyncio.to_thread(self._lease_table.swap, {shard: self._me.id}, self._me.id):
                    self._dropped(shard)
                    return
        except SashError as error:
            if (unknown := self.shards.joining.pop(shard, None)) is not None:  # whose it is, nobody could say
                self.serving.spawn(self._ended(shard, unknown))
            self._problems[shard] = error.message
            _log.error("shard %d cannot be served, and is tried again: %s", shard, error.message)
            await asyncio.sleep(_AGAIN_S)
            return
        self._problems.pop(shard, None)
        await self.serving.join(shard)
        if self.shards.hosted.get(shard) is hosted:
            _log.info("shard %d is served after %.1f s", shard, time.monotonic() - began_s)
            if shard == HOME:
                self.serving.spawn(self.serving.reconcile_others())

    async def _give(self, shard: int) -> None:
        hosted = self.shards.gone(shard)
        if hosted is not None:
            await self._ended(shard, hosted)
        try:
            await asyncio.to_thread(self._lease_table.give, shard, self._me)
        except SashError as error:
            # It may arrive late, when this process has the shard again; it must find another description then.
            self._me = replace(self._me, doubts=self._me.doubts + 1)
            _log.warning("the lease table does not know that shard %d is free: %s", shard, error.message)
        self._changed()
        _log.info("shard %d is given away", shard)
        self._tell_others()

    def _tell_others(self) -> None:
        """Have other processes read the table now, so that they take what is free, and ask whom they should."""
        self._tell_again = True
        if self._telling is None or self._telling.done():
            self._telling = self.serving.spawn(self._told_others())

    async def _told_others(self) -> None:
        while self._tell_again:
            self._tell_again = False
            others = [each for each in self._table.members.values() if each.alive and each.id != self._me.id]
            await asyncio.gather(*(self.serving.asked(each.address, "look") for each in others if each.address))

    async def _ended(self, shard: int, hosted: HostedShard) -> None:
        """Stop a shard that is served no more, when its calls have ended."""
        end_s = time.monotonic() + _CALLS_S
        while hosted.calls and not hosted.storage.taken and time.monotonic() < end_s:
            await asyncio.sleep(0.01)
        await hosted.storage.stop()
        _log.info("shard %d is stored", shard)

    async def _check(self, shard: int) -> None:
        """See to a shard that is served here, and is another process' in the table, or nobody's."""
        try:
            mine = await self._swap({shard: self._me.id}, self._me.id) or await self._swap({shard: ""}, self._me.id)
        except SashError:
            return
        if not mine:
            self._dropped(shard)
        elif (hosted := self.shards.hosted.get(shard)) is not None:
            self.serving.spawn(self._confirm(shard, hosted))

    async def _confirm(self, shard: int, hosted: HostedShard) -> None:
        """Serve a shard no more if another process has had it since: what is in memory is of before then."""
        while self.shards.hosted.get(shard) is hosted and not self._lost:
            try:
                await hosted.storage.confirm()
                return
            except FailedPrecondition:
                self._dropped(shard)
            except SashError:
                await asyncio.sleep(_LOOK_S)

    def _dropped(self, shard: int) -> None:
        """Serve a shard no more that another process has."""
        hosted = self.shards.gone(shard)
        if hosted is not None:
            _log.warning("another process has taken shard %d over", shard)
            self.serving.spawn(self._ended(shard, hosted))
            self._beats.now()

    async def _look(self) -> None:
        """Read the table now: another process says that it has changed."""
        self._beats.now()

    # ---------------------------------------------------------------- who is where

    def _peer(self, address: str) -> Peer:
        credentials = None if self._tls is None else self._tls.client()
        secret = [(PEER_SECRET, self._table.secret)]
        return Peer(address, f"process at {address}", secret, credentials, self._settings.tls_peer_name)

    def _peer_of(self, shard: int) -> Peer:
        if self._over is not None:
            raise DataLoss(self._over)
        owner = self._table.owner(shard)
        if owner is None or owner.id == self._me.id or not owner.address:
            problem = self._problems.get(shard)
            raise nobody(shard, "is moving or starting" if problem is None else f"cannot be recovered: {problem}")
        return self.serving.peer(owner.address)

    @property
    def problem(self) -> str | None:
        return self._over or (_LOST if self._lost else self.shards.problem or self._beats.problem)

    @property
    def neighbours(self) -> Sequence[int]:
        # One that has ended is shown until another one has taken its place.
        group = [each for each in self._table.members.values() if each.group == self._me.group]
        group.sort(key=lambda each: not each.alive)
        return sorted(each.number for each in group[: self._share.processes])

    async def ask(self, process: int, operation: str) -> Any:
        if process == self._me.number:
            return await self.serving.operations[operation]()
        member = self._member(process)
        return None if member is None or not member.alive else await self.serving.asked(member.address, operation)

    async def _processes(self) -> Sequence[ServingProcess]:
        if self._over is not None:
            raise DataLoss(self._over)
        if not self._beats.valid():  # a client that goes straight to owners asks another process then
            raise Unavailable(
                "this process has not reached Redis for SASH_LEASE_S, so it does not know who has which shard",
                retry_after_s=self._lease_s,
            )
        members = sorted(self._table.members.values(), key=lambda each: (each.number, each.alive))
        members = list({each.number: each for each in members}.values())
        states = await asyncio.gather(*(self.ask(each.number, "state") for each in members))
        found = []
        for member, state in zip(members, states, strict=True):
            port = member.grpc.rpartition(":")[2]
            shards = sorted(self._table.held(member, self.shards.count))
            up = state is not None
            found.append(ServingProcess(member.number, up, int(port or 0), shards, member.grpc, sizes_of(state)))
        return found

    # ---------------------------------------------------------------- moves

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
            *(self.serving.asked(each.address, "look") for each in (owner, target) if each is not None and each.address)
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
        state = await self.serving.asked(member.address, "state")
        return state is not None and str(shard) in state

    def _member(self, process: int) -> Member | None:
        found = [each for each in self._table.members.values() if each.number == process]
        return max(found, key=lambda each: each.alive, default=None)
