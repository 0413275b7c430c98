"""Many entries as columns, checked whole before anything is changed.

Batch           values: a row is an entry, with a value of each field
PartialBatch    partials: a row stands for several entries, with a partial of each aggregate
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import repeat
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from sash_engine.errors import InvalidArgument
from sash_engine.monoids.base import NUMPY_TYPES, Array, Partials
from sash_engine.monoids.pane import imported
from sash_engine.windows.batches.values import Fields, no_field
from sash_engine.windows.spec.window import MAX_KEY_BYTES, TICK_MIN, WindowSpec, check_time
from sash_wire.coded import Coded
from sash_wire.errors import WireError
from sash_wire.labels import split as split_key
from sash_wire.meant import instead
from sash_wire.nulls import is_mark, mark_of, named_by, split

__all__ = [
    "UNKNOWN_TIME",
    "AnyBatch",
    "Batch",
    "Coded",
    "Origin",
    "PartialBatch",
    "check_key",
    "check_parts",
    "untimed",
]

MAX_PANE_ENTRIES = 2**40
"""So many entries a row of partials may stand for."""
UNKNOWN_TIME = TICK_MIN
"""In the place of every time of a batch: a retraction or an update whose entries are found by their identity alone."""
_FIRST = np.zeros(1, np.uint32)
"""The codes of a column of one text."""
MAX_COUNTED = 2**62
"""So many entries a window may have been sent as partials: whatever is summed of them is an int64."""


@dataclass(frozen=True, slots=True)
class Origin:
    """The producer of a write, and the number of the write among all of this producer to the window.

    Args:
        producer: its name.
        sequence: 1, 2, 3, … in each epoch.
        epoch: whoever uses a higher one takes the name over.
        digest: of what the write carries, see `digests`; None where it is not known. Of a write whose parts go to
            several shards, it is of the whole.
        after: where numbers have gaps, the number of the producer's write before this one; None where they have none.
    """

    producer: str
    sequence: int
    epoch: int = 0
    digest: bytes | None = None
    after: int | None = None


def untimed(rows: int) -> npt.NDArray[np.int64]:
    """Return the times of a batch whose entries are named without times."""
    return np.full(rows, UNKNOWN_TIME, np.int64)


@dataclass(frozen=True, slots=True)
class Batch:
    """n entries as columns, in arrival order.

    Args:
        times: int64 (n,), ticks.
        columns: for each field of the window, n values: float64, int64, bool, or `Coded` for strings. A field that
            may be null also has a mark, see `sash_wire.nulls`; without it, no value is null.
        keys: n keys where the window is keyed, else None.
        row_of: the spec that its only row was checked against, and what `checked` returns then: see `of_row`.

    The arrays are handed over: the window keeps them, and nobody writes to them later.
    """

    of_partials: ClassVar[bool] = False

    times: npt.NDArray[np.int64]
    columns: Mapping[str, Array | Coded]
    keys: Coded | None = None
    row_of: tuple[WindowSpec, tuple[Array, ...]] | None = field(default=None, compare=False, repr=False)

    @classmethod
    def of(
        cls,
        spec: WindowSpec,
        times: npt.ArrayLike,
        columns: Mapping[str, npt.ArrayLike],
        keys: Sequence[str] | None = None,
    ) -> Batch:
        """Make a batch of lists, NumPy arrays, or whatever else NumPy reads; all of it is copied.

        Integers become float64 where the field is one. Nothing is checked here: `checked` says what is wrong.

        Args:
            times: n ticks.
            columns: n values for each field; None, or a masked value, is a null.
            keys: n keys where the window is keyed.
        """
        made: dict[str, Array | Coded] = {}
        for name, given in columns.items():
            values, there = split(given, spec.fields.get(name, "float64"))
            if there is not None:
                made[mark_of(name)] = there
            column = np.array(values)
            if column.dtype.kind in "UO":
                made[name] = Coded.of(column.tolist())
            elif column.dtype.kind in "iu" and spec.fields.get(name) in ("float64", "int64"):
                made[name] = column.astype(NUMPY_TYPES[spec.fields[name]])
            else:
                made[name] = column
        ticks = np.array(times)
        if ticks.dtype.kind in "iu" or not ticks.size:
            ticks = ticks.astype(np.int64)
        return cls(ticks, made, None if keys is None else Coded.of(list(keys)))

    @classmethod
    def of_row(cls, spec: WindowSpec, time: int, fields: Mapping[str, Any], key: str | None = None) -> Batch:
        """Make a batch of one entry, checked.

        Raises:
            InvalidArgument: a field is missing, unknown or of another type; or the key is, or is none.
        """
        check_time(time, "time")
        columns, values = dict[str, Array | Coded](), list[Array]()
        for (name, kind), value in zip(spec.columns.items(), Fields(spec).checked(fields), strict=True):
            values.append(np.array([value], NUMPY_TYPES[kind]))
            columns[name] = Coded([value], _FIRST) if kind == "string" else values[-1]
        keys = None
        if _is_keyed(spec, key is not None) and key is not None:
            _check_names([key], spec)
            keys = Coded([key], _FIRST)
        return cls(np.array([time], np.int64), columns, keys, (spec, tuple(values)))

    @property
    def is_untimed(self) -> bool:
        """Whether it names entries without times: see `UNKNOWN_TIME`."""
        return bool(len(self.times)) and self.times.dtype == np.int64 and int(self.times.max()) == UNKNOWN_TIME

    def timed(self, times: npt.NDArray[np.int64]) -> Batch:
        """Return its rows with these times, int64 (n,), without those whose time is `UNKNOWN_TIME`."""
        return replace(self, times=times).rows(np.flatnonzero(times != UNKNOWN_TIME))

    def rows(self, rows: npt.NDArray[np.intp]) -> Batch:
        """Return some of its rows."""
        if len(rows) == len(self.times):
            return self
        columns = {name: _some(column, rows) for name, column in self.columns.items()}
        return Batch(self.times[rows], columns, None if self.keys is None else self.keys.rows(rows))

    def checked(self, spec: WindowSpec) -> tuple[npt.NDArray[np.int64], tuple[Array, ...]]:
        """Check everything a caller can get wrong.

        Returns:
            the times, and one array for each of the `columns` of `spec`, in order.

        Raises:
            InvalidArgument: names the field and, where one was passed, the limit.
        """
        if self.row_of is not None and self.row_of[0] is spec:
            return self.times, self.row_of[1]
        n = len(self.times)
        _check_times(self.times)
        wanted = spec.columns
        for name, column in self.columns.items():
            if name not in wanted:
                if is_mark(name) and named_by(name) in spec.fields:
                    _check_no_null(column, named_by(name))
                    continue
                raise no_field(spec.name, name, spec.fields)
        columns = []
        for name, kind in wanted.items():
            if name not in self.columns:
                if is_mark(name):
                    columns.append(np.ones(n, np.bool_))
                    continue
                raise InvalidArgument(f"field {name!r} is missing", field=name)
            column = self.columns[name]
            if isinstance(column, Coded):
                if kind != "string":
                    raise InvalidArgument(f"field {name!r} is {kind}, not string", field=name)
                _check_codes(column, name)
                column = column.decode()
            elif column.dtype != NUMPY_TYPES[kind] or kind == "string":
                raise InvalidArgument(f"field {name!r} is {kind}, not {column.dtype}", field=name)
            _check_length(len(column), n, name)
            columns.append(column)
        _check_keys(self.keys, spec, n)
        return self.times, tuple(columns)


@dataclass(frozen=True, slots=True)
class PartialBatch:
    """n rows of partials as columns, in arrival order, for windows with a granularity.

    Args:
        times: int64 (n,), ticks.
        partials: for each aggregate (counts may be left out) n partials as columns, by its monoid's `dtypes`; where a
            part of them is an object, one object array of what `Monoid.encode` writes; see `sash_engine.monoids.pane`.
        entries: int64 (n,), how many entries each row stands for.
        keys: n keys where the window is keyed, else None.

    The arrays are handed over, as those of a `Batch`.
    """

    of_partials: ClassVar[bool] = True
    is_untimed: ClassVar[bool] = False

    times: npt.NDArray[np.int64]
    partials: Mapping[str, Partials]
    entries: npt.NDArray[np.int64]
    keys: Coded | None = None

    def checked(self, spec: WindowSpec) -> tuple[npt.NDArray[np.int64], tuple[Array, ...]]:
        """Check everything a caller can get wrong.

        Returns:
            the times; and the number of entries, then one array for each element of the `dtypes` of each aggregate
            but counts, in order.

        Raises:
            InvalidArgument: names the field and, where one was passed, the limit.
        """
        n = len(self.times)
        _check_times(self.times)
        columns = self._checked_partials(spec, n)
        _check_keys(self.keys, spec, n)
        return self.times, columns

    def _checked_partials(self, spec: WindowSpec, n: int) -> tuple[Array, ...]:
        if spec.granularity is None:
            raise InvalidArgument(
                f"window {spec.name!r} keeps entries, and takes no partials: those with a granularity do",
                field="partials",
            )
        entries = self.entries
        if entries.dtype != np.int64 or entries.ndim != 1:
            raise InvalidArgument(f"entries must be int64, not {entries.dtype}", field="entries")
        _check_length(len(entries), n, "entries")
        if n and not 1 <= int(entries.min()) <= int(entries.max()) <= MAX_PANE_ENTRIES:
            raise InvalidArgument(
                "a row stands for no entry, or for too many", field="entries", limit=f"1 to {MAX_PANE_ENTRIES}"
            )
        for name in self.partials:
            if name not in spec.aggregates:
                raise InvalidArgument(
                    f"window {spec.name!r} has no aggregate {name!r}{instead(name, spec.aggregates, 'it has')}",
                    field=f"partials.{name}",
                )
        columns = [entries]
        for name, (monoid, _) in spec.monoids().items():
            given = self.partials.get(name)
            counts = monoid.counts_entries
            if given is None and not counts:
                raise InvalidArgument(f"partials of {name!r} are missing", field=f"partials.{name}")
            if given is not None:
                parts = imported(monoid, given, entries, name)
                columns += () if counts else parts
        return tuple(columns)


AnyBatch = Batch | PartialBatch
"""Either: both are written, stored and exported, and both have `times`, `keys`, `of_partials` and `checked`."""


def _some(column: Array | Coded, rows: npt.NDArray[np.intp]) -> Array | Coded:
    return column.rows(rows) if isinstance(column, Coded) else column[rows]


def _check_times(times: Array) -> None:
    if times.dtype != np.int64 or times.ndim != 1:
        raise InvalidArgument(f"time must be int64 ticks, not {times.dtype}", field="time")


def _check_keys(keys: Coded | None, spec: WindowSpec, n: int) -> None:
    if _is_keyed(spec, keys is not None) and keys is not None:
        _check_length(len(keys.codes), n, "key")
        _check_codes(keys, "key")
        _check_names(keys.dictionary, spec)


def _is_keyed(spec: WindowSpec, given: bool) -> bool:
    """Whether a window is keyed; raises InvalidArgument unless keys are given just then."""
    if spec.keyed != given:
        wrong = "is keyed: every entry needs a key" if spec.keyed else "is not keyed"
        raise InvalidArgument(f"window {spec.name!r} {wrong}", field="key")
    return given


def _check_names(dictionary: Sequence[str], spec: WindowSpec) -> None:
    # A character takes at most four bytes: two passes in C show that most dictionaries need no closer look.
    if not all(dictionary) or max(map(len, dictionary), default=0) * 4 > MAX_KEY_BYTES:
        for key in dictionary:
            check_key(key)
    if spec.keys is not None:
        check_parts(dictionary, spec)


def check_parts(keys: Sequence[str], spec: WindowSpec) -> None:
    """Raise `InvalidArgument` for a key that does not have the parts that the window's keys have."""
    parts = len(spec.parts)
    for key, bars in zip(keys, map(str.count, keys, repeat("|")), strict=True):
        if bars != parts - 1 or "\\" in key:
            try:
                split_key(key, parts)
            except WireError as error:
                reason = f"{error.message} ({', '.join(spec.parts)})"
                raise InvalidArgument(reason, field="key", limit=error.limit) from None


