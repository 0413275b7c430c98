"""The Reactive Aggregator: FlatFAT, a complete binary tree in an array, over a circular buffer of entries.

                        1                        node i has the children 2i and 2i + 1, and holds
                  /           \\                  the fold of the leaves below it
                2               3
              /   \\           /   \\
            4       5       6       7
           / \\     / \\     / \\     / \\
    slot  0   1   2   3   4   5   6   7          leaf of slot s: node capacity + s
          p8  p9  ·   ·   p4  ·   p6  p7         · is a hole: no entry, neutral in every fold
                  ^end    ^head

    answer = lower(suffix from the head ∘ prefix up to the end)     if the buffer is wrapped around ("inverted")
    answer = lower(root)                                            if it is not

A change at a leaf changes its log2 n ancestors. A batch of m changes walks all paths at once, level by level, so shared
ancestors are recomputed once. Entries may leave from anywhere: a hole stays until the head or the end reaches it, or
until the buffer is *compacted*, which happens when no slot is free. The buffer is *resized* if compacting would leave
less than a quarter free, or if only a quarter is used.

Entries are numbered from 0 in order of arrival. `evict_entry`, `prefix` and `suffix` take these numbers.

Worked example, with the numbers of the drawing (the value of each entry is its number). Ten entries fit into eight
slots after 0 to 3 have left; 5 leaves from the middle. The answer is the suffix from the head, 4∘(6∘7), ∘ the prefix,
8∘9.

>>> from sash_engine.monoids import Sum
>>> window = Reactive(Sum("int64"))
>>> window.change(insert=range(6))
>>> window.change(evict=range(4), insert=[6, 7])
>>> window.change(evict=[5], insert=[8, 9])
>>> window.query(), window.prefix(7), window.suffix(7), len(window)
(34, 17, 24, 5)

Insert, evict anywhere: log2 n combines, amortised over resizing.  Batch of m changes: O(m + m log(n / m)).
Query: none, or 2 log2 n if inverted.  Prefix, suffix: O(log n).  Space: 2 capacity partials; capacity < 4n.
Requires: associativity.  Order: inserts in order; evictions anywhere.
Source: Tangwongsan, Hirzel, Schneider and Wu, "General incremental sliding-window aggregation", VLDB 2015.
Differs: (a) holes are known and cost no combine; (b) entries are found by number, not by slot, so callers need not know
when the buffer moves them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from typing import Any

from sash_engine.aggregators.base import InOrder
from sash_engine.aggregators.checks import require, same
from sash_engine.errors import FailedPrecondition
from sash_engine.monoids.base import Monoid, Partial

HOLE = object()
"""Marks a node without entries below it. `identity` would not do: combines with it could not be skipped."""

LEAST_CAPACITY = 2


class Reactive(InOrder):
    """A window in a flat tree.

    Args:
        monoid: the aggregate.
    """

    algorithm = "reactive"

    def __init__(self, monoid: Monoid) -> None:
        super().__init__(monoid)
        self._size = 0
        self._inserted = 0  # all entries so far: the number of the next one
        self._head = self._used = 0  # entries and the holes between them use `_used` slots from the head on
        self._lay_out([], [])

    # ---------------------------------------------------------------- reading

    def __len__(self) -> int:
        return self._size

    @property
    def capacity(self) -> int:
        """The number of slots, a power of two."""
        return self._capacity

    @property
    def inverted(self) -> bool:
        """Whether the entries continue at the first slot after the last one."""
        return self._head + self._used > self._capacity

    @property
    def numbers(self) -> list[int]:
        """The numbers of the entries, oldest first."""
        return [self._numbers[slot] for slot in self._filled()]

    def query(self) -> Any:
        if not self.inverted:
            return self._lower(self._tree[1])
        return self._lower(self._fold(0, self._used))

    def prefix(self, number: int) -> Any:
        """Answer over the entries from the oldest to this number, inclusive; the entry itself may have left."""
        return self._lower(self._fold(0, self._offset(number + 1)))

    def suffix(self, number: int) -> Any:
        """Answer over the entries from this number, inclusive, to the youngest; the entry itself may have left."""
        return self._lower(self._fold(self._offset(number), self._used))

    def _lower(self, partial: Partial) -> Any:
        return self.monoid.lower(self.monoid.identity if partial is HOLE else partial)

    def _filled(self) -> list[int]:
        """Return the slots that have entries, oldest first."""
        slots = map(self._slot, range(self._used))
        return [slot for slot in slots if self._tree[self._capacity + slot] is not HOLE]

    def _slot(self, offset: int) -> int:
        """Return the slot that is `offset` slots from the head."""
        return (self._head + offset) & (self._capacity - 1)

    def _offset(self, number: int) -> int:
        """Return the offset of the first slot whose entry has, or had, that number or a greater one."""
        return bisect_left(range(self._used), number, key=lambda offset: self._numbers[self._slot(offset)])

    def _fold(self, first: int, last: int) -> Partial:
        """Fold the slots first <= offset < last from the head."""
        start, end = self._head + first, self._head + last
        if start >= self._capacity:
            return self._fold_slots(start - self._capacity, end - self._capacity)
        if end <= self._capacity:
            return self._fold_slots(start, end)
        return self._join(self._fold_slots(start, self._capacity), self._fold_slots(0, end - self._capacity))

    def _fold_slots(self, start: int, end: int) -> Partial:
        """Fold start <= slot < end: from both ends inward and upward, with the nodes that lie within the range."""
        older = newer = HOLE
        left, right = self._capacity + start, self._capacity + end
        while left < right:
            if left & 1:
                older = self._join(older, self._tree[left])
                left += 1
            if right & 1:
                right -= 1
                newer = self._join(self._tree[right], newer)
            left, right = left >> 1, right >> 1
        return self._join(older, newer)

    def _join(self, older: Partial, newer: Partial) -> Partial:
        if older is HOLE:
            return newer
        return older if newer is HOLE else self.monoid.combine(older, newer)

    # ---------------------------------------------------------------- changing

    def insert(self, value: Any) -> None:
        partial = self.monoid.lift(value)
        if self._used == self._capacity:
            self._replace([], [partial])
        else:
            self._size += 1
            self._climb(self._place(partial))

    def evict(self) -> None:
        if not self._size:
            raise self._nothing_to_evict()
        slot = self._head
        if (self._size - 1) * 4 <= self._capacity > LEAST_CAPACITY:
            self._replace([slot], [])
        else:
            self._size -= 1
            self._tree[self._capacity + slot] = HOLE
            self._trim()
            self._climb(slot)

    def evict_entry(self, number: int) -> None:
        """Evict an entry from anywhere.

        Raises:
            FailedPrecondition: there is no entry with that number.
        """
        self.change(evict=(number,))

    def change(self, *, evict: Iterable[int] = (), insert: Iterable[Any] = ()) -> None:
        """Make many changes in one pass over the tree: evict entries, then insert others.

        Args:
            evict: numbers of entries, each once, in any order.
            insert: values, oldest first.

        Raises:
            FailedPrecondition: `evict` has a number without an entry.
        """
        partials = [self.monoid.lift(value) for value in insert]
        self._replace(self._find(evict), partials)

    def _replace(self, slots: list[int], partials: list[Partial]) -> None:
        """Empty these slots, and put these partials after the youngest entry."""
        for slot in slots:
            self._tree[self._capacity + slot] = HOLE
        self._size += len(partials) - len(slots)
        self._trim()
        too_few = self._used + len(partials) > self._capacity
        too_many = self._size * 4 <= self._capacity > LEAST_CAPACITY
        if too_few or too_many:
            numbers = range(self._inserted, self._inserted + len(partials))
            leaves = [self._tree[self._capacity + slot] for slot in self._filled()]
            self._inserted = numbers.stop
            self._lay_out([*self.numbers, *numbers], [*leaves, *partials])
        else:
            self._recompute_all([*slots, *map(self._place, partials)])

    def _place(self, partial: Partial) -> int:
        """Put a partial into the next slot, which must be free; return the slot."""
        slot = self._slot(self._used)
        self._used += 1
        self._numbers[slot] = self._inserted
        self._inserted += 1
        self._tree[self._capacity + slot] = partial
        return slot

    def _find(self, numbers: Iterable[int]) -> list[int]:
        """Return the slots of these entries."""
        slots: dict[int, None] = {}
        for number in numbers:
            offset = self._offset(number)
            slot = self._slot(offset)
            found = offset < self._used and self._numbers[slot] == number
            if not found or slot in slots or self._tree[self._capacity + slot] is HOLE:
                raise FailedPrecondition(f"the window has no entry with the number {number}", field="number")
            slots[slot] = None
        return list(slots)

    def _trim(self) -> None:
        """Drop the holes at both ends, so that the head and the last used slot have entries."""
        while self._used and self._tree[self._capacity + self._head] is HOLE:
            self._head = self._slot(1)
            self._used -= 1
        while self._used and self._tree[self._capacity + self._slot(self._used - 1)] is HOLE:
            self._used -= 1

    def _recompute_all(self, slots: Iterable[int]) -> None:
        """Recompute the ancestors of these slots, each once."""
        tree = self._tree
        nodes = {(self._capacity + slot) >> 1 for slot in slots}
        while nodes and 0 not in nodes:
            for node in nodes:
                tree[node] = self._join(tree[2 * node], tree[2 * node + 1])
            nodes = {node >> 1 for node in nodes}

    def _climb(self, slot: int) -> None:
        """Recompute the ancestors of one slot: as `_recompute_all`, without its sets."""
        tree, combine = self._tree, self.monoid.combine
        node = (self._capacity + slot) >> 1
        while node:
            older, newer = tree[2 * node], tree[2 * node + 1]
            tree[node] = newer if older is HOLE else older if newer is HOLE else combine(older, newer)
            node >>= 1

    def _lay_out(self, numbers: list[int], partials: list[Partial]) -> None:
        """Move all entries, without holes, to slots from 0 on in the smallest tree with a quarter of its slots free."""
        count = len(partials)
        self._capacity = LEAST_CAPACITY
        while count * 4 > self._capacity * 3:
            self._capacity *= 2
        free = self._capacity - count
        self._head, self._used = 0, count
        self._numbers = numbers + [0] * free
        self._tree: list[Partial] = [HOLE] * self._capacity + partials + [HOLE] * free
        for node in range(self._capacity - 1, 0, -1):
            self._tree[node] = self._join(self._tree[2 * node], self._tree[2 * node + 1])

    def check_invariants(self) -> None:
        capacity, size, tree = self._capacity, self._size, self._tree
        require(capacity.bit_count() == 1, "capacity", f"{capacity} is not a power of two")
        require(len(tree) == 2 * capacity, "nodes", f"{len(tree)} for a capacity of {capacity}")
        require(size * 4 > capacity or capacity == LEAST_CAPACITY, "fill", f"{size} entries in {capacity} slots")
        require(self._used <= capacity, "used", f"{self._used} slots of {capacity}")
        used = [self._slot(offset) for offset in range(self._used)]
        filled = {slot for slot in range(capacity) if tree[capacity + slot] is not HOLE}
        require(len(filled) == size, "size", f"{len(filled)} leaves are filled, for {size} entries")
        require(filled <= set(used), "leaves", f"slots {sorted(filled - set(used))} are outside the window")
        if used:
            require({used[0], used[-1]} <= filled, "ends", "there is a hole at the head or at the end")
        numbers = [self._numbers[slot] for slot in used]
        require(numbers == sorted(set(numbers)), "numbers", f"{numbers} are not in order")
        for node in range(1, capacity):
            expected = self._join(tree[2 * node], tree[2 * node + 1])
            hole = tree[node] is HOLE or expected is HOLE
            agree = tree[node] is expected if hole else same(tree[node], expected)
            require(agree, f"node {node}", f"{tree[node]!r}, but its children fold to {expected!r}")
