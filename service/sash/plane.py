"""The operations of Sash, once: all edges translate to these and add no meaning of their own.

    edge ──▶ Plane: rights, quotas, audit, metrics ──▶ windows: of one storage, shard.py
                                                            or over the shards of a deployment, shards/

What is written is a command (`durability/records`), and what is asked is a question (`sash_engine/windows`): values,
which pass all floors as they are. Every method checks that its caller may call it (`access`), does its work or raises a
`sash_engine.errors.SashError` having changed nothing, and observes its latency. All methods belong to the event loop.
Writes return when the tier has them. Short questions are answered at once. Long ones are answered in slices
(`runtime/slices.py`), while the window's writers wait (`durability/window_lock.py`). Where a window is larger than its
cache, questions read blocks from the tier, and the loop waits for them.
"""

from __future__ import annotations

import builtins
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

from sash.access.access import Access
from sash.context import payer
from sash.durability.records.commands import BulkEvict, Command
from sash.durability.storage import Storage
from sash.limits.loop_time import LoopTime
from sash.limits.turns import Turns
from sash.limits.watches import Watches
from sash.runtime.metrics import Metrics
from sash.runtime.slices import Slices
from sash.shard import LocalShard, Parts
from sash.topology import ServingProcess, Topology, shown
from sash_engine.clock import Clock
from sash_engine.errors import AlreadyExists, InvalidArgument, PermissionDenied, SashError
from sash_engine.steps import Steps
from sash_engine.windows.answers import WindowInfo
from sash_engine.windows.batches.batch import Origin
from sash_engine.windows.questions import Question
from sash_engine.windows.spec.window import WindowSpec
from sash_wire import traces

A = TypeVar("A")
R = TypeVar("R")


class Windows(Protocol):
    """All windows of a service; each method is the one of `LocalShard` by its name."""

    slices: Slices
    count: int
    """How many shards there are."""

    def write(self, name: str, command: Command[R], origin: Origin | None = None) -> Coroutine[Any, Any, R]: ...

    def ask(self, name: str, question: Question[A]) -> Coroutine[Any, Any, A]: ...

    def spec(self, name: str) -> WindowSpec: ...

    async def learn(self) -> None: ...

    async def look_up(self, name: str) -> WindowSpec: ...

    def check_known(self, name: str) -> None: ...

    def class_of(self, name: str) -> str: ...

    def infos(self) -> Iterable[WindowInfo]: ...

    async def window(self, name: str) -> WindowInfo: ...

    async def windows(self) -> Sequence[WindowInfo]: ...

    async def create(self, spec: WindowSpec) -> tuple[WindowInfo, bool]: ...

    def goes_with(self, name: str) -> Sequence[str]: ...

    async def delete(self, name: str) -> int: ...

    async def add_aggregates(self, name: str, aggregates: Mapping[str, Any]) -> WindowInfo: ...

    async def export(self, name: str) -> Parts[bytes]: ...

    async def export_together(self, name: str, derived: Sequence[str]) -> Parts[tuple[str, bytes]]: ...

    async def restore(
        self,
        parts: AsyncIterator[bytes],
        name: str | None = None,
        derived: Sequence[str] = (),
        *,
        admit: Callable[[str], None],
    ) -> WindowInfo: ...

    def tidy(self) -> None: ...

    def processes(self) -> Awaitable[Sequence[ServingProcess]]: ...

    def move(self, shard: int, process: int, /) -> Awaitable[None]: ...


