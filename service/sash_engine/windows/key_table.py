"""The keys of a window by number: names, marks, and which numbers are free.

    "JFK" ─▶ 0      by number:  name, now, late_through, touched
    "LGA" ─▶ 1      numbers are dense from 0
    "EWR" ─▶ 2      the number of a key that was forgotten serves another key

`now` and `late_through` are kept per key, so they are kept here. The window decides what they mean: it writes
`late_through`, and inserts raise `now`.

A key without entries keeps its marks: a mark that goes back would let in entries that were late before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice, repeat

import numpy as np
import numpy.typing as npt

from sash_engine.windows.page_allocator import Numbers
from sash_engine.windows.ragged import grown

__all__ = ["NEVER", "UNKEYED", "KeyTable"]

NEVER = -(2**63)
"""No entry has this time: nothing is late, nothing is newest."""

UNKEYED = ""
"""The name of the one key of a window without keys; no other key can have it."""


class KeyTable:
    """Names, numbers and marks of keys.

    Attributes:
        now: int64, by number: the newest time ever inserted, `NEVER` before. It does not go back when entries leave.
        late_through: int64, by number: entries of this time and older come too late; `NEVER` at first.
        touched: int64, by number: when a key was last written, as the window says; 0 before.
        now_of, late_through_of: the same memory for access to one: Python integers, in half the time.
        find: name -> the number of a key, None where there is no such key.
        news: the numbers of keys that were created since they were taken last, for whoever set it; None: nobody.
        gone: how many keys were ever forgotten.
    """

    def __init__(self) -> None:
        self.touched: Numbers = np.empty(0, np.int64)
        self.now: Numbers = np.empty(0, np.int64)
        self.late_through: Numbers = np.empty(0, np.int64)
        self.now_of, self.late_through_of = self.now.data, self.late_through.data
        self._numbers: dict[str, int] = {}
        self.find: Callable[[str], int | None] = self._numbers.get
        self._names: list[str | None] = []
        self._unused: list[int] = []
        self.news: list[Sequence[int]] | None = None
        self.gone = 0

    def __len__(self) -> int:
        """How many keys are remembered, with entries or without."""
        return len(self._numbers)

    def find_each(self, names: Sequence[str]) -> Numbers:
        """The numbers of keys, int64 (k,); -1 where there is no such key."""
        return np.fromiter(map(self._numbers.get, names, repeat(-1)), np.int64, len(names))

    def name(self, number: int) -> str:
        """The name of a key."""
        name = self._names[number]
        assert name is not None, f"there is no key {number}"
        return name

    @property
    def numbered(self) -> int:
        """All numbers of keys are below this one."""
        return len(self._names)

    def name_of(self, number: int) -> str | None:
        """The name of a key; None for a number that no key has."""
        return self._names[number]

    def written(self) -> Numbers:
        """The numbers of all keys that were ever written, sorted: 1 ms for a million."""
        return np.flatnonzero(self.now[: len(self._names)] > NEVER)

    def is_written(self, numbers: Numbers) -> npt.NDArray[np.bool_]:
        """Which of some numbers are those of keys that were ever written."""
        written: npt.NDArray[np.bool_] = self.now[numbers] > NEVER
        return written

    def names(self) -> list[str]:
        """The names of all keys, in the order in which they were created."""
        return list(self._numbers)

    def numbers(self) -> Numbers:
        """The numbers of all keys, int64, in the order in which they were created."""
        return np.fromiter(self._numbers.values(), np.int64, len(self._numbers))

    def chunks(self, size: int) -> Iterator[tuple[list[str], Numbers]]:
        """All names and their numbers, int64, in the order in which they were created, `size` at a time.

        Keys may neither come nor go while it is read.
        """
        items = iter(self._numbers.items())
        while chunk := dict(islice(items, size)):
            yield list(chunk), np.fromiter(chunk.values(), np.int64, len(chunk))

    def create(self, names: Sequence[str]) -> Numbers:
        """Create keys, none of which exists; return their numbers, int64 (k,). They have no entries yet."""
        again = min(len(self._unused), len(names))
        first, last = len(self._names), len(self._names) + len(names) - again
        numbers = [*(self._unused.pop() for _ in range(again)), *range(first, last)]
        self._reach(last)
        self._numbers.update(zip(names, numbers, strict=True))
        for number, name in zip(numbers[:again], names, strict=False):
            self._names[number] = name
        self._names[first:last] = names[again:]
        if self.news is not None:
            self.news.append(numbers)
        return np.array(numbers, np.int64)

    def unused(self, first: int = 0, stop: int | None = None) -> Numbers:
        """Numbers first..stop of those that no key has any more, int64; new keys get the last ones first."""
        return np.array(self._unused[first:stop], np.int64)

    def resume(self, names: Sequence[str], numbers: Numbers, unused: Numbers) -> None:
        """Create keys as they were elsewhere, after all that are there; `unused` as `unused` gave it, or a part.

        A number is named or unused once, and in the end there is no gap.
        """
        both = np.concatenate((numbers, unused))
        self._reach(max(int(both.max(initial=-1)) + 1, len(self._names)))
        self._unused.extend(unused.tolist())
        for number, name in zip(numbers.tolist(), names, strict=True):
            self._numbers[name] = number
            self._names[number] = name
        if self.news is not None:
            self.news.append(numbers.tolist())

    def _forget(self, numbers: Numbers) -> None:
        """Remove keys and their marks; later keys may get their numbers."""
        self.now[numbers] = self.late_through[numbers] = NEVER
        self.gone += len(numbers)
        for number in numbers.tolist():
            del self._numbers[self.name(number)]
            self._names[number] = None
            self._unused.append(number)

    def _reach(self, n: int) -> None:
        self._names.extend(repeat(None, n - len(self._names)))
        if n > len(self.now):
            self.now = grown(self.now, n, NEVER)
            self.late_through = grown(self.late_through, n, NEVER)
            self.touched = grown(self.touched, n, 0)
            self.now_of, self.late_through_of = self.now.data, self.late_through.data

    def check_invariants(self) -> None:
        """Raise AssertionError naming the first invariant that does not hold."""
        named = {number: name for number, name in enumerate(self._names) if name is not None}
        assert {name: number for number, name in named.items()} == self._numbers, "names and numbers are a bijection"
        assert sorted([*named, *self._unused]) == list(range(len(self._names))), "a number is named, or unused, once"
        for number in range(len(self.now)):
            if number not in named:
                marks = self.now.item(number), self.late_through.item(number)
                assert marks == (NEVER, NEVER), f"key {number} does not exist, and has marks"
