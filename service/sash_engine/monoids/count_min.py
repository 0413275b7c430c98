"""CountMin: how often has a value occurred? Estimates are never too low.

    value ─ hash 1 ─▶ row 1   0 3 0 1 …         an entry adds 1 to one counter in each row
          ─ hash 2 ─▶ row 2   1 0 2 1 …         estimate: the least of the value's counters
          ─ hash 3 ─▶ row 3   0 0 0 4 …         two sketches are added counter by counter

The binary form, the hashes and their seeds are those of Apache DataSketches' C++ and Python libraries, with counters of
float64, as in Python.

Source: Cormode, Muthukrishnan, "An improved data stream summary: the count-min sketch and its applications",
J. Algorithms 2005, as built in Apache DataSketches.
"""

from __future__ import annotations

import math
import struct
from typing import Any

import numpy as np

from sash_engine.errors import InvalidArgument
from sash_engine.monoids.base import Array, FieldType, Joined, Partial, Partials, Read, Values
from sash_wire.murmur import hash_of, hashes_of, row_seeds

_HEADER = struct.Struct("<BBBBxxxxIBHx")  # preamble, version, family, flags, buckets, hashes, hash of the seed
_PREAMBLE, _VERSION, _FAMILY, _EMPTY, _SEED_HASH = 2, 1, 18, 1, 0x93CC
_MOST = 2**53


class CountMin(Joined):
    """A CountMin sketch of a field's values: bytes that `CountMin` of `sash_client` reads.

    `CountMin(answer).estimate("UA")` is how often a value occurs, or more: with the probability `confidence` at most
    `error` times the number of entries more.

    Args:
        error: 0.0001 to 0.5. A sketch has e / error counters in each row.
        confidence: 0.5 to 0.99999. A sketch has ln(1 / (1 - confidence)) rows.

    A sketch takes 11 KB at the defaults. A bool counts as 0 or 1.

    Flags: commutative, exact.

    >>> import numpy as np
    >>> from sash_engine.monoids import CountMin
    >>> sketch = CountMin("string", error=0.1)
    >>> len(sketch.lower(sketch.reduce([np.array(["UA", "AA", "UA"], object)])))
    1144
    """

    function = "count_min"
    parts = ("sketch",)
    blob = "a CountMin sketch of DataSketches, of the same size, with counters of float64"
    reads = (Read("field", ("string", "int64", "bool")),)
    commutative = True
    large = True
    sparse_suffixes = True
    answer = bytes

    def __init__(self, *types: FieldType, error: float = 0.01, confidence: float = 0.99) -> None:
        super().__init__(*types)
        for name, number, least, most in (("error", error, 1e-4, 0.5), ("confidence", confidence, 0.5, 0.99999)):
            if isinstance(number, bool) or not isinstance(number, int | float) or not least <= number <= most:
                limit = "0.0001 to 0.5" if name == "error" else "0.5 to 0.99999"
                raise InvalidArgument(f"{name} must be a number in range", field=name, limit=limit)
        self.buckets = math.ceil(math.e / error)
        self.hashes = math.ceil(math.log(1 / (1 - confidence)))

    def lift(self, value: Any) -> Partial:
        counters = np.zeros(self.hashes * self.buckets, np.int64)
        for row, seed in enumerate(row_seeds(self.hashes)):
            counters[row * self.buckets + hash_of(value, seed) % self.buckets] += 1
        return counters

    def join(self, older: Any, newer: Any) -> Any:
        return older + newer

    def reduce(self, values: Values) -> Partial:
        (column,) = values
        n = len(column)
        if not n:
            return None
        if column.dtype == object:
            distinct: dict[str, int] = {}
            codes = np.fromiter([distinct.setdefault(item, len(distinct)) for item in column.tolist()], np.int64, n)
            column = np.fromiter(distinct, object, len(distinct))
            weights: Array | None = np.bincount(codes)
        else:
            weights = None
        hashes = hashes_of(column, np.array(row_seeds(self.hashes), np.uint64)[:, None])
        places = (hashes % self.buckets).astype(np.int64) + np.arange(self.hashes)[:, None] * self.buckets
        size = self.hashes * self.buckets
        if weights is None:
            return np.bincount(places.ravel(), minlength=size)
        tiled = np.broadcast_to(weights, places.shape).ravel()
        return np.bincount(places.ravel(), weights=tiled, minlength=size).astype(np.int64)

    def fold(self, partials: Partials) -> Partial:
        items = partials[0].tolist()
        return np.add.reduce(items) if items else None

    def lower(self, partial: Partial) -> bytes:
        if partial is None:
            return self._header(_EMPTY)
        return self.encode(partial)

    def _header(self, flags: int) -> bytes:
        return _HEADER.pack(_PREAMBLE, _VERSION, _FAMILY, flags, self.buckets, self.hashes, _SEED_HASH)

    def encode(self, partial: Partial) -> bytes:
        """Write the DataSketches form: 16 bytes, the number of entries, and the counters row by row."""
        entries = float(partial[: self.buckets].sum())
        return self._header(0) + struct.pack("<d", entries) + partial.astype("<f8").tobytes()  # type: ignore[no-any-return]

    def decode(self, data: bytes) -> Partial:
        """Read the DataSketches form.

        Raises:
            InvalidArgument: `data` is not a CountMin sketch of this size, or is damaged.
        """
        size = self.hashes * self.buckets
        if len(data) != _HEADER.size + 8 + 8 * size or data[: _HEADER.size] != self._header(0):
            raise InvalidArgument(
                f"not a CountMin sketch of DataSketches with {self.hashes} rows of {self.buckets} counters"
            )
        (entries,) = struct.unpack_from("<d", data, _HEADER.size)
        found = np.frombuffer(data, "<f8", offset=_HEADER.size + 8)
        if not (found >= 0).all() or not 0 < entries < _MOST or (found != np.floor(found)).any():
            raise InvalidArgument("a CountMin sketch has counters that are no numbers of entries")
        if (found.reshape(self.hashes, -1).sum(axis=1) != entries).any():
            raise InvalidArgument("the counters of a CountMin sketch do not add up to its number of entries")
        counters: Array = found.astype(np.int64)
        return counters

    def implausible(self, partials: Partials, entries: Array) -> Array:
        sums = [int(partial[: self.buckets].sum()) for partial in partials[0].tolist()]
        return np.array(sums, np.int64) != entries  # type: ignore[no-any-return]
