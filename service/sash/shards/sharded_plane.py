"""The operations on windows whose keys are spread over shards: each goes to the shards that it concerns.

    one key                one shard
    bulk                   split by key ──▶ a write to each shard, side by side ──▶ counts added
    several keys           each shard answers for its own ──▶ answers in the order asked for
    keys together          partials of each shard ──▶ merged                                     merging.py
    windows                every shard has each of them                                         lifecycle.py

A write of a producer goes to every shard, also to those that get no row of it: so each shard sees all its numbers, and
notices a gap. A part that was applied before is answered so, and the others are applied. So a write that failed on some
shards is sent again, whole.

Shards answer one after the other. An answer over several of them may have a write on one shard that came after another
shard was asked.
"""

from __future__ import annotations

import builtins
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from sash.calls import each
from sash.plane import Parts, observed
from sash.shards.files import with_spec
from sash.shards.merging import merged_infos
from sash.shards.sharded_questions import ShardedQuestions
from sash.shards.sharded_writes import ShardedWrites
from sash_engine.errors import NotFound, SashError, Unavailable, Unsupported
from sash_engine.windows.answers import WindowInfo
from sash_engine.windows.spec import WindowSpec

__all__ = ["ShardedPlane"]


class ShardedPlane(ShardedWrites, ShardedQuestions):
    """A `Plane` over the shards of a deployment; made as `ShardedCalls`."""

    async def create(self, spec: WindowSpec) -> tuple[WindowInfo, bool]:
        with self._access.audited("create", spec.name):
            self._access.require("create", spec.name)
            for source in spec.feeds_on:  # a shard does not ask who calls
                self._access.require("entries", source)
            created = await self._windows().create(spec)
            return await self._changed_info(spec.name, "created"), created

    def list(self) -> builtins.list[WindowInfo]:
        """Show all windows as far as this process has them."""
        self._access.require("list", None)
        return [window for window in self._shards.infos() if self._access.sees(window.spec.name)]

    async def windows(self) -> builtins.list[WindowInfo]:
        self._access.require("list", None)
        found = await self._each(lambda plane: plane.windows())
        by_name: dict[str, dict[int, WindowInfo]] = {}
        for shard in sorted(found):
            for info in found[shard]:
                by_name.setdefault(info.spec.name, {})[shard] = info
        first = min(found)
        names = sorted(info.spec.name for info in found[first] if self._access.sees(info.spec.name))
        return [merged_infos(builtins.list(by_name[name].values()), builtins.list(by_name[name])) for name in names]

    def spec(self, name: str, operation: str = "describe") -> WindowSpec:
        """The spec of a window of which this process has a part; raises NotFound."""
        self._access.require(operation, name)
        spec = self._shards.spec(name)
        if spec is None:
            raise NotFound(f"there is no window {name[:140]!r}", field="window")
        return spec

    def check_may(self, name: str, operation: str) -> None:
        self._access.require(operation, name)

    async def look_up(self, name: str, operation: str = "describe") -> WindowSpec:
        self._access.require(operation, name)
        return await self._spec(name)

    def describe(self, name: str) -> WindowInfo:
        """Show a window as far as this process has it; raises NotFound."""
        self._access.require("describe", name)
        for info in self._shards.infos():
            if info.spec.name == name:
                return info
        raise NotFound(f"there is no window {name[:140]!r}", field="window")

    async def window(self, name: str) -> WindowInfo:
        self._access.require("describe", name)
        start_s = self._clock.monotonic_s()
        try:
            return await self._info(name)
        except SashError as error:
            self._metrics.count_error("describe", type(error).__name__)
            raise
        finally:
            self._metrics.observe("describe", self._class_of(name), self._clock.monotonic_s() - start_s)

    async def _info(self, name: str) -> WindowInfo:
        found = await self._each(lambda plane: plane.window(name))
        return merged_infos([found[shard] for shard in sorted(found)], sorted(found))

    async def _changed_info(self, name: str, done: str) -> WindowInfo:
        """As `_info`, after a change: whoever cannot describe the window has changed it all the same."""
        try:
            return await self._info(name)
        except Unavailable as error:
            raise Unavailable(
                f"window {name!r} is {done}, and cannot be described now: {error.message}",
                field=error.field,
                retry_after_s=error.retry_after_s,
            ) from None

    @observed
    async def delete(self, name: str) -> int:
        with self._access.audited("delete", name):
            self._checkers.pop(name, None)
            return await self._windows().delete(name)

    @observed
    async def add_aggregates(self, name: str, aggregates: Mapping[str, Any]) -> WindowInfo:
        with self._access.audited("add_aggregates", name):
            await self._windows().add_aggregates(name, aggregates)
        return await self._changed_info(name, "changed")

    async def export(self, name: str) -> Parts[bytes]:
        self._access.require("export", name)
        with self._access.audited("export", name):
            return await self.lifecycle.export(name)

    async def export_together(self, name: str, derived: Sequence[str]) -> Parts[tuple[str, bytes]]:
        _check_none_fed(derived)
        parts = each(await self.export(name))
        return ((name, part) async for part in parts)

    async def restore(
        self, parts: AsyncIterator[bytes], name: str | None = None, derived: Sequence[str] = ()
    ) -> WindowInfo:
        self._access.require("restore", name)
        _check_none_fed(derived)
        with self._access.audited("restore", name) as entry:
            spec, whole = await with_spec(parts, name)
            entry.window = spec.name
            self._access.require("restore", spec.name)
            await self._windows().restore(whole, spec.name)
            return await self._changed_info(spec.name, "restored")


def _check_none_fed(derived: Sequence[str]) -> None:
    """Refuse windows that another one feeds."""
    if derived:
        raise Unsupported(
            "derived: no window of a service of several shards feeds another one",
            field="derived",
            limit="a service of one shard",
        )
