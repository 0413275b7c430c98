"""The windows of one storage: a shard of this process, or all windows that there are.

    create    made closed ──▶ home has it ──▶ opened         delete    closed ──▶ home has it no more ──▶ deleted

Among several shards, a window can be closed while it is created or deleted on all of them. A closed window answers
nothing and takes no write, as long as this process has the shard. A shard that starts, or moves, gets the windows of
home before it serves any: so it needs not remember what was closed. Each closing has a token, and only who knows it
opens or deletes the window: what an earlier owner of home said, and comes late, changes nothing.

A window that changes on all of them is noted on home, until all others have followed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from sash.durability import deriving
from sash.durability.records.commands import AddAggregates, Command
from sash.durability.storage import Storage
from sash.limits.loop_time import LoopTime
from sash.topology import ServingProcess, stays
from sash_engine.errors import SashError, Unavailable
from sash_engine.windows.answers import WindowInfo
from sash_engine.windows.batches.batch import Origin
from sash_engine.windows.questions import Question
from sash_engine.windows.spec.window import WindowSpec

A = TypeVar("A")
R = TypeVar("R")
T = TypeVar("T")

_RETRY_S = 0.5

Parts = Iterator[T] | AsyncIterator[T]
"""A long answer in parts. An iterator that awaits has parts that come from other processes."""


class LocalShard:
    """The windows of a storage. Calls have been admitted, counted and audited when they arrive here.

    Args:
        storage: what keeps the windows.
        held: is told how long operations hold the loop.

    Attributes:
        count: how many shards there are, where this one has all windows.
        slices: run long work.
        on_unsettled: called when a window was closed, or noted as changed.
    """

    def __init__(self, storage: Storage, held: LoopTime) -> None:
        self._storage = storage
        self._catalogue = storage.catalogue
        self.class_of = storage.catalogue.class_of
        """The kind of a window, for metrics."""
        self._held = held
        self.count = 1
        self.slices = storage.slices
        self.slices.turns = held.turns
        self._closed: dict[str, str] = {}
        self._coming: list[str] = []
        """The windows that are being made closed, and may not be in the catalogue yet."""
        self._changed: set[str] = set()
        self.on_unsettled: Callable[[], None] = lambda: None

    # ---------------------------------------------------------------- commands and questions

    def write(self, name: str, command: Command[R], origin: Origin | None = None) -> Coroutine[Any, Any, R]:
        """Do what a caller asks for; raises as `Storage.write`."""
        if self._closed:
            self._check_open(name)
        return self._timed(command.operation, name, self._storage.write(name, command, origin), True)

    def ask(self, name: str, question: Question[A]) -> Coroutine[Any, Any, A]:
        """Answer a question; raises as `Storage.ask`."""
        if self._closed:
            self._check_open(name)
        return self._timed(question.operation, name, self._storage.ask(name, question))

    def _timed(
        self, operation: str, name: str, work: Coroutine[Any, Any, R], writes: bool = False
    ) -> Coroutine[Any, Any, R]:
        # What it brought into memory may go again.
        return self._held.timed(operation, name, work, self._storage.store.trim, writes)

    # ---------------------------------------------------------------- windows

    def spec(self, name: str) -> WindowSpec:
        """The spec of a window; raises NotFound."""
        return self._catalogue.find(name).spec

    async def learn(self) -> None:
        """It knows all that there is."""

    async def look_up(self, name: str) -> WindowSpec:
        """As `spec`."""
        return self._catalogue.find(name).spec

    def check_known(self, name: str) -> None:
        """Raise NotFound where it is known at once that there is no such window."""
        self.spec(name)

    def infos(self) -> list[WindowInfo]:
        """All windows, by name, those that answer nothing, too; entries of views are not counted."""
        return self._storage.all()

    async def window(self, name: str) -> WindowInfo:
        """Show one window; raises NotFound."""
        return await self._timed("describe", name, self._storage.described(name))

    async def windows(self) -> list[WindowInfo]:
        """Show all windows."""
        return await self._storage.all_described()

    async def create(self, spec: WindowSpec, token: str | None = None) -> tuple[WindowInfo, bool]:
        """Create a window, and return whether it is new; raises as `Storage.create`. With a token, it is closed."""
        with self._made_closed(spec.name, token):
            window, created = await self._storage.create(spec)
        return self._storage.info(window), created

    def goes_with(self, name: str) -> Sequence[str]:
        """The windows that are deleted with a window: those that are stored with a lost one."""
        return self._storage.goes_with(name)

    async def delete(self, name: str, token: str | None = None) -> int:
        """Delete a window; return how many entries it had. With a token, only as long as it is closed with it.

        Raises:
            NotFound: there is none.
            Unavailable: it was opened, or closed with another token, or is still being made.
        """
        if token is not None and (
            name in self._coming or (name in self._catalogue and self._closed.get(name) != token)
        ):
            raise Unavailable(
                f"window {name!r} is not deleted here: somebody else creates or deletes it",
                field="window",
                retry_after_s=_RETRY_S,
            )
        try:
            return await self._timed("delete", name, self._storage.delete(name), True)
        finally:
            if token is not None and name not in self._catalogue:
                await self.reopen(name, token)

    async def add_aggregates(self, name: str, aggregates: Mapping[str, Any]) -> WindowInfo:
        """Add aggregates, computed from the entries that are there; raises as `Window.add_aggregates`."""
        await self._timed("add_aggregates", name, self._storage.write(name, AddAggregates(aggregates)), True)
        return self._storage.info(self._storage.find(name))

    async def export(self, name: str) -> Parts[bytes]:
        """The window as it is now, as the parts of a file."""
        self._check_open(name)
        await self._storage.whole(name)
        return self._storage.export(name)

    async def export_together(self, name: str, derived: Sequence[str]) -> Parts[tuple[str, bytes]]:
        """As `export`, with windows that it feeds: see `Plane.export_together`."""
        self._check_open(name)
        await self._storage.whole(name)
        return self._storage.export_together(name, derived)

    async def restore(
        self,
        parts: AsyncIterator[bytes],
        name: str | None = None,
        derived: Sequence[str] = (),
        token: str | None = None,
        admit: Callable[[str], None] = lambda _: None,
    ) -> WindowInfo:
        """Create a window from what `export` wrote; raises as `Storage.restore`. With a token, it is closed."""
        with self._made_closed(name, token):
            window = await self._storage.restore(parts, name, admit, derived)
        return self._storage.info(window)

    def tidy(self) -> None:
        """Do what time alone brings, to every window."""
        self._storage.tidy()

    # ---------------------------------------------------------------- processes

    async def processes(self) -> Sequence[ServingProcess]:
        """This one."""
        return [ServingProcess(0, True, 0, [0], sizes={0: self._storage.size()})]

    async def move(self, shard: int, process: int) -> None:
        """Have a process take a shard."""
        raise stays()

    # ---------------------------------------------------------------- what other shards do not have yet

    @property
    def is_settled(self) -> bool:
        """Whether no window is closed, or noted as changed."""
        return not (self._closed or self._changed)

    @contextmanager
    def changing(self, name: str) -> Iterator[None]:
        """Note that a window changes here, and perhaps not on other shards; one that is refused does not."""
        noted = name in self._changed
        self._changed.add(name)
        self.on_unsettled()
        try:
            yield
        except SashError as error:
            if not noted and not isinstance(error, Unavailable):
                self._changed.discard(name)
            raise

    def changed(self) -> list[str]:
        """The windows that have changed here, or perhaps have, and not on all other shards."""
        return sorted(self._changed)

    def has_changed(self, name: str) -> None:
        """Note that a window has changed on all shards."""
        self._changed.discard(name)

    # ---------------------------------------------------------------- closing

    async def closed(self) -> dict[str, str]:
        """The windows that are closed, and the token of each; some may not be there (yet, or any more)."""
        return dict(self._closed)

    async def close(self, name: str, token: str) -> None:
        """Close a window; a later closing takes the place of an earlier one.

        Raises:
            NotFound: there is none.
            FailedPrecondition: it has views.
        """
        deriving.check_no_views(self._catalogue.find(name))
        self._close(name, token)

    async def reopen(self, name: str, token: str) -> None:
        """Open a window again that was closed with this token."""
        if self._closed.get(name) == token:
            del self._closed[name]

    @contextmanager
    def _made_closed(self, name: str | None, token: str | None) -> Iterator[None]:
        """Close a new window from its first moment on, if there is a token."""
        if token is None or name is None or name in self._catalogue:
            yield
            return
        self._close(name, token)
        self._coming.append(name)
        try:
            yield
        except BaseException:
            if name not in self._catalogue and self._closed.get(name) == token:
                del self._closed[name]
            raise
        finally:
            self._coming.remove(name)

    def _close(self, name: str, token: str) -> None:
        self._closed[name] = token
        self.on_unsettled()

    def _check_open(self, name: str) -> None:
        if name in self._closed:
            raise Unavailable(
                f"window {name!r} is being created or deleted; nothing was changed",
                field="window",
                retry_after_s=_RETRY_S,
                unchanged=True,
            )
