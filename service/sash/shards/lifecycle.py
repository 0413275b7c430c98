"""Windows that come, change and go on all shards.

    create    every other shard, then home         a window exists when home has it
    delete    home, then every other shard         a window is gone when home has it no more
    change    home, then every other shard
    restore   every shard, home ends last

A crash between leaves shards that differ from home. `reconcile_one` makes them alike again: windows that home lacks
go, and windows and aggregates that only home has come.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, suppress
from typing import Any, TypeVar

from sash.plane import Parts
from sash.shards.files import Splitter, merged_file
from sash.shards.parts import HOME, ShardPlane, Shards, together, worst
from sash_engine.errors import (
    AlreadyExists,
    DataLoss,
    FailedPrecondition,
    NotFound,
    SashError,
    Unavailable,
    Unsupported,
)
from sash_engine.windows.spec import WindowSpec

__all__ = ["Lifecycle"]

_log = logging.getLogger(__name__)

R = TypeVar("R")

_AHEAD = 2
"""Frames of an import that may wait for a shard."""


class Lifecycle:
    """Creates, changes and deletes windows on all shards.

    Args:
        shards: the deployment.
    """

    def __init__(self, shards: Shards) -> None:
        self._shards = shards
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    @property
    def _others(self) -> range:
        return range(HOME + 1, self._shards.count)

    async def create(self, spec: WindowSpec) -> bool:
        """Create a window everywhere; return whether it is new.

        Raises:
            Unsupported: another window feeds it, whose keys are on other shards.
            SashError: as `Plane.create`.
        """
        if spec.source is not None and self._shards.count > 1:
            raise Unsupported(
                f"from: {spec.name!r} and {spec.source.window!r} have their keys on different shards of this service, "
                "so no commit holds both",
                field="from",
                limit="a service of one shard",
            )
        async with AsyncExitStack() as held:
            for name in sorted({spec.of or spec.name, spec.name}):  # nobody deletes what a view shows; in one order:
                await held.enter_async_context(self._locks[name])  # else two creations may wait for each other
            try:
                await self._on(HOME, lambda plane: plane.window(spec.name))
                is_new = False
            except NotFound:
                is_new = True
            if not is_new:
                await self._on(HOME, lambda plane: plane.create(spec))  # raises if it has another spec
            elif await self._left_over(spec.name, certain=True):
                _log.info("window %r was left over on some shards", spec.name)
            await self._everywhere(lambda plane: plane.create(spec), spec.name if is_new else None)
            if is_new:
                try:
                    await self._on(HOME, lambda plane: plane.create(spec))
                except SashError as error:
                    if not isinstance(error, Unavailable):
                        await self._left_over(spec.name)
                    raise
        return is_new

    async def delete(self, name: str) -> int:
        """Delete a window everywhere; return how many entries it had. Raises NotFound."""
        async with self._locks[name]:
            try:
                entries = await self._on(HOME, lambda plane: plane.delete(name))
            except NotFound:
                await self._left_over(name)
                raise
            return entries + await self._left_over(name)

    async def add_aggregates(self, name: str, aggregates: Mapping[str, Any]) -> None:
        """Add aggregates everywhere; raises as `Plane.add_aggregates`."""
        async with self._locks[name]:
            await self._on(HOME, lambda plane: plane.add_aggregates(name, aggregates))
            await self._everywhere(lambda plane: plane.add_aggregates(name, aggregates))

    async def export(self, name: str) -> Parts[bytes]:
        """The window of all shards as one file."""
        found, errors = await together(
            {shard: self._on(shard, lambda plane: plane.export(name)) for shard in range(self._shards.count)}
        )
        if errors:
            raise worst(errors.values())
        return merged_file([found[shard] for shard in sorted(found)])

    async def restore(self, parts: AsyncIterator[bytes], name: str) -> None:
        """Create a window of this name from a file; raises as `Plane.restore`."""
        async with self._locks[name]:
            try:
                await self._on(HOME, lambda plane: plane.window(name))
            except NotFound:
                await self._left_over(name)
            else:
                raise AlreadyExists(f"window {name!r} exists already", field="name")
            try:
                await self._restore(parts, name)
            except BaseException as error:
                if not isinstance(error, Unavailable):
                    await self._left_over(name)
                raise

    async def _restore(self, parts: AsyncIterator[bytes], name: str) -> None:
        splitter = Splitter(self._shards.count, name)
        queues: list[asyncio.Queue[bytes | None]] = [asyncio.Queue(_AHEAD) for _ in range(self._shards.count)]

        async def fed(queue: asyncio.Queue[bytes | None]) -> AsyncIterator[bytes]:
            while (frame := await queue.get()) is not None:
                yield frame

        def restoring(shard: int) -> Callable[[ShardPlane], Awaitable[Any]]:
            return lambda plane: plane.restore(fed(queues[shard]), name)

        tasks: list[asyncio.Task[Any]] = []

        async def put(shard: int, frame: bytes | None) -> None:
            putting = asyncio.ensure_future(queues[shard].put(frame))
            await asyncio.wait([putting, tasks[shard]], return_when=asyncio.FIRST_COMPLETED)
            if not putting.done():
                putting.cancel()
                tasks[shard].result()  # it has failed; nobody takes the frame

        try:
            async for part in parts:
                for shard, frame in splitter.feed(part):
                    if not tasks:
                        tasks += [asyncio.create_task(self._on(i, restoring(i))) for i in range(len(queues))]
                    if splitter.ended and shard == HOME:
                        last = frame
                    else:
                        await put(shard, frame)
            splitter.check_end()
            for shard in self._others:
                await put(shard, None)
            await asyncio.gather(*(tasks[shard] for shard in self._others))
            await put(HOME, last)
            await put(HOME, None)
            await tasks[HOME]
        except BaseException:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            raise

    async def reconcile_one(self, shard: int) -> None:
        """Make a shard have the windows that home has; raises as the operations that this takes."""
        home = {info.spec.name: info.spec for info in await self._on(HOME, lambda plane: plane.windows())}
        there = {info.spec.name: info.spec for info in await self._on(shard, lambda plane: plane.windows())}

        def when(name: str) -> tuple[int, str]:
            """Views go before their windows go, and come after these have come."""
            if name in home:
                return 1 + (home[name].of is not None), name
            return int(there[name].of is None), name

        for name in sorted(home | there, key=when):
            async with self._locks[name]:
                await self._make_alike(shard, name)

    async def _make_alike(self, shard: int, name: str) -> None:
        try:
            home, there = await self._found(HOME, name), await self._found(shard, name)
        except (DataLoss, FailedPrecondition):
            return  # it is there, and answers nothing
        if home is None and there is not None:
            _log.warning("window %r was left over on shard %d; it is deleted there", name, shard)
            await self._on(shard, lambda plane: plane.delete(name))
        elif home is not None and there is None:
            await self._on(shard, lambda plane: plane.create(home))
        elif home is not None and there is not None:
            if home.of is not None and home != there:  # it has nothing that could be lost
                await self._on(shard, lambda plane: plane.delete(name))
                await self._on(shard, lambda plane: plane.create(home))
                return
            wanted = home.document()["aggregates"]
            missing = {key: wanted[key] for key in wanted if key not in there.aggregates}
            if missing:
                await self._on(shard, lambda plane: plane.add_aggregates(name, missing))

    async def _found(self, shard: int, name: str) -> WindowSpec | None:
        try:
            return (await self._on(shard, lambda plane: plane.window(name))).spec
        except NotFound:
            return None

    async def _on(self, shard: int, call: Callable[[ShardPlane], Awaitable[R]]) -> R:
        return await call(self._shards.administered(shard))

    async def _everywhere(self, call: Callable[[ShardPlane], Awaitable[Any]], undo: str | None = None) -> None:
        """Make a call to every shard but home; if one refuses, delete the window `undo` on all of them."""
        _, errors = await together({shard: self._on(shard, call) for shard in self._others})
        if errors:
            if undo is not None:
                with suppress(SashError):
                    await self._left_over(undo)
            raise worst(errors.values())

    async def _left_over(self, name: str, certain: bool = False) -> int:
        """Delete a window that home does not have; return how many entries it had.

        A shard that cannot be reached deletes it when it is reconciled.

        Args:
            certain: raise if a shard may still have it.
        """
        found, errors = await together(
            {shard: self._on(shard, lambda plane: plane.delete(name)) for shard in self._others}
        )
        for shard, error in errors.items():
            if not isinstance(error, NotFound):
                if certain:
                    raise error
                _log.warning("window %r cannot be deleted on shard %d now: %s", name, shard, error.message)
        return sum(found.values())
