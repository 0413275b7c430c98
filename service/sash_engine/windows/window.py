"""A named window: what is written to it, what leaves it, and what it answers.

    write ─▶ check everything ─▶ order policy ─▶ keys ─▶ slide policy ─▶ what became of the entries     (writer.py)
             (batch.py)          (order.py)    (keys.py)   (slide.py)
    question ─────────────────────────────────▶ keys ─▶ answers                                         (reader.py)

    key "JFK"   [ entries .......... newest ]      max_age:   keeps  newest - max_age < time
    key "LGA"      [ entries ... newest ]          max_count: keeps the newest max_count
                 ^ late_through: entries of this time and older come too late

Event time is per key: a key's now is its high-water mark, the newest time that was ever inserted into it. So a producer
with a fast clock, or a silent key, does not move other keys. The mark stays when `bulk_evict` removes the entry that
set it: a now that goes back would take in entries that were late before. A window may use wall time instead, which is
the same for all its keys.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from sash_engine.clock import Clock, ManualClock
from sash_engine.errors import InvalidArgument
from sash_engine.forest import BLOCK, Forest
from sash_engine.forest.cold import Cold, PendingBlock
from sash_engine.steps import Steps, finished
from sash_engine.windows.adaptive import layout_of
from sash_engine.windows.algorithms import check_algorithm
from sash_engine.windows.answers import Counts, WindowInfo, WriteResult
from sash_engine.windows.batch import AnyBatch, Batch
from sash_engine.windows.by_algorithm import ByAlgorithm
from sash_engine.windows.cascades import Cascades
from sash_engine.windows.changes import Changes
from sash_engine.windows.invariants import check_window
from sash_engine.windows.key_reader import Own
from sash_engine.windows.keys import NEVER, Keys
from sash_engine.windows.labels import Labels
from sash_engine.windows.ledger import Ledger
from sash_engine.windows.pages import PAGES, pages_of
from sash_engine.windows.panes import Panes
from sash_engine.windows.part_writer import PartWriter
from sash_engine.windows.questions import (
    ALL_KEYS,
    AllKeys,
)
from sash_engine.windows.reader import Reader
from sash_engine.windows.rollup_reader import RollupReader
from sash_engine.windows.rollup_spec import document_of
from sash_engine.windows.rollups import Rollup, Rollups
from sash_engine.windows.shared_window import SharedWindow
from sash_engine.windows.slide import Slide
from sash_engine.windows.spec import WindowSpec, check_time
from sash_engine.windows.values import Fields
from sash_engine.windows.views import Views

__all__ = ["ALL_KEYS", "AllKeys", "Window"]

_KEPT_BYTES = 26
"""Bytes of totals of keys that are kept, for each part; labels take 14 more."""
_ANY = 2**62
"""A rollup has no more keys than its window."""


class Window(SharedWindow):
    """The entries of one named window.

    Args:
        spec: what it was created with.
        max_keys: how many keys it may have.
        block: entries per sealed block.
        pages: rows of the smallest and of the largest page that small keys share, powers of two; None gives every
            key a store of its own, as windows have whose keys need one (no keys, `when`, `adaptive`, `equal_times`,
            `algorithm`).
        clock: tells wall time; a spec that goes by it needs one.
        cold: where forests keep their sealed blocks; None: in memory.

    Attributes:
        block, pages: as they were given.
        cold: where its sealed blocks are; None: in memory.
        cascades: the windows that it feeds.
        views: the windows that show its entries.
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
        self.ledger = Ledger()
        if clock is None and (asks := spec.goes_by_wall_time) is not None:
            raise InvalidArgument(f"window {spec.name!r} goes by wall time: pass a clock", field=asks)
        self._clock = clock or ManualClock()
        self._mark = NEVER
        self._idle_ns = spec.idle_expiry_ns
        self._fields = Fields(spec)
        self._panes = None if spec.granularity is None else Panes(spec, block)
        self._layout = self._panes.layout if self._panes else layout_of(spec, block)
        self.cold = cold = cold.part(self._layout) if cold is not None and spec.source is not None else cold
        check_algorithm(spec)
        alone = spec.slide.when is not None or spec.slide.adaptive is not None
        shared = spec.keyed and not alone and spec.order.equal_times == "keep" and spec.algorithm is None
        algorithm = spec.algorithm
        own: Own = partial(Forest, cold=cold) if algorithm is None else partial(ByAlgorithm, algorithm=algorithm)
        self._keys = Keys(self._layout, self.pages if shared else None, own)
        self._keys.kept_bytes = _KEPT_BYTES * len(spec.parts) or self._keys.kept_bytes
        self._slide = Slide(spec, self._layout, self._keys, self._clock, self.counts)
        self._rollups = Rollups([self._rollup(parts) for parts in spec.rollups or ()], self._keys)
        self.cascades, self.views = Cascades(), Views()
        self._writer = PartWriter(
            spec, self._keys, self._slide, self.counts, self._clock, max_keys, self._panes, self._rollups, self.cascades
        )
        self._changes = Changes(spec, self._keys, self._slide, self.counts, self._clock)
        self._labels = Labels(spec, self._keys)
        self._reader = self._reader_of(spec)
        self._max_keys = max_keys

    def _rollup(self, parts: Sequence[str]) -> Rollup:
        """What keeps the groups by some parts; it uses the same clock, and blocks in the same place."""
        spec = WindowSpec.parse(document_of(self.spec.document(), parts))
        window = Window(spec, _ANY, self.block, self.pages, self._clock, self.cold)
        return Rollup(self.spec, self._keys, parts, window)

    def _reader_of(self, spec: WindowSpec) -> Reader:
        parts = spec, self._layout, self._keys, self._slide, self._labels, self.cold
        return RollupReader(self._rollups, self.counts, *parts) if self._rollups else Reader(*parts)

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
        name = self._reader.checked_key(key)
        self.check_answer(answer, lookbacks)
        if self.cascades:
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
            self._reader.spans(lookbacks)

    def bulk_insert(self, batch: AnyBatch) -> WriteResult:
        """Insert many entries, those of each key as one, and slide; see `Plane.bulk_insert`."""
        return self._count(self._writer.bulk_insert(batch))

    def bulk_insert_steps(self, batch: AnyBatch) -> Steps[WriteResult]:
        """As `bulk_insert`, in steps. Nobody may read or write the window from the first to the last."""
        steps = self._writer.bulk_insert_steps(batch)
        del batch  # a caller that holds it no more has its columns let go while they are sorted
        return self._count((yield from steps))

    def bulk_insert_parts_steps(self, parts: list[AnyBatch]) -> Steps[WriteResult]:
        """As `bulk_insert_steps`, of a write that comes in parts; see `PartWriter.bulk_insert_parts_steps`."""
        return self._count((yield from self._writer.bulk_insert_parts_steps(parts)))

    def check(self, batch: AnyBatch) -> None:
        """Check all of a bulk that can be checked before it is inserted; raises what `bulk_insert` would."""
        self._writer.check(batch)

    def bulk_evict(self, time: int, key: str | None = None) -> int:
        """Remove entries with time <= `time`, of one key or of all; see `Plane.bulk_evict`."""
        check_time(time, "time")
        keys = self._keys
        if key is None:
            numbers = keys.numbers()
            evicted = int(keys.bulk_evict_each(numbers, np.full(len(numbers), time)).sum())
            self._rollups.bulk_evict(time)
        else:
            number = keys.find(self._reader.checked_key(key))
            evicted = 0 if number is None else keys.bulk_evict(number, time)
            if evicted and number is not None:
                self._rollups.cut(number, time)
        self.counts.evicted += evicted
        return evicted

    def evict_range(self, start: int, end: int, key: str | None = None) -> int:
        """Remove entries with start <= time <= end, of one key or of all; see `Changes.evict_range`."""
        name = None if key is None else self._reader.checked_key(key)
        evicted = self._changes.evict_range(start, end, name)
        if name is None:
            self._rollups.evict_range(start, end)
        elif evicted and (number := self._keys.find(name)) is not None:
            self._rollups.cut(number, end)
        return evicted

    def punctuate(self, time: int) -> int:
        """Note that entries of a time and older are final, and evict; see `Plane.punctuate`."""
        evicted = self._changes.punctuate(time)
        self._rollups.punctuate(time)
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
        if self._slide.wall:
            self._slide.by_age_each(self._keys.numbers())
            self._rollups.slide()
        self.cascades.slide()

    def tidy(self) -> None:
        """Do what time alone brings: slide by wall time, forget idle keys, give memory of evicted blocks back."""
        keys = self._keys
        if self._slide.wall:
            self._slide.after_each(keys.numbers())
        if self._idle_ns is not None:
            numbers = keys.numbers()
            idle = numbers[keys.touched[numbers] < self._clock.now_ns() - self._idle_ns]
            if len(idle):
                self.counts.evicted += keys.forget(idle)
        keys.sweep()
        self._rollups.tidy()
        self.cascades.tidy()

    @property
    def rollups(self) -> Rollups:
        """The groups of keys that are kept beside the keys."""
        return self._rollups

    def resume(self, counts: Counts, mark: int, punctuated: int = NEVER) -> None:
        """Go on from what another window had counted, from its high-water mark, and from what is final there."""
        self._slide.punctuated = punctuated
        for rollup in self._rollups:
            rollup.window.resume(rollup.window.counts, rollup.window.mark, punctuated)
        for name in Counts.__slots__:
            setattr(self.counts, name, getattr(counts, name))  # in place: others hold on to it
        self._mark = mark

    def load(self, batch: AnyBatch) -> None:
        """Take in entries of existing keys as another window had them; see `Writer.load`."""
        self._writer.load(batch)

    def pending_blocks(self) -> list[PendingBlock]:
        """Return the sealed blocks of all keys that the tier does not have yet; see `Forest.pending_blocks`."""
        forests = [] if self.cold is None else list(self.cold.dirty)
        return [block for forest in forests for block in forest.pending_blocks()]

    @property
    def key_count(self) -> int:
        """The number of keys that the window knows, with those that have no entries."""
        return len(self._keys)

    # ---------------------------------------------------------------- checking

    def check_room(self, more: int) -> None:
        """Raise ResourceExhausted if so many more keys would be too many."""
        self._writer.check_room(more)

    def info(self) -> WindowInfo:
        """The window as `describe` shows it.

        On wall time it counts entries that are too old until something slides: a question about their key, or `tidy`.
        """
        oldest = None
        if not self.spec.keyed and self._keys:
            oldest, _ = self._keys.span(self._keys.numbers().item())
        return WindowInfo(
            spec=self.spec,
            entries=self.counts.present,
            keys=self._keys.filled,
            oldest=oldest,
            newest=self._keys.newest(),
            counts=self.counts,
            high_water_mark=None if self._mark == NEVER else self._mark,
            punctuated=None if self._slide.punctuated == NEVER else self._slide.punctuated,
            evicted_through=self._slide.evicted_through(),
        )

    def check_invariants(self, same: Callable[..., bool] | None = None) -> None:
        """Raise AssertionError naming the first invariant that does not hold; see `check_window`."""
        check_window(self, self._slide, self._labels, self._rollups, same)
