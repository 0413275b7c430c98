"""Sketches of Apache DataSketches: distinct count (HLL), quantiles (KLL and t-digest), frequent items.

    block 1 --update--> sketch --\\
                                  combine: a copy, then merge --> lower: estimate
    block 2 --update--> sketch --/

A partial is a live sketch of the `datasketches` package. `encode` and `decode` use the binary form that the Java and
C++ libraries, Spark and Druid read and write. A combine never changes its arguments, so a partial may be shared. Bytes
of any other origin are checked before the library reads them (`sketch_forms.py`).

Estimates of KLL and frequent items depend on how combines are grouped, within the error that they promise. KLL also
draws random numbers, and the library has no way to seed them. HLL registers are maxima, so their order does not matter.
"""

from __future__ import annotations

import copy
import struct
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any

import datasketches as ds
import numpy as np

from sash_engine.errors import InvalidArgument
from sash_engine.kernels import count_new, coupons, last_before, slide_registers
from sash_engine.monoids.base import (
    ANY,
    NUMERIC,
    Array,
    FieldType,
    Joined,
    Partial,
    Partials,
    Read,
    Schema,
    Values,
    whole,
)
from sash_engine.monoids.sketch_forms import (
    checked_frequent_items,
    checked_hll,
    checked_kll,
    checked_tdigest,
    kll_of,
    tdigest_of,
)
from sash_engine.steps import Steps, spans_of

_LARGEST = 1e289
"""A t-digest multiplies values with their weights, of up to 2^62. Smaller values do not overflow."""
_SLIDING = 14
"""Up to this lg_k ranges are counted one from the other: how many rows set which register to what takes 4 MiB."""
_CHANGES = 32_768
"""Rows that come and leave in one step: 1 to 2 ms."""
_NOTED, _NOTED_OBJECTS = 1 << 18, 1_024
"""Values of which one step computes what a sketch notes: 2 ms."""
_EMPTY_STRING = -1
"""An HLL sketch counts this value in place of the empty string, which the library leaves out."""


class _Sketch(Joined):
    """Partial: a live sketch; `identity` is None."""

    commutative = True
    large = True
    sparse_suffixes = True

    def lift(self, value: Any) -> Partial:
        return self._sketch_of([value])

    def reduce(self, values: Values) -> Partial:
        items = values[0].tolist()
        return self._sketch_of(items) if items else None

    def decode(self, data: bytes) -> Partial:
        """Read the binary form of DataSketches, of any origin.

        Raises:
            InvalidArgument: `data` is not a sketch of this kind, or is damaged.
        """
        try:
            return self._resized(self._read(self._checked(data)))
        except (RuntimeError, ValueError, IndexError, MemoryError, struct.error) as error:
            raise InvalidArgument(f"not a sketch of {self.function}: {error}") from None

    def restore(self, data: bytes) -> Partial:
        try:
            return self._read(data)
        except (RuntimeError, ValueError, IndexError, MemoryError) as error:
            raise InvalidArgument(f"not a sketch of {self.function}: {error}") from None

    @abstractmethod
    def _sketch_of(self, items: list[Any]) -> Partial:
        """Make a sketch of some items."""

    def join(self, older: Any, newer: Any) -> Any:
        both = copy.copy(older)
        both.merge(newer)
        return both

    @abstractmethod
    def _checked(self, data: bytes) -> bytes:
        """Check everything that the library relies on, and return bytes that it can read.

        Raises:
            ValueError, struct.error: `data` is not a sketch of this kind, or is damaged.
        """

    @abstractmethod
    def _read(self, data: bytes) -> Partial:
        """Deserialise checked bytes. The library does not check offsets itself."""

    @abstractmethod
    def _resized(self, sketch: Partial) -> Partial:
        """Bring a sketch of another size to this aggregate's size, so that it does not take more memory."""