def check_key(key: str) -> None:
    """Raise `InvalidArgument` for a key that is empty or too long."""
    if not key or (len(key) * 4 > MAX_KEY_BYTES and len(key.encode()) > MAX_KEY_BYTES):
        raise InvalidArgument(
            "key must not be empty" if not key else f"key is {len(key.encode())} bytes long",
            field="key",
            limit=f"1 to {MAX_KEY_BYTES} bytes of UTF-8",
        )


def _check_length(found: int, n: int, name: str) -> None:
    if found != n:
        raise InvalidArgument(
            f"column {name!r} has {found} value{'s' * (found != 1)}, and there are {n} rows", field=name, limit=str(n)
        )


def _check_no_null(mark: Array | Coded, name: str) -> None:
    assert not isinstance(mark, Coded)
    if not mark.all():
        raise InvalidArgument(
            f"field {name!r} is null in row {int(mark.argmin())}: only fields that the spec names in nullable may be",
            field=name,
        )


def _check_codes(column: Coded, name: str) -> None:
    codes, size = column.codes, len(column.dictionary)
    if len(codes) and (int(codes.max()) >= size or int(codes.min()) < 0):
        raise InvalidArgument(
            f"column {name!r} has a code outside its dictionary", field=name, limit=f"0 to {size - 1}"
        )
