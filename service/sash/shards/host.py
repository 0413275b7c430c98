"""The shards of one process among others: started, made alike, served to the others, and stopped.

storage of each shard ──▶ joining ── has the windows that home has ──▶ hosted
                                      (home's process sees to it: reconcile_one)
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from sash.access.access import Access
from sash.durability.catalogue import Catalogue
from sash.durability.hosting import StorageStatus
from sash.durability.storage import Storage
from sash.limits.held import Held
from sash.limits.turns import Turns
from sash.plane import Plane
from sash.runtime.metrics import Metrics
from sash.shards.deployment import Deployment
from sash.shards.hosted import HostedShard, HostedShards, nobody
from sash.shards.layout import Share
from sash.shards.parts import HOME, Administration, Shard
from sash.shards.peer_server import PeerServer
from sash.shards.peers import Peer, RemoteAdministration, RemoteShard
from sash.topology import ServingProcess
from sash_engine.clock import Clock
from sash_engine.errors import InvalidArgument, SashError, Unavailable
from sash_engine.windows.answers import WindowInfo

__all__ = ["PROCESS", "Host", "Open", "sizes_of"]

_log = logging.getLogger(__name__)

PROCESS = -1
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
"""After so long a window that is still closed is settled with home."""

Open = Callable[[int], tuple[Catalogue, Storage]]
"""Opens the storage of a shard. It is not started yet."""


class Host:
    """The shards of one process.

    Args:
        share: which shards these are, and where the others are.
        open_storage: opens the storage of a shard.
        metrics, clock, access: as of `Plane`.

    Attributes:
        plane: the operations on the whole deployment.
        operations: what other processes may ask this one itself, by name.
    """

    def __init__(
        self,
        share: Share,
        open_storage: Open,
        metrics: Metrics,
        clock: Clock,
        access: Access | None = None,
    ) -> None:
        self._share = share
        self._open = open_storage
        self._clock = clock
        self._peers: dict[str, Peer] = {}
        self._server: PeerServer | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._settling: set[HostedShard] = set()
        self.shards = HostedShards(share.shards, self._elsewhere)
        self.shards.administration = self._administration
        self.deployment = Deployment(self.shards, clock)
        self.deployment.processes = self._processes
        turns = Turns()
        self._held = Held(clock, metrics.observe_held, turns)
        self.plane = Plane(self.deployment, metrics, clock, access, turns)
        self.ports = (0, 0)
        """The ports of gRPC and REST by which clients reach this process, and no other one."""
        self.operations: dict[str, Callable[..., Awaitable[Any]]] = {
            "port": self._port,
            "state": self._state,
        }

    # ---------------------------------------------------------------- life

    async def start(self, standby: bool = False) -> None:
        """Recover the shards, and serve them to other processes; returns when all of them are served.

        Args:
            standby: wait until other servers' leases run out.

        Raises:
            SashError: as `Storage.start`.
        """
        if self._share.processes > 1:
            self._server = PeerServer(self._share.address_of(self._share.number), self._resolve)
            await self._server.start()
        for shard in self._share.mine:
            await self._opened(shard, standby)
        for shard in self._share.mine:
            await self._join(shard)
        if HOME in self._share.mine:
            self._spawn(self._reconcile_others())

    async def stop(self, checkpoint: bool = True) -> None:
        """Serve nothing more, and stop the storage of all shards."""
        await self._end_tasks()
        if self._server is not None:
            await self._server.stop()
        await self.shards.stop(checkpoint)
        await asyncio.gather(*(peer.close() for peer in self._peers.values()))

    def reachable(self, grpc: int, rest: int) -> None:
        """Take note of the ports by which clients reach this process, and no other one."""
        self.ports = (grpc, rest)

    async def hand_over(self) -> None:
        """Give the shards to other processes, if they take them."""

    async def _end_tasks(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _opened(self, shard: int, standby: bool, beside: bool = False) -> HostedShard:
        """Recover a shard; it serves nothing but its windows' specs before it has joined."""
        _, storage = self._open(shard)
        hosted = HostedShard.of(storage, self._held)
        hosted.local.on_closed = lambda: self._closed(shard, hosted)
        await storage.start(standby, beside)
        self.shards.joining[shard] = hosted
        return hosted

    async def _join(self, shard: int) -> None:
        """Serve a shard when it has the windows of the deployment."""
        pause_s = _PAUSE_S
        while shard != HOME and shard in self.shards.joining:
            try:
                await (self._administration() or self.deployment.lifecycle).reconcile_one(shard)
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

    async def _reconcile_others(self) -> None:
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

    def _closed(self, shard: int, hosted: HostedShard) -> None:
        """See to it that a window does not stay closed: who closed it may have ended, or lost its way here."""
        if hosted not in self._settling:
            self._settling.add(hosted)
            self._spawn(self._settle(shard, hosted))

    async def _settle(self, shard: int, hosted: HostedShard) -> None:
        pause_s = _SETTLE_S
        try:
            while hosted in (self.shards.hosted.get(shard), self.shards.joining.get(shard)):
                await asyncio.sleep(pause_s)
                if not await hosted.local.closed():
                    return
                try:
                    await (self._administration() or self.deployment.lifecycle).reconcile_one(shard)
                except SashError as error:
                    _log.debug("windows of shard %d stay closed: %s", shard, error.message)
                pause_s = min(2 * pause_s, _PAUSE_MAX_S)
        finally:
            self._settling.discard(hosted)

    def _spawn(self, work: Any) -> asyncio.Task[Any]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # ---------------------------------------------------------------- processes

    @property
    def neighbours(self) -> Sequence[int]:
        """The processes that clients reach by the same ports; also this one."""
        return range(self._share.processes)

    async def ask(self, process: int, operation: str) -> Any:
        """What another process says of itself; None if it does not answer."""
        if process == self._share.number:
            return await self.operations[operation]()
        return await self._asked(self._share.address_of(process), operation)

    async def _asked(self, address: str, operation: str) -> Any:
        try:
            async with asyncio.timeout(_WAIT_S):
                return await self.peer(address).call(PROCESS, operation)
        except (SashError, TimeoutError):
            return None

    async def _port(self) -> int:
        return self.ports[0]

    async def _state(self) -> dict[str, list[int]]:
        """By shard: entries, and bytes of writes that wait for a commit."""
        return {str(shard): [*hosted.storage.size()] for shard, hosted in self.shards.hosted.items()}

    async def _processes(self) -> Sequence[ServingProcess]:
        share = self._share

        async def process(number: int) -> ServingProcess:
            port, state = await asyncio.gather(self.ask(number, "port"), self.ask(number, "state"))
            shards = range(number, share.shards, share.processes)
            return ServingProcess(number, port is not None, port or 0, shards, sizes=sizes_of(state))

        return await asyncio.gather(*map(process, self.neighbours))

    # ---------------------------------------------------------------- calls

    def peer(self, address: str) -> Peer:
        """The process at an address."""
        peer = self._peers.get(address)
        if peer is None:
            peer = self._peers[address] = self._peer(address)
        return peer

    def _peer(self, address: str) -> Peer:
        return Peer(address, f"process {address.rpartition('/')[2]}")

    def _renew(self) -> None:
        """Make new connections to others; the old ones are closed when their calls have had time to end."""

        async def close(peers: Sequence[Peer]) -> None:
            try:
                await asyncio.sleep(_OLD_S)
            finally:
                await asyncio.gather(*(peer.close() for peer in peers))

        peers = [*self._peers.values()]
        self._peers.clear()
        self._spawn(close(peers))

    def _peer_of(self, shard: int) -> Peer:
        if shard in self._share.mine:
            raise nobody(shard)
        return self.peer(self._share.address(shard))

    def _elsewhere(self, shard: int) -> Shard:
        return RemoteShard(self._peer_of(shard), shard)

    def _administration(self) -> Administration | None:
        if HOME in self.shards.hosted:
            return None
        return RemoteAdministration(self._peer_of(HOME))

    def _resolve(self, shard: int | None, operation: str) -> Callable[..., Awaitable[Any]]:
        """The operation that another process asks for."""
        found: Any
        if shard == PROCESS:
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

    # ---------------------------------------------------------------- figures, as of a storage

    @property
    def taken(self) -> bool:
        """Whether another server has taken a shard over."""
        return self.shards.taken

    @property
    def problem(self) -> str | None:
        """Why a shard here refuses durable writes; None if none does."""
        return self.shards.problem

    @property
    def cache_bytes(self) -> int:
        """How many bytes of stored blocks are in memory."""
        return self.shards.cache_bytes

    @property
    def pending_bytes(self) -> int:
        """How many bytes of writes wait for a commit."""
        return self.shards.pending_bytes

    def status(self) -> StorageStatus | None:
        """Figures for the metrics."""
        return self.shards.status()

    def all(self) -> list[WindowInfo]:
        """The windows as far as this process has them."""
        return self.shards.infos()

    def kept(self) -> list[WindowInfo]:
        """As `all`, without views."""
        return self.shards.infos(views=False)


def sizes_of(state: Mapping[str, Sequence[int]] | None) -> dict[int, tuple[int, int]]:
    """The sizes that a process says its shards have; none where it does not answer."""
    return {int(shard): (entries, pending) for shard, (entries, pending) in (state or {}).items()}
