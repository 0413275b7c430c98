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

When a row would go in (`retry_after`) is found by going to the next time at which an answer that stands against it can
change: when the next entry leaves, or where the row passes a later entry.

A row and limit: O(log n) where it is the newest of its key, as a query; and for a group without a rollup O(its keys).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from sash_engine.errors import InvalidArgument, ResourceExhausted, Unsupported
from sash_engine.forest import Forest, Layout
from sash_engine.monoids import Monoid, Partial
from sash_engine.monoids.base import Array
from sash_engine.steps import Steps, finished
from sash_engine.windows.answers import Admission, LimitAnswers
from sash_engine.windows.batches.batch import AnyBatch
from sash_engine.windows.batches.panes import Panes
from sash_engine.windows.derived.derived import Derived
from sash_engine.windows.keys.keys import NEVER, UNKEYED, Keys
from sash_engine.windows.keys.pages import Numbers
from sash_engine.windows.questions import Limit, Where
from sash_engine.windows.reading.choosing import check_compared
from sash_engine.windows.reading.group_folds import fold_groups
from sash_engine.windows.reading.labels import Labels
from sash_engine.windows.sliding.slide import Slide
from sash_engine.windows.spec.window import TICK_MAX, TICK_MIN, WindowSpec, parse_duration
from sash_engine.windows.writing.order import Order
from sash_wire.labels import split

__all__ = ["Admitting"]

MAX_LIMITS = 16
MAX_ROWS = 65_536
"""Of one write that decides."""
MAX_LATER = 4_096
"""A row is compared in so many lookbacks that end with later entries: 60 ms."""
_TRIES = 1_024
"""So many times are tried at which a row might go in."""

_ROWS = 32
"""Rows that one step decides: 1 to 2 ms."""
_KEYS = 4_096
"""Keys of a group that one step folds."""
_KEPT = 64
"""Sets of limits that are kept, checked: some KiB each."""

_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "<=": operator.le,
    "<": operator.lt,
    ">=": operator.ge,
    ">": operator.gt,
}


