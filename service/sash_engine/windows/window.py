"""A named window: what is written to it, what leaves it, and what it answers.

    write ─▶ check everything ─▶ order policy ─▶ keys ─▶ slide policy ─▶ what became of the entries
             (batch.py)          (order.py)    (keys.py)   (slide.py)
    question ─────────────────────────────────▶ (reader.py)

    key "JFK"   [ entries .......... newest ]      max_age:   keeps  newest - max_age < time
    key "LGA"      [ entries ... newest ]          max_count: keeps the newest max_count
                 ^ late_through: entries of this time and older come too late

Event time is per key: a key's now is its high-water mark, the newest time that was ever inserted into it. So a producer
with a fast clock, or a key that is silent, moves nobody else's window. The mark stays when `bulk_evict` removes the
entry that set it: a now that goes back would take in entries that were late before. A window may be on wall time
instead, which is the same for all its keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import compress
from typing import Any

import numpy as np
import numpy.typing as npt

from sash_engine.clock import Clock, ManualClock
from sash_engine.errors import AlreadyExists, InvalidArgument, ResourceExhausted, Unsupported
from sash_engine.forest import BLOCK, Layout
from sash_engine.forest.cold import Cold, PendingBlock
from sash_engine.forest.segments import lengths_of_segments, starts_of_runs
from sash_engine.monoids.base import Array, FieldType
from sash_engine.windows.algorithms import check_algorithm
from sash_engine.windows.answers import Answer, Counts, Series, WindowInfo, WriteResult
from sash_engine.windows.batch import MAX_COUNTED, Batch, Coded
from sash_engine.windows.entries import BULK_ROWS
from sash_engine.windows.keys import NEVER, UNKEYED, Keys
from sash_engine.windows.ledger import Ledger
from sash_engine.windows.order import Order, Rows
from sash_engine.windows.pages import PAGES
from sash_engine.windows.panes import Panes
from sash_engine.windows.questions import (
    ALL_KEYS,
    AllKeys,
    EntriesQuery,
    KeyList,
    Query,
    RangeQuery,
    SeriesQuery,
)
from sash_engine.windows.reader import Reader
from sash_engine.windows.slide import Slide
from sash_engine.windows.spec import WindowSpec, check_time
from sash_engine.windows.stores import AlgorithmStores, EntryStores, PaneStores, Stores

__all__ = ["ALL_KEYS", "AllKeys", "Window"]

MAX_KEY_NAMES = 100_000
_PLAIN: dict[FieldType, type] = {"float64": float, "string": str, "bool": bool}
"""A value of just this type needs no further check."""


class Window:
    """The entries of one named window.

    Args:
        spec: what it was created with.
        max_keys: how many keys it may have.
        block: entries per sealed block.
        pages: rows of the smallest and of the largest page that small keys share, powers of two; None gives every
            key a store of its own, as windows have whose keys need one (no keys, `when`, `equal_times`, `algorithm`).
        clock: tells wall time; a spec that goes by it needs one.
        cold: where forests keep their sealed blocks; None: in memory.

    Attributes:
        block, pages, cold: as they were given.
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
        self.block, self.pages, self.cold = block, pages, cold
        self.counts = Counts()
        self.ledger = Ledger()
        if clock is None and (asks := spec.goes_by_wall_time) is not None:
            raise InvalidArgument(f"window {spec.name!r} goes by wall time: pass a clock", field=asks)
        self._clock = clock or ManualClock()
        self._max_keys = max_keys
        self._mark = NEVER
        self._idle_ns = spec.idle_expiry_ns
        self._fields = [(name, kind, _PLAIN.get(kind)) for name, kind in spec.fields.items()]
        self._panes = None if spec.granularity is None else Panes(spec, block)
        self._layout = self._panes.layout if self._panes else Layout(spec.fields, spec.monoids(), block)
        check_algorithm(spec)
        shared = spec.keyed and spec.slide.when is None and spec.order.equal_times == "keep" and spec.algorithm is None
        self._keys = Keys(self._layout, pages if shared else None, self._stores())
        self._order = Order(spec, self._keys, self._clock)
        self._slide = Slide(spec, self._keys, self._clock, self.counts)
        self._reader = Reader(spec, self._layout, self._keys, self._slide, cold)

    def _stores(self) -> Stores:
        if self.spec.algorithm is not None:
            return AlgorithmStores(self.spec.algorithm)
        return EntryStores(self.cold) if self._panes is None else PaneStores(self._panes.layout, self.cold)

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
        values = self._checked_values(fields)
        if self._panes is not None:
            values = self._panes.lifted(time, values)
            time = self._panes.floor(time)
        name = self._reader.checked_key(key)
        self.check_answer(answer, lookbacks)
        result = self._count(self._insert(name, time, values))
        if answer:
            result.answers = self.query(key, lookbacks)
        return result

    def check_answer(self, answer: bool, lookbacks: Sequence[str | int]) -> None:
        """Check what an insert asks for, before it is applied; raises InvalidArgument."""
        if lookbacks:
            if not answer:
                raise InvalidArgument("lookbacks are for an answer: ask for one", field="lookbacks")
            self._reader.spans(lookbacks)

    def bulk_insert(self, batch: Batch) -> WriteResult:
        """Insert many entries, each key's as one, and slide; see `Plane.bulk_insert`."""
        columns, partials = self._checked_columns(batch), batch.partials is not None
        if not len(columns[0]):
            return WriteResult()
        if partials:
            self._check_countable(columns[1])
        keys, ahead = batch.keys, 0
        if self._order.guards:
            columns, keys, ahead = self._order.drop_ahead(columns, keys, partials)
            if not len(columns[0]):
                return self._count(WriteResult(ahead=ahead))
        rows = self._rows(keys, columns)
        if partials:
            rows.entries = rows.columns[1]
        result = self._insert_rows(rows, partials)
        result.ahead = ahead
        return self._count(result)

    def check(self, batch: Batch) -> None:
        """Check all of a bulk that can be checked before it is inserted; raises what `bulk_insert` would."""
        self._checked_columns(batch)

    def _checked_columns(self, batch: Batch) -> list[Array]:
        """The times of a bulk and its columns; with panes, what `Panes.rows` makes of them."""
        times, columns = batch.checked(self.spec)
        if len(times):
            check_time(int(times.min()), "time")
            check_time(int(times.max()), "time")
            if self._panes is not None:
                return self._panes.rows(times, columns, batch.partials is not None)
        return [times, *columns]

    def bulk_evict(self, time: int, key: str | None = None) -> int:
        """Remove entries with time <= `time`, of one key or of all; see `Plane.bulk_evict`."""
        check_time(time, "time")
        keys = self._keys
        if key is None:
            numbers = keys.numbers()
            evicted = int(keys.bulk_evict_each(numbers, np.full(len(numbers), time)).sum())
        else:
            number = keys.find(self._reader.checked_key(key))
            evicted = 0 if number is None else keys.bulk_evict(number, time)
        self.counts.evicted += evicted
        return evicted

    def add_aggregates(self, aggregates: Mapping[str, Any]) -> WindowInfo:
        """Add aggregates and compute them from the entries that are there; see `Plane.add_aggregates`."""
        if self.spec.algorithm is not None:
            raise Unsupported(
                f"window {self.spec.name!r} runs on {self.spec.algorithm}, which keeps no values to compute from",
                field="aggregates",
            )
        document = self.spec.document()
        wider = WindowSpec.parse(document | {"aggregates": document["aggregates"] | dict(aggregates)})
        for name, old in self.spec.aggregates.items():
            if wider.aggregates[name] != old:
                raise AlreadyExists(
                    f"window {self.spec.name!r} has an aggregate {name!r} with another definition",
                    field=f"aggregates.{name}",
                )
        if self._panes is not None:
            for name in wider.aggregates.keys() - self.spec.aggregates.keys():
                raise Unsupported(
                    f"window {self.spec.name!r} keeps panes of {self.spec.granularity}, and no values to compute "
                    f"{name!r} from",
                    field=f"aggregates.{name}",
                )
            return self.info()
        layout = Layout(wider.fields, wider.monoids(), self._layout.block)
        self._keys.relayout(layout)
        self.spec, self._layout = wider, layout
        self._slide.use(wider)
        self._reader = Reader(wider, layout, self._keys, self._slide, self.cold)
        return self.info()

    def slide(self) -> None:
        """Evict what wall time has made too old, as a question about all keys does."""
        if self._slide.wall:
            self._slide.by_age_each(self._keys.numbers())

    def tidy(self) -> None:
        """Do what time alone brings: slide by wall time, forget idle keys, give memory of evicted blocks back."""
        keys = self._keys
        if self._slide.wall:
            self._slide.after_each(keys.numbers(), self._layout)
        if self._idle_ns is not None:
            numbers = keys.numbers()
            idle = numbers[keys.touched[numbers] < self._clock.now_ns() - self._idle_ns]
            if len(idle):
                self.counts.evicted += keys.forget(idle)
        keys.sweep()

    def _insert(self, name: str, time: int, values: Sequence[Any]) -> WriteResult:
        keys, order = self._keys, self._order
        if order.guards and order.is_ahead(time):
            return WriteResult(ahead=1)
        number = keys.find(name)
        if self._slide.wall and time <= (through := self._slide.late_through()):
            return WriteResult(late=order.refuse_late(1, through))
        if number is None:
            self.check_room(1)
            number = keys.create([name]).item()
        else:
            if order.in_order_only:
                order.check_next(number, time)
            if time <= (through := keys.late_through_of[number]):
                return WriteResult(late=order.refuse_late(1, through))
        if self.spec.algorithm is not None:
            order.check_accepted(number, np.array([time]))
        replaces = order.replaces(number, time) if order.one_per_time else None
        if self._idle_ns is not None:
            keys.touched[number] = self._clock.now_ns()
        if replaces is None:
            keys.insert(number, time, values)
            return WriteResult(1, 0, self._slide.after(number, self._layout))
        if replaces:
            keys.replace(number, np.array([time]), [_column(value) for value in values])
        return WriteResult(duplicates=1, evicted=self._slide.after(number, self._layout) if replaces else 0)

    def _rows(self, coded: Coded | None, columns: list[Array]) -> Rows:
        """Sort a write's entries by key, then time, then arrival; refuse it where they must arrive in order."""
        keys, times = self._keys, columns[0]
        if coded is None:
            number = keys.find(UNKEYED)
            rows = Rows([UNKEYED], np.array([-1 if number is None else number]), np.array([len(times)]), columns)
            if self._order.in_order_only:
                self._order.check_arrival(np.zeros(len(times), np.int64), times, rows.numbers)
            sorted_rows = self._order.one_per_time or self._panes is not None
            if sorted_rows and np.count_nonzero(times[1:] < times[:-1]):
                order = np.argsort(times, kind="stable")
                rows.columns = [column[order] for column in columns]
            return rows  # unsorted where nobody minds: the engine sorts, if it must
        names, lengths, order = _grouped(coded, times)
        rows = Rows(names, keys.find_each(names), lengths, [column[order] for column in columns])
        if self._order.in_order_only:
            of = np.empty(len(times), np.int64)
            of[order] = np.repeat(np.arange(len(names)), lengths)
            self._order.check_arrival(of, times, rows.numbers)
        return rows

    def _insert_rows(self, rows: Rows, partials: bool) -> WriteResult:
        keys, order = self._keys, self._order
        order.drop_late(rows, self._slide.late_through())
        entries = len(rows.columns[0])
        if self._panes is not None and entries:
            rows.lengths, rows.columns = self._panes.folded(rows.columns, rows.lengths, partials)
            entries = int(rows.columns[1].sum())
        if order.one_per_time:
            order.settle_equal(rows)
            entries = len(rows.columns[0])
        if self.spec.algorithm is not None:
            for number, a, b in rows.spans():
                order.check_accepted(number, rows.columns[0][a:b])
        new = rows.numbers < 0
        if new.any():
            self.check_room(int(np.count_nonzero(new)))
            # Nothing was changed so far, and nothing below can fail.
            rows.numbers[new] = keys.create(list(compress(rows.names, new.tolist())))
        for number, (times, *columns) in rows.replaced:
            keys.replace(number, times, columns)
        written = rows.numbers
        if len(written) == 1:
            keys.bulk_insert(written.item(), rows.columns[0], rows.columns[1:])
        elif len(written):
            keys.bulk_insert_each(written, rows.lengths, rows.columns)
        if rows.replaced:
            written = np.union1d(written, [number for number, _ in rows.replaced])
        if self._idle_ns is not None:
            keys.touched[written] = self._clock.now_ns()
        if len(written) == 1:
            evicted = self._slide.after(written.item(), self._layout)
        else:
            evicted = self._slide.after_each(written, self._layout) if len(written) else 0
        return WriteResult(entries, rows.late, evicted, rows.duplicates)

    def _count(self, result: WriteResult) -> WriteResult:
        self.counts.inserted += result.inserted
        self.counts.late += result.late
        self.counts.duplicates += result.duplicates
        self.counts.ahead += result.ahead
        if self._keys.top > self._mark:
            self._mark = self._keys.top
        return result

    @property
    def keys(self) -> Keys:
        """The entries by key."""
        return self._keys

    @property
    def layout(self) -> Layout:
        """The columns and aggregates."""
        return self._layout

    @property
    def mark(self) -> int:
        """The high-water mark: the newest time ever inserted; `NEVER` before."""
        return self._mark

    def resume(self, counts: Counts, mark: int) -> None:
        """Go on from what another window had counted, and from its high-water mark."""
        for name in Counts.__slots__:
            setattr(self.counts, name, getattr(counts, name))  # in place: others hold on to it
        self._mark = mark

    def load(self, batch: Batch) -> None:
        """Take in entries of keys that are there, as another window had them: nothing is late, counted, or leaves.

        Raises:
            InvalidArgument: they do not fit the window.
        """
        columns = self._checked_columns(batch)
        if not len(columns[0]):
            return
        rows = self._rows(batch.keys, columns)
        if self._panes is not None:
            rows.lengths, rows.columns = self._panes.folded(rows.columns, rows.lengths, batch.partials is not None)
        if (rows.numbers < 0).any():
            raise InvalidArgument("an entry is of a key that is not there", field="key")
        if self._order.one_per_time:
            self._order.check_loaded(rows)
        if len(rows.numbers) == 1:
            self._keys.bulk_insert(rows.numbers.item(), rows.columns[0], rows.columns[1:])
        else:
            self._keys.bulk_insert_each(rows.numbers, rows.lengths, rows.columns)

    def unsaved(self) -> list[PendingBlock]:
        """The sealed blocks of all keys that are not stored yet; see `Forest.unsaved`."""
        return [] if self.cold is None else [block for forest in list(self.cold.dirty) for block in forest.unsaved()]

    @property
    def keys_there(self) -> int:
        """How many keys are remembered, those without entries included."""
        return len(self._keys)

    # ---------------------------------------------------------------- checking

    def _checked_values(self, fields: Mapping[str, Any]) -> list[Any]:
        values = []
        for name, kind, plain in self._fields:
            if name not in fields:
                raise InvalidArgument(f"field {name!r} is missing", field=name)
            value = fields[name]
            values.append(value if type(value) is plain else _checked_value(value, kind, name))
        if len(fields) > len(values):
            extra = next(name for name in fields if name not in self.spec.fields)
            known = ", ".join(self.spec.fields)
            raise InvalidArgument(f"window {self.spec.name!r} has no field {extra!r}; it has {known}", field=extra)
        return values

    def _check_countable(self, entries: Array) -> None:
        """Refuse rows of partials that stand for more entries than a window can count: int64 (n,)."""
        counted = self.counts.inserted + self.counts.late + self.counts.ahead
        if counted + entries.sum(dtype=np.float64) >= MAX_COUNTED:
            raise ResourceExhausted(
                f"window {self.spec.name!r} was sent {counted} entries, and cannot count those of this write besides",
                field="entries",
                limit=f"{MAX_COUNTED} entries",
            )

    def check_room(self, more: int) -> None:
        """Raise ResourceExhausted where there is no room for so many further keys."""
        if len(self._keys) + more > self._max_keys:
            raise ResourceExhausted(
                f"window {self.spec.name!r} remembers {len(self._keys)} keys, and this write brings {more} more",
                field="key",
                limit=f"{self._max_keys} keys",
            )

    # ---------------------------------------------------------------- reading

    @property
    def reader(self) -> Reader:
        """What answers questions; another one once aggregates were added."""
        return self._reader

    def query(
        self,
        key: str | None = None,
        lookbacks: Sequence[str | int] = (),
        as_of: int | None = None,
        keys: KeyList = (),
        combine: bool = False,
        partials: bool = False,
    ) -> list[Answer]:
        """Answer over trailing lookbacks, or over everything; see `Query` and `Reader.query`."""
        return self._reader.query(Query(key, lookbacks, as_of, keys, combine, partials))

    def range_query(
        self,
        start: int,
        end: int,
        key: str | None = None,
        keys: KeyList = (),
        partials: bool = False,
        end_exclusive: bool = False,
    ) -> Answer:
        """Answer over start <= time <= end; see `RangeQuery` and `Reader.range_query`."""
        return self._reader.range_query(RangeQuery(start, end, key, keys, partials, end_exclusive))

    def series(
        self,
        start: int,
        end: int,
        step: str | int,
        width: str | int | None = None,
        key: str | None = None,
        keys: KeyList = (),
    ) -> Series:
        """Answer over buckets; see `SeriesQuery` and `Reader.series`."""
        return self._reader.series(SeriesQuery(start, end, step, width, key, keys))

    def entries(
        self,
        start: int | None = None,
        end: int | None = None,
        key: str | None = None,
        keys: KeyList = (),
        rows: int = BULK_ROWS,
        end_exclusive: bool = False,
    ) -> Iterator[Batch]:
        """The entries of a time range as of now; see `EntriesQuery` and `Reader.entries`."""
        return iter(self._reader.entries(EntriesQuery(start, end, key, keys, end_exclusive), rows))

    def key_names(self, prefix: str, limit: int, position: int = 0) -> tuple[list[str], int | None]:
        """See `Plane.keys`."""
        if not self.spec.keyed:
            raise InvalidArgument(f"window {self.spec.name!r} is not keyed", field="window")
        if not 1 <= limit <= MAX_KEY_NAMES:
            raise InvalidArgument(f"limit {limit} is out of range", field="limit", limit=f"1 to {MAX_KEY_NAMES}")
        if position < 0:
            raise InvalidArgument(f"position {position} is negative", field="position", limit="0 and more")
        return self._keys.page(prefix, limit, position, self._slide.late_through())

    def info(self) -> WindowInfo:
        """The window as `describe` shows it."""
        oldest = None
        if not self.spec.keyed and self._keys:
            (number,) = self._keys.numbers().tolist()
            oldest, _ = self._keys.span(number)
        return WindowInfo(
            spec=self.spec,
            entries=self.counts.inserted - self.counts.evicted,
            keys=self._keys.filled,
            oldest=oldest,
            newest=self._keys.newest(),
            counts=self.counts,
            high_water_mark=None if self._mark == NEVER else self._mark,
        )

    # ---------------------------------------------------------------- invariants

    def check_invariants(self, same: Callable[..., bool] | None = None) -> None:
        """Raise AssertionError naming the first invariant that does not hold; `same` as in `Keys.check_invariants`."""
        self._keys.check_invariants(same)
        keys, numbers = self._keys, self._keys.numbers()
        entries = keys.entries_each(numbers)
        assert entries.sum() == self.counts.inserted - self.counts.evicted, "what was inserted and not evicted is here"
        newest = keys.newest()
        assert newest is None or newest <= self._mark, f"an entry of {newest} is beyond the mark, {self._mark}"
        most = self.spec.slide.max_count
        assert most is None or not len(entries) or entries.max() <= most, "max_count is kept"
        age = self.spec.max_age_ticks
        if age is not None and not self._slide.wall:
            for number in numbers.tolist():
                oldest, now = keys.span(number)[0], keys.now_of[number]
                assert oldest is None or oldest > now - age, f"key {number} has an entry past max_age"