class Plane:
    """All operations on all windows of one service.

    Args:
        windows: where they are.
        metrics: where latencies and counts go.
        clock: measures latencies, and tells what callers mean by `now`.
        access: who may do what; everybody everything where None.
        turns: shared by the edges: a caller has one share of the loop.

    Attributes:
        watches: shared by the edges: all watching together takes a bounded share of the loop.
    """

    def __init__(
        self,
        windows: Windows,
        metrics: Metrics,
        clock: Clock,
        access: Access | None = None,
        turns: Turns | None = None,
    ) -> None:
        self._windows = windows
        self._metrics = metrics
        self._clock = clock
        self._access = access or Access(clock)
        self.watches = Watches()
        self.turns = turns or windows.slices.turns
        self.in_slices = windows.slices.take
        """Takes the steps of an edge's own work, which changes nothing, with turns for other calls where it is long."""

    @classmethod
    def of(cls, storage: Storage, metrics: Metrics, clock: Clock, access: Access | None = None) -> Plane:
        """The plane of a service with one storage."""
        turns = storage.slices.turns
        return cls(LocalShard(storage, LoopTime(clock, metrics.observe_held, turns)), metrics, clock, access, turns)

    def now_ns(self) -> int:
        """Wall time, in nanoseconds since the Unix epoch."""
        return self._clock.now_ns()

    async def parsed(self, steps: Steps[R]) -> R:
        """As `in_slices`, of what a caller sent: it is charged for the time that this takes."""
        return await self.turns.parsing(payer(), self.in_slices(steps))

    # ---------------------------------------------------------------- commands and questions

    async def write(self, name: str, command: Command[R], origin: Origin | None = None) -> R:
        """Do what a command says.

        Args:
            origin: whose write it is, where it must not be applied twice. What was applied is answered so. A gap in a
                producer's numbers, a used number with other data and a lower epoch are refused.

        Raises:
            SashError: as `Storage.write`, and as the command.
        """
        operation = command.operation
        with _Observed(self, operation, name):
            self._access.charge(command.entries)
            # Producers evict all the time. An administrator does it by hand.
            if operation == BulkEvict.kind and self._access.is_admin:
                with self._access.audited(operation, name):
                    return await self._windows.write(name, command, origin)
            return await self._windows.write(name, command, origin)

    async def ask(self, name: str, question: Question[A]) -> A:
        """Answer a question; raises as the reader of the window does."""
        with _Observed(self, question.operation, name):
            return await self._windows.ask(name, question)

    # ---------------------------------------------------------------- windows

    def spec(self, name: str, operation: str = "describe") -> WindowSpec:
        """The spec of a window, for an edge that is about to do an operation, as far as it is known here.

        Raises:
            NotFound: there is none.
        """
        self._access.require(operation, name)
        return self._windows.spec(name)

    async def learn(self) -> None:
        """Have `spec` and `list` know the windows also where this process has no shard; to be called before them."""
        await self._windows.learn()

    def look_up(self, name: str, operation: str = "describe") -> Coroutine[Any, Any, WindowSpec]:
        """As `spec`, also of windows of which this process has no part."""
        self._access.require(operation, name)
        return self._windows.look_up(name)

    def check_may(self, name: str, operation: str) -> None:
        """Check that the caller may do an operation, and that there is the window, as far as that is known here."""
        self._access.require(operation, name)
        self._windows.check_known(name)

    def list(self) -> builtins.list[WindowInfo]:
        """Show all windows that the caller may see, by name, those that answer nothing, too; as far as known here."""
        self._access.require("list", None)
        return [window for window in self._windows.infos() if self._access.sees(window.spec.name)]

    async def windows(self) -> builtins.list[WindowInfo]:
        """As `list`, over all shards, with the entries of views."""
        self._access.require("list", None)
        return [window for window in await self._windows.windows() if self._access.sees(window.spec.name)]

    async def window(self, name: str) -> WindowInfo:
        """Show one window; raises NotFound."""
        with _Observed(self, "describe", name):
            return await self._windows.window(name)

    async def create(self, spec: WindowSpec) -> tuple[WindowInfo, bool]:
        """Create a window, and return whether it is new; the same spec again changes nothing.

        A new window is guarded (`WindowSpec.guarded`). The same spec may have made one before windows were.

        Raises:
            AlreadyExists: a window of that name has another spec.
            ResourceExhausted: there are as many windows as the settings allow.
        """
        with self._access.audited("create", spec.name):
            self._access.require("create", spec.name)
            for source in spec.feeds_on:  # nobody reads through one window what another one keeps from them
                self._access.require("entries", source)
            guarded = spec.guarded()
            try:
                return await self._windows.create(guarded)
            except AlreadyExists:
                if guarded is spec:
                    raise
                return await self._windows.create(spec)

    async def delete(self, name: str) -> int:
        """Delete a window; return how many entries it had. Raises NotFound.

        The windows that are stored with a lost one go with it.
        """
        with _Observed(self, "delete", name), self._access.audited("delete", name):
            try:
                for each in self._windows.goes_with(name):
                    self._access.require("delete", each)
            except PermissionDenied:
                raise PermissionDenied(
                    f"window {name!r} goes with all that is stored with it, and not all of that is the caller's",
                    field="window",
                ) from None
            return await self._windows.delete(name)

    async def add_aggregates(self, name: str, aggregates: Mapping[str, Any]) -> WindowInfo:
        """Add aggregates (name -> their document, as in a spec), computed from the entries that are there.

        Raises:
            AlreadyExists: the window has an aggregate of that name with another definition; the same one is fine.
        """
        with _Observed(self, "add_aggregates", name), self._access.audited("add_aggregates", name):
            return await self._windows.add_aggregates(name, aggregates)

    async def export(self, name: str) -> Parts[bytes]:
        """The window as it is now, as the parts of a file that `restore` reads."""
        self._access.require("export", name)
        with self._access.audited("export", name):
            return await self._windows.export(name)

    async def export_together(self, name: str, derived: Sequence[str]) -> Parts[tuple[str, bytes]]:
        """As `export`, with windows that it feeds, as they are at the same moment: one file after the other.

        Args:
            derived: the windows that it feeds, itself or by others, a source before what it feeds.

        Returns:
            the parts of the files, each with the name of the window whose file it is of.

        Raises:
            NotFound: the window feeds no window of such a name.
            InvalidArgument: one is named twice.
        """
        self._access.require("export", name)
        named: set[str] = set()
        for each in derived:  # ends at the first that is wrong, so it takes no more steps than there are windows
            self._access.require("export", each)
            if each in named:
                raise InvalidArgument("derived: each window is named once", field="derived")
            self._windows.check_known(each)
            named.add(each)
        with self._access.audited("export", name):
            return await self._windows.export_together(name, derived)

    async def restore(
        self, parts: AsyncIterator[bytes], name: str | None = None, derived: Sequence[str] = ()
    ) -> WindowInfo:
        """Create a window from what `export` wrote, under its own name or another.

        Args:
            derived: windows whose files follow, see `export_together`. The window feeds them, itself or by others.

        Raises:
            AlreadyExists: there is a window of that name.
            InvalidArgument: the parts are no exported window, or a damaged one; or `name` is none. Nothing is created.
        """
        self._access.require("restore", name)
        with self._access.audited("restore", name) as entry:

            def admit(found: str) -> None:
                # The file says what its window is called, unless `name` does.
                entry.window = entry.window or found
                self._access.require("restore", found)

            return await self._windows.restore(parts, name, derived, admit=admit)

    def tidy(self) -> None:
        """Do what time alone brings, to every window; to be called about once a second."""
        self._windows.tidy()

    # ---------------------------------------------------------------- processes

    async def topology(self) -> Topology:
        """Show which processes serve the windows."""
        self._access.require("topology", None)
        return shown(self._windows.count, await self._windows.processes(), self._access)

    async def move(self, shard: int, process: int) -> Topology:
        """Have a process take a shard; raises Unsupported where shards stay where they are."""
        with self._access.audited("move", None):
            self._access.require("move", None)
            await self._windows.move(shard, process)
        return shown(self._windows.count, await self._windows.processes(), self._access)


class _Observed(AbstractContextManager[None]):
    """An operation on a window: may its caller do it? Its latency and its error; where traces are on, its span."""

    __slots__ = ("_operation", "_plane", "_span", "_start_s", "_window")

    def __init__(self, plane: Plane, operation: str, window: str) -> None:
        self._plane, self._operation, self._window = plane, operation, window
        self._span: AbstractContextManager[None] | None = None

    def __enter__(self) -> None:
        self._start_s = self._plane._clock.monotonic_s()
        try:
            self._plane._access.require(self._operation, self._window)
        except SashError as error:
            self.__exit__(type(error), error, None)
            raise
        if traces.tracer is not None:
            self._span = traces.operating(self._operation, {"sash.window": self._window})
            self._span.__enter__()

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        plane = self._plane
        if self._span is not None:
            self._span.__exit__(kind, error, trace)
        if isinstance(error, SashError):
            plane._metrics.count_error(self._operation, type(error).__name__)
        seconds = plane._clock.monotonic_s() - self._start_s
        plane._metrics.observe(self._operation, plane._windows.class_of(self._window), seconds)
