"""Shards that this process has: each is a small service of its own, with its catalogue, storage and plane.

HostedShards ──▶ shard 0: Catalogue, Storage ──▶ tier      shards that are elsewhere: `elsewhere`
             └─▶ shard 3: Catalogue, Storage ──▶ tier
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from typing import Any, TypeVar

from sash.durability.storage import Storage
from sash.limits.loop_time import LoopTime
from sash.runtime.storage_status import StorageStatus
from sash.shard import LocalShard
from sash.shards.merging import merged_infos
from sash.shards.peers import RemoteShard
from sash_engine.errors import FailedPrecondition, Unavailable
from sash_engine.windows.answers import WindowInfo
from sash_engine.windows.spec.window import WindowSpec

R = TypeVar("R")

_RETRY_S = 0.5

HOME = 0
"""The shard that says which windows there are. A window exists once, and as long as, this shard has it."""

Shard = LocalShard | RemoteShard
"""The windows of one shard, here or elsewhere."""


class HostedShard:
    """One shard of this process.

    Args:
        storage: what keeps its windows.
        held: is told how long its operations hold the loop.

    Attributes:
        calls: how many are in progress.
    """

    def __init__(self, storage: Storage, held: LoopTime) -> None:
        self.storage, self.catalogue = storage, storage.catalogue
        self.local = LocalShard(storage, held)
        self.calls = 0


class HostedShards:
    """The shards of a deployment, some of which this process has.

    Args:
        count: how many the deployment has.
        elsewhere: returns the operations on a shard that this process does not have; raises Unavailable if nobody has
            it. None: nobody else has any.

    Attributes:
        hosted: the shards that this process serves. They may come and go.
        joining: the shards that it will serve when they have the windows of the deployment.
    """

    def __init__(self, count: int, elsewhere: Callable[[int], Shard] | None = None) -> None:
        self.count = count
        self.hosted: dict[int, HostedShard] = {}
        self.joining: dict[int, HostedShard] = {}
        self._elsewhere = elsewhere
        self.valid: Callable[[], bool] = lambda: True
        """Whether this process may answer for its shards: no other process can have them."""
        self.on_taken: Callable[[int], None] = lambda shard: None
        """Called when a call shows that another process has a shard of this one."""

    def plane(self, shard: int) -> Shard:
        """The windows of a shard, here or elsewhere.

        Raises:
            Unavailable: nobody has it at the moment; `retry_after_s` says when to try again.
        """
        if shard in self.hosted:
            return self.local(shard)
        if self._elsewhere is None:
            raise nobody(shard)
        return self._elsewhere(shard)

    def administered(self, shard: int) -> Shard:
        """As `plane`, to create and delete windows; also on a shard that serves nothing else yet."""
        joining = self.joining.get(shard)
        return self.plane(shard) if joining is None else joining.local

    def local(self, shard: int) -> LocalShard:
        """The windows of a shard that this process has; raises Unavailable if it has it not (any more)."""
        hosted = self.hosted.get(shard)
        if hosted is None:
            raise nobody(shard, "is not here")
        if not self.valid():
            raise nobody(shard, "may be elsewhere: this process has not reached Redis for SASH_LEASE_S")
        return hosted.local

    async def confirm(self, shard: int) -> None:
        """Ask the store if it has all that a shard of this process shows, and if no other process has the shard.

        Raises:
            Unavailable: it has not, or cannot be asked.
        """
        self.local(shard)
        await self.guarded(shard, self.hosted[shard].storage.confirm())

    async def guarded(self, shard: int, call: Coroutine[Any, Any, R]) -> R:
        """Make a call to a shard; one that goes wrong because the shard has moved is Unavailable.

        A refusal may be of what was in memory before another process had the shard: the store is asked about that.
        """
        hosted = self.hosted.get(shard)
        if hosted is None:
            return await call
        hosted.calls += 1
        try:
            return await call
        except FailedPrecondition:
            if self.hosted.get(shard) is hosted and not hosted.storage.taken:
                with suppress(FailedPrecondition):
                    await hosted.storage.confirm()
            if hosted.storage.taken:
                self.on_taken(shard)
            elif self.hosted.get(shard) is hosted:
                raise
            raise Unavailable(
                f"shard {shard} has moved to another process; the call may have taken place",
                field="shard",
                retry_after_s=_RETRY_S,
            ) from None
        finally:
            hosted.calls -= 1

    def spec(self, name: str) -> WindowSpec | None:
        """The spec of a window, if this process has a shard that knows it."""
        for hosted in self.hosted.values():
            if name in hosted.catalogue:
                return hosted.catalogue.find(name).spec
        return None

    def class_of(self, name: str) -> str:
        """The kind of a window, for metrics; "none" if it is not known here."""
        spec = self.spec(name)
        return "none" if spec is None else "keyed" if spec.keyed else "plain"

    def infos(self, views: bool = True) -> list[WindowInfo]:
        """The windows as far as this process has them; without views, only what keeps entries."""
        found: dict[str, dict[int, WindowInfo]] = {}
        for shard, hosted in self.hosted.items():
            for info in hosted.storage.all() if views else hosted.storage.kept():
                found.setdefault(info.spec.name, {})[shard] = info
        return [merged_infos(list(found[name].values()), list(found[name])) for name in sorted(found)]

    def tidy(self) -> None:
        """Do what time alone brings, to every shard here."""
        for hosted in list(self.hosted.values()):
            hosted.storage.tidy()

    def gone(self, shard: int) -> HostedShard | None:
        """Serve a shard no more, and return it; None where it was not here."""
        return self.hosted.pop(shard, None) or self.joining.pop(shard, None)

    # ---------------------------------------------------------------- figures

    def kept(self) -> list[WindowInfo]:
        """As `infos`, without views."""
        return self.infos(views=False)

    @property
    def taken(self) -> bool:
        """Whether another server has taken a shard over."""
        return any(hosted.storage.taken for hosted in (*self.hosted.values(), *self.joining.values()))

    @property
    def problem(self) -> str | None:
        """Why a shard here refuses durable writes; None if none does."""
        for shard, hosted in self.hosted.items():
            if hosted.storage.problem is not None:
                return f"shard {shard}: {hosted.storage.problem}"
        return None

    @property
    def cache_bytes(self) -> int:
        """How many bytes of stored blocks are in memory."""
        return sum(hosted.storage.cache_bytes for hosted in self.hosted.values())

    @property
    def window_bytes(self) -> int:
        """How many bytes of memory the windows have, at most."""
        return sum(hosted.storage.window_bytes for hosted in self.hosted.values())

    @property
    def pending_bytes(self) -> int:
        """How many bytes of writes wait for a commit."""
        return sum(hosted.storage.pending_bytes for hosted in self.hosted.values())

    def status(self) -> StorageStatus | None:
        """The figures of all shards here, added; None if there is none, or without a tier."""
        found = [status for hosted in self.hosted.values() if (status := hosted.storage.status()) is not None]
        return _added(found) if found else None

    async def stop(self, checkpoint: bool = True) -> None:
        """Stop the storage of all shards."""
        hosted = {**self.joining, **self.hosted}
        self.hosted.clear()
        self.joining.clear()
        await asyncio.gather(*(shard.storage.stop(checkpoint=checkpoint) for shard in hosted.values()))


def _added(statuses: Sequence[StorageStatus]) -> StorageStatus:
    numbers: dict[str, Any] = {}
    for name in (field.name for field in fields(StorageStatus) if field.name not in ("tier", "error")):
        known = [value for status in statuses if (value := getattr(status, name)) is not None]
        one_server = statuses[0].tier == "redis" and name in ("used_bytes", "limit_bytes")
        numbers[name] = (max if one_server else sum)(known) if known else None
    errors = [status.error for status in statuses if status.error is not None]
    return replace(statuses[0], error=errors[0] if errors else None, **numbers)


def nobody(shard: int, what: str = "is moving or starting") -> Unavailable:
    """The error for a shard that nobody serves now."""
    return Unavailable(
        f"shard {shard} {what}; nothing was changed on it", field="shard", retry_after_s=_RETRY_S, unchanged=True
    )