class DistinctCount(_Sketch):
    """An estimate of how many distinct values a field has, rounded to a whole number; 0 over no entries.

    An HLL sketch of 2^lg_k registers, type HLL_8. It is nearly exact up to some hundred values. Above, its relative
    standard error is 1.04 / sqrt(2^lg_k), which is 1.6 % at the default. All NaN count as one value, and so do -0.0
    and 0.0.

    DataSketches leaves out the empty string. So sketches of strings count the int64 -1 in its place: it is hashed as
    eight bytes 0xFF, which no string has in UTF-8. A sketch from elsewhere has the empty string only if its maker does
    the same.

    Args:
        lg_k: 4 to 21; a sketch takes up to 2^lg_k bytes.

    Flags: commutative, exact (the estimate depends on the values alone, not on how combines are grouped).

    Source: Flajolet, Fusy, Gandouet, Meunier, "HyperLogLog", 2007, as built in Apache DataSketches.

    >>> import numpy as np
    >>> from sash_engine.monoids import DistinctCount
    >>> distinct = DistinctCount("string")
    >>> distinct.lower(distinct.reduce([np.array(["ann", "bob", "ann"], object)]))
    2
    """

    function = "distinct_count"
    parts = ("sketch",)
    blob = "an HLL sketch of DataSketches; of strings it has the int64 -1 in place of the empty one"
    reads = (Read("field", ANY),)
    answer = int

    def __init__(self, *types: FieldType, lg_k: int = 12) -> None:
        super().__init__(*types)
        self.lg_k = whole("lg_k", lg_k, 4, 21)

    @property
    def _by_coupons(self) -> Array:
        """By number of coupons the answer, as far as a sketch keeps them in a set; -1 where it is not known yet."""
        return _answers_of_few(self.lg_k)

    def lower(self, partial: Partial) -> int:
        if partial is None:
            return 0
        image = bytearray(partial.serialize_compact())
        # A sketch that was never merged has a better estimate than a merged one. Marking it as merged (byte 5, bit 4;
        # byte 7 says that it has registers) makes the answer the same for both.
        if image[7] & 3 == 2:
            image[5] |= 16
            partial = ds.hll_sketch.deserialize(bytes(image))
        return round(float(partial.get_estimate()))

    def over_ranges(self, values: Values) -> Callable[[Array, Array], Array]:
        """Answer over ranges of rows, without a sketch of each.

        rows       a  b  a  c  b  d         a sketch of few values is a set of coupons, and its estimate depends on how
        coupons    1  2  1  3  2  4         many there are; one coupon in a million stands for two values
        before     -  -  0  -  1  -         a range has as many coupons as rows whose coupon was last before its start
        """
        (column,) = values
        before = last_before(self._coupons(column, {}))

        def answers(starts: Array, stops: Array) -> Array:
            out = self._of_few(column, starts, stops, count_new(before, starts, stops))
            for i in np.flatnonzero(out < 0).tolist():
                out[i] = self.lower(self.reduce([column[starts[i] : stops[i]]]))
            return out

        return answers

    @property
    def slides(self) -> bool:
        return self.lg_k <= _SLIDING

    def over_sliding(self, values: Values, starts: Array, stops: Array) -> Steps[Array]:
        """As `over_ranges`, also of many values: the estimate depends on how many registers have which value.

        A union of two sketches takes 34 us, and the estimate of one 0.7. The library computes it: from the numbers in
        the head of a sketch, whatever registers follow.
        """
        (column,), image, held = values, bytearray(_merged(self.lg_k)), None
        none, codes = np.empty(0, np.int64), dict[Any, int]()
        parts, found = [none], [none]
        for a, b in spans_of(len(column), _NOTED_OBJECTS if column.dtype.hasobject else _NOTED):
            parts.append(self._coupons(column[a:b], codes))
            yield
        noted, done = np.concatenate(parts), 0
        while done < len(starts):
            counts, *head, held = slide_registers(noted, starts[done:], stops[done:], self.lg_k, held, _CHANGES)
            some = slice(done, done + len(counts))
            found.append(self._of_few(column, starts[some], stops[some], counts))
            many = np.flatnonzero(found[-1] < 0)
            others = [np.diff(each[many], prepend=np.nan) != 0 for each in head]
            new, estimates = np.flatnonzero(np.logical_or.reduce(others)), list[int]()
            for zeros, low, high in zip(*[each[many[new]].tolist() for each in head], strict=True):
                struct.pack_into("<ddI", image, 16, low, high, zeros)
                estimates.append(round(float(ds.hll_sketch.deserialize(bytes(image)).get_estimate())))
            found[-1][many] = np.repeat(np.array(estimates, np.int64), np.diff(new, append=len(many)))
            done += len(counts)
            yield
        return np.concatenate(found)

    def _of_few(self, column: Array, starts: Array, stops: Array, counts: Array) -> Array:
        """The answers over ranges of rows with so many coupons; -1 where a sketch of them has registers."""
        few = np.flatnonzero(counts < len(self._by_coupons))
        _, firsts = np.unique(counts[few], return_index=True)
        for i in few[firsts].tolist():
            if self._by_coupons[counts[i]] < 0:
                self._by_coupons[counts[i]] = self.lower(self.reduce([column[starts[i] : stops[i]]]))
        out = np.full(len(counts), -1)
        out[few] = self._by_coupons[counts[few]]
        return out

    def _coupons(self, column: Array, codes: dict[Any, int]) -> Array:
        """What a sketch notes of each value, as the library computes it; `codes` gets those of objects."""
        if column.dtype == np.int64:
            return coupons(column.view(np.uint64))
        if column.dtype == np.float64:
            same = np.where(column == 0.0, 0.0, column).view(np.uint64)
            return coupons(np.where(column != column, np.uint64(0x7FF8000000000000), same))
        for item in column.tolist():
            if item not in codes:
                codes[item] = struct.unpack_from("<I", self._sketch_of([item]).serialize_compact(), 8)[0]
        return np.array([codes[item] for item in column.tolist()], np.int64)

    def encode(self, partial: Partial) -> bytes:
        """Write the compact form of an HLL sketch."""
        return partial.serialize_compact()  # type: ignore[no-any-return]

    def _sketch_of(self, items: list[Any]) -> Partial:
        sketch = ds.hll_sketch(self.lg_k, ds.HLL_8)
        update = sketch.update
        distinct = dict.fromkeys(items)
        if "" in distinct:
            del distinct[""]
            update(_EMPTY_STRING)
        for item in distinct:
            update(item)
        return sketch

    def join(self, older: Any, newer: Any) -> Any:
        union = ds.hll_union(self.lg_k)
        union.update(older)
        union.update(newer)
        return union.get_result(ds.HLL_8)

    def _checked(self, data: bytes) -> bytes:
        return checked_hll(data)

    def _read(self, data: bytes) -> Partial:
        return ds.hll_sketch.deserialize(data)

    def _resized(self, sketch: Partial) -> Partial:
        if sketch.lg_config_k == self.lg_k:
            return sketch
        union = ds.hll_union(self.lg_k)
        union.update(sketch)
        return union.get_result(ds.HLL_8)


