"""A named window: keys, slide policy, late entries, and the answers over them.

    key "JFK"   [ forest ............ newest ]     max_age:   keeps  newest - max_age < time
    key "LGA"      [ forest ..... newest ]         max_count: keeps the newest max_count
                 ^ late_through: entries of this time and older come too late

Event time is per key: a key's now is its newest entry, so a producer with a fast clock, or a key that is silent,
moves nobody else's window.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from sash.errors import FailedPrecondition, InvalidArgument, ResourceExhausted
from sash.forest import BLOCK, Forest, Layout
from sash.forest.segments import starts_of_runs
from sash.monoids.base import Array, FieldType
from sash.windows.answers import Answer, Counts, WindowInfo, WriteResult
from sash.windows.batch import Batch, check_key
from sash.windows.spec import TICK_MAX, TICK_MIN, WindowSpec, parse_duration

__all__ = ["MAX_LOOKBACKS", "Window"]

MAX_LOOKBACKS = 64
_NEVER = TICK_MIN
"""No entry has this time, so nothing is late and nothing is newest."""


class _Key:
    """One key's entries and how far they have slid."""

    __slots__ = ("forest", "late_through", "newest")

    def __init__(self, layout: Layout) -> None:
        self.forest = Forest(layout)
        self.late_through = _NEVER
        self.newest = _NEVER


