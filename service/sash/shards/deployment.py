"""The windows of a deployment, whose keys are spread over shards: each operation goes to the shards that it concerns.

commands    split by key ──▶ a write to each shard, side by side ──▶ counts added      commands.py
questions   each shard answers for its keys ──▶ merged                                 questions.py
windows     every shard has each of them                                               lifecycle.py
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from sash.calls import each
from sash.durability.catalogue import no_window
from sash.durability.records.commands import Command
from sash.runtime.slices import Slices
from sash.shard import Parts
from sash.shards.commands import Commands
from sash.shards.files import with_spec
from sash.shards.hosted import HostedShards
from sash.shards.lifecycle import Lifecycle
from sash.shards.merging import merged_infos
from sash.shards.peers import RemoteShard
from sash.shards.questions import Questions
from sash.shards.shard_calls import ShardCalls
from sash.topology import ServingProcess, stays
from sash_engine.clock import Clock
from sash_engine.errors import NotFound, Unavailable, Unsupported
from sash_engine.windows.answers import WindowInfo
from sash_engine.windows.batches.batch import Origin
from sash_engine.windows.questions import Question
from sash_engine.windows.spec.window import WindowSpec

A = TypeVar("A")
R = TypeVar("R")

Administration = Lifecycle | RemoteShard
"""Creates, changes and deletes windows on all shards. One process does it at a time."""


class Deployment:
    """The windows of all shards. It is a `Windows`.

    Args:
        shards: where they are.
        clock: of windows.

    Attributes:
        administration: returns where windows are created and deleted; raises Unavailable if nobody does it now.
        processes: says which processes there are.
        move: has a process take a shard.
    """

    def __init__(self, shards: HostedShards, clock: Clock) -> None:
        self.shards = shards
        self.count = shards.count
        self.slices = Slices(clock)
        self._calls = ShardCalls(shards, clock)
        self._commands = Commands(self._calls)
        self._questions = Questions(self._calls, self.slices)
        self._elsewhere: Mapping[str, WindowInfo] = {}
        """The windows, as others said last; where this process has no shard."""
        self.lifecycle = Lifecycle(shards)
        self.administration: Callable[[], Administration] = lambda: self.lifecycle
        self.processes: Callable[[], Awaitable[Sequence[ServingProcess]]] = self._alone
        self.move: Callable[[int, int], Awaitable[None]] = _stay

    async def _alone(self) -> Sequence[ServingProcess]:
        return [ServingProcess(0, True, 0, range(self.count))]

    async def write(self, name: str, command: Command[R], origin: Origin | None = None) -> R:
        return await self._commands.write(name, command, origin)

    async def ask(self, name: str, question: Question[A]) -> A:
        return await self._questions.ask(name, question)

    # ---------------------------------------------------------------- windows

    async def learn(self) -> None:
        """A process without shards asks the others for the windows. One that has a shard has all windows there."""
        if not self.shards.hosted:
            self._elsewhere = {info.spec.name: info for info in await self.windows()}

    def spec(self, name: str) -> WindowSpec:
        spec = self.shards.spec(name)
        if spec is None and not self.shards.hosted and name in self._elsewhere:
            spec = self._elsewhere[name].spec
        if spec is None:
            raise no_window(name)
        return spec

    async def look_up(self, name: str) -> WindowSpec:
        return await self._calls.spec(name)

    def check_known(self, name: str) -> None:
        pass  # it may be elsewhere

    def class_of(self, name: str) -> str:
        return self.shards.class_of(name)

    def infos(self) -> Sequence[WindowInfo]:
        return self.shards.infos() if self.shards.hosted else list(self._elsewhere.values())

    async def window(self, name: str) -> WindowInfo:
        found = await self._calls.each(lambda shard: shard.window(name))
        return merged_infos([found[shard] for shard in sorted(found)], sorted(found))

    async def _changed(self, name: str, done: str) -> WindowInfo:
        """As `window`, after a change: where the window cannot be described, it has changed all the same.

        So a window that somebody has deleted meanwhile is no NotFound: the caller would take its change for refused.
        """
        try:
            return await self.window(name)
        except (Unavailable, NotFound) as error:
            raise Unavailable(
                f"window {name!r} is {done}, and cannot be described now: {error.message}",
                field=error.field,
                retry_after_s=error.retry_after_s,
            ) from None

    async def windows(self) -> Sequence[WindowInfo]:
        found = await self._calls.each(lambda shard: shard.windows())
        by_name: dict[str, dict[int, WindowInfo]] = {}
        for shard in sorted(found):
            for info in found[shard]:
                by_name.setdefault(info.spec.name, {})[shard] = info
        names = sorted(info.spec.name for info in found[min(found)])
        return [merged_infos(list(by_name[name].values()), list(by_name[name])) for name in names]

    async def create(self, spec: WindowSpec) -> tuple[WindowInfo, bool]:
        created = await self.administration().create(spec)
        return await self._changed(spec.name, "created"), created

    def goes_with(self, name: str) -> Sequence[str]:
        return ()

    async def delete(self, name: str) -> int:
        self._calls.forget(name)
        return await self.administration().delete(name)

    async def add_aggregates(self, name: str, aggregates: Mapping[str, Any]) -> WindowInfo:
        await self.administration().add_aggregates(name, aggregates)
        return await self._changed(name, "changed")

    async def export(self, name: str) -> Parts[bytes]:
        return await self.lifecycle.export(name)

    async def export_together(self, name: str, derived: Sequence[str]) -> Parts[tuple[str, bytes]]:
        _check_none_fed(derived)
        parts = await self.export(name)
        return ((name, part) async for part in each(parts))

    async def restore(
        self,
        parts: AsyncIterator[bytes],
        name: str | None = None,
        derived: Sequence[str] = (),
        *,
        admit: Callable[[str], None],
    ) -> WindowInfo:
        _check_none_fed(derived)
        spec, whole = await with_spec(parts, name)
        admit(spec.name)
        await self.administration().restore(whole, spec.name)
        return await self._changed(spec.name, "restored")

    def tidy(self) -> None:
        self.shards.tidy()


async def _stay(shard: int, process: int) -> None:
    raise stays()


def _check_none_fed(derived: Sequence[str]) -> None:
    """Refuse windows that another one feeds."""
    if derived:
        raise Unsupported(
            "derived: no window of a service of several shards feeds another one",
            field="derived",
            limit="a service of one shard",
        )
