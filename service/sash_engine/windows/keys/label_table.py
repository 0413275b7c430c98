"""The values of keys' labels as dictionary codes: one column of int32 for each label, by the number of a key.

    number   key        airport   carrier        airport: JFK 0, LGA 1        carrier: AA 0, B6 1
    0        JFK|AA     0         0
    1        LGA|AA     1         0
    2        JFK|B6     0         1

The table is made when a question needs it first, and takes in later what was created since: writes pay nothing but a
note of the numbers. When more keys have gone than there are, it is made anew, and so forgets the values that no key has
any more.

Space: about 14 bytes a key and label where values repeat, and some 150 bytes for each distinct value.
To make it: some 0.2 µs a key and label, in steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import merge
from operator import itemgetter

import numpy as np
import numpy.typing as npt

from sash_engine.kernels import find_each
from sash_engine.monoids.base import Array
from sash_engine.steps import Steps, spans_of
from sash_engine.windows.keys.keys import Keys
from sash_engine.windows.keys.ragged import grown
from sash_wire.labels import split

_NAMES = 2_048
"""Keys whose labels one step takes in: 2 ms."""
_VALUES = 8_192
"""Values that one step sorts: 2 ms."""

Codes = npt.NDArray[np.int32]


def _columns(names: list[str], parts: int) -> list[list[str]]:
    """The parts of some keys, a list for each part. Mostly without an object for each key, which would be collected."""
    text = "|".join(names)
    if "\\" not in text:
        flat = text.split("|")
        return [flat[part::parts] for part in range(parts)]
    return [list(column) for column in zip(*[split(name, parts) for name in names], strict=True)]


class Label:
    """The values of one label.

    Attributes:
        values: the distinct values, by code.
        index: value -> code.
        codes: int32, by the number of a key; of numbers that no key has they mean nothing.
        matches: regular expression -> int8, by code: 1 where it fits the value, -1 where not, 0 where it was not asked.
    """

    def __init__(self) -> None:
        self.values: list[str] = []
        self.index: dict[str, int] = {}
        self.codes: Codes = np.empty(0, np.int32)
        self.matches: dict[str, npt.NDArray[np.int8]] = {}
        self._ranks: Codes = np.empty(0, np.int32)
        self._sorted: list[int] = []

    def put(self, numbers: Array, texts: list[str]) -> None:
        """Note the values of some keys."""
        index, values = self.index, self.values
        new = [text for text in dict.fromkeys(texts) if text not in index]
        index.update(zip(new, range(len(values), len(values) + len(new)), strict=True))
        values += new
        last = int(numbers.max(initial=-1))
        if last >= len(self.codes):
            self.codes = grown(self.codes, last + 1, 0)
        self.codes[numbers] = find_each(index, texts)

    def ranks(self) -> Steps[tuple[Codes, list[int]]]:
        """For each code its place in the order of the values, and for each place its code."""
        n, values = len(self.values), self.values
        if len(self._ranks) != n:
            in_order = yield from in_order_steps(values)
            ranks = np.empty(n, np.int32)
            ranks[in_order] = np.arange(n, dtype=np.int32)
            self._ranks, self._sorted = ranks, in_order
        return self._ranks, self._sorted


def in_order_steps(texts: Sequence[str]) -> Steps[list[int]]:
    """The places of texts in their order."""
    if len(texts) <= _VALUES:
        return sorted(range(len(texts)), key=texts.__getitem__)
    runs, in_order = list[list[tuple[str, int]]](), list[int]()
    for a, b in spans_of(len(texts), _VALUES):
        runs.append(sorted(zip(texts[a:b], range(a, b), strict=True)))
        yield
    for _, place in merge(*runs, key=itemgetter(0)):
        in_order.append(place)
        if not len(in_order) % _VALUES:
            yield
    return in_order


class LabelTable:
    """The labels of the keys of one window, where a key has parts.

    Args:
        keys: the keys; what is created among them from now on is noted for the table.
        parts: how many parts a key has.
    """

    def __init__(self, keys: Keys, parts: int) -> None:
        self._keys = keys
        self._parts = parts
        self.labels: list[Label] = []
        self._begin()

    def _begin(self) -> None:
        self.labels = [Label() for _ in range(self._parts)]
        self._keys.news = [range(self._keys.numbered)]
        self._gone = self._keys.gone

    def current(self) -> Steps[list[Label]]:
        """The labels of all keys that there are."""
        if self._keys.gone - self._gone > max(len(self._keys), _NAMES):
            self._begin()
        news = self._keys.news
        assert news is not None
        while news:
            # Taken and noted in one step: several questions may do this in turns.
            numbers = news.pop()
            if len(numbers) > _NAMES:
                news.append(numbers[:-_NAMES])
                numbers = numbers[-_NAMES:]
            names = self._keys.names_of(numbers)
            known = [name for name in names if name is not None]
            if known:
                of = np.array(numbers, np.int64)
                if len(known) < len(names):
                    of = of[[name is not None for name in names]]
                for label, column in zip(self.labels, _columns(known, self._parts), strict=True):
                    label.put(of, column)
            yield
        return self.labels

    def check_invariants(self) -> None:
        """Raise AssertionError if a key's labels are not those of its name; only when the table is current."""
        for number in self._keys.numbers().tolist():
            found = [label.values[label.codes[number]] for label in self.labels]
            assert found == list(split(self._keys.name(number), self._parts)), f"the labels of key {number} are {found}"
