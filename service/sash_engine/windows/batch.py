"""A bulk of entries as columns, checked whole before anything is changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sash_engine.errors import InvalidArgument
from sash_engine.monoids.base import NUMPY_TYPES, Array, Partials
from sash_engine.monoids.pane import imported
from sash_engine.windows.spec import MAX_KEY_BYTES, WindowSpec

__all__ = ["Batch", "Coded", "Origin"]

MAX_PANE_ENTRIES = 2**40
"""So many entries a row of partials may stand for."""
MAX_COUNTED = 2**62
"""So many entries a window may have been sent as partials: whatever is summed of them is an int64."""


@dataclass(frozen=True, slots=True)
class Coded:
    """n strings as a dictionary and n codes into it (any integer dtype)."""

    dictionary: list[str]
    codes: Array

    @classmethod
    def of(cls, strings: list[str]) -> Coded:
        """Code a plain list of strings."""
        index: dict[str, int] = {}
        codes = np.fromiter((index.setdefault(s, len(index)) for s in strings), np.int64, len(strings))
        return cls(list(index), codes)

    def decode(self) -> Array:
        """The n strings as an object array."""
        return np.array([*self.dictionary, None], dtype=object)[self.codes]


@dataclass(frozen=True, slots=True)
class Origin:
    """Who sends a write, and its number among all writes of that producer to the window.

    Args:
        producer: its name.
        sequence: 1, 2, 3, … in each epoch.
        epoch: whoever uses a higher one takes the name over.
        digest: of what the write carries, see `digests`; None where it is not known.
    """

    producer: str
    sequence: int
    epoch: int = 0
    digest: bytes | None = None


@dataclass(frozen=True, slots=True)
class Batch:
    """n entries as columns, in arrival order.

    Args:
        times: int64 (n,), ticks.
        columns: for each field of the window, n values: float64, int64, bool, or `Coded` for strings.
        keys: n keys where the window is keyed, else None.
        partials: in the place of `columns`, for windows with a granularity: for each aggregate (counts may be left
            out) n partials as columns, by its monoid's `dtypes`; where a part of them is an object, one object array of
            what `Monoid.encode` writes; see `sash_engine.monoids.pane`.
        entries: with `partials`: int64 (n,), how many entries each row stands for.

    The arrays are handed over: the window keeps them, and nobody writes to them later.
    """

    times: npt.NDArray[np.int64]
    columns: Mapping[str, Array | Coded]
    keys: Coded | None = None
    partials: Mapping[str, Partials] | None = None
    entries: npt.NDArray[np.int64] | None = None

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
            columns: n values for each field.
            keys: n keys where the window is keyed.
        """
        made: dict[str, Array | Coded] = {}
        for name, values in columns.items():
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

    def checked(self, spec: WindowSpec) -> tuple[npt.NDArray[np.int64], tuple[Array, ...]]:
        """Check everything a caller can get wrong.

        Returns:
            the times, and one array per field of `spec`, in order; or where the batch carries partials the number of
            entries, and one array for each element of the `dtypes` of each aggregate but counts, in order.

        Raises:
            InvalidArgument: names the field and, where one was passed, the limit.
        """
        n = len(self.times)
        if self.times.dtype != np.int64 or self.times.ndim != 1:
            raise InvalidArgument(f"time must be int64 ticks, not {self.times.dtype}", field="time")
        if self.partials is not None or self.entries is not None:
            columns_of_partials = self._checked_partials(spec, n)
            self._check_keys(spec, n)
            return self.times, columns_of_partials
        for name in self.columns:
            if name not in spec.fields:
                known = ", ".join(spec.fields)
                raise InvalidArgument(f"window {spec.name!r} has no field {name!r}; it has {known}", field=name)
        columns = []
        for name, kind in spec.fields.items():
            if name not in self.columns:
                raise InvalidArgument(f"field {name!r} is missing", field=name)
            column = self.columns[name]
            if isinstance(column, Coded):
                if kind != "string":
                    raise InvalidArgument(f"field {name!r} is a {kind}, not a string", field=name)
                _check_codes(column, name)
                column = column.decode()
            elif column.dtype != NUMPY_TYPES[kind] or kind == "string":
                raise InvalidArgument(f"field {name!r} is a {kind}, not a {column.dtype}", field=name)
            _check_length(len(column), n, name)
            columns.append(column)
        self._check_keys(spec, n)
        return self.times, tuple(columns)

    def _checked_partials(self, spec: WindowSpec, n: int) -> tuple[Array, ...]:
        if spec.granularity is None:
            raise InvalidArgument(
                f"window {spec.name!r} keeps entries, and takes no partials: those with a granularity do",
                field="partials",
            )
        entries = self.entries
        if self.columns or self.partials is None or entries is None:
            raise InvalidArgument(
                "a write carries values of every field, or partials of every aggregate and how many entries each row "
                "stands for",
                field="partials",
            )
        if entries.dtype != np.int64 or entries.ndim != 1:
            raise InvalidArgument(f"entries must be int64, not {entries.dtype}", field="entries")
        _check_length(len(entries), n, "entries")
        if n and not 1 <= int(entries.min()) <= int(entries.max()) <= MAX_PANE_ENTRIES:
            raise InvalidArgument(
                "a row stands for no entry, or for too many", field="entries", limit=f"1 to {MAX_PANE_ENTRIES}"
            )
        for name in self.partials:
            if name not in spec.aggregates:
                known = ", ".join(spec.aggregates)
                raise InvalidArgument(
                    f"window {spec.name!r} has no aggregate {name!r}; it has {known}", field=f"partials.{name}"
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

    def _check_keys(self, spec: WindowSpec, n: int) -> None:
        if not spec.keyed:
            if self.keys is not None:
                raise InvalidArgument(f"window {spec.name!r} is not keyed", field="key")
            return
        if self.keys is None:
            raise InvalidArgument(f"window {spec.name!r} is keyed: every entry needs a key", field="key")
        _check_length(len(self.keys.codes), n, "key")
        _check_codes(self.keys, "key")
        dictionary = self.keys.dictionary
        # A character takes at most four bytes: two passes in C show that most dictionaries need no closer look.
        if not all(dictionary) or max(map(len, dictionary), default=0) * 4 > MAX_KEY_BYTES:
            for key in dictionary:
                check_key(key)


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
        raise InvalidArgument(f"column {name!r} has {found} values where time has {n}", field=name, limit=str(n))


def _check_codes(column: Coded, name: str) -> None:
    codes, size = column.codes, len(column.dictionary)
    if len(codes) and (int(codes.max()) >= size or int(codes.min()) < 0):
        raise InvalidArgument(
            f"column {name!r} has a code outside its dictionary", field=name, limit=f"0 to {size - 1}"
        )
