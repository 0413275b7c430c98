"""Writes that decide: a row goes in only if every limit would hold with it.

    limits      count 1m <= 2                      a lookback L of 60, and rows of one key
    rows        10    40    50    75    105        in order of time, then of arrival
    (t-L, t]     1     2     3     2     2         with the row and all that went in before it
    decision   in    in   out    in    in          70 is when 50 would go in: then 10 has left

A row of time t is compared in every trailing lookback that has it and ends with it or with a later entry: (e - L, e]
for e = t and for the time e of each entry with t < e < t + L. So whatever order rows arrive in, no lookback that ends
with an entry passes a limit, as long as all rows are written so. Of a row that is the newest, this is one lookback.

    count 1m <= 2     entries 60, 100    row 50: (-10, 50] has 1, (0, 60] has 2, (40, 100] would have 3: out

A limit is about the entries of the row's own key, or of the group of keys that agree with it in some parts. A group is
read from a rollup by just these parts where there is one; else from its keys.

Everything is decided, and so every block is loaded, before anything changes. A row is compared with the entries that
the window has, before any leave that the row itself makes too old. Rows that come too late or are too far ahead are not
decided: the order policy drops them, as in an insert.

When a row would go in (`retry_after`) is found by evicting forward: answers change only where an entry leaves, or where
the row passes a later one. The answers at all these times are one series.

    count 10 <= 2     entries 1, 3, 4    row 5: three are in (-5, 5]     leave at 11, 13, 14: at 13 there is room again

A row and limit: O(log n) where it is the newest of its key, as a query; with m later times a series over these; and for
a group without a rollup O(its keys). Rows that are newest are decided together where they can be, see `runs`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sash_engine.errors import InvalidArgument, ResourceExhausted, Unsupported
from sash_engine.forest import Cold, Forest, Layout
from sash_engine.monoids import Partial, Partials
from sash_engine.monoids.base import Array
from sash_engine.steps import Steps, finished
from sash_engine.windows.answers import Admission
from sash_engine.windows.batches.batch import AnyBatch, Batch
from sash_engine.windows.batches.panes import Panes
from sash_engine.windows.derived.derived import Derived
from sash_engine.windows.keys.keys import NEVER, UNKEYED, Keys
from sash_engine.windows.keys.pages import Numbers
from sash_engine.windows.keys.store import rows_of_slices
from sash_engine.windows.questions import Limit, Where
from sash_engine.windows.reading.choosing import COMPARISONS, check_compared
from sash_engine.windows.reading.group_folds import fold_groups
from sash_engine.windows.reading.group_series import series_steps
from sash_engine.windows.reading.labels import Labels
from sash_engine.windows.sliding.slide import Slide
from sash_engine.windows.spec.window import TICK_MAX, TICK_MIN, WindowSpec, parse_duration
from sash_engine.windows.writing.order import Order
from sash_engine.windows.writing.runs import can_add, candidates, ranges_steps
from sash_wire.labels import split

MAX_LIMITS = 16
MAX_ROWS = 65_536
"""Of one write that decides."""
MAX_LATER = 4_096
"""A row is compared in so many lookbacks that end with later entries: 10 ms."""
MAX_COMPARED = 1 << 18
"""The rows of one write are compared in so many lookbacks of one length, and those of a group are counted once for each
of its keys, too: half a second to some seconds. Rows that are older than thousands of entries have thousands each, and
nobody else uses the window meanwhile."""
_LEAVING = (1, 16, 1_024)
"""So many entries are looked at, the oldest first, until one has left early enough for a row to go in. Mostly it is the
first."""
_ROUNDS = 16
"""So often several limits are asked in turn for the first time at which all of them hold."""
_FEW = 3
"""So many lookbacks are folded one by one: 15 us each. A series costs 0.3 ms more, and little for each."""

_SINGLE = 8
"""So many rows are decided one by one: 20 us each. A run costs 0.2 ms more, and 1 to 3 us a row."""
_ROWS = 32
"""Rows that one step decides: 1 to 2 ms."""
_KEYS = 4_096
"""Keys of a group that one step folds."""
_KEPT = 64
"""Sets of limits that are kept, checked: some KiB each."""

_FIRST, _NONE = np.zeros(1, np.int64), np.empty(0, np.int64)
"""The rows that are decided of a write of one row."""
_OPS = ("<=", "<", ">=", ">")


@dataclass(frozen=True, slots=True)
class _Compared:
    """One limit, checked.

    Args:
        place: among the limits.
        at: the place of its answer among those of the fold; -1: the last, the number of entries.
        op, value: how it compares, and with what.
    """

    place: int
    at: int
    op: str
    value: float

    def holds(self, answer: Any) -> bool:
        """Whether it holds; of no answer, and of NaN, it does not."""
        return answer is not None and COMPARISONS[self.op](answer, self.value)

    def left(self, answer: Any) -> Any:
        """How far an answer is from the limit, negative where it is beyond; None where there is none."""
        if answer is None or answer != answer:
            return None
        return self.value - answer if self.op in ("<=", "<") else answer - self.value


@dataclass(slots=True)
class _Fold:
    """The limits on answers over one lookback of one kind of scope.

    Args:
        by: the parts in which the keys of a group agree; None: of the row's own key.
        span: of the lookback, in ticks.
        part: what is folded.
        limits: that are compared.
        compared: in how many lookbacks this write has compared them, and over how many keys.
    """

    by: tuple[str, ...] | None
    span: int
    part: Layout
    limits: list[_Compared] = field(default_factory=list)
    compared: int = 0

    def start(self, end: int) -> int:
        """The first time of the lookback that ends with a time."""
        return max(end - self.span + 1, TICK_MIN)


class _Scope:
    """The entries that a limit is about, as the window has them: of some keys of the window, or of a rollup.

    Args:
        keys, numbers, slide: int64, which keys of a window, and how these slide.
        cold: where it keeps its sealed blocks; None: in memory.
    """

    def __init__(self, keys: Keys, numbers: Numbers, slide: Slide, cold: Cold | None) -> None:
        self._keys, self._numbers, self._cold = keys, numbers, cold
        self.size = len(numbers)
        self._number = numbers.item() if self.size == 1 else -1
        """The only key; -1 where there are none, or several."""
        if slide.wall:
            slide.by_age_each(numbers)
        self.mark = keys.now_of[self._number] if self.size == 1 else int(keys.now[numbers].max(initial=NEVER))
        """No entry is newer."""

    def totals_steps(self, start: int, end: int, part: Layout) -> Steps[tuple[int, list[Partial]]]:
        """The number of entries with start <= time <= end, and their partials."""
        if self._number >= 0:
            return self._keys.range_totals(self._number, start, end, part)
        if not len(self._numbers):
            return 0, list(part.identities)
        bounds = np.array([start]), np.array([end])
        of = np.zeros(len(self._numbers), np.int64)
        totals = yield from fold_groups(self._keys, part, self._numbers, of, 1, bounds)
        if not totals.there[0]:
            return 0, list(part.identities)
        return int(part.entries_of(totals.entries, totals.partials)[0]), totals.of(0)

    def series_steps(self, starts: Array, stops: Array, part: Layout) -> Steps[tuple[list[int], list[list[Partial]]]]:
        """The entries of k ranges start <= time < stop, and per slot their partials."""
        if not len(self._numbers):
            return [0] * len(starts), [[identity] * len(starts) for identity in part.identities]
        entries, _, folds = yield from series_steps(self._keys, part, self._numbers, starts, stops)
        return entries.tolist(), _spread(part, folds, np.flatnonzero(entries), len(starts))

    def times(self, start: int, end: int, most: int) -> tuple[Array, int]:
        """The different times of the oldest rows with start <= time <= end, rising; and up to which all are there.

        Args:
            most: so many rows of a key are looked at.
        """
        until, found = end, list[Array]()
        if start > end:
            return np.empty(0, np.int64), end
        if len(self._numbers):
            _, _, rows = self._keys.small(self._numbers)
            found.append(rows[0][(rows[0] >= start) & (rows[0] <= end)])
        for _, store in self._keys.with_own_stores(self._numbers):
            left = most
            for block in store.capture(start, end):
                ((some, *_),) = rows_of_slices([block], self._cold)
                some = some[:left]
                found.append(some)
                left -= len(some)
                if not left:
                    until = min(until, int(some[-1]))
                    break
        times = np.unique(np.concatenate(found)) if found else np.empty(0, np.int64)
        if len(times) > most:
            until = min(until, int(times[most - 1]))
        return times[: times.searchsorted(until, "right")], until


def _spread(part: Layout, folds: Sequence[Partials], filled: Numbers, n: int) -> list[list[Partial]]:
    """Per slot the partials of n ranges, from those of the ranges that have entries."""
    out = [[identity] * n for identity in part.identities]
    for column, monoid, fold in zip(out, part.monoids, folds, strict=False):
        for at, partial in zip(filled.tolist(), monoid.unpack(fold), strict=True):
            column[at] = partial
    return out


class _OfRollup(_Scope):
    """The entries of a group, as a rollup has them: all behind its horizon. The keys are asked about older ones.

    Args:
        horizon: of the group.
        of_keys: makes the scope of the group's keys.
    """

    def __init__(self, rollup: Any, number: int | None, of_keys: Callable[[], Steps[_Scope]]) -> None:
        numbers = np.array([] if number is None else [number], np.int64)
        super().__init__(rollup.keys, numbers, rollup.slide_policy, rollup.cold)
        self._horizon = NEVER if number is None else rollup.keys.late_through_of[number]
        self._make = of_keys
        self._keys_of_group: _Scope | None = None

    def _of_keys(self) -> Steps[_Scope]:
        if self._keys_of_group is None:
            self._keys_of_group = yield from self._make()
        return self._keys_of_group

    def totals_steps(self, start: int, end: int, part: Layout) -> Steps[tuple[int, list[Partial]]]:
        if start > self._horizon:
            return (yield from super().totals_steps(start, end, part))
        return (yield from (yield from self._of_keys()).totals_steps(start, end, part))

    def series_steps(self, starts: Array, stops: Array, part: Layout) -> Steps[tuple[list[int], list[list[Partial]]]]:
        if int(starts.min()) > self._horizon:
            return (yield from super().series_steps(starts, stops, part))
        return (yield from (yield from self._of_keys()).series_steps(starts, stops, part))

    def times(self, start: int, end: int, most: int) -> tuple[Array, int]:
        if start > self._horizon:
            return super().times(start, end, most)
        return finished(self._of_keys()).times(start, end, most)


class _Trial:
    """A scope, and the rows of this write that have gone in.

    Attributes:
        taken: how many have.
    """

    def __init__(self, scope: _Scope, layout: Layout) -> None:
        self.scope, self._layout = scope, layout
        self.taken = 0
        self._rows: Forest | None = None

    def take(self, time: int, values: Sequence[Any]) -> None:
        """Take in a row; none that was taken is newer."""
        if self._rows is None:
            self._rows = Forest(self._layout)
        if len(self._layout.dtypes) > 1 + len(values):  # the number of its arrival, which no aggregate of a spec reads
            values = (*values, 0)
        self._rows.insert(time, values)
        self.taken += 1

    def totals_steps(self, start: int, end: int, part: Layout) -> Steps[tuple[int, list[Partial]]]:
        """The number of entries with start <= time <= end, and their partials."""
        entries, totals = yield from self.scope.totals_steps(start, end, part)
        if self._rows is None:
            return entries, list(totals)
        more, newer = self._rows.range_totals(start, end, part)
        return entries + more, part.combine(totals, newer)

    def series_steps(self, starts: Array, stops: Array, part: Layout) -> Steps[tuple[list[int], list[list[Partial]]]]:
        """The entries of k ranges start <= time < stop, and per slot their partials."""
        entries, totals = yield from self.scope.series_steps(starts, stops, part)
        if self._rows is not None:
            rows, filled, folds = yield from self._rows.fold_steps(starts, stops, part)
            mine = part.entries_of(rows[filled], folds) if len(filled) else filled
            for at, more in zip(filled.tolist(), mine.tolist(), strict=True):
                entries[at] += more
            newer = _spread(part, folds, filled, len(starts))
            for monoid, column, others in zip(part.monoids, totals, newer, strict=True):
                column[:] = map(monoid.combine, column, others)
        return entries, totals

    def times(self, start: int, end: int, most: int) -> tuple[Array, int]:
        """As `_Scope.times`, with those of the rows that have gone in."""
        times, until = self.scope.times(start, end, most)
        if self._rows is not None:
            mine = self._rows.columns()[0]
            times = np.union1d(times, mine[(mine >= start) & (mine <= until)])
            if len(times) > most:
                times, until = times[:most], int(times[most - 1])
        return times, until


@dataclass(slots=True)
class _Row:
    """One row of a write: its time, and where it stands in the columns of all."""

    time: int
    columns: Sequence[Array]
    at: int

    @property
    def values(self) -> list[Any]:
        """A value per column after the time."""
        return [column.item(self.at) for column in self.columns[1:]]


@dataclass(slots=True)
class _Found:
    """What a limit found about a row: whether it holds, and where it is the tightest."""

    limit: _Compared
    holds: bool = True
    left: Any = None
    end: int | None = None
    answer: Any = None

    def note(self, end: int, answer: Any) -> None:
        """Note the answer with the row in the lookback that ends with a time."""
        self.holds = self.holds and self.limit.holds(answer)
        left = self.limit.left(answer)
        if self.end is None or (self.left is not None and (left is None or left < self.left)):
            self.end, self.left, self.answer = end, left, answer


class Admitting:
    """Decides about the rows of writes to one window.

    Args:
        spec, layout, keys, slide, order, panes, labels, derived, cold: the window's.
        checked: the columns of a bulk, see `Writer.checked_columns`.
    """

    def __init__(
        self,
        spec: WindowSpec,
        layout: Layout,
        keys: Keys,
        slide: Slide,
        order: Order,
        panes: Panes | None,
        labels: Labels,
        derived: Derived[Any],
        cold: Cold | None,
        checked: Callable[[AnyBatch], list[Array]],
    ) -> None:
        self._spec, self._layout, self._keys, self._slide, self._order = spec, layout, keys, slide, order
        self._panes, self._labels, self._derived, self._cold, self._checked = panes, labels, derived, cold, checked
        self._folds_of: dict[tuple[Limit, ...], list[_Fold]] = {}

    # ---------------------------------------------------------------- checking

    def check(self, batch: AnyBatch, limits: Sequence[Limit]) -> None:
        """Check all that can be checked before a look at the entries; raises as `decide_steps`."""
        self._folds(limits)
        self._columns(batch)

    def takes_long(self, batch: AnyBatch, limits: Sequence[Limit]) -> bool:
        """Whether a decision may take many steps.

        It may of many rows, of rows that are older than entries, and about the many keys of a group without a rollup.
        """
        n = len(batch.times)
        if n * len(limits) > _ROWS or (n and min(batch.times.tolist()) < self._newest(batch, limits)):
            return True
        rollups = [rollup.parts for rollup in self._derived.rollups]
        return len(self._keys) > _KEYS and any(e.by is not None and set(e.by) not in rollups for e in limits)

    def _newest(self, batch: AnyBatch, limits: Sequence[Limit]) -> int:
        """No entry is newer that the rows of a bulk, which may be invalid, are compared with."""
        names = [UNKEYED] if batch.keys is None else batch.keys.dictionary
        if len(names) > 1 or any(limit.by is not None for limit in limits):
            return self._keys.top
        number = self._keys.find(names[0]) if names else None
        return NEVER if number is None else self._keys.now_of[number]

    def _folds(self, limits: Sequence[Limit]) -> list[_Fold]:
        key = tuple(limits)
        try:
            found = self._folds_of.get(key)
        except TypeError:  # `by` is a list
            key = tuple([Limit(e.aggregate, e.lookback, e.op, e.value, e.by and tuple(e.by)) for e in limits])
            found = self._folds_of.get(key)
        if found is None:
            found = self._made(key)
            if len(self._folds_of) >= _KEPT:
                self._folds_of.clear()
            self._folds_of[key] = found
        return found

    def _made(self, limits: Sequence[Limit]) -> list[_Fold]:
        spec = self._spec
        if not 1 <= len(limits) <= MAX_LIMITS:
            raise InvalidArgument(
                f"{len(limits)} limits in one write", field="limits", limit=f"1 to {MAX_LIMITS} limits"
            )
        if self._order.one_per_time:
            raise Unsupported(
                f"window {spec.name!r} keeps one entry per time ({spec.order.equal_times}), and a row may take the "
                "place of another one: limits are for windows that keep all",
                field="limits",
            )
        monoids = {name: monoid for name, (monoid, _) in spec.monoids().items()}
        wanted: dict[tuple[Any, int], list[tuple[int, Limit]]] = {}
        for place, limit in enumerate(limits):
            check_compared(limit.aggregate, monoids, "limits.aggregate")
            if limit.op not in _OPS:
                raise InvalidArgument(
                    f"limits.op {str(limit.op)[:40]!r} is none", field="limits.op", limit=", ".join(_OPS)
                )
            if isinstance(limit.value, bool) or not isinstance(limit.value, int | float) or limit.value != limit.value:
                raise InvalidArgument("limits.value is a number, and not NaN", field="limits.value")
            if limit.aggregate in monoids and not monoids[limit.aggregate].commutative:
                raise Unsupported(
                    f"{limit.aggregate!r} depends on the order of entries: limits are on aggregates that do not",
                    field="limits.aggregate",
                )
            span = parse_duration(limit.lookback, spec.time_unit, "limits.lookback")
            self._check_kept(span, limit.lookback)
            wanted.setdefault((self._by(limit), span), []).append((place, limit))
        folds = []
        for (by, span), those in wanted.items():
            names = list(dict.fromkeys(limit.aggregate for _, limit in those if limit.aggregate in monoids))
            fold = _Fold(by, span, self._layout.named(names).lean())
            for place, limit in those:
                at = names.index(limit.aggregate) if limit.aggregate in names else -1
                fold.limits.append(_Compared(place, at, limit.op, limit.value))
            folds.append(fold)
        return folds

    def _check_kept(self, span: int, lookback: str | int) -> None:
        """Refuse a lookback that goes back behind what the window keeps: what has left counts no more."""
        kept, every = self._spec.kept_ticks, self._spec.every_ticks or 1
        if kept is not None and span > kept - (every - 1):
            age = "history" if self._spec.history is not None else "slide.max_age"
            raise InvalidArgument(
                f"the lookback {lookback} is longer than window {self._spec.name!r} keeps entries: a limit over it "
                "would forget some",
                field="limits.lookback",
                limit=f"{age} {self._spec.history or self._spec.slide.max_age}",
            )

    def _by(self, limit: Limit) -> tuple[str, ...] | None:
        """The parts of the group that a limit is about; None: the row's own key."""
        if limit.by is None:
            return None
        labels = self._spec.labels
        if not labels:
            raise InvalidArgument(f"window {self._spec.name!r} is not keyed", field="limits.by")
        self._labels.check((), limit.by)
        if set(limit.by) == set(labels):
            return None
        return tuple([label for label in labels if label in limit.by])

    def _columns(self, batch: AnyBatch) -> list[Array]:
        if batch.of_partials:
            raise Unsupported("limits are for entries, and these are partials", field="partials")
        if len(batch.times) > MAX_ROWS:
            raise InvalidArgument(
                f"{len(batch.times)} entries in one write with limits", field="entries", limit=f"{MAX_ROWS} entries"
            )
        return self._checked(batch)

    # ---------------------------------------------------------------- deciding

    def decide_steps(self, batch: AnyBatch, limits: Sequence[Limit]) -> Steps[tuple[Admission, Batch]]:
        """Decide about the rows of a bulk, in steps; nothing changes.

        Returns:
            what becomes of each; and the rows that are to be inserted: all but those that a limit refuses. What is late
            or too far ahead is among them, because the insert drops and counts it.

        Raises:
            InvalidArgument, Unsupported: names the field and the limit.
            FailedPrecondition: the order policy rejects a row.
            ResourceExhausted: rows are compared in more than `MAX_LATER` lookbacks, or `MAX_COMPARED` together.
        """
        folds, columns = self._folds(limits), self._columns(batch)
        assert isinstance(batch, Batch), "partials are refused"
        for fold in folds:  # they are kept for many writes, one after the other
            fold.compared = 0
        n = len(batch.times)
        admission = Admission.undecided(n, len(limits))
        if not n:
            return admission, batch
        names = [UNKEYED] if batch.keys is None else batch.keys.dictionary
        codes = np.zeros(n, np.int64) if batch.keys is None else batch.keys.codes
        numbers = self._keys.find_each(names)
        if n > 1:
            dropped = self._dropped(columns[0], codes, numbers)
            rows = np.argsort(columns[0], kind="stable")
            rows = rows if dropped is None else rows[~dropped[rows]]
        else:
            rows = _NONE if self._drops(columns[0].item(), numbers.item(codes.item())) else _FIRST
        if self._panes is not None:
            _, columns = yield from self._panes.folded_steps(columns, np.ones(n, np.int64), False)
        inserted, trials, next_times = [True] * n, dict[tuple[Any, ...], _Trial](), dict[tuple[Any, ...], int | None]()
        if len(rows) > _SINGLE:
            rows = yield from self._run(admission, folds, columns, rows, names, codes, numbers)
        for turn, i in enumerate(rows.tolist()):
            row, code, among = _Row(columns[0].item(i), columns, i), codes.item(i), list[_Trial]()
            for fold in folds:
                among.append((yield from self._trial(trials, fold.by, names[code], numbers.item(code))))
            if not admission.admitted[i]:
                found = yield from self._found(folds, among, row)
                held = all(each.holds for each in found)
                yield from self._tell(admission, folds, among, found, row, held)
                admission.admitted[i] = inserted[i] = held
                if not held:
                    admission.refused += 1
                    # The same again, later, with the same entries: it would go in at the same time.
                    same = (*map(id, among), *[trial.taken for trial in among], *row.values)
                    at = next_times.get(same, NEVER)
                    if at is not None and at < row.time:
                        at = next_times[same] = yield from self._next_time(folds, among, row)
                    admission.retry_after[i] = None if at is None else at - batch.times.item(i)
            if admission.admitted[i] and n > 1:
                for trial in dict.fromkeys(among):
                    trial.take(row.time, row.values)
            if turn % _ROWS == _ROWS - 1:
                yield
        return admission, batch.rows(np.flatnonzero(inserted)) if admission.refused else batch

    def _run(
        self,
        admission: Admission,
        folds: Sequence[_Fold],
        columns: Sequence[Array],
        rows: Array,
        names: Sequence[str],
        codes: Array,
        numbers: Numbers,
    ) -> Steps[Array]:
        """Decide about the rows of runs, see `runs`; return the others, and those that these are compared with."""
        by, keys, slide, horizon = folds[0].by, self._keys, self._slide, None
        if any(fold.by != by or not can_add(fold.part) for fold in folds) or len(set(names)) < len(names):
            return rows
        if by is not None:
            rollup = next((each for each in self._derived.rollups if each.parts == set(by)), None)
            if rollup is None:
                return rows
            groups = dict[str, int]()
            of = [groups.setdefault(rollup.name_of(self._values(by, name)), len(groups)) for name in names]
            keys, slide, codes = rollup.window.keys, rollup.window.slide_policy, np.array(of)[codes]
            numbers, horizon = keys.find_each(list(groups)), keys.late_through
            yield
        if slide.wall:
            slide.by_age_each(numbers[numbers >= 0])
        span = max(fold.span for fold in folds)
        found = candidates(keys, rows, columns[0], codes, numbers, span, horizon)
        if found is None:
            return rows
        compared, holds = list[tuple[_Compared, list[Any]]](), [True] * len(found.rows)
        for fold in folds:
            fold.compared += len(found.rows)
            entries, answers = yield from ranges_steps(keys, found, fold.span, fold.part, columns)
            for limit in fold.limits:
                each = (entries if limit.at < 0 else answers[limit.at]).tolist()
                compared.append((limit, each))
                holds = [held and limit.holds(answer) for held, answer in zip(holds, each, strict=True)]
            yield
        went = found.went(holds)
        for limit, each in compared:
            told = admission.limits[limit.place]
            for row, answer, goes in zip(found.rows.tolist(), each, went.tolist(), strict=True):
                if goes:
                    admission.admitted[row] = told.holds[row] = True
                    told.answers[row], told.remaining[row] = answer, max(limit.left(answer), 0)
            yield
        decided = np.zeros(len(codes), np.bool_)
        decided[found.rows[went]] = True
        return rows[np.isin(codes[rows], codes[rows[~decided[rows]]])]

    def _dropped(self, times: Array, codes: Array, numbers: Numbers) -> Array | None:
        """The rows that the order policy drops, as in an insert; None where it drops none."""
        order = self._order
        ahead = None
        if order.guards:
            ahead = np.array([order.is_ahead(time) for time in times.tolist()])
        if order.in_order_only:
            some = slice(None) if ahead is None else ~ahead
            order.check_arrival(codes[some], times[some], numbers)
        through = order.late_through_each(numbers, self._slide.refused_through())
        late = times <= through[codes]
        if ahead is not None:
            late &= ~ahead
        if late.any():
            order.refuse_late(int(np.count_nonzero(late)), int(through[codes[late.argmax()]]))
        elif ahead is None or not ahead.any():
            return None
        return late if ahead is None else late | ahead

    def _drops(self, time: int, number: int) -> bool:
        """Whether the order policy drops the only row, of the key of a number; -1: of a new one."""
        order, slide = self._order, self._slide
        if order.guards and order.is_ahead(time):
            return True
        through = slide.refused_through()
        if number >= 0:
            if order.in_order_only:
                order.check_next(number, time)
            through = max(self._keys.late_through_of[number], through)
        return time <= through and bool(order.refuse_late(1, through))

    def _trial(
        self, trials: dict[tuple[Any, ...], _Trial], by: tuple[str, ...] | None, name: str, number: int
    ) -> Steps[_Trial]:
        """The scope of a row, with what has gone into it."""
        values = () if by is None else self._values(by, name)
        key = (name,) if by is None else (by, values)
        trial = trials.get(key)
        if trial is None:
            if by is None:
                scope = self._scope(np.array([number] if number >= 0 else [], np.int64))
            else:
                scope = yield from self._group(by, values)
            trial = trials[key] = _Trial(scope, self._layout)
        return trial

    def _values(self, by: tuple[str, ...], name: str) -> tuple[str, ...]:
        labels = self._spec.labels
        parts = split(name, len(labels)) if by else ()
        return tuple([parts[labels.index(part)] for part in by])

    def _scope(self, numbers: Numbers) -> _Scope:
        return _Scope(self._keys, numbers, self._slide, self._cold)

    def _group(self, by: tuple[str, ...], values: tuple[str, ...]) -> Steps[_Scope]:
        def of_keys() -> Steps[_Scope]:
            where = [Where(part, "=", [value]) for part, value in zip(by, values, strict=True)]
            return self._scope(np.sort((yield from self._labels.select(where, None))))

        for rollup in self._derived.rollups:
            if rollup.parts == set(by):
                return _OfRollup(rollup.window, rollup.window.keys.find(rollup.name_of(values)), of_keys)
        return (yield from of_keys())

    def _found(self, folds: Sequence[_Fold], among: Sequence[_Trial], row: _Row) -> Steps[list[_Found]]:
        """What each limit finds about a row."""
        out = list[_Found]()
        for fold, trial in zip(folds, among, strict=True):
            found, ends = [_Found(limit) for limit in fold.limits], [row.time]
            if row.time < trial.scope.mark:
                last = min(row.time + fold.span - 1, TICK_MAX - 1)
                later, until = trial.times(row.time + 1, last, MAX_LATER)
                if until < last:
                    raise ResourceExhausted(
                        f"the row of time {row.time} is older than entries of {MAX_LATER} times and more that a "
                        "lookback has with it: it cannot be decided",
                        field="time",
                        limit=f"{MAX_LATER} later times",
                    )
                ends += later.tolist()
            for end, answers in zip(ends, (yield from self._answers(fold, trial, row, ends)), strict=True):
                for each in found:
                    each.note(end, answers[each.limit.at])
            out += found
        return out

    def _answers(self, fold: _Fold, trial: _Trial, row: _Row, ends: list[int]) -> Steps[list[Sequence[Any]]]:
        """What the limits of a fold compare, with a row, in the lookbacks that end with some times.

        Of each the answers, by the places of `_Compared.at`.

        Raises:
            ResourceExhausted: the rows of this write are compared in too many.
        """
        fold.compared += len(ends) + trial.scope.size
        if fold.compared > MAX_COMPARED:
            raise ResourceExhausted(
                "the rows are older than too many entries, or in groups of too many keys, to be decided in one write: "
                "send fewer, or keep a rollup of the groups",
                field="entries",
                limit=f"{MAX_COMPARED} lookbacks and keys",
            )
        part, out = fold.part, list[Sequence[Any]]()
        if len(ends) <= _FEW:
            for end in ends:
                entries, totals = yield from trial.totals_steps(fold.start(end), end, part)
                part.extend(totals, row.columns, row.at, row.at + 1)
                out.append([*part.lower(entries + 1, totals), entries + 1])
            return out
        own = list(part.identities)
        part.extend(own, row.columns, row.at, row.at + 1)
        stops = np.array(ends) + 1
        starts = np.maximum(stops, TICK_MIN + fold.span) - fold.span
        entries_each, columns = yield from trial.series_steps(starts, stops, part)
        for entries, *totals in zip(entries_each, *columns, strict=True):
            out.append([*part.lower(entries + 1, part.combine(totals, own)), entries + 1])
        return out

    def _tell(
        self,
        admission: Admission,
        folds: Sequence[_Fold],
        among: Sequence[_Trial],
        found: Sequence[_Found],
        row: _Row,
        held: bool,
    ) -> Steps[None]:
        """Note what limits answer about a row: with it where it goes in, and without it where it does not."""
        scopes = [(fold, trial) for fold, trial in zip(folds, among, strict=True) for _ in fold.limits]
        for each, (fold, trial) in zip(found, scopes, strict=True):
            answer, left = each.answer, each.left
            if not held:
                assert each.end is not None, "at least one lookback was looked at"
                entries, totals = yield from trial.totals_steps(fold.start(each.end), each.end, fold.part)
                answer = [*fold.part.lower(entries, totals), entries][each.limit.at]
                left = each.limit.left(answer)
            told = admission.limits[each.limit.place]
            told.answers[row.at], told.holds[row.at] = answer, each.holds
            told.remaining[row.at] = None if left is None else max(left, 0)

    # ---------------------------------------------------------------- when a row would go in

    def _next_time(self, folds: Sequence[_Fold], among: Sequence[_Trial], row: _Row) -> Steps[int | None]:
        """The first time at which a refused row would go in, if nothing else came; None: never.

        Where many entries have to leave, it is a time before which the row would not go in.
        """
        time = row.time
        for _ in range(_ROUNDS):
            before = time
            for fold, trial in zip(folds, among, strict=True):
                at = yield from self._first_time(fold, trial, row, time)
                if at is None or at >= TICK_MAX:
                    return None
                time = at
                yield
            if time == before or len(folds) == 1:
                break
        return time

    def _first_time(self, fold: _Fold, trial: _Trial, row: _Row, time: int) -> Steps[int | None]:
        """The first time from `time` on at which the limits of a fold hold with a row; None: never.

        entries      3   5              9          the row is tried at 6: ends 6 and 9; where 3 and 5 leave; at 9, 10
        bad ends                        x          9 has too many with the row: it has to pass 9, or be a lookback
                                                   before it
        """
        mark, span, granule = trial.scope.mark, fold.span, 1 if self._panes is None else self._panes.granule
        reached = time
        for most in _LEAVING:
            later, until = trial.times(time + 1, mark, max(most, 16))
            oldest, known = trial.times(max(time - span + 1, TICK_MIN), time, most)
            # Up to here everything is known that can change: who is not there leaves later, or comes later.
            last = TICK_MAX if until >= mark else until - span
            last = last if known >= time else min(last, known + span)
            changes = [
                time,
                *(oldest + span).tolist(),
                *(later + span).tolist(),
                *later.tolist(),
            ]
            tried = sorted({-(-each // granule) * granule for each in changes if time <= each <= last})
            ends = later.tolist()
            answers = yield from self._answers(fold, trial, row, [*tried, *ends])
            good = [all(limit.holds(each[limit.at]) for limit in fold.limits) for each in answers]
            bad = [end for end, holds in zip(ends, good[len(tried) :], strict=True) if not holds]
            for at, holds in zip(tried, good, strict=False):
                after = bisect_right(bad, at)
                if holds and (after == len(bad) or bad[after] >= at + span):
                    return int(at)
            if last == TICK_MAX:
                return None
            reached = max(int(last), reached)
        return reached
