"""A call on several shards: who makes it, and what becomes of errors."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from sash.access.access import Access
from sash.calls import ONLY_SHARD
from sash.held import Held
from sash.limits.turns import Turns
from sash.limits.watches import Watches
from sash.missing import MISSING
from sash.plane import Plane
from sash.runtime.metrics import Metrics
from sash.runtime.slices import Slices
from sash.shards.lifecycle import Lifecycle
from sash.shards.parts import HOME, Operations, ShardPlane, Shards, together, worst
from sash.shards.splitting import split_keys
from sash.topology import ServingProcess, Topology, shown, stays
from sash_engine.clock import Clock
from sash_engine.errors import InvalidArgument, SashError, Unavailable
from sash_engine.windows.questions import AllKeys, KeyList
from sash_engine.windows.spec import WindowSpec
from sash_engine.windows.window import Window
from sash_wire.placement import shard_of

__all__ = ["Call", "ShardedCalls", "wrong_shard"]

R = TypeVar("R")


Call = Callable[[ShardPlane], Awaitable[R]]


class ShardedCalls(Plane):
    """The calls that all operations on shards are made of.

    Args:
        shards: where they are.
        metrics, clock, access: as of `Plane`.
    """

    def __init__(self, shards: Shards, metrics: Metrics, clock: Clock, access: Access | None = None) -> None:
        self._shards = shards
        self._metrics = metrics
        self._clock = clock
        self._access = access or Access(clock)
        self._slices = Slices(clock)
        self.held = Held(clock, metrics.observe_held)
        """For the planes of the shards here, which measure. Calls to shards elsewhere hold the loop there."""
        self._held = _Unmeasured(clock, metrics.observe_held)
        self._checkers: dict[str, Window] = {}
        self._producers: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()
        """By window and producer, what writes hold that must not overtake each other."""
        self.lifecycle = Lifecycle(shards)
        self.processes: Callable[[], Awaitable[Sequence[ServingProcess]]] = self._alone
        """Says which processes there are."""
        self.mover: Callable[[int, int], Awaitable[None]] | None = None
        """Has a process take a shard; None: shards stay where they are."""
        self.watches = Watches()
        self.turns = Turns()

    # ---------------------------------------------------------------- shards

    def _class_of(self, window: str) -> str:
        return self._shards.class_of(window)

    def _trim(self) -> None:
        self._shards.trim()

    def tidy(self) -> None:
        self._shards.tidy()

    @property
    def _all(self) -> Sequence[int]:
        """The shards that a call is for."""
        only = ONLY_SHARD.get()
        return range(self._shards.count) if only is None else (only,)

    async def _alone(self) -> Sequence[ServingProcess]:
        return [ServingProcess(0, True, 0, range(self._shards.count))]

    async def topology(self) -> Topology:
        self._access.require("topology", None)
        return shown(self._shards.count, await self.processes(), self._access)

    async def move(self, shard: int, process: int) -> Topology:
        with self._access.audited("move", None):
            self._access.require("move", None)
            if self.mover is None:
                raise stays()
            await self.mover(shard, process)
        return shown(self._shards.count, await self.processes(), self._access)

    def _windows(self) -> Operations:
        """Where windows are created and deleted."""
        return self._shards.deployment() or self.lifecycle

    async def _on(self, shard: int, call: Call[R]) -> R:
        """Make a call to one shard."""
        plane = self._shards.plane(shard) if ONLY_SHARD.get() is None else self._shards.local(shard)
        return await self._shards.guarded(shard, _made(call, plane))

    def _home_of(self, name: str, key: str | None = None) -> int:
        """The shard of a key, or of a window without keys."""
        shard, only = shard_of(name, key, self._shards.count), ONLY_SHARD.get()
        if only is not None and shard != only:
            raise wrong_shard(only, self._shards.count)
        return shard

    async def _each(self, call: Call[R], shards: Iterable[int] | None = None) -> dict[int, R]:
        """Make a call to several shards, or to all; raises the worst error, and names its shard."""
        answers, errors = await together(
            {shard: self._on(shard, call) for shard in (self._all if shards is None else shards)}
        )
        if errors:
            raise worst(errors.values())
        return answers

    async def _spec(self, name: str) -> WindowSpec:
        spec = self._shards.spec(name)
        return spec if spec is not None else (await self._on(HOME, lambda plane: plane.window(name))).spec

    async def _asked(self, name: str, key: str | None, keys: KeyList, selects: bool = False) -> dict[int, KeyList]:
        """The shards that a question is about, and which of its keys each has.

        Args:
            selects: it is about keys that it does not name.
        """
        if self._shards.count == 1:
            return {0: keys}
        only = ONLY_SHARD.get()
        spec = self._shards.spec(name)
        if spec is None and only is None:
            spec = await self._spec(name)
        if spec is not None and spec.of is not None:
            name = spec.of  # the keys of a view are where its window has them
        if key is not None or not (keys or selects) or (only is None and spec is not None and not spec.keyed):
            return {self._home_of(name, key): keys}
        if isinstance(keys, AllKeys) or not keys:
            return dict.fromkeys(self._all, keys)
        found: dict[int, KeyList] = {}
        found.update(split_keys(name, keys, self._shards.count))
        if only is not None and set(found) != {only}:
            raise wrong_shard(only, self._shards.count)
        return found

    def _checker(self, spec: WindowSpec) -> Window:
        """An empty window, which refuses what every shard would refuse."""
        found = self._checkers.get(spec.name)
        if found is None or found.spec is not spec:
            found = self._checkers[spec.name] = Window(spec, clock=self._clock)
        return found

    async def _ask(self, asked: Mapping[int, KeyList], call: Callable[[KeyList], Call[R]]) -> dict[int, R]:
        """Ask each shard about its keys."""
        found, errors = await together({shard: self._on(shard, call(keys)) for shard, keys in asked.items()})
        if errors:
            missing = MISSING.get()
            if missing is None or not found or not all(isinstance(each, Unavailable) for each in errors.values()):
                raise _lacking(errors, len(asked))
            missing.update(errors)
        return found


async def _made(call: Call[R], plane: ShardPlane) -> R:
    return await call(plane)


def _lacking(errors: Mapping[int, SashError], asked: int) -> SashError:
    """The error of a question to which some shards have no answer; it says which, if they may have one later."""
    error = worst(errors.values())
    if not isinstance(error, Unavailable) or asked == 1:
        return error
    missing = ", ".join(map(str, sorted(errors)))
    return Unavailable(
        f"{len(errors)} of the {asked} shards that are asked do not answer ({missing}): {error.message}",
        field=error.field,
        retry_after_s=error.retry_after_s,
    )


def wrong_shard(shard: int, shards: int) -> InvalidArgument:
    """The error for a call that is for one shard, and names keys of another."""
    return InvalidArgument(
        f"the call is for shard {shard}, and has keys that are not on it: this deployment has {shards} shards",
        field="sash-shard",
    )


class _Unmeasured(Held):
    """Measures nothing: the plane of each shard does."""

    def timed(self, operation: str, window: str, work: Any, *_: Any) -> Any:
        return work
