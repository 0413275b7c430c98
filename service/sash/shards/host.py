"""The shards of one process of a machine: a fixed part of them, by its number."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from sash.access.access import Access
from sash.runtime.metrics import Metrics
from sash.shards.hosted import HOME, nobody
from sash.shards.layout import Share
from sash.shards.peer_server import PeerServer
from sash.shards.peers import Peer
from sash.shards.serving import Open, Serving, sizes_of
from sash.topology import ServingProcess
from sash_engine.clock import Clock


class Host:
    """The shards of one process.

    Args:
        share: which shards these are, and where the others are.
        open_storage, metrics, clock, access: as of `Serving`.

    Attributes:
        serving: what it serves them with.
    """

    def __init__(
        self, share: Share, open_storage: Open, metrics: Metrics, clock: Clock, access: Access | None = None
    ) -> None:
        self._share = share
        self.serving = Serving(share.shards, open_storage, metrics, clock, access, self._peer_of, _peer)
        self.serving.deployment.processes = self._processes
        self.plane, self.shards = self.serving.plane, self.serving.shards

    async def start(self, standby: bool = False) -> None:
        """Recover the shards, and serve them to other processes; returns when all of them are served.

        Args:
            standby: wait until other servers' leases run out.

        Raises:
            SashError: as `Storage.start`.
        """
        serving, share = self.serving, self._share
        if share.processes > 1:
            serving.server = PeerServer(share.address_of(share.number), serving.resolve)
            await serving.server.start()
        for shard in share.mine:
            await serving.opened(shard, standby)
        for shard in share.mine:
            await serving.join(shard)
        if HOME in share.mine:
            serving.spawn(serving.reconcile_others())

    async def stop(self, checkpoint: bool = True) -> None:
        """Serve nothing more, and stop the storage of all shards."""
        await self.serving.end_tasks()
        await self.serving.stop(checkpoint)
        await self.serving.close()

    def reachable(self, grpc: int, rest: int) -> None:
        """Take note of the ports by which clients reach this process, and no other one."""
        self.serving.ports = (grpc, rest)

    async def hand_over(self) -> None:
        """Give the shards to other processes, if they take them."""

    @property
    def problem(self) -> str | None:
        """Why a shard here refuses durable writes; None if none does."""
        return self.shards.problem

    @property
    def neighbours(self) -> Sequence[int]:
        """The processes that clients reach by the same ports; also this one."""
        return range(self._share.processes)

    async def ask(self, process: int, operation: str) -> Any:
        """Return the description that another process gives of itself; None if it does not answer."""
        if process == self._share.number:
            return await self.serving.operations[operation]()
        return await self.serving.asked(self._share.address_of(process), operation)

    async def _processes(self) -> Sequence[ServingProcess]:
        share = self._share

        async def process(number: int) -> ServingProcess:
            port, state = await asyncio.gather(self.ask(number, "port"), self.ask(number, "state"))
            shards = range(number, share.shards, share.processes)
            return ServingProcess(number, port is not None, port or 0, shards, sizes=sizes_of(state))

        return await asyncio.gather(*map(process, self.neighbours))

    def _peer_of(self, shard: int) -> Peer:
        if shard in self._share.mine:
            raise nobody(shard)
        return self.serving.peer(self._share.address(shard))


def _peer(address: str) -> Peer:
    return Peer(address, f"process {address.rpartition('/')[2]}")