def _grouped(coded: Coded, times: Array) -> tuple[list[str], npt.NDArray[np.int64], npt.NDArray[np.intp]]:
    """Sort rows by key, then time, then arrival: the keys, how many rows each has, and the order.

    Raises:
        InvalidArgument: two codes stand for one key.
    """
    # One byte or two are sorted by counting, seven times faster than eight are compared.
    codes = coded.codes.astype(np.min_scalar_type(max(len(coded.dictionary) - 1, 0)))
    if np.count_nonzero(times[1:] < times[:-1]):
        by_time = np.argsort(times, kind="stable")
        order = by_time[np.argsort(codes[by_time], kind="stable")]
    else:
        order = np.argsort(codes, kind="stable")
    ordered = codes[order]
    starts = starts_of_runs(ordered)
    names = [coded.dictionary[code] for code in ordered[starts].tolist()]
    if len(set(names)) != len(names):
        raise InvalidArgument("the dictionary of column 'key' repeats a key", field="key")
    return names, lengths_of_segments(starts, len(order)), order


def _column(value: Any) -> Array:
    """One value as a column."""
    column = np.empty(1, object)
    column[0] = value
    return column


def _checked_value(value: Any, kind: FieldType, name: str) -> Any:
    if kind == "float64" and type(value) in (float, int):
        try:
            return float(value)
        except OverflowError:
            raise InvalidArgument(f"field {name!r} is too large for a float64", field=name, limit="1.8e308") from None
    if kind == "int64" and type(value) is int:
        if not -(2**63) <= value < 2**63:
            raise InvalidArgument(f"field {name!r} is out of range", field=name, limit="-2^63 <= value < 2^63")
        return value
    if (kind == "string" and type(value) is str) or (kind == "bool" and type(value) is bool):
        return value
    raise InvalidArgument(f"field {name!r} is a {kind}, not {type(value).__name__} {str(value)[:40]!r}", field=name)
