"""A call on several shards: who makes it, and what becomes of errors."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from sash.context import missing_shards, only_shard
from sash.shards.hosted import HOME, HostedShards, Shard
from sash.shards.parts import together, worst
from sash_engine.clock import Clock
from sash_engine.errors import InvalidArgument, SashError, Unavailable
from sash_engine.windows.questions import EntriesQuery, KeyList, Query, RangeQuery, SeriesQuery
from sash_engine.windows.spec.window import WindowSpec
from sash_engine.windows.window import Window
from sash_wire.placement import shard_of

R = TypeVar("R")
T = TypeVar("T")


Call = Callable[[Shard], Awaitable[R]]
OfKeys = Query | RangeQuery | SeriesQuery | EntriesQuery
"""Questions about keys that they name, or select."""


class ShardCalls:
    """Calls on the shards of a deployment.

    Args:
        shards: where they are.
        clock: of windows.
    """

    def __init__(self, shards: HostedShards, clock: Clock) -> None:
        self.shards = shards
        self._clock = clock
        self._checkers: dict[str, Window] = {}

    @property
    def all(self) -> Sequence[int]:
        """The shards that a call is for."""
        only = only_shard()
        return range(self.shards.count) if only is None else (only,)

    async def on(self, shard: int, call: Call[R]) -> R:
        """Make a call to one shard."""
        to = self.shards.plane(shard) if only_shard() is None else self.shards.local(shard)
        return await self.shards.guarded(shard, _made(call, to))

    def home_of(self, name: str, key: str | None = None) -> int:
        """The shard of a key, or of a window without keys."""
        shard = shard_of(name, key, self.shards.count)
        self.check_here((shard,))
        return shard

    def check_here(self, shards: Iterable[int]) -> None:
        """Refuse a call that is for one shard and concerns others."""
        only = only_shard()
        if only is not None and set(shards) != {only}:
            raise wrong_shard(only, self.shards.count)

    async def each(self, call: Call[R]) -> dict[int, R]:
        """Make a call to all shards; raises the worst error."""
        answers, errors = await together({shard: self.on(shard, call) for shard in self.all})
        if errors:
            raise worst(errors.values())
        return answers

    async def spec(self, name: str) -> WindowSpec:
        """The spec of a window."""
        spec = self.shards.spec(name)
        return spec if spec is not None else (await self.on(HOME, lambda shard: shard.window(name))).spec

    def checker(self, spec: WindowSpec) -> Window:
        """An empty window, which refuses what every shard would refuse."""
        found = self._checkers.get(spec.name)
        if found is None or found.spec is not spec:
            found = self._checkers[spec.name] = Window(spec, clock=self._clock)
        return found

    def forget(self, name: str) -> None:
        """Forget a window that is about to go."""
        self._checkers.pop(name, None)

    async def ask(self, asked: Mapping[int, T], call: Callable[[T], Call[R]]) -> dict[int, R]:
        """Ask each shard for its part of a question."""
        found, errors = await together({shard: self.on(shard, call(part)) for shard, part in asked.items()})
        if errors:
            missing = missing_shards()
            if missing is None or not found or not all(isinstance(each, Unavailable) for each in errors.values()):
                raise _lacking(errors, len(asked))
            missing.update(errors)
        return found


def asking(name: str, question: OfKeys) -> Callable[[KeyList], Call[Any]]:
    """Returns what asks a shard a question about some keys."""

    def about(keys: KeyList) -> Call[Any]:
        of_keys = question if keys is question.keys else replace(question, keys=keys)
        return lambda shard: shard.ask(name, of_keys)

    return about


async def _made(call: Call[R], shard: Shard) -> R:
    return await call(shard)


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
