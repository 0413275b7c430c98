"""The operations of Sash, once: both edges translate to these and add no meaning of their own.

Every method checks that its caller may call it (`access`), validates, does its work or raises a
`sash_engine.errors.SashError` having changed nothing, and observes its latency. All methods belong to the event loop.
Writes return when the tier has them. Short questions are answered at once. Long ones are answered in slices
(`runtime/slices.py`), while the window's writers wait (`durability/window_lock.py`). Where a window is larger than its
cache, questions read blocks from the tier, and the loop waits for them.
"""

from __future__ import annotations

import builtins
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from sash.access.access import Access
from sash.access.rights import RIGHTS, Right
from sash.durability.catalogue import Catalogue
from sash.durability.records import AddAggregates, BulkInsert, Insert, Retract, Update
from sash.durability.removals import Punctuate, eviction_of
from sash.durability.storage import Storage
from sash.held import Held
from sash.limits.caller import caller_of
from sash.limits.turns import Turns
from sash.limits.watches import Watches
from sash.runtime.metrics import Metrics
from sash.topology import OneProcess
from sash_engine.clock import Clock
from sash_engine.errors import InvalidArgument, PermissionDenied, SashError
from sash_engine.steps import Steps, finished
from sash_engine.windows.answers import Answer, Page, Series, Staged, WindowInfo, WriteResult
from sash_engine.windows.batch import AnyBatch, Origin
from sash_engine.windows.questions import EntriesQuery, Query, RangeQuery, SeriesQuery, Where
from sash_engine.windows.reader import Reader
from sash_engine.windows.spec import WindowSpec
from sash_wire import traces

__all__ = ["Parts", "Plane", "observed"]

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S", bound="Plane")
T = TypeVar("T")

_NAME_BYTES = 100
"""What the name of a key takes in a list of names, and in what is sent of it, beside its letters."""

Parts = Iterator[T] | AsyncIterator[T]
"""A long answer in parts. An iterator that awaits has parts that come from other processes."""