@dataclass(frozen=True, slots=True)
class _Compared:
    """One limit, checked.

    Args:
        place: among the limits.
        at: the place of its answer among those of the fold; -1: the number of entries.
        op, value: how it compares, and with what.
    """

    place: int
    at: int
    op: str
    value: float

    def holds(self, answer: Any) -> bool:
        """Whether it holds; of no answer, and of NaN, it does not."""
        return answer is not None and _COMPARE[self.op](answer, self.value)

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
    """

    by: tuple[str, ...] | None
    span: int
    part: Layout
    limits: list[_Compared] = field(default_factory=list)

    def start(self, end: int) -> int:
        """The first time of the lookback that ends with a time."""
        return max(end - self.span + 1, TICK_MIN)


class _Scope(Protocol):
    """The entries that a limit is about, as the window has them."""

    mark: int
    """No entry is newer."""

    def totals_steps(self, start: int, end: int, part: Layout) -> Steps[tuple[int, list[Partial]]]:
        """The number of entries with start <= time <= end, and their partials."""

    def after(self, time: int) -> int | None:
        """The time of the oldest row that is newer; None where there is none."""


class _OfKey:
    """The entries of one key."""

    def __init__(self, keys: Keys, number: int | None, slide: Slide) -> None:
        self._keys, self._number = keys, number
        if number is not None and slide.wall:
            slide.by_age(number)
        self.mark = NEVER if number is None else keys.now_of[number]

    def totals_steps(self, start: int, end: int, part: Layout) -> Steps[tuple[int, list[Partial]]]:
        return self.totals(start, end, part)
        yield

    def totals(self, start: int, end: int, part: Layout) -> tuple[int, list[Partial]]:
        """As `totals_steps`, at once."""
        if self._number is None or start > end:
            return 0, list(part.identities)
        return self._keys.range_totals(self._number, start, end, part)

    def after(self, time: int) -> int | None:
        if self._number is None or time >= self.mark:
            return None
        return self._keys.store(self._number).neighbours(time)[1]


class _OfKeys:
    """The entries of several keys."""

    def __init__(self, keys: Keys, numbers: Numbers, slide: Slide) -> None:
        self._keys, self._numbers = keys, np.sort(numbers)
        if slide.wall:
            slide.by_age_each(numbers)
        self.mark = int(keys.now[numbers].max(initial=NEVER))
        self._small: Array | None = None

    def totals_steps(self, start: int, end: int, part: Layout) -> Steps[tuple[int, list[Partial]]]:
        if start > end or not len(self._numbers):
            return 0, list(part.identities)
        bounds = np.array([start]), np.array([end])
        of = np.zeros(len(self._numbers), np.int64)
        totals = yield from fold_groups(self._keys, part, self._numbers, of, 1, bounds)
        if not totals.there[0]:
            return 0, list(part.identities)
        return int(part.entries_of(totals.entries, totals.partials)[0]), totals.of(0)

    def after(self, time: int) -> int | None:
        if time >= self.mark:
            return None
        if self._small is None:
            _, _, rows = self._keys.small(self._numbers)
            self._small = np.unique(rows[0])
        at = int(self._small.searchsorted(time, "right"))
        found = [self._small.item(at)] if at < len(self._small) else []
        for _, store in self._keys.with_own_stores(self._numbers):
            if (newer := store.neighbours(time)[1]) is not None:
                found.append(newer)
        return min(found, default=None)


class _OfRollup:
    """The entries of a group, as a rollup has them: all behind its horizon. The keys are asked about older ones.

    Args:
        group: of the rollup.
        horizon: of the group.
        keys: make the scope of the group's keys.
    """

    def __init__(self, group: _OfKey, horizon: int, keys: Callable[[], Steps[_OfKeys]]) -> None:
        self._group, self._horizon, self._make = group, horizon, keys
        self._keys: _OfKeys | None = None
        self.mark = group.mark

    def totals_steps(self, start: int, end: int, part: Layout) -> Steps[tuple[int, list[Partial]]]:
        if start > self._horizon:
            return self._group.totals(start, end, part)
        self._keys = self._keys or (yield from self._make())
        return (yield from self._keys.totals_steps(start, end, part))

    def after(self, time: int) -> int | None:
        if time >= self._horizon:
            return self._group.after(time)
        self._keys = self._keys or finished(self._make())
        return self._keys.after(time)


class _Trial:
    """A scope, and the rows of this write that have gone in."""

    def __init__(self, scope: _Scope, layout: Layout) -> None:
        self.scope, self._layout = scope, layout
        self._taken: Forest | None = None

    def take(self, time: int, values: Sequence[Any]) -> None:
        """Take in a row; none that was taken is newer."""
        if self._taken is None:
            self._taken = Forest(self._layout)
        if len(self._layout.dtypes) > 1 + len(values):  # the number of its arrival, which no aggregate of a spec reads
            values = (*values, 0)
        self._taken.insert(time, values)

    def after(self, time: int) -> int | None:
        """The time of the oldest row that is newer; None where there is none."""
        found = self.scope.after(time)
        mine = None if self._taken is None else self._taken.neighbours(time)[1]
        return found if mine is None else mine if found is None else min(found, mine)

    def fold_steps(self, start: int, end: int, part: Layout) -> Steps[tuple[int, list[Partial]]]:
        """The number of entries with start <= time <= end, and their partials."""
        taken = self._taken
        if taken is None:
            return (yield from self.scope.totals_steps(start, end, part))
        if part.commutative:
            entries, totals = yield from self.scope.totals_steps(start, end, part)
            more, newer = taken.range_totals(start, end, part)
            return entries + more, part.combine(totals, newer)
        entries, totals = 0, list(part.identities)
        while start <= end:
            until = taken.neighbours(start - 1)[1]
            until = end if until is None else min(until, end)
            for source in (self.scope.totals_steps(start, until, part), _now(taken.range_totals(until, until, part))):
                more, newer = yield from source
                entries, totals = entries + more, part.combine(totals, newer)
            start = until + 1
        return entries, totals


def _now(found: tuple[int, list[Partial]]) -> Steps[tuple[int, list[Partial]]]:
    return found
    yield


@dataclass(slots=True)
class _Row:
    """One row of a write: its time, and a value per column after the time; and where it stands among all."""

    time: int
    values: Sequence[Any]
    columns: Sequence[Array]
    at: int


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
        spec, layout, keys, slide, order, panes, labels, derived: the window's.
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
        checked: Callable[[AnyBatch], list[Array]],
    ) -> None:
        self._spec, self._layout, self._keys, self._slide, self._order = spec, layout, keys, slide, order
        self._panes, self._labels, self._derived, self._checked = panes, labels, derived, checked
        self._known: dict[tuple[Limit, ...], list[_Fold]] = {}

    # ---------------------------------------------------------------- checking

    def check(self, batch: AnyBatch, limits: Sequence[Limit]) -> None:
        """Check all that can be checked before a look at the entries; raises as `decide_steps`."""
        self._folds(limits)
        self._columns(batch)

    def takes_long(self, batch: AnyBatch, limits: Sequence[Limit]) -> bool:
        """Whether a decision takes many steps: of many rows, or about the many keys of a group that no rollup has."""
        if len(batch.times) * len(limits) > _ROWS:
            return True
        rollups = [rollup.parts for rollup in self._derived.rollups]
        return len(self._keys) > _KEYS and any(e.by is not None and set(e.by) not in rollups for e in limits)

    def _folds(self, limits: Sequence[Limit]) -> list[_Fold]:
        key = tuple(limits)
        try:
            found = self._known.get(key)
        except TypeError:  # `by` is a list
            key = tuple([Limit(e.aggregate, e.lookback, e.op, e.value, e.by and tuple(e.by)) for e in limits])
            found = self._known.get(key)
        if found is None:
            found = self._made(key)
            if len(self._known) >= _KEPT:
                self._known.clear()
            self._known[key] = found
        return found

    def _made(self, limits: Sequence[Limit]) -> list[_Fold]:
        spec = self._spec
        if not 1 <= len(limits) <= MAX_LIMITS:
            raise InvalidArgument(
                f"{len(limits)} limits in one write", field="limits", limit=f"1 to {MAX_LIMITS} limits"
            )
        if spec.algorithm is not None:
            raise Unsupported(
                f"window {spec.name!r} runs on {spec.algorithm}, and limits are for the columnar engine", field="limits"
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
            if limit.op not in _COMPARE:
                raise InvalidArgument(
                    f"limits.op {str(limit.op)[:40]!r} is none", field="limits.op", limit=", ".join(_COMPARE)
                )
            if isinstance(limit.value, bool) or not isinstance(limit.value, int | float) or limit.value != limit.value:
                raise InvalidArgument("limits.value is a number, and not NaN", field="limits.value")
            span = parse_duration(limit.lookback, spec.time_unit, "limits.lookback")
            self._check_kept(span, limit.lookback)
            wanted.setdefault((self._by(limit, monoids), span), []).append((place, limit))
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

    def _by(self, limit: Limit, monoids: dict[str, Monoid]) -> tuple[str, ...] | None:
        """The parts of the group that a limit is about; None: the row's own key."""
        if limit.by is None:
            return None
        labels = self._spec.labels
        if not labels:
            raise InvalidArgument(f"window {self._spec.name!r} is not keyed", field="limits.by")
        self._labels.check((), limit.by)
        if set(limit.by) == set(labels):
            return None
        monoid = monoids.get(limit.aggregate)
        if monoid is not None and not monoid.commutative:
            raise Unsupported(
                f"{limit.aggregate!r} depends on the order of entries, and keys have none between them: no limit on it "
                "can be about a group of keys",
                field="limits.by",
            )
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

    def decide_steps(self, batch: AnyBatch, limits: Sequence[Limit]) -> Steps[tuple[Admission, Array]]:
        """Decide about the rows of a bulk, in steps; nothing changes.

        Returns:
            what becomes of each; and which rows are to be inserted, rising: all but those that a limit refuses. What is
            late or too far ahead is among them, because the insert drops and counts it.

        Raises:
            InvalidArgument, Unsupported: names the field and the limit.
            FailedPrecondition: the order policy rejects a row.
        """
        folds, columns = self._folds(limits), self._columns(batch)
        n = len(batch.times)
        admission = Admission(limits=[LimitAnswers([None] * n, [None] * n, [False] * n) for _ in limits])
        admission.admitted, admission.retry_after = [False] * n, [None] * n
        if not n:
            return admission, np.empty(0, np.int64)
        names = [UNKEYED] if batch.keys is None else batch.keys.dictionary
        codes = np.zeros(n, np.int64) if batch.keys is None else batch.keys.codes
        numbers = self._keys.find_each(names)
        dropped = self._dropped(columns[0], codes, numbers)
        if self._panes is not None:
            _, columns = yield from self._panes.folded_steps(columns, np.ones(n, np.int64), False)
        inserted, trials = np.ones(n, np.bool_), dict[tuple[Any, ...], _Trial]()
        for turn, i in enumerate(np.argsort(columns[0], kind="stable").tolist() if n > 1 else (0,)):
            if dropped is not None and dropped[i]:
                continue
            row = _Row(columns[0].item(i), [column.item(i) for column in columns[1:]], columns, i)
            code = int(codes[i])
            among = list[_Trial]()
            for fold in folds:
                among.append((yield from self._trial(trials, fold.by, names[code], int(numbers[code]))))
            found = yield from self._found(folds, among, row, row.time)
            held = all(each.holds for each in found)
            yield from self._tell(admission, folds, among, found, row, held)
            admission.admitted[i] = inserted[i] = held
            if held:
                if n > 1:
                    for trial in dict.fromkeys(among):
                        trial.take(row.time, row.values)
            else:
                admission.refused += 1
                at = yield from self._next_time(folds, among, found, row)
                admission.retry_after[i] = None if at is None else at - batch.times.item(i)
            if turn % _ROWS == _ROWS - 1:
                yield
        return admission, np.flatnonzero(inserted)

    def _dropped(self, times: Array, codes: Array, numbers: Numbers) -> Array | None:
        """The rows that the order policy drops, as in an insert; None where it drops none."""
        order, keys, slide = self._order, self._keys, self._slide
        ahead = None
        if order.guards:
            ahead = np.array([order.is_ahead(time) for time in times.tolist()])
        if order.in_order_only:
            some = slice(None) if ahead is None else ~ahead
            order.check_arrival(codes[some], times[some], numbers)
        floor, known = slide.refused_through(), numbers >= 0
        through = np.full(len(numbers), floor)
        through[known] = np.maximum(keys.late_through[numbers[known]], floor)
        late = times <= through[codes]
        if ahead is not None:
            late &= ~ahead
        if late.any():
            order.refuse_late(int(np.count_nonzero(late)), int(through[codes[late.argmax()]]))
        elif ahead is None or not ahead.any():
            return None
        return late if ahead is None else late | ahead

    def _trial(
        self, trials: dict[tuple[Any, ...], _Trial], by: tuple[str, ...] | None, name: str, number: int
    ) -> Steps[_Trial]:
        """The scope of a row, with what has gone into it."""
        values = () if by is None else self._values(by, name)
        key = (name,) if by is None else (by, values)
        trial = trials.get(key)
        if trial is None:
            scope: _Scope
            if by is None:
                scope = _OfKey(self._keys, None if number < 0 else number, self._slide)
            else:
                scope = yield from self._group(by, values)
            trial = trials[key] = _Trial(scope, self._layout)
        return trial

    def _values(self, by: tuple[str, ...], name: str) -> tuple[str, ...]:
        labels = self._spec.labels
        parts = split(name, len(labels)) if by else ()
        return tuple([parts[labels.index(part)] for part in by])

    def _group(self, by: tuple[str, ...], values: tuple[str, ...]) -> Steps[_Scope]:
        def of_keys() -> Steps[_OfKeys]:
            where = [Where(part, "=", [value]) for part, value in zip(by, values, strict=True)]
            return _OfKeys(self._keys, (yield from self._labels.select(where, None)), self._slide)

        for rollup in self._derived.rollups:
            if rollup.parts == set(by):
                window = rollup.window
                number = window.keys.find(rollup.name_of(values))
                horizon = NEVER if number is None else window.keys.late_through_of[number]
                return _OfRollup(_OfKey(window.keys, number, window.slide_policy), horizon, of_keys)
        return (yield from of_keys())

    def _found(self, folds: Sequence[_Fold], among: Sequence[_Trial], row: _Row, time: int) -> Steps[list[_Found]]:
        """What each limit finds about a row, if it were of some time."""
        out = list[_Found]()
        for fold, trial in zip(folds, among, strict=True):
            part, found = fold.part, [_Found(limit) for limit in fold.limits]
            later, end = 0, time
            while True:
                entries, totals = yield from trial.fold_steps(fold.start(end), time, part)
                totals = list(totals)
                part.extend(totals, row.columns, row.at, row.at + 1)
                entries += 1
                if end > time:
                    more, newer = yield from trial.scope.totals_steps(time + 1, end, part)
                    entries, totals = entries + more, part.combine(totals, newer)
                answers = part.lower(entries, totals)
                for each in found:
                    each.note(end, entries if each.limit.at < 0 else answers[each.limit.at])
                newest = trial.scope.after(end) if end < trial.scope.mark else None
                if newest is None or newest - time >= fold.span:
                    break
                end, later = newest, later + 1
                if later > MAX_LATER:
                    raise ResourceExhausted(
                        f"the row of time {row.time} is older than entries of more than {MAX_LATER} times that a "
                        "lookback has with it: it cannot be decided",
                        field="time",
                        limit=f"{MAX_LATER} later times",
                    )
                if later % _ROWS == 0:
                    yield
            out += found
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
                entries, totals = yield from trial.fold_steps(fold.start(each.end), each.end, fold.part)
                answer = entries if each.limit.at < 0 else fold.part.lower(entries, totals)[each.limit.at]
                left = each.limit.left(answer)
            told = admission.limits[each.limit.place]
            told.answers[row.at], told.holds[row.at] = answer, each.holds
            told.remaining[row.at] = None if left is None else max(left, 0)

    def _next_time(
        self, folds: Sequence[_Fold], among: Sequence[_Trial], found: Sequence[_Found], row: _Row
    ) -> Steps[int | None]:
        """The first time at which a refused row would go in, if nothing else came; None: never.

        After many tries it is a time before which it would not.
        """
        time = row.time
        for tried in range(_TRIES):
            wanted, at = time, 0
            for fold, trial in zip(folds, among, strict=True):
                some = found[at : at + len(fold.limits)]
                at += len(fold.limits)
                if all(each.holds for each in some):
                    continue
                changes = self._next_change(fold, trial, time)
                if changes is None:
                    return None
                wanted = max(wanted, changes)
            if not wanted < TICK_MAX:
                return None
            time = wanted
            found = yield from self._found(folds, among, row, time)
            if all(each.holds for each in found):
                break
            if tried % _ROWS == _ROWS - 1:
                yield
        return time

    def _next_change(self, fold: _Fold, trial: _Trial, time: int) -> int | None:
        """The first later time at which other entries would count for a row; None: there are no more."""
        leaves = trial.after(max(time - fold.span, TICK_MIN))
        found = [] if leaves is None else [leaves + fold.span]
        if time < trial.scope.mark:
            passed = trial.scope.after(time - 1)
            found += [] if passed is None else [passed + 1 if passed == time else passed]
        if not found:
            return None
        granule = 1 if self._panes is None else self._panes.granule
        return -(-min(found) // granule) * granule
