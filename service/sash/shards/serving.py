"""The shards of one process among others: started, made alike, and served to the others.

storage of each shard ──▶ joining ── has the windows that home has ──▶ hosted
                                      (home's process sees to it: reconcile_one)
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from sash.access.access import Access
from sash.durability.storage import Storage
from sash.limits.loop_time import LoopTime
from sash.plane import Plane
from sash.runtime.metrics import Metrics
from sash.shards.deployment import Administration, Deployment
from sash.shards.hosted import HOME, HostedShard, HostedShards, Shard, nobody
from sash.shards.peer_server import PeerServer
from sash.shards.peers import Peer, RemoteShard
from sash_engine.clock import Clock
from sash_engine.errors import InvalidArgument, SashError, Unavailable

_log = logging.getLogger(__name__)

_PROCESS = -1
"""Stands for the process itself, where a call names a shard."""

_ADMINISTRATION = frozenset(
    {"create", "closed", "close", "reopen", "delete", "add_aggregates", "restore", "window", "windows"}
)
_SHARD = _ADMINISTRATION | {"write", "ask", "export"}
_DEPLOYMENT = frozenset({"create", "delete", "add_aggregates", "restore", "reconcile_one"})

_PAUSE_S = 0.1
_PAUSE_MAX_S = 5.0
_WAIT_S = 2.0
_OLD_S = 60.0
_SETTLE_S = 0.5
"""After so long a window that is still closed, or has changed on home only, is settled with home."""

Open = Callable[[int], Storage]
"""Opens the storage of a shard. It is not started yet."""


class Serving:
    """The means by which a process serves its shards. A host decides which shards it has.

    Args:
        count: how many shards the deployment has.
        open_storage: opens the storage of a shard.
        metrics, clock, access: as of `Plane`.
        peer_of: returns the process that has a shard, which is another one; raises Unavailable if nobody has it.
        connect: connects to the process at an address.

    Attributes:
        plane: the operations on the whole deployment.
        operations: what other processes may ask this one itself, by name.
        server: takes the calls of other processes, if there are any.
        ports: of gRPC and REST, by which clients reach this process, and no other one.
    """

    def __init__(
        self,
        count: int,
        open_storage: Open,
        metrics: Metrics,
        clock: Clock,
        access: Access | None,
        peer_of: Callable[[int], Peer],
        connect: Callable[[str], Peer],
    ) -> None:
        self._open = open_storage
        self._peer_of, self._connect = peer_of, connect
        self._peers: dict[str, Peer] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._settling: set[HostedShard] = set()
        self.server: PeerServer | None = None
        self.shards = HostedShards(count, self._elsewhere)
        self.deployment = Deployment(self.shards, clock)
        self.deployment.administration = self._administration
        turns = self.deployment.slices.turns
        self._held = LoopTime(clock, metrics.observe_held, turns)
        self.plane = Plane(self.deployment, metrics, clock, access, turns)
        self.ports = (0, 0)
        self.operations: dict[str, Callable[..., Awaitable[Any]]] = {"port": self._port, "state": self._state}

    # ---------------------------------------------------------------- life

    async def end_tasks(self) -> None:
        """End what was begun."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def stop(self, checkpoint: bool) -> None:
        """Take no more calls, and stop the storage of all shards."""
        if self.server is not None:
            await self.server.stop()
        await self.shards.stop(checkpoint)

    async def close(self) -> None:
        """End the connections to other processes."""
        await asyncio.gather(*(peer.close() for peer in self._peers.values()))

    async def opened(self, shard: int, standby: bool, beside: bool = False) -> HostedShard:
        """Recover a shard; it serves nothing but its windows' specs before it has joined."""
        storage = self._open(shard)
        hosted = HostedShard(storage, self._held)
        hosted.local.on_unsettled = lambda: self._unsettled(shard, hosted)
        await storage.start(standby, beside)
        self.shards.joining[shard] = hosted
        return hosted

    async def join(self, shard: int) -> None:
        """Serve a shard when it has the windows of the deployment."""
        pause_s = _PAUSE_S
        while shard != HOME and shard in self.shards.joining:
            try:
                await self._administration().reconcile_one(shard)
                break
            except Unavailable as error:
                _log.debug("shard %d waits for the windows of the deployment: %s", shard, error.message)
                await asyncio.sleep(_PAUSE_S)
            except SashError as error:
                # Whatever it is: without its windows the shard cannot be served, and the others can.
                _log.error("shard %d waits for the windows of the deployment: %s", shard, error.message)
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _PAUSE_MAX_S)
        joined = self.shards.joining.pop(shard, None)
        if joined is not None:
            self.shards.hosted[shard] = joined

    async def reconcile_others(self) -> None:
        """Finish what the last owner of home may have left half-done on shards that were served all the time."""
        for shard in range(HOME + 1, self.shards.count):
            while HOME in self.shards.hosted and shard not in self.shards.joining:
                try:
                    await self.deployment.lifecycle.reconcile_one(shard)
                    break
                except Unavailable:
                    await asyncio.sleep(_PAUSE_S)
                except SashError as error:
                    _log.error("shard %d does not get the windows of the deployment: %s", shard, error.message)
                    await asyncio.sleep(_PAUSE_MAX_S)

    def _unsettled(self, shard: int, hosted: HostedShard) -> None:
        """See to it that a window does not stay closed, or ahead of others: who began it may have lost its way here."""
        if hosted not in self._settling:
            self._settling.add(hosted)
            self.spawn(self._settle(shard, hosted))

    async def _settle(self, shard: int, hosted: HostedShard) -> None:
        pause_s = _SETTLE_S
        try:
            while hosted in (self.shards.hosted.get(shard), self.shards.joining.get(shard)):
                await asyncio.sleep(pause_s)
                if hosted.local.is_settled:
                    return
                try:
                    await self._administration().reconcile_one(shard)
                except SashError as error:
                    _log.debug("windows of shard %d are not settled: %s", shard, error.message)
                pause_s = min(2 * pause_s, _PAUSE_MAX_S)
        finally:
            self._settling.discard(hosted)

    def spawn(self, work: Any) -> asyncio.Task[Any]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # ---------------------------------------------------------------- other processes

    def peer(self, address: str) -> Peer:
        """The process at an address."""
        peer = self._peers.get(address)
        if peer is None:
            peer = self._peers[address] = self._connect(address)
        return peer

    def renew(self) -> None:
        """Make new connections to others; the old ones are closed when their calls have had time to end."""

        async def close(peers: Sequence[Peer]) -> None:
            try:
                await asyncio.sleep(_OLD_S)
            finally:
                await asyncio.gather(*(peer.close() for peer in peers))

        peers = [*self._peers.values()]
        self._peers.clear()
        self.spawn(close(peers))

    def forget(self, gone: Callable[[str], bool]) -> None:
        """End the connections to addresses where there is nobody any more."""
        for address in [*filter(gone, self._peers)]:
            self.spawn(self._peers.pop(address).close())

    async def asked(self, address: str, operation: str) -> Any:
        """Return the description that another process gives of itself; None if it does not answer."""
        try:
            async with asyncio.timeout(_WAIT_S):
                return await self.peer(address).call(_PROCESS, operation)
        except (SashError, TimeoutError):
            return None

    async def _port(self) -> int:
        return self.ports[0]

    async def _state(self) -> dict[str, list[int]]:
        """By shard: entries, and bytes of writes that wait for a commit."""
        return {str(shard): [*hosted.storage.size()] for shard, hosted in self.shards.hosted.items()}

    def _elsewhere(self, shard: int) -> Shard:
        return RemoteShard(self._peer_of(shard), shard)

    def _administration(self) -> Administration:
        if HOME in self.shards.hosted:
            return self.deployment.lifecycle
        return RemoteShard(self._peer_of(HOME), None)

    def resolve(self, shard: int | None, operation: str) -> Callable[..., Awaitable[Any]]:
        """The operation that another process asks for."""
        found: Any
        if shard == _PROCESS:
            found = self.operations.get(operation)
            if found is None:
                raise InvalidArgument(f"there is no operation {operation!r}")
            return found  # type: ignore[no-any-return]
        if operation not in (_DEPLOYMENT if shard is None else _SHARD):
            raise InvalidArgument(f"there is no operation {operation!r}")
        if shard is None:
            if HOME not in self.shards.hosted:
                raise nobody(HOME)
            found = getattr(self.deployment.lifecycle, operation)
        elif operation in _ADMINISTRATION and shard in self.shards.joining:
            found = getattr(self.shards.joining[shard].local, operation)
        else:
            return self._guarded(shard, getattr(self.shards.local(shard), operation))
        return found  # type: ignore[no-any-return]

    def _guarded(self, shard: int, operation: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
        return lambda *args: self.shards.guarded(shard, operation(*args))


def sizes_of(state: Mapping[str, Sequence[int]] | None) -> dict[int, tuple[int, int]]:
    """The sizes that a process says its shards have; none where it does not answer."""
    return {int(shard): (entries, pending) for shard, (entries, pending) in (state or {}).items()}