class Window:
    """The entries of one named window.

    Args:
        spec: what it was created with.
        max_keys: how many keys it may have.
        block: entries per sealed block.
    """

    def __init__(self, spec: WindowSpec, max_keys: int = 10_000_000, block: int = BLOCK) -> None:
        self.spec = spec
        self.counts = Counts()
        self._layout = Layout(spec.fields, spec.monoids(), block)
        self._keys: dict[str, _Key] = {}
        self._max_keys = max_keys
        self._max_age = spec.max_age_ticks
        self._max_count = spec.slide.max_count
        self._newest = _NEVER

    # ---------------------------------------------------------------- writing

    def insert(self, time: int, fields: Mapping[str, Any], key: str | None) -> WriteResult:
        """Insert one entry and slide; see `Plane.insert`."""
        check_time(time, "time")
        values = self._checked_values(fields)
        name = self._checked_key(key)
        state = self._keys.get(name)
        if state is None:
            self._check_room(1)
            state = self._keys[name] = _Key(self._layout)
        elif time <= state.late_through:
            return self._count(WriteResult(late=self._refuse_late(1)))
        state.forest.insert(time, values)
        if time > state.newest:
            state.newest = time
        return self._count(WriteResult(inserted=1, evicted=self._slide(state)), time)

    def bulk_insert(self, batch: Batch) -> WriteResult:
        """Insert many entries, each key's as one, and slide; see `Plane.bulk_insert`."""
        times, columns = batch.checked(self.spec)
        if not len(times):
            return WriteResult()
        check_time(int(times.min()), "time")
        check_time(int(times.max()), "time")
        groups = self._grouped(batch, times, columns)
        late, parts = 0, []
        for name, rows in groups:
            state = self._keys.get(name)
            if state is not None and state.late_through > _NEVER:
                on_time = rows[0] > state.late_through
                missing = len(on_time) - int(np.count_nonzero(on_time))
                if missing:
                    late += self._refuse_late(missing)
                    rows = [column[on_time] for column in rows]
            if len(rows[0]):
                parts.append((name, rows))
        self._check_room(sum(name not in self._keys for name, _ in parts))
        # Nothing was changed so far, and nothing below can fail.
        result = WriteResult(late=late)
        for name, rows in parts:
            state = self._keys.get(name)
            if state is None:
                state = self._keys[name] = _Key(self._layout)
            state.forest.bulk_insert(rows[0], rows[1:])
            state.newest = max(state.newest, int(rows[0].max()))
            result.inserted += len(rows[0])
            result.evicted += self._slide(state)
        return self._count(result, int(times.max()))

    def bulk_evict(self, time: int, key: str | None) -> int:
        """Remove entries with time <= `time`, of one key or of all; see `Plane.bulk_evict`."""
        check_time(time, "time")
        if key is None:
            states = list(self._keys.values())
        else:
            found = self._keys.get(self._checked_key(key))
            states = [] if found is None else [found]
        evicted = sum(state.forest.bulk_evict(time) for state in states)
        self.counts.evicted += evicted
        return evicted

    def sweep(self) -> None:
        """Give memory of evicted blocks back, some at a time."""
        for state in self._keys.values():
            state.forest.sweep()

    def _slide(self, state: _Key) -> int:
        """Evict what the slide policy says; return how many."""
        evicted = 0
        if self._max_age is not None:
            through = state.newest - self._max_age
            if through > state.late_through:
                state.late_through = through
                evicted = state.forest.bulk_evict(through)
        if self._max_count is not None and len(state.forest) > self._max_count:
            surplus = len(state.forest) - self._max_count
            state.forest.evict(surplus - 1)
            # Older than the newest one that leaves is late from now on; of the same time is not.
            state.late_through = max(state.late_through, state.forest.oldest - 1)  # type: ignore[operator]
            state.forest.evict()
            evicted += surplus
        return evicted

    def _grouped(self, batch: Batch, times: Array, columns: Sequence[Array]) -> list[tuple[str, list[Array]]]:
        """Cut a batch into each key's rows, in arrival order."""
        if batch.keys is None:
            return [("", [times, *columns])]
        codes, dictionary = batch.keys.codes, batch.keys.dictionary
        order = np.argsort(codes, kind="stable")
        ordered = codes[order]
        starts = starts_of_runs(ordered)
        names = [dictionary[code] for code in ordered[starts].tolist()]
        for name in names:
            check_key(name)
        if len(set(names)) != len(names):
            raise InvalidArgument("the dictionary of column 'key' repeats a key", field="key")
        rows = [column[order] for column in (times, *columns)]
        bounds = [*starts.tolist(), len(times)]
        return [(name, [column[a:b] for column in rows]) for name, (a, b) in zip(names, pairwise(bounds), strict=True)]

    def _count(self, result: WriteResult, newest: int = _NEVER) -> WriteResult:
        self.counts.inserted += result.inserted
        self.counts.late += result.late
        self.counts.evicted += result.evicted
        if newest > self._newest:
            self._newest = newest
        return result

    def _refuse_late(self, entries: int) -> int:
        if self.spec.order.late == "reject":
            raise FailedPrecondition(
                f"window {self.spec.name!r} rejects late entries, and {entries} of this write are older than what "
                "its slide policy evicted",
                field="time",
            )
        return entries

    # ---------------------------------------------------------------- checking

    def _checked_key(self, key: str | None) -> str:
        if not self.spec.keyed:
            if key is not None:
                raise InvalidArgument(f"window {self.spec.name!r} is not keyed", field="key")
            return ""
        if key is None:
            raise InvalidArgument(f"window {self.spec.name!r} is keyed: say which key", field="key")
        check_key(key)
        return key

    def _checked_values(self, fields: Mapping[str, Any]) -> list[Any]:
        values = []
        for name, kind in self.spec.fields.items():
            if name not in fields:
                raise InvalidArgument(f"field {name!r} is missing", field=name)
            values.append(_checked_value(fields[name], kind, name))
        if len(fields) > len(values):
            extra = next(name for name in fields if name not in self.spec.fields)
            known = ", ".join(self.spec.fields)
            raise InvalidArgument(f"window {self.spec.name!r} has no field {extra!r}; it has {known}", field=extra)
        return values

    def _check_room(self, more: int) -> None:
        if len(self._keys) + more > self._max_keys:
            raise ResourceExhausted(
                f"window {self.spec.name!r} has {len(self._keys)} keys, and this write brings {more} more",
                field="key",
                limit=f"{self._max_keys} keys",
            )

    # ---------------------------------------------------------------- reading

    def query(self, key: str | None, lookbacks: Sequence[str | int], as_of: int | None) -> list[Answer]:
        """Answer over trailing lookbacks, or over everything; see `Plane.query`."""
        name = self._checked_key(key)
        if as_of is not None:
            check_time(as_of, "as_of")
        if len(lookbacks) > MAX_LOOKBACKS:
            raise InvalidArgument(
                f"{len(lookbacks)} lookbacks in one query", field="lookbacks", limit=f"{MAX_LOOKBACKS}"
            )
        unit = self.spec.time_unit
        spans = [(str(text), parse_duration(text, unit, "lookback")) for text in lookbacks]
        state = self._keys.get(name)
        if state is None:
            return [self._nothing(key, as_of, *span) for span in spans] or [self._nothing(key, as_of, None, None)]
        now = state.newest if as_of is None else as_of
        if spans:
            return [self._range(state, key, max(now - span + 1, TICK_MIN), now, text) for text, span in spans]
        if as_of is not None:
            answer = self._range(state, key, TICK_MIN, now)
            answer.start = state.forest.oldest if answer.entries else None
            return [answer]
        forest = state.forest
        return [Answer(key, forest.oldest, forest.newest, len(forest), self._named(forest.query()))]

    def range_query(self, start: int, end: int, key: str | None) -> Answer:
        """Answer over start <= time <= end; see `Plane.range_query`."""
        check_time(start, "start")
        check_time(end, "end")
        if start > end:
            raise InvalidArgument(f"start {start} is after end {end}", field="start", limit=str(end))
        name = self._checked_key(key)
        state = self._keys.get(name)
        if state is None:
            return Answer(key, start, end, 0, self._named(self._layout.lower(0, self._layout.identities)))
        return self._range(state, key, start, end)

    def info(self) -> WindowInfo:
        """The window as `describe` shows it."""
        oldest = None
        if not self.spec.keyed and self._keys:
            oldest = self._keys[""].forest.oldest
        return WindowInfo(
            spec=self.spec,
            entries=self.counts.inserted - self.counts.evicted,
            keys=len(self._keys),
            oldest=oldest,
            newest=None if self._newest == _NEVER else self._newest,
            counts=self.counts,
        )

    def _range(self, state: _Key, key: str | None, start: int, end: int, lookback: str | None = None) -> Answer:
        entries, answers = state.forest.range_query(start, end)
        return Answer(key, start, end, entries, self._named(answers), lookback)

    def _nothing(self, key: str | None, as_of: int | None, lookback: str | None, span: int | None) -> Answer:
        start = None if as_of is None or span is None else max(as_of - span + 1, TICK_MIN)
        answers = self._layout.lower(0, self._layout.identities)
        return Answer(key, start, as_of, 0, self._named(answers), lookback)

    def _named(self, answers: Sequence[Any]) -> dict[str, Any]:
        return dict(zip(self._layout.names, answers, strict=True))


def check_time(time: int, field: str) -> None:
    """Raise `InvalidArgument` for a time that is not strictly between -2^63 and 2^63 - 1."""
    if not TICK_MIN < time < TICK_MAX:
        raise InvalidArgument(f"{field} {time} is out of range", field=field, limit="-2^63 < time < 2^63 - 1")


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
