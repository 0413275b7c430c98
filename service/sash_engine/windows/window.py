"""A named window: what is written to it, what leaves it, and what it answers.

    write ─▶ check everything ─▶ order policy ─▶ keys ─▶ slide policy ─▶ what became of the entries     (writer.py)
             (batch.py)          (order.py)    (keys.py)   (slide.py)
    question ─────────────────────────────────▶ keys ─▶ answers                                         (reader.py)

    key "JFK"   [ entries .......... newest ]      max_age:   keeps  newest - max_age < time
    key "LGA"      [ entries ... newest ]          max_count: keeps the newest max_count
                 ^ late_through: entries of this time and older come too late

    history     keeps   newest - history < time, and shows what max_age says: see derived/views.py

Event time is per key: a key's now is its high-water mark, the newest time that was ever inserted into it. So a producer
with a fast clock, or a silent key, does not move other keys. The mark stays when the entry that set it is removed: a
now that goes back takes in entries that were late before. `evict_range` takes it back when it is asked to. A window may
use wall time instead, which is the same for all its keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from sash_engine.clock import Clock, ManualClock
from sash_engine.errors import InvalidArgument, NotFound, Unsupported
from sash_engine.forest import BLOCK, Forest, Layout
from sash_engine.forest.cold import Cold, PendingBlock
from sash_engine.monoids import Monoid
from sash_engine.monoids.base import Array
from sash_engine.steps import Steps, finished
from sash_engine.windows.answers import Admission, Answer, AnswerColumns, Counts, Series, WindowInfo, WriteResult
from sash_engine.windows.batches.batch import AnyBatch, Batch
from sash_engine.windows.batches.ledger import Ledger
from sash_engine.windows.batches.panes import Panes
from sash_engine.windows.batches.rows import Rows
from sash_engine.windows.batches.values import Fields
from sash_engine.windows.derived.derived import Cascade, Derived, Rollup
from sash_engine.windows.derived.views import View
from sash_engine.windows.keys.keys import NEVER, Keys
from sash_engine.windows.keys.pages import PAGES, Numbers, pages_of
from sash_engine.windows.known import Known, removed_spec
from sash_engine.windows.questions import (
    ALL_KEYS,
    AllKeys,
    AnswersAt,
    EntriesQuery,
    Grouped,
    KeyList,
    Limit,
    Query,
    Question,
    RangeQuery,
    SeriesQuery,
    Where,
)
from sash_engine.windows.reading.entries import BULK_ROWS
from sash_engine.windows.reading.labels import Labels
from sash_engine.windows.reading.reader import Reader
from sash_engine.windows.sliding.adaptive import layout_of
from sash_engine.windows.sliding.slide import Slide
from sash_engine.windows.sliding.view_keys import ViewSlide
from sash_engine.windows.spec.algorithms import check_algorithm
from sash_engine.windows.spec.derived import check_derived, document_of, widened
from sash_engine.windows.spec.window import REMOVED, TICK_MIN, WindowSpec, check_time
from sash_engine.windows.writing.admitting import Admitting
from sash_engine.windows.writing.changes import Changes
from sash_engine.windows.writing.writer import Writer
from sash_wire.coded import Coded

__all__ = ["ALL_KEYS", "AllKeys", "Window"]

_KEPT_BYTES = 26
"""Bytes of totals of keys that are kept, for each part; labels take 14 more."""
_ANY = 2**62
"""A rollup has no more keys than its window."""


class Window:
    """The entries of one named window.

    Args:
        spec: what it was created with.
        max_keys: how many keys it may have.
        block: entries per sealed block.
        pages: rows of the smallest and of the largest page that small keys share, powers of two; None gives every
            key a store of its own, as windows have whose keys need one (no keys, `when`, `adaptive`, `equal_times`).
        clock: tells wall time; a spec that goes by it needs one.
        cold: where forests keep their sealed blocks; None: in memory.

    Attributes:
        block, pages: as they were given.
        cold: where its sealed blocks are; None: in memory.
        counts: what became of the entries that it was sent.
        refused: how many entries limits refused since it was made or recovered.
        ledger: what is remembered of producers.
        keys: the entries by key.
        layout: the columns and aggregates; another one once there are other aggregates.
        labels: of its keys.
        slide_policy: what leaves, and when.
        reader: answers questions, about the slide; another one once there are other aggregates.
        admitting: decides about the rows of writes with limits; another one once there are other aggregates.
        past: answers those about the past, over all entries: as `reader`, unless there is a history.
        derived: its rollups, the windows that it feeds, and its views.
        known, removed: what was known when, with `known: arrival`, and what was removed; else None.
        mark: the high-water mark: the newest time ever inserted; `NEVER` before.
    """

    def __init__(
        self,
        spec: WindowSpec,
        max_keys: int = 10_000_000,
        block: int = BLOCK,
        pages: tuple[int, int] | None = PAGES,
        clock: Clock | None = None,
        cold: Cold | None = None,
    ) -> None:
        self.spec = spec
        self.block, self.pages = block, pages_of(block) if pages is PAGES else pages
        self.counts = Counts()
        self.refused = 0
        self.ledger = Ledger()
        if clock is None and (asks := spec.goes_by_wall_time) is not None:
            raise InvalidArgument(f"window {spec.name!r} goes by wall time: pass a clock", field=asks)
        self._clock = clock or ManualClock()
        self.mark = NEVER
        self._max_keys, self._idle_ns = max_keys, spec.idle_expiry_ns
        self._fields = Fields(spec)
        self._panes = None if spec.granularity is None else Panes(spec, block)
        self.layout: Layout = self._panes.layout if self._panes else layout_of(spec, block)
        other = spec.source is not None or REMOVED in spec.fields
        self.cold = cold.part(self.layout) if cold is not None and other else cold
        check_algorithm(spec)
        alone = spec.slide.when is not None or spec.slide.adaptive is not None
        shared = spec.keyed and not alone and spec.order.equal_times == "keep"
        self.keys = keys = Keys(self.layout, self.pages if shared else None, partial(Forest, cold=self.cold))
        keys.kept_bytes = _KEPT_BYTES * len(spec.parts) or keys.kept_bytes
        self.slide_policy = slide = Slide(spec, self.layout, keys, self._clock, self.counts)
        self.derived: Derived[Window] = Derived(
            keys, slide, self.counts, [self._rollup(parts) for parts in spec.rollups or ()]
        )
        shown = None if spec.history is None else ViewSlide(spec, slide, keys, False)
        self.known: Known | None = None
        self.removed: Window | None = None
        if spec.known is not None:
            self.removed = Window(removed_spec(spec), _ANY, block, pages, self._clock, cold)
            self.known = Known(spec, keys, self.counts, self.removed, self.cold)
        self._writer = Writer(
            spec, keys, slide, self.counts, self._clock, max_keys, self._panes, self.derived, shown, self.known
        )
        self._changes = Changes(spec, keys, slide, self.counts, self._clock, self.known)
        self.labels = Labels(spec, keys)
        self._use_layout(spec, self.layout)

    def _rollup(self, parts: Sequence[str]) -> Rollup[Window]:
        """Make the rollup by some parts. It uses the same clock, and keeps blocks in the same place."""
        spec = WindowSpec.parse(document_of(self.spec.document(), parts))
        window = Window(spec, _ANY, self.block, self.pages, self._clock, self.cold)
        return Rollup(self.spec, self.keys, parts, window)

    def _use_layout(self, spec: WindowSpec, layout: Layout) -> None:
        self.spec, self.layout = spec, layout
        self.slide_policy.use(spec, layout)
        self.past = Reader(
            spec,
            layout,
            self.keys,
            self.slide_policy,
            self.labels,
            self.cold,
            self.derived.reader_for,
            known=self.known,
        )
        self.reader = self.past if spec.history is None else View(spec, self).reader
        writer = self._writer
        self.admitting = Admitting(
            spec,
            layout,
            self.keys,
            self.slide_policy,
            writer.order,
            self._panes,
            self.labels,
            self.derived,
            self.cold,
            writer.checked_columns,
        )

    def reader_of(self, question: Question[Any]) -> Reader:
        """What answers a question."""
        return self.past if question.is_about_the_past else self.reader

    @property
    def punctuated(self) -> int:
        """Entries of this time and older are final; `NEVER` before the first punctuation."""
        return self.slide_policy.punctuated

    # ---------------------------------------------------------------- writing

    def insert(
        self,
        time: int,
        fields: Mapping[str, Any],
        key: str | None = None,
        answer: bool = False,
        lookbacks: Sequence[str | int] = (),
    ) -> WriteResult:
        """Insert one entry and slide; see `Plane.insert`."""
        check_time(time, "time")
        values = self._fields.checked(fields)
        name = self.reader.checked_key(key)
        if lookbacks:
            self.check_answer(answer, lookbacks)
        if self.derived.cascades:
            columns = {field: [value] for field, value in zip(self.spec.columns, values, strict=True)}
            result = self.bulk_insert(Batch.of(self.spec, [time], columns, None if key is None else [key]))
        else:
            result = self._count(self._writer.insert(name, time, values))
        if answer:
            result.answers = self.query(key, lookbacks)
        return result

    def check_answer(self, answer: bool, lookbacks: Sequence[str | int]) -> None:
        """Check what an insert asks for, before it is applied; raises InvalidArgument."""
        if lookbacks:
            if not answer:
                raise InvalidArgument("lookbacks are for an answer: ask for one", field="lookbacks")
            self.reader.spans(lookbacks)

    def bulk_insert(self, batch: AnyBatch) -> WriteResult:
        """Insert many entries, those of each key as one, and slide; see `Plane.bulk_insert`."""
        return finished(self.bulk_insert_steps(batch))

    def bulk_insert_steps(self, batch: AnyBatch) -> Steps[WriteResult]:
        """As `bulk_insert`, in steps. Nobody may read or write the window from the first to the last."""
        steps = self._writer.bulk_insert_steps(batch)
        del batch  # a caller that holds it no more has its columns let go while they are sorted
        return self._count((yield from steps))

    def bulk_insert_stages_steps(self, stages: list[AnyBatch]) -> Steps[WriteResult]:
        """As `bulk_insert_steps`, of a batch that comes in stages; see `Writer.bulk_insert_stages_steps`."""
        return self._count((yield from self._writer.bulk_insert_stages_steps(stages)))

    def check(self, batch: AnyBatch) -> None:
        """Check all of a bulk that can be checked before it is inserted; raises what `bulk_insert` would."""
        self._writer.check(batch)

    def check_ahead(self, time: int) -> None:
        """Raise FailedPrecondition for an entry too far ahead, where the order policy rejects it."""
        self._writer.check_ahead(time)

    def admit(self, batch: AnyBatch, limits: Sequence[Limit]) -> Admission:
        """Insert the rows of a bulk with which all limits hold, and slide; see `Plane.admit`."""
        admission, rows = finished(self.admitting.decide_steps(batch, limits))
        finished(self.admit_steps(admission, rows))
        return admission

    def admit_steps(self, admission: Admission, rows: AnyBatch) -> Steps[None]:
        """Insert the rows that `Admitting.decide_steps` says, and count what became of all of them."""
        if len(rows.times):
            admission.count((yield from self.insert_rows_steps(rows)))
        self.refused += admission.refused

    def insert_rows_steps(self, batch: AnyBatch) -> Steps[WriteResult]:
        """As `bulk_insert_steps`; a single row is inserted as `insert` does."""
        if len(batch.times) != 1 or self.derived.cascades:
            return (yield from self.bulk_insert_steps(batch))
        times, columns = batch.checked(self.spec)
        key = None if batch.keys is None else batch.keys.dictionary[batch.keys.codes.item(0)]
        time, name = times.item(0), self.reader.checked_key(key)
        check_time(time, "time")
        return self._count(self._writer.insert(name, time, [column.item(0) for column in columns]))

    def bulk_evict(self, time: int, key: str | None = None) -> int:
        """Remove entries with time <= `time`, of one key or of all; see `Plane.bulk_evict`."""
        check_time(time, "time")
        keys = self.keys
        if key is None:
            numbers = keys.numbers()
            evicted = int(keys.bulk_evict_each(numbers, np.full(len(numbers), time)).sum())
            for rollup in self.derived.rollups:
                rollup.window.bulk_evict(time)
        else:
            number = keys.find(self.reader.checked_key(key))
            evicted = 0 if number is None else keys.bulk_evict(number, time)
            if evicted and number is not None:
                self.derived.cut(number, time)
        self.counts.evicted += evicted
        if self.known is not None:
            self.known.evict(TICK_MIN, time, None if key is None else self.reader.checked_key(key))
        return evicted

    def evict_range(self, start: int, end: int, key: str | None = None, reset_mark: bool = False) -> int:
        """Remove entries with start <= time <= end, of one key or of all; see `Changes.evict_range`.

        Args:
            reset_mark: also take back the high-water marks in the range; see `Changes.reset_marks`.

        Raises:
            Unsupported: `reset_mark` in a window with `known`, where what was late then would be so no more.
        """
        if reset_mark and self.known is not None:
            raise Unsupported(
                f"window {self.spec.name!r} keeps what was known when: its marks do not go back", field="reset_mark"
            )
        name = None if key is None else self.reader.checked_key(key)
        evicted = self._changes.evict_range(start, end, name)
        if self.known is not None:
            self.known.evict(start, end, name)
        if name is None:
            for rollup in self.derived.rollups:
                rollup.window.evict_range(start, end)
        elif evicted and (number := self.keys.find(name)) is not None:
            self.derived.cut(number, end)
        if reset_mark:
            self._changes.reset_marks(start, end, name)
            self.derived.reset_marks()
            if start <= self.mark <= end:
                self.mark = int(self.keys.now.max(initial=NEVER))
        return evicted

    def punctuate(self, time: int) -> int:
        """Note that entries of a time and older are final, and evict; see `Plane.punctuate`."""
        evicted = self._changes.punctuate(time)
        for rollup in self.derived.rollups:
            rollup.window.punctuate(time)
        return evicted

    def retract_steps(self, batch: AnyBatch) -> Steps[WriteResult]:
        """Remove single entries, in steps; see `Plane.retract`. Nobody may use the window until the last one."""
        return self._count((yield from self._changes.retract_steps(batch)))

    def update_steps(self, batch: AnyBatch) -> Steps[WriteResult]:
        """Give single entries other values, in steps; see `Plane.update`. Nobody may use the window meanwhile."""
        return self._count((yield from self._changes.update_steps(batch)))

    def timed_steps(self, batch: AnyBatch, retracts: bool) -> Steps[tuple[AnyBatch, int]]:
        """Find the times of entries that are named without them, in steps; see `Changes.timed_steps`."""
        return self._changes.timed_steps(batch, retracts)

    def retract(self, batch: AnyBatch) -> WriteResult:
        """As `retract_steps`, at once."""
        return finished(self.retract_steps(batch))

    def update(self, batch: AnyBatch) -> WriteResult:
        """As `update_steps`, at once."""
        return finished(self.update_steps(batch))

    def slide(self) -> None:
        """Evict what wall time has made too old, as a question about all keys does."""
        if self.slide_policy.wall:
            self.slide_policy.by_age_each(self.keys.numbers())
            for rollup in self.derived.rollups:
                rollup.window.slide()
        for cascade in self.derived.cascades.values():
            cascade.window.slide()

    def tidy(self) -> None:
        """Do what time alone brings: slide by wall time, forget idle keys, give memory of evicted blocks back."""
        keys = self.keys
        if self.slide_policy.wall:
            self.slide_policy.after_each(keys.numbers())
        if self._idle_ns is not None:
            numbers = keys.numbers()
            idle = numbers[keys.touched[numbers] < self._clock.now_ns() - self._idle_ns]
            if len(idle):
                self.counts.evicted += keys.forget(idle)
        keys.sweep()
        if self.removed is not None:
            self.removed.tidy()
        self.derived.tidy()

    def resume(self, counts: Counts, mark: int, punctuated: int = NEVER, arrivals: int | None = None) -> None:
        """Go on from what another window had counted, from its high-water mark, and from what is final there.

        Args:
            arrivals: the number of its newest arrival, with `known`; None: what the counts say.
        """
        self.slide_policy.punctuated = punctuated
        for rollup in self.derived.rollups:
            rollup.window.resume(rollup.window.counts, rollup.window.mark, punctuated)
        for name in Counts.__slots__:
            setattr(self.counts, name, getattr(counts, name))  # in place: others hold on to it
        self.mark = mark
        if self.known is not None and arrivals is not None:
            self.known.resume(arrivals)

    def load(self, batch: AnyBatch) -> None:
        """Take in entries of existing keys as another window had them; see `Writer.load`."""
        self._writer.load(batch)

    def pending_blocks(self) -> list[PendingBlock]:
        """Return the sealed blocks of all keys that the tier does not have yet; see `Forest.pending_blocks`."""
        forests = [] if self.cold is None else list(self.cold.dirty)
        return [block for forest in forests for block in forest.pending_blocks()]

    def _count(self, result: WriteResult) -> WriteResult:
        counts = self.counts
        counts.inserted += result.inserted
        counts.late += result.late
        counts.duplicates += result.duplicates
        counts.ahead += result.ahead
        counts.retracted += result.retracted
        counts.corrected += result.corrected
        if self.keys.top > self.mark:
            self.mark = self.keys.top
        return result

    # ---------------------------------------------------------------- as one that is derived

    def feed(self, number: int, time: int, values: Sequence[Any]) -> None:
        """Insert one row of a key that another window has taken; see `Writer.feed`."""
        self.counts.inserted += self._writer.feed(number, time, values)
        self.mark = max(self.mark, self.keys.top)

    def feed_steps(self, numbers: Numbers, columns: Sequence[Array]) -> Steps[None]:
        """Insert rows that another window has taken; see `Writer.feed_steps`."""
        self.counts.inserted += yield from self._writer.feed_steps(numbers, columns)
        self.mark = max(self.mark, self.keys.top)

    def take_steps(self, rows: Rows, partials: bool) -> Steps[None]:
        """Insert rows of a write to the window that feeds this one; see `Writer.insert_rows`."""
        self._count((yield from self._writer.insert_rows(rows, partials)))

    def raise_marks(self, numbers: Numbers, now: Numbers) -> None:
        """Raise the high-water marks of keys, where they are lower, and slide."""
        np.maximum.at(self.keys.now, numbers, now)
        self.slide_policy.by_age_each(self.keys.numbers())

    def cut(self, number: int, time: int) -> None:
        """Remove entries of a key with time <= `time`, and take no more of them."""
        if time > self.keys.late_through_of[number]:
            self.counts.evicted += self.keys.bulk_evict(number, time)
            self.keys.late_through_of[number] = time

    # ---------------------------------------------------------------- deriving others

    @property
    def inner(self) -> list[Window]:
        """The windows that are parts of it: of its rollups, and of what was removed."""
        inner = [rollup.window for rollup in self.derived.rollups]
        return inner if self.removed is None else [*inner, self.removed]

    @property
    def family(self) -> list[Window]:
        """It, and the windows that it feeds, also by others."""
        return [self, *self.derived.fed]

    @property
    def views(self) -> list[View]:
        """Its views, and those of the windows that it feeds."""
        return [view for window in self.family for view in window.derived.views.values()]

    def find(self, name: str) -> Window | View | None:
        """Return the window or view of this name: itself, or one that is derived from it; None if there is none."""
        found: dict[str, Window | View] = {each.spec.name: each for each in self.family}
        return (found | {view.spec.name: view for view in self.views}).get(name)

    def derive(self, spec: WindowSpec) -> Window | View:
        """As `derive_steps`, at once."""
        return finished(self.derive_steps(spec))

    def derive_steps(self, spec: WindowSpec) -> Steps[Window | View]:
        """Feed another window from now on, or have a view; or have a window do so that this one feeds.

        A view of the same name is replaced. Its partials of what is there are computed in steps. Nobody may use the
        window from the first to the last.

        Args:
            spec: says `from` or `of`; complete, see `spec/derived.py`.

        Raises:
            NotFound, InvalidArgument: there can be no such window. Nothing has changed.
            Unavailable, DataLoss: a block cannot be read. Keys differ in what they have then.
        """
        (name,), field = spec.feeds_on, "from.window" if spec.of is None else "of"
        source = next((window for window in self.family if window.spec.name == name), None)
        if source is None:
            raise NotFound(f"{field}: there is no window {name[:140]!r}", field=field)
        check_derived(spec, source.spec)
        if spec.of is None:
            return source._cascade(spec)
        views = source.derived.views
        yield from source._share_steps(source.derived.monoids(spec))
        view = views.setdefault(spec.name, View(spec, source))
        view.spec = spec
        for each in views.values():
            each.use()
        return view

    def _cascade(self, spec: WindowSpec) -> Window:
        window = Window(spec, self._max_keys, self.block, self.pages, self._clock, self.cold)
        assert window._panes is not None, "the spec says how long panes are"
        self.derived.cascades[spec.name] = Cascade((self.spec, self._panes), window, window._panes)
        return window

    def drop(self, name: str) -> None:
        """Feed a window no more, and free what it has; or remove a view, and the partials that only it has.

        Raises:
            FailedPrecondition: other windows are derived from it.
        """
        for window in self.family:
            derived = window.derived
            if name in derived.cascades:
                fed = derived.cascades[name].window
                fed.derived.check_none(name)
                fed.clear()
                del derived.cascades[name]
            elif name in derived.views:
                del derived.views[name]
                finished(window._share_steps(derived.monoids()))
                for view in derived.views.values():
                    view.use()

    def clear(self) -> None:
        """Forget all keys, and free what is stored of them."""
        for window in (self, *self.inner):
            window.counts.evicted += window.keys.forget(window.keys.numbers())

    @property
    def left(self) -> tuple[int, int]:
        """How many entries have left it and the windows that it feeds, and how many keys these have."""
        family = self.family
        return sum(each.counts.evicted for each in family), sum(len(each.keys) for each in family)

    def _share_steps(self, shared: Sequence[tuple[Monoid, Sequence[str]]]) -> Steps[None]:
        """Have slots for these aggregates of views, in steps. Panes have all slots that they will ever have.

        The slots and their order follow from the spec and the views, because an image stores partials by slot.
        """
        if self._panes is not None:
            return
        layout = layout_of(self.spec, self.layout.block, shared)
        if layout.keys != self.layout.keys:
            yield from self.keys.relayout_steps(layout)
            self._use_layout(self.spec, layout)

    def add_aggregates(self, aggregates: Mapping[str, Any]) -> WindowInfo:
        """Add aggregates and compute them from the entries that are there; see `Plane.add_aggregates`."""
        wider = widened(self.spec, aggregates)
        if self._panes is not None:
            for name in wider.aggregates.keys() - self.spec.aggregates.keys():
                raise Unsupported(
                    f"window {self.spec.name!r} keeps panes of {self.spec.granularity}, and no values to compute "
                    f"{name!r} from",
                    field=f"aggregates.{name}",
                )
            return self.info()
        layout = layout_of(wider, self.layout.block, self.derived.monoids())
        self.keys.relayout(layout)
        for rollup in self.derived.rollups:
            rollup.window.add_aggregates(aggregates)
        self._use_layout(wider, layout)
        for view in self.derived.views.values():
            view.use()
        return self.info()

    # ---------------------------------------------------------------- questions, with their arguments one by one

    def query(
        self,
        key: str | None = None,
        lookbacks: Sequence[str | int] = (),
        as_of: int | None = None,
        keys: KeyList = (),
        combine: bool = False,
        partials: bool = False,
        aggregates: Sequence[str] = (),
        known_at: int | None = None,
    ) -> list[Answer]:
        """Answer over trailing lookbacks, or over everything; see `Query` and `Reader.query`."""
        selection = Grouped(aggregates=aggregates)
        question = Query(key, lookbacks, as_of, keys, combine, partials, selection=selection, known_at=known_at)
        return self.reader_of(question).query(question)

    def range_query(
        self,
        start: int,
        end: int,
        key: str | None = None,
        keys: KeyList = (),
        partials: bool = False,
        end_exclusive: bool = False,
        aggregates: Sequence[str] = (),
    ) -> Answer:
        """Answer over start <= time <= end; see `RangeQuery` and `Reader.range_query`."""
        question = RangeQuery(start, end, key, keys, partials, end_exclusive, selection=Grouped(aggregates=aggregates))
        return self.reader.range_query(question)

    def series(
        self,
        start: int,
        end: int,
        step: str | int,
        width: str | int | None = None,
        key: str | None = None,
        keys: KeyList = (),
        aggregates: Sequence[str] = (),
    ) -> Series:
        """Answer over buckets; see `SeriesQuery` and `Reader.series`."""
        return self.reader.series(
            SeriesQuery(start, end, step, width, key, keys, selection=Grouped(aggregates=aggregates))
        )

    def answers_at(
        self,
        times: Array,
        keys: Sequence[str] | None = None,
        lookbacks: Sequence[str | int] = (),
        where: Sequence[Where] = (),
        aggregates: Sequence[str] = (),
        known_at: Array | None = None,
    ) -> list[AnswerColumns]:
        """Answer about many pairs of a key and a time; see `AnswersAt`."""
        coded = None if keys is None else Coded.of(keys)
        return finished(self.past.answers_at_steps(AnswersAt(times, coded, lookbacks, where, aggregates, known_at)))

    def entries(
        self,
        start: int | None = None,
        end: int | None = None,
        key: str | None = None,
        keys: KeyList = (),
        rows: int = BULK_ROWS,
        end_exclusive: bool = False,
    ) -> Iterator[AnyBatch]:
        """The entries of a time range as of now; see `EntriesQuery` and `Reader.entries`."""
        return iter(self.reader.entries(EntriesQuery(start, end, key, keys, end_exclusive), rows))

    def key_names(
        self, prefix: str, limit: int, position: int = 0, where: Sequence[Where] = ()
    ) -> tuple[list[str], int | None]:
        """See `Plane.keys`."""
        return finished(self.reader.key_names_steps(prefix, limit, position, where))

    # ---------------------------------------------------------------- checking

    def check_room(self, more: int) -> None:
        """Raise ResourceExhausted if so many more keys would be too many."""
        self._writer.check_room(more)

    def info(self) -> WindowInfo:
        """The window as `describe` shows it.

        On wall time it counts entries that are too old until something slides: a question about their key, or `tidy`.
        """
        oldest = None
        if not self.spec.keyed and self.keys:
            oldest, _ = self.keys.span(self.keys.numbers().item())
        return WindowInfo(
            spec=self.spec,
            entries=self.counts.present,
            keys=self.keys.filled,
            oldest=oldest,
            newest=self.keys.newest(),
            counts=self.counts,
            high_water_mark=None if self.mark == NEVER else self.mark,
            punctuated=None if self.slide_policy.punctuated == NEVER else self.slide_policy.punctuated,
            evicted_through=self.slide_policy.evicted_through(),
            refused=self.refused,
        )

    def check_invariants(self, same: Callable[..., bool] | None = None) -> None:
        """Raise AssertionError naming the first invariant that does not hold; `same` as in `Keys.check_invariants`."""
        self.keys.check_invariants(same)
        self.labels.check_invariants()
        keys, slide, numbers, spec = self.keys, self.slide_policy, self.keys.numbers(), self.spec
        entries = keys.entries_each(numbers)
        assert entries.sum() == self.counts.present, "what was inserted, and neither evicted nor retracted, is here"
        newest = keys.newest()
        assert newest is None or newest <= self.mark, f"an entry of {newest} is beyond the mark, {self.mark}"
        most = spec.slide.max_count
        assert most is None or not len(entries) or entries.max() <= most, "max_count is kept"
        if spec.slide.max_age is not None and not slide.wall:
            for number in numbers.tolist():
                oldest, now = keys.span(number)[0], keys.now_of[number]
                now = slide.punctuated if slide.until else now
                assert oldest is None or oldest > slide.through(now), f"key {number} has an entry past max_age"
        for rollup in self.derived.rollups:
            rollup.check_invariants(same)
        if self.known is not None:
            self.known.check_invariants(same)
        for view in self.derived.views.values():
            view.check_invariants()
        for cascade in self.derived.cascades.values():
            cascade.window.check_invariants(same)
