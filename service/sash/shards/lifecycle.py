"""Windows that come, change and go on all shards.

    create    every other shard, closed ──▶ home ──▶ opened      a window exists when home has it
    delete    closed on every shard ──▶ home ──▶ every other     a window is gone when home has it no more
    change    noted ──▶ home ──▶ every other shard ──▶ noted no more
    restore   every shard, closed, home ends last ──▶ opened

A closed window takes no writes, see `sash/shard.py`. So nobody writes to a window that home does not have. A window
that cannot be closed on all shards stays closed on the others, and home has it: its deletion goes on until it is done.
So does a change that home has, or perhaps has. Others get it when home's store has it, so none has more than home.

A crash between leaves shards that differ from home. `reconcile_one` makes them alike again: windows that home lacks
go, windows and aggregates that only home has come, and windows that home has are opened. What deletes or opens a window
on another shard is valid only for the token with which this process closed it there; and in between home's store has
said that this process has home. So the last owner of home cannot delete or open what the present one has made.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping
from contextlib import AsyncExitStack, suppress
from typing import Any, TypeVar

from sash.durability.catalogue import no_window
from sash.shard import LocalShard, Parts
from sash.shards.files import Splitter, merged_file
from sash.shards.hosted import HOME, HostedShards, Shard
from sash.shards.parts import together, worst
from sash_engine.errors import (
    AlreadyExists,
    DataLoss,
    FailedPrecondition,
    NotFound,
    SashError,
    Unavailable,
    Unsupported,
)
from sash_engine.windows.spec.window import WindowSpec

_log = logging.getLogger(__name__)

R = TypeVar("R")

_RETRY_S = 1.0
_AHEAD = 2
"""Frames of an import that may wait for a shard."""


class Lifecycle:
    """Creates, changes and deletes windows on all shards.

    Args:
        shards: the deployment.
    """

    def __init__(self, shards: HostedShards) -> None:
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
            names = sorted({spec.of or spec.name, spec.name})
            for name in names:  # nobody deletes what a view shows; in one order: else two may wait for each other
                await held.enter_async_context(self._locks[name])
            home, token = self._home(), secrets.token_hex(8)
            for name in names:
                await self._end_deletion(home, name)
            try:
                await home.window(spec.name)
                is_new = False
            except NotFound:
                is_new = True
            if not is_new:
                await self._on_home(home, lambda: home.create(spec))  # raises if it has another spec
            elif await self._remove(spec.name):
                _log.info("window %r was left over on some shards", spec.name)
            found, errors = await self._on_others(lambda shard: shard.create(spec, token))
            made = [shard for shard, (_, created) in found.items() if created]
            if is_new:
                for shard in found:
                    if shard not in made:  # another home has made it meanwhile, with entries perhaps
                        errors[shard] = Unavailable(f"shard {shard} has a window {spec.name!r}", retry_after_s=_RETRY_S)
                if not errors:
                    try:
                        await self._on_home(home, lambda: home.create(spec))
                    except SashError as error:
                        errors = {HOME: error}
                if errors and not isinstance(errors.get(HOME), Unavailable):
                    await self._undo(spec.name, token)
            elif made and not errors:
                try:
                    await self._shards.confirm(HOME)  # that has it: to have what is there, nothing was stored
                except SashError as error:
                    errors = {HOME: error}
                    await self._undo(spec.name, token)
            if errors:
                raise worst(errors.values())
            await self._open(spec.name, token, made)
        return is_new

    async def delete(self, name: str) -> int:
        """Delete a window everywhere; return how many entries it had.

        Raises:
            NotFound: there is none.
            FailedPrecondition: it has views.
            Unavailable: a shard cannot be reached. The window stays closed on the others, and is deleted later.
        """
        async with self._locks[name]:
            home = self._home()
            if name not in await home.closed():
                try:
                    await home.close(name, secrets.token_hex(8))
                except NotFound:
                    with suppress(SashError):
                        await self._remove(name)
                    raise
            entries = await self._end_deletion(home, name)
            if entries is None:
                raise no_window(name)
            return entries

    async def add_aggregates(self, name: str, aggregates: Mapping[str, Any]) -> None:
        """Add aggregates everywhere; raises as `Plane.add_aggregates`."""
        async with self._locks[name]:
            home = self._home()
            await self._end_deletion(home, name)
            with home.changing(name):
                await self._on_home(home, lambda: home.add_aggregates(name, aggregates))
            await self._end_change(home, name)

    async def export(self, name: str) -> Parts[bytes]:
        """The window of all shards as one file."""

        async def exported(shard: int) -> Parts[bytes]:
            # Not `_on`, which also reaches a shard that this process is still taking over: it may lack windows.
            return await self._shards.plane(shard).export(name)

        found, errors = await together({shard: exported(shard) for shard in range(self._shards.count)})
        if errors:
            raise worst(errors.values())
        return merged_file([found[shard] for shard in sorted(found)])

    async def restore(self, parts: AsyncIterator[bytes], name: str) -> None:
        """Create a window of this name from a file; raises as `Plane.restore`."""
        async with self._locks[name]:
            home, token = self._home(), secrets.token_hex(8)
            await self._end_deletion(home, name)
            try:
                await home.window(name)
            except NotFound:
                await self._remove(name)
            else:
                raise AlreadyExists(f"window {name!r} exists already", field="name")
            try:
                await self._restore(parts, name, home, token)
            except BaseException as error:
                # When the call is given up, home may have the window. After `GeneratorExit` nothing can be awaited.
                if not isinstance(error, Unavailable | asyncio.CancelledError | GeneratorExit):
                    await self._undo(name, token)
                raise
            await self._open(name, token, self._others)

    async def _restore(self, parts: AsyncIterator[bytes], name: str, home: LocalShard, token: str) -> None:
        splitter = Splitter(self._shards.count, name)
        queues: list[asyncio.Queue[bytes | None]] = [asyncio.Queue(_AHEAD) for _ in range(self._shards.count)]

        async def fed(queue: asyncio.Queue[bytes | None]) -> AsyncIterator[bytes]:
            while (frame := await queue.get()) is not None:
                yield frame

        async def restore(shard: int) -> None:
            if shard == HOME:
                await self._on_home(home, lambda: home.restore(fed(queues[shard]), name))
            else:
                await self._on(shard, lambda there: there.restore(fed(queues[shard]), name, (), token))

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
                        tasks += [asyncio.create_task(restore(i)) for i in range(len(queues))]
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
        except BaseException as error:
            for task in tasks:
                task.cancel()
            if not isinstance(error, GeneratorExit):
                await asyncio.gather(*tasks, return_exceptions=True)
            raise

    async def reconcile_one(self, shard: int) -> None:
        """Make a shard have the windows that home has; raises as the operations that this takes.

        Home itself ends the deletions and changes that others could not follow.
        """
        home = self._home()
        if shard == HOME:
            for name in await home.closed():
                async with self._locks[name]:
                    await self._end_deletion(home, name)
            for name in home.changed():
                async with self._locks[name]:
                    await self._end_change(home, name)
            return
        closed = await self._on(shard, lambda shard: shard.closed())
        listed = {info.spec.name: info.spec for info in await home.windows()}
        there = {info.spec.name: info.spec for info in await self._on(shard, lambda shard: shard.windows())}
        if closed:
            await self._shards.confirm(HOME)  # after `closed` was asked: else another home may have closed it since

        def when(name: str) -> tuple[int, str]:
            """Views go before their windows go, and come after these have come."""
            if name in listed:
                return 1 + (listed[name].of is not None), name
            return int(name not in there or there[name].of is None), name

        for name in sorted(listed | there | closed, key=when):
            async with self._locks[name]:
                await self._reconcile_window(home, shard, name, closed.get(name))

    async def _reconcile_window(self, home: LocalShard, shard: int, name: str, token: str | None) -> None:
        """Make a shard have one window as home has it; `token` is that of its closing, if it was closed there."""
        if name in await home.closed():
            try:
                await self._end_deletion(home, name)
            except Unavailable as error:
                _log.debug("%s", error.message)  # it is closed here, too, or this shard is not reached either
        elif await self._make_alike(home, shard, name) and token is not None:
            await self._on(shard, lambda shard: shard.reopen(name, token))

    async def _make_alike(self, home: LocalShard, shard: int, name: str) -> bool:
        """Make a shard have a window if home has it; return whether home has it."""
        try:
            wanted = await _found(home, name)
        except (DataLoss, FailedPrecondition):
            return True  # it is there, and answers nothing
        try:
            there = await self._on(shard, lambda shard: _found(shard, name))
        except (DataLoss, FailedPrecondition):
            if wanted is None:
                await self._remove(name, [shard])
            return wanted is not None
        if wanted is None:
            if there is not None:
                _log.warning("window %r was left over on shard %d; it is deleted there", name, shard)
                await self._remove(name, [shard])
            return False
        if there is not None and wanted.of is not None and wanted != there:
            await self._remove(name, [shard])  # it has nothing that could be lost
            there = None
        if there is None:
            token = secrets.token_hex(8)
            await self._on(shard, lambda shard: shard.create(wanted, token))
            await self._shards.confirm(HOME)
            await self._on(shard, lambda shard: shard.reopen(name, token))
            return True
        await self._add_missing(shard, wanted, there)
        return True

    async def _add_missing(self, shard: int, wanted: WindowSpec, there: WindowSpec) -> None:
        """Add the aggregates of home's window that a shard's window lacks."""
        aggregates = wanted.document()["aggregates"]
        missing = {key: aggregates[key] for key in aggregates if key not in there.aggregates}
        if missing:
            await self._shards.confirm(HOME)
            await self._on(shard, lambda shard: shard.add_aggregates(wanted.name, missing))

    # ---------------------------------------------------------------- steps

    def _home(self) -> LocalShard:
        """Home, which this process has: else its lock of a window is not the only one."""
        return self._shards.local(HOME)

    async def _on_home(self, home: LocalShard, call: Callable[[], Coroutine[Any, Any, R]]) -> R:
        """Make a call to home, if this process has it since the operation began."""
        if self._home() is not home:
            raise Unavailable(f"shard {HOME} is moving or starting", field="shard", retry_after_s=_RETRY_S)
        return await self._shards.guarded(HOME, call())

    async def _on(self, shard: int, call: Callable[[Shard], Awaitable[R]]) -> R:
        return await call(self._shards.administered(shard))

    async def _on_others(
        self, call: Callable[[Shard], Awaitable[R]], shards: Iterable[int] | None = None
    ) -> tuple[dict[int, R], dict[int, SashError]]:
        """Make a call to every shard but home, or to some."""
        return await together({shard: self._on(shard, call) for shard in (self._others if shards is None else shards)})

    async def _end_deletion(self, home: LocalShard, name: str) -> int | None:
        """Delete a window that is closed on home; return how many entries it had, None if home does not have it.

        Raises:
            Unavailable: another shard cannot be reached. Home has it as long as another shard may take writes to it.
        """
        token = (await home.closed()).get(name)
        if token is None:
            return None
        _, errors = await self._on_others(lambda shard: shard.close(name, token))
        if failed := _serious(errors):
            told = f"window {name!r} is not deleted yet, and is closed where that was possible"
            raise _unended(told, "deletion", failed)
        entries = None
        try:
            entries = await self._on_home(home, lambda: home.delete(name))
        except NotFound:
            pass
        except Unavailable as error:  # it may say that nothing was changed on home
            told = f"window {name!r} is closed, and perhaps deleted"
            raise _unended(told, "deletion", {HOME: error}) from None
        except SashError:  # it is refused, and nothing has changed
            await self._open(name, token, self._others)
            await home.reopen(name, token)
            raise
        found, errors = await self._on_others(lambda shard: shard.delete(name, token))
        if failed := _serious(errors):
            told = f"window {name!r} is deleted, and some shards still store entries of it"
            raise _unended(told, "deletion", failed)
        await home.reopen(name, token)
        return None if entries is None else entries + sum(found.values())

    async def _end_change(self, home: LocalShard, name: str) -> None:
        """Have all shards follow if a window has changed on home.

        Raises:
            Unavailable: another shard has not followed yet.
        """
        if name not in home.changed():
            return
        try:
            wanted = home.spec(name)
        except NotFound:  # it was deleted meanwhile
            home.has_changed(name)
            return

        async def follow(shard: int) -> None:
            there = await self._on(shard, lambda shard: shard.window(name))
            await self._add_missing(shard, wanted, there.spec)

        _, errors = await together({shard: follow(shard) for shard in self._others})
        if errors:
            raise _unended(f"window {name!r} has changed, and not on all shards", "change", errors)
        home.has_changed(name)

    async def _remove(self, name: str, shards: Iterable[int] | None = None) -> int:
        """Delete a window that home does not have from others; return how many entries it had.

        Raises:
            SashError: a shard may still have it.
        """
        token = secrets.token_hex(8)
        _, errors = await self._on_others(lambda shard: shard.close(name, token), shards)
        closed = [shard for shard in (self._others if shards is None else shards) if shard not in errors]
        found: dict[int, int] = {}
        if closed:
            await self._shards.confirm(HOME)
            found, more = await self._on_others(lambda shard: shard.delete(name, token), closed)
            errors |= more
        if failed := _serious(errors):
            raise worst(failed.values())
        return sum(found.values())

    async def _undo(self, name: str, token: str) -> None:
        """Delete a window again that was made closed with a token; where that fails, home's owner does it later."""
        _, errors = await self._on_others(lambda shard: shard.delete(name, token))
        for shard, error in _serious(errors).items():
            _log.warning("window %r cannot be deleted on shard %d now: %s", name, shard, error.message)

    async def _open(self, name: str, token: str, shards: Iterable[int]) -> None:
        """Open a window on others that home has; where that fails, home's owner does it later."""
        _, errors = await self._on_others(lambda shard: shard.reopen(name, token), shards)
        for shard, error in errors.items():
            _log.warning("window %r is not open on shard %d yet: %s", name, shard, error.message)


async def _found(shard: Shard, name: str) -> WindowSpec | None:
    try:
        return (await shard.window(name)).spec
    except NotFound:
        return None


def _serious(errors: Mapping[int, SashError]) -> dict[int, SashError]:
    """The errors of shards that may still have a window."""
    return {shard: error for shard, error in errors.items() if not isinstance(error, NotFound)}


def _unended(told: str, what: str, failed: Mapping[int, SashError]) -> Unavailable:
    shards = ", ".join(map(str, sorted(failed)))
    return Unavailable(
        f"{told}; its {what} goes on until shards {shards} confirm it: {worst(failed.values()).message}",
        field="window",
        retry_after_s=_RETRY_S,
    )