def observed(
    operation: Callable[Concatenate[S, str, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[S, str, P], Coroutine[Any, Any, R]]:
    """Observe latency and errors of an operation on the window that its first argument names."""
    name = operation.__name__
    reads = RIGHTS[name] is Right.READ

    @wraps(operation)
    async def call(self: S, window: str, *args: P.args, **kwargs: P.kwargs) -> R:
        start = self._clock.monotonic_s()
        try:
            self._access.require(name, window)
            work = operation(self, window, *args, **kwargs)
            if traces.tracer is not None:
                work = traces.operating(name, {"sash.window": window}, work)
            # Edges charge questions themselves. A write may go on when its edge's part has ended.
            spend = None if reads else partial(self.turns.wrote, caller_of())
            return await self._held.timed(name, window, work, start, spend)
        except SashError as error:
            self._metrics.count_error(name, type(error).__name__)
            raise
        finally:
            self._trim()  # what it brought into memory may go again
            self._metrics.observe(name, self._class_of(window), self._clock.monotonic_s() - start)

    return cast("Callable[Concatenate[S, str, P], Coroutine[Any, Any, R]]", call)


def _observed_at_once(
    operation: Callable[Concatenate[Plane, str, P], R],
) -> Callable[Concatenate[Plane, str, P], R]:
    """As `observed`, of an operation that waits for nothing."""
    name = operation.__name__

    @wraps(operation)
    def observed(self: Plane, window: str, *args: P.args, **kwargs: P.kwargs) -> R:
        start = self._clock.monotonic_s()
        try:
            self._access.require(name, window)
            return operation(self, window, *args, **kwargs)
        except SashError as error:
            self._metrics.count_error(name, type(error).__name__)
            raise
        finally:
            seconds = self._clock.monotonic_s() - start
            self._held.note(name, window, seconds)
            self._metrics.observe(name, self._class_of(window), seconds)

    return cast("Callable[Concatenate[Plane, str, P], R]", observed)


class Plane(OneProcess):
    """All operations on all windows of one service.

    Args:
        catalogue: the windows.
        metrics: where latencies and counts go.
        clock: measures latencies.
        storage: what keeps the windows; in memory only where None.
        access: who may do what; everybody everything where None.
    """

    def __init__(
        self,
        catalogue: Catalogue,
        metrics: Metrics,
        clock: Clock,
        storage: Storage | None = None,
        access: Access | None = None,
    ) -> None:
        self._catalogue = catalogue
        self._metrics = metrics
        self._clock = clock
        self._storage = storage or Storage(catalogue, clock)
        self._access = access or Access(clock)
        self._slices = self._storage.slices
        self._held = Held(clock, metrics.observe_held)
        self.watches = Watches()
        """Shared by the edges: all watching together takes a bounded share of the loop."""
        self.turns = Turns()
        """Shared by the edges: a caller has one share of the loop."""

    def _class_of(self, window: str) -> str:
        """The kind of a window, for metrics."""
        return self._catalogue.class_of(window)

    def _trim(self) -> None:
        self._storage.trim()

    async def create(self, spec: WindowSpec) -> tuple[WindowInfo, bool]:
        """Create a window, and return whether it is new; the same spec again changes nothing.

        Raises:
            AlreadyExists: a window of that name has another spec.
            ResourceExhausted: there are as many windows as the settings allow.
        """
        with self._access.audited("create", spec.name):
            self._access.require("create", spec.name)
            for source in spec.feeds_on:  # nobody reads through one window what another one keeps from them
                self._access.require("entries", source)
            window, created = await self._storage.create(spec)
        return self._storage.info(window), created

    def list(self) -> builtins.list[WindowInfo]:
        """Show all windows that the caller may see, by name, those that answer nothing, too."""
        self._access.require("list", None)
        return [window for window in self._storage.all() if self._access.sees(window.spec.name)]

    def tidy(self) -> None:
        """Do what time alone brings, to every window; to be called about once a second."""
        self._storage.tidy()

    def spec(self, name: str, operation: str = "describe") -> WindowSpec:
        """The spec of a window, for an edge that is about to do an operation; raises as `look_up`."""
        self._access.require(operation, name)
        return self._catalogue.find(name).spec

    def check_may(self, name: str, operation: str) -> None:
        """Check that the caller may do an operation, and that there is the window, as far as that is known here."""
        self.spec(name, operation)

    async def look_up(self, name: str, operation: str = "describe") -> WindowSpec:
        """As `spec`, also of windows of which this process has no part; raises NotFound."""
        return self.spec(name, operation)

    async def window(self, name: str) -> WindowInfo:
        """As `describe`, over all shards."""
        return await self.describe_view(name) if self._storage.is_view(name) else self.describe(name)

    async def windows(self) -> builtins.list[WindowInfo]:
        """As `list`, over all shards."""
        self._access.require("list", None)
        return [window for window in await self._storage.all_described() if self._access.sees(window.spec.name)]

    @_observed_at_once
    def describe(self, name: str) -> WindowInfo:
        """Show one window; raises NotFound."""
        return self._storage.info(self._storage.find(name))

    @observed
    async def describe_view(self, name: str) -> WindowInfo:
        """As `describe`, of a view, in slices: its entries are counted."""
        return await self._storage.described(name)

    @observed
    async def delete(self, name: str) -> int:
        """Delete a window; return how many entries it had. Raises NotFound.

        The windows that are stored with a lost one go with it.
        """
        with self._access.audited("delete", name):
            try:
                for each in self._storage.goes_with(name):
                    self._access.require("delete", each)
            except PermissionDenied:
                raise PermissionDenied(
                    f"window {name!r} goes with all that is stored with it, and not all of that is the caller's",
                    field="window",
                ) from None
            return await self._storage.delete(name)

    @observed
    async def insert(
        self,
        name: str,
        time: int,
        fields: Mapping[str, Any],
        key: str | None = None,
        answer: bool = False,
        lookbacks: Sequence[str | int] = (),
        origin: Origin | None = None,
    ) -> WriteResult:
        """Insert one entry, slide, and answer where asked to.

        Args:
            time: ticks, -2^63 < time < 2^63 - 1.
            fields: a Python scalar for every field of the window (float, int, str or bool by its type; an int
                is taken for a float64).
            key: where the window is keyed.
            answer: whether to answer as `query` does for the key afterwards; `lookbacks` are those of that query.
            origin: whose write it is, where it must not be applied twice. What was applied is answered so. A gap in a
                producer's numbers, a used number with other data and a lower epoch are refused.
        """
        self._access.charge(1)
        return await self._storage.write(name, Insert(time, fields, key, answer, lookbacks), origin)

    @observed
    async def bulk_insert(self, name: str, batch: AnyBatch, origin: Origin | None = None) -> WriteResult:
        """Insert many entries, whole or not at all; they may be in any order. `origin` as in `insert`."""
        self._access.charge(len(batch.times))
        return await self._storage.write(name, BulkInsert(batch), origin)

    @observed
    async def bulk_evict(
        self,
        name: str,
        time: int | None,
        key: str | None = None,
        origin: Origin | None = None,
        start: int | None = None,
        end: int | None = None,
        end_exclusive: bool = False,
    ) -> WriteResult:
        """Remove every entry with time <= `time`, or with start <= time <= end (of one key, or of all without one)."""
        operation = eviction_of(time, key, start, end, end_exclusive)
        # Producers evict all the time. An administrator does it by hand.
        with self._access.audited("bulk_evict", name) if self._access.is_admin else nullcontext():
            return await self._storage.write(name, operation, origin)

    @observed
    async def retract(self, name: str, batch: AnyBatch, origin: Origin | None = None) -> WriteResult:
        """Remove single entries, named by time, key and the only column, the identity; others count as missing."""
        self._access.charge(len(batch.times))
        return await self._storage.write(name, Retract(batch), origin)

    @observed
    async def update(self, name: str, batch: AnyBatch, origin: Origin | None = None) -> WriteResult:
        """Give single entries other values, in place; as `retract`, with a column for every field."""
        self._access.charge(len(batch.times))
        return await self._storage.write(name, Update(batch), origin)

    @observed
    async def punctuate(self, name: str, time: int) -> WriteResult:
        """Say that entries with time <= `time` are final: later ones are late. Raises Unsupported without until."""
        return await self._storage.write(name, Punctuate(time))

    @observed
    async def stage(self, name: str, batch: AnyBatch, query: str, number: int, token: str | None = None) -> Staged:
        """Keep a part of batch `number` of a query, checked and invisible, until a commit names it or it expires.

        Args:
            token: the name of the part, if other shards have rows of it; None: a new one.
        """
        self._access.charge(len(batch.times))
        return await self._storage.stage(name, batch, query, number, token)

    @observed
    async def commit(self, name: str, query: str, number: int, stages: Sequence[str]) -> WriteResult:
        """Apply staged parts, in this order, as one write; a batch that was committed already changes nothing.

        Raises:
            FailedPrecondition: a part is not there (any more), or belongs to another batch.
        """
        return await self._storage.commit(name, query, number, stages)

    @observed
    async def query(self, name: str, question: Query) -> builtins.list[Answer]:
        """Answer over trailing lookbacks, or over everything; raises as `Reader.query`."""
        await self._storage.whole(name)
        reader = self._storage.find(name).reader
        if reader.is_quick(question):
            return reader.query(question)
        return await self._in_slices(name, lambda reader: reader.query_steps(question))

    @observed
    async def range_query(self, name: str, question: RangeQuery) -> Answer:
        """Answer over a range of time; raises as `Reader.range_query`."""
        await self._storage.whole(name)
        if not question.keys and not question.selection.where:
            return self._storage.find(name).reader.range_query(question)
        return await self._in_slices(name, lambda reader: reader.range_steps(question))

    @observed
    async def range_groups(self, name: str, question: RangeQuery) -> Page[Answer]:
        """Answer over a range of time for each group of keys; raises as `Reader.range_groups`."""
        return await self._in_slices(name, lambda reader: reader.range_groups(question))

    @observed
    async def series(self, name: str, question: SeriesQuery) -> Series:
        """Answer over many buckets at once; raises as `Reader.series`."""
        return await self._in_slices(name, lambda reader: reader.series_steps(question))

    @observed
    async def series_groups(self, name: str, question: SeriesQuery) -> Page[Series]:
        """Answer over many buckets for each group of keys; raises as `Reader.series_groups`."""
        return await self._in_slices(name, lambda reader: reader.series_groups(question))

    async def in_slices(self, steps: Steps[R]) -> R:
        """Take the steps of an edge's own work, which changes nothing, with turns for other calls where it is long."""
        try:
            next(steps)  # work of one step waits for no other
        except StopIteration as end:
            return cast("R", end.value)
        return await self._slices.run(steps, lambda: None)

    async def parsed(self, steps: Steps[R]) -> R:
        """As `in_slices`, of what a caller sent: it is charged for the time that this takes."""
        return await self.turns.parsing(caller_of(), self.in_slices(steps))

    async def _in_slices(self, name: str, steps: Callable[[Reader], Steps[R]]) -> R:
        """Answer a long question, with turns for other calls; the window's writers wait until it is answered."""
        async with self._storage.shared(name) as window:

            def before_each() -> None:
                self._storage.check_same(name, window)
                self._storage.trim()

            return await self._slices.run(steps(window.reader), before_each)

    @observed
    async def add_aggregates(self, name: str, aggregates: Mapping[str, Any]) -> WindowInfo:
        """Add aggregates (name -> their document, as in a spec), computed from the entries that are there.

        Raises:
            AlreadyExists: the window has an aggregate of that name with another definition; the same one is fine.
        """
        with self._access.audited("add_aggregates", name):
            await self._storage.write(name, AddAggregates(aggregates))
        return self._storage.info(self._storage.find(name))

    async def entries(self, name: str, question: EntriesQuery) -> Parts[AnyBatch]:
        """The entries as of now, in bulks of bounded size; raises as `Reader.entries`."""
        self._access.require("entries", name)

        def captured(reader: Reader) -> Steps[Parts[AnyBatch]]:
            found = yield from reader.entries_steps(question)
            return self._storage.entries(name, found)

        if question.keys or question.where:
            return await self._in_slices(name, captured)
        await self._storage.whole(name)
        return finished(captured(self._storage.find(name).reader))

    async def export(self, name: str) -> Parts[bytes]:
        """The window as it is now, as the parts of a file that `restore` reads."""
        self._access.require("export", name)
        with self._access.audited("export", name):
            await self._storage.whole(name)
            return self._storage.export(name)

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
        if len(derived) > len(self._catalogue) or len(set(derived)) < len(derived):
            raise InvalidArgument("derived: each window is named once", field="derived")
        for each in derived:
            self._access.require("export", each)
        with self._access.audited("export", name):
            await self._storage.whole(name)
            return self._storage.export_together(name, derived)

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

            window = await self._storage.restore(parts, name, admit, derived)
        return self._storage.info(window)

    async def keys(
        self, name: str, prefix: str = "", limit: int = 1000, position: int = 0, where: Sequence[Where] = ()
    ) -> tuple[builtins.list[str], int | None]:
        """List up to `limit` keys that start with `prefix`, in the order of their first entries, and where to go on.

        With `where`, only keys for which all the conditions hold.

        Only keys that have entries are listed: one whose entries have all left is not, though its mark is remembered.

        There may be fewer although there are more: one call looks at a bounded number of keys, and may be asked to go
        on at the position that it returns; None where there are no more. A key may have the place of one that was
        forgotten; one that is there throughout is listed once.

        Raises:
            NotFound: there is no such window.
            InvalidArgument: it is not keyed, or `limit` or `position` are out of range.
        """
        self._access.require("keys", name)
        if where:
            found, next_ = await self._in_slices(
                name, lambda reader: reader.key_names_steps(prefix, limit, position, where)
            )
        else:
            await self._storage.whole(name)
            found, next_ = finished(self._storage.find(name).reader.key_names_steps(prefix, limit, position, ()))
        self._storage.need(sum(map(len, found)) * 2 + len(found) * _NAME_BYTES)
        return found, next_
