"""A bulk of entries as columns, checked whole before anything is changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sash.errors import InvalidArgument
from sash.monoids.base import NUMPY_TYPES, Array
from sash.windows.spec import MAX_KEY_BYTES, WindowSpec

__all__ = ["Batch", "Coded"]


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
class Batch:
    """n entries as columns, in arrival order.

    Args:
        times: int64 (n,), ticks.
        columns: for each field of the window, n values: float64, int64, bool, or `Coded` for strings.
        keys: n keys where the window is keyed, else None.

    The arrays are handed over: the window keeps them, and nobody writes to them later.
    """

    times: npt.NDArray[np.int64]
    columns: Mapping[str, Array | Coded]
    keys: Coded | None = None

    def checked(self, spec: WindowSpec) -> tuple[npt.NDArray[np.int64], tuple[Array, ...]]:
        """Check everything a caller can get wrong; return the times and one array per field of `spec`, in order.

        Raises:
            InvalidArgument: names the field and, where one was passed, the limit.
        """
        n = len(self.times)
        if self.times.dtype != np.int64 or self.times.ndim != 1:
            raise InvalidArgument(f"time must be int64 ticks, not {self.times.dtype}", field="time")
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