class Quantile(_Sketch):
    """One or several quantiles of a field, estimated; None over no entries.

    The answer for q is the least value v such that at least the share q of all values is v or less (0.5: the lower
    median). A KLL sketch of doubles. It is exact up to about `k` values. Above, the rank of the answer is within
    `error` of q with 99 % confidence (1.33 % at the default k). NaN has no rank and is left out.

    With `accuracy: tail`, it is a t-digest of doubles. Its error shrinks towards both ends: at the default k, the rank
    of the answer is mostly within 0.1 q (1 - q) of q, so 0.01 % for 0.999, but 2.5 % for the median. An answer may lie
    between two values that occurred. Values beyond ±1e289 count as that.

    Args:
        q: a number from 0 to 1; or a list of up to 1,000 of them, and then the answer is a list.
        k: 10 to 65,535, and from 8 on with `accuracy: rank`. A KLL sketch keeps about 3 k values, a t-digest up to
            2 k means and 8 k values.
        accuracy: "rank" (the same error everywhere), or "tail".

    Flags: commutative.

    Source: Karnin, Lang, Liberty, "Optimal quantile approximation in streams", 2016; Dunning, Ertl, "Computing
    extremely accurate quantiles using t-digests", 2019; both as built in Apache DataSketches.

    >>> import numpy as np
    >>> from sash_engine.monoids import Quantile
    >>> quartiles = Quantile(q=[0.25, 0.75])
    >>> quartiles.lower(quartiles.reduce([np.arange(1.0, 101.0)]))
    [25.0, 75.0]
    """

    function = "quantile"
    parts = ("sketch",)
    blob = "a KLL sketch of doubles of DataSketches; with `accuracy: tail` a t-digest of doubles"
    reads = (Read("field", NUMERIC),)
    exact = False

    def __init__(
        self, *types: FieldType, q: float | Sequence[float] = 0.5, k: int = 200, accuracy: str = "rank"
    ) -> None:
        super().__init__(*types)
        if accuracy not in ("rank", "tail"):
            raise InvalidArgument("accuracy must be rank or tail", field="accuracy", limit="rank, tail")
        self.tail = accuracy == "tail"
        ranks: list[Any] = list(q) if isinstance(q, (list, tuple)) else [q]
        if not 1 <= len(ranks) <= 1000 or not all(
            isinstance(rank, (int, float)) and not isinstance(rank, bool) and 0 <= rank <= 1 for rank in ranks
        ):
            limit = "numbers from 0 to 1, at most 1,000 of them"
            raise InvalidArgument("q must be a quantile or a list of quantiles", field="q", limit=limit)
        self.ranks = [float(rank) for rank in ranks]
        self.answer = list if isinstance(q, (list, tuple)) else float
        least = 10 if self.tail else 8
        self.k = whole("k", k, least, 65535, f"{least} to 65535")

    @property
    def schema(self) -> Schema:
        return ["float64"] if self.answer is list else "float64"

    @property
    def error(self) -> float:
        """The error of an answer's rank, as a share of all values, with 99 % confidence; of a KLL sketch."""
        return float(ds.kll_doubles_sketch.get_normalized_rank_error(self.k, False))

    def lower(self, partial: Partial) -> float | list[float] | None:
        if partial is None or partial.is_empty():
            return None
        # A quantile sorts a part of the sketch in place, and a partial may be shared.
        mine = copy.copy(partial)
        found = [mine.get_quantile(q) for q in self.ranks] if self.tail else mine.get_quantiles(self.ranks, True)
        return found if self.answer is list else found[0]

    def reduce(self, values: Values) -> Partial:
        (column,) = values
        return self._sketch_of(column) if len(column) else None

    def encode(self, partial: Partial) -> bytes:
        """Write a KLL sketch, or a t-digest, of doubles."""
        # A t-digest compresses itself before it is written, and a partial may be shared.
        return (copy.copy(partial) if self.tail else partial).serialize()  # type: ignore[no-any-return]

    def _sketch_of(self, items: list[Any] | Array) -> Partial:
        if self.tail:
            digest = ds.tdigest_double(self.k)
            digest.update(np.clip(np.require(items, np.float64, ["C"]), -_LARGEST, _LARGEST))
            return digest
        sketch = ds.kll_doubles_sketch(self.k)
        # The library rejects read-only arrays. Columns from the network or from a tier are read-only.
        sketch.update(np.require(items, np.float64, ["C", "W"]))
        return sketch

    def of_buckets(self, lows: Array, highs: Array, counts: Array) -> bytes:
        """Return the sketch of values that lie evenly in buckets, encoded; always the same one of the same buckets.

        Beside what the buckets do not tell, the rank of an answer is within 1 / k of q.

        Args:
            lows, highs: float64 (n,), finite, in rising order: where each bucket begins and ends.
            counts: int64 (n,), at least 1: how many values are in each.
        """
        ends = np.cumsum(counts)
        total = ends.item(-1)
        if self.tail:
            lows, highs = np.clip(lows, -_LARGEST, _LARGEST), np.clip(highs, -_LARGEST, _LARGEST)

        def at(ranks: Array) -> Array:
            bucket = np.searchsorted(ends, ranks, "left")
            share = (ranks - (ends - counts)[bucket]) / counts[bucket]
            low, high = lows[bucket] / 2, highs[bucket] / 2  # their difference may be out of range
            return np.minimum(2 * (low + (high - low) * share), highs[bucket])  # type: ignore[no-any-return]

        if total <= self.k:
            return self.encode(self._sketch_of(at(np.arange(total) + 0.5)))
        if self.tail:  # small steps at both ends, none over the end of a bucket
            steps = np.rint(total * (0.5 - np.cos(np.linspace(0, np.pi, self.k + 1)) / 2)).astype(np.int64)
            cuts = np.union1d(steps, ends)
            return tdigest_of(self.k, at((cuts[:-1] + cuts[1:]) / 2), np.diff(cuts), lows.item(0), highs.item(-1))
        level = (total // self.k).bit_length() - 1
        level += total >> level > self.k
        # Whole steps of 2^level ranks, and the ranks behind them in steps of smaller powers of two: one item of each.
        steps = np.full(total >> level, 1 << level, np.int64)
        rest = [1 << each for each in reversed(range(level)) if total >> each & 1]
        weights = np.concatenate((steps, np.array(rest, np.int64)))
        items = at(np.cumsum(weights) - weights / 2)
        return kll_of(self.k, items[len(steps) :], rest, items[: len(steps)], level, lows.item(0), highs.item(-1))

    def implausible(self, partials: Partials, entries: Array) -> Array:
        weights = (sketch.get_total_weight() if self.tail else sketch.n for sketch in partials[0])
        return np.fromiter(weights, np.float64, len(entries)) > entries

    def _checked(self, data: bytes) -> bytes:
        return checked_tdigest(data, _LARGEST) if self.tail else checked_kll(data)

    def _read(self, data: bytes) -> Partial:
        return (ds.tdigest_double if self.tail else ds.kll_doubles_sketch).deserialize(data)

    def _resized(self, sketch: Partial) -> Partial:
        if sketch.k <= self.k:
            return sketch
        return self.join((ds.tdigest_double if self.tail else ds.kll_doubles_sketch)(self.k), sketch)


class FrequentItems(_Sketch):
    """The most frequent values of a field and how often each occurs, estimated; [] over no entries.

    The answer is a list of `{"item": …, "count": …, "lower": …, "upper": …}`, ordered by falling counts, and by items
    for equal counts. The true count lies between `lower` and `upper`. Counts are exact up to 0.75 * 2^lg_max_map_size
    distinct values. Above, `upper - lower` is at most 3.5 / 2^lg_max_map_size of all entries, and the answer has every
    value that is more frequent than that, up to `limit`.

    Args:
        limit: the greatest number of items in the answer, 1 to 10,000.
        lg_max_map_size: 3 to 20; a sketch keeps up to 0.75 * 2^lg_max_map_size items.

    Flags: commutative.

    Source: Anderson et al., "A high-performance algorithm for identifying frequent items in data streams", 2017,
    as built in Apache DataSketches. Java's ItemsSketch reads strings with ArrayOfStringsSerDe and int64 with
    ArrayOfLongsSerDe.

    >>> import numpy as np
    >>> from sash_engine.monoids import FrequentItems
    >>> frequent = FrequentItems("string", limit=1)
    >>> frequent.lower(frequent.reduce([np.array(["UA", "AA", "UA"], object)]))
    [{'item': 'UA', 'count': 2, 'lower': 2, 'upper': 2}]
    """

    function = "frequent_items"
    parts = ("sketch",)
    blob = "a frequent items sketch of DataSketches, of strings or int64"
    reads = (Read("field", ("string", "int64")),)
    exact = False
    answer = list
    values_per_entry = 4

    def __init__(self, *types: FieldType, limit: int = 10, lg_max_map_size: int = 10) -> None:
        super().__init__(*types)
        self.limit = whole("limit", limit, 1, 10_000, "1 to 10000")
        self.lg_max_map_size = whole("lg_max_map_size", lg_max_map_size, 3, 20)

    @property
    def schema(self) -> Schema:
        return [{"item": self.types[0], "count": "int64", "lower": "int64", "upper": "int64"}]

    def lower(self, partial: Partial) -> list[dict[str, Any]]:
        if partial is None:
            return []
        found = partial.get_frequent_items(ds.frequent_items_error_type.NO_FALSE_NEGATIVES)
        found.sort(key=lambda row: (-row[1], row[0]))
        names = ("item", "count", "lower", "upper")
        return [dict(zip(names, row, strict=True)) for row in found[: self.limit]]

    def encode(self, partial: Partial) -> bytes:
        """Write a frequent items sketch: strings as their length and UTF-8, or int64."""
        if self.types[0] == "string":
            return partial.serialize()  # type: ignore[no-any-return]
        return partial.serialize(ds.PyLongsSerDe())  # type: ignore[no-any-return]

    def _sketch_of(self, items: Iterable[Any]) -> Partial:
        make = ds.frequent_strings_sketch if self.types[0] == "string" else ds.frequent_items_sketch
        sketch = make(self.lg_max_map_size)
        update = sketch.update
        for item, count in Counter(items).items():
            update(item, count)
        return sketch

    def implausible(self, partials: Partials, entries: Array) -> Array:
        return np.fromiter((sketch.total_weight for sketch in partials[0]), np.float64, len(entries)) > entries

    def _checked(self, data: bytes) -> bytes:
        return checked_frequent_items(data, self.types[0] == "string")

    def _resized(self, sketch: Partial) -> Partial:
        ours = self._sketch_of([])
        return self.join(ours, sketch) if sketch.epsilon < ours.epsilon else sketch

    def _read(self, data: bytes) -> Partial:
        if self.types[0] == "string":
            return ds.frequent_strings_sketch.deserialize(data)
        return ds.frequent_items_sketch.deserialize(data, ds.PyLongsSerDe())


@cache
def _answers_of_few(lg_k: int) -> Array:
    """By number of coupons the answer, -1 where nobody asked yet; up to where a sketch of this size has registers."""
    return np.full((3 << lg_k - 3) // 4 + 1 if lg_k >= 8 else 8, -1, np.int64)


@cache
def _merged(lg_k: int) -> bytes:
    """An HLL sketch that has registers and was merged."""
    union = ds.hll_union(lg_k)
    for item in range(1 << lg_k):
        union.update(item)
    image = bytearray(union.get_result(ds.HLL_8).serialize_compact())
    image[5] |= 16
    return bytes(image)
