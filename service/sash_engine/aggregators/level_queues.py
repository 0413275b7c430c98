"""The level queues of the monoid tree aggregators: in memory, or with their middle in a key-value store.

    index        0   1   2   3 | 4   5   6   7 | 8   9  10  11 |12  13
    chunk (4)    (dropped)     |       1       |       2       |   3
    in memory                    .  [5   6   7]                 [12  13]   head chunk and tail chunk
    in the store                 chunk 1         chunk 2
                                     ^ head = 5                        ^ tail = 14

A level queue is first in, first out, and every node can be read by its index, which never changes: node j of level i
folds the entries j * 2^i to (j + 1) * 2^i - 1. Nodes are written once. A full tail chunk is moved to the store. It is
read back when the head reaches it; a read in the middle fetches its chunk and does not keep it. Keys are computed from
(level, index), so several reads share one round trip.

>>> store = DictStore()
>>> levels = StoredLevels(store, chunk=4)
>>> queue = levels.add(start=0)
>>> for time in range(14):
...     queue.append((time, 10 * time))
>>> queue.drop(5)
>>> levels.read([(0, 5), (0, 9), (0, 13)]), store.round_trips
([(5, 50), (9, 90), (13, 130)], 1)
>>> queue.local, len(store)
(6, 2)

MemoryQueue: append amortised O(1), drop of any number O(1), read O(1).  StoredQueue: append amortised O(1) and one
write per chunk, drop one range delete, at most two chunks local.
Source: Villalba, Berral, Carrera, TPDS 2019, the level queues of MTA and its key-value variant.  Differs: chunks
instead of single nodes are the values of the store; a memory queue is a ring, and later appends overwrite dropped
nodes, so dropping takes no time and frees memory later.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Protocol

from sash_engine.errors import InvalidArgument
from sash_engine.monoids.base import Partial

LevelNode = tuple[int, Partial]
"""The time of the newest entry that the node folds (ticks), and the partial."""

Place = tuple[int, int]
"""The level and the index of a node."""

Key = tuple[int, int]
"""The level and the number of a chunk."""

Chunk = tuple[LevelNode | None, ...]
"""The nodes of a chunk; None before the first node of its queue."""


class KeyValueStore(Protocol):
    """A store for the middle of the queues.

    1. `get_many` returns chunks in the order of the keys. All keys were put and not deleted.
    2. No key is put twice, and no chunk is changed.
    3. A store of bytes encodes partials with the monoid's `encode`.
    """

    def get_many(self, keys: Sequence[Key]) -> list[Chunk]:
        """Read chunks, in one round trip."""

    def put_many(self, chunks: Mapping[Key, Chunk]) -> None:
        """Write chunks."""

    def delete_range(self, level: int, first: int, last: int) -> None:
        """Delete the chunks first <= number < last of a level."""


class LevelQueue(ABC):
    """One level: the nodes `head` <= index < `tail`."""

    head: int
    tail: int

    @abstractmethod
    def append(self, node: LevelNode) -> None:
        """Write node number `tail`."""

    @abstractmethod
    def drop(self, head: int) -> None:
        """Drop the nodes before `head`, which never decreases. If it is past `tail`, the queue continues from there."""

    @abstractmethod
    def __getitem__(self, index: int) -> LevelNode:
        """Read a node, head <= index < tail."""

    @property
    @abstractmethod
    def local(self) -> int:
        """The number of nodes held in memory."""


class Levels(ABC):
    """The level queues of one forest, lowest first."""

    queues: Sequence[LevelQueue]

    @abstractmethod
    def add(self, start: int) -> LevelQueue:
        """Add an empty queue above the highest one, with `head` and `tail` at `start`."""

    def read(self, places: Sequence[Place]) -> list[LevelNode]:
        """Read several nodes."""
        return [self.queues[level][index] for level, index in places]

    @property
    def local(self) -> int:
        """The number of nodes held in memory."""
        return sum(queue.local for queue in self.queues)


# -------------------------------------------------------------------- in memory


class MemoryQueue(LevelQueue):
    """A ring of slots. Their number is a power of two, and node j is in slot j modulo that number."""

    def __init__(self, start: int = 0) -> None:
        self.head = self.tail = start
        self._slots: list[LevelNode | None] = [None] * 4

    def append(self, node: LevelNode) -> None:
        used, size = self.tail - self.head, len(self._slots)
        if used == size:
            self._resize(2 * size)
        elif size > 4 and 4 * used < size:
            self._resize(size // 2)
        self._slots[self.tail & (len(self._slots) - 1)] = node
        self.tail += 1

    def drop(self, head: int) -> None:
        self.head = head
        self.tail = max(self.tail, head)

    def __getitem__(self, index: int) -> LevelNode:
        node = self._slots[index & (len(self._slots) - 1)]
        assert self.head <= index < self.tail
        assert node is not None
        return node

    @property
    def local(self) -> int:
        return self.tail - self.head

    def _resize(self, size: int) -> None:
        slots: list[LevelNode | None] = [None] * size
        for index in range(self.head, self.tail):
            slots[index & (size - 1)] = self[index]
        self._slots = slots


class MemoryLevels(Levels):
    """Queues in memory."""

    def __init__(self) -> None:
        self.queues: list[MemoryQueue] = []

    def add(self, start: int) -> MemoryQueue:
        self.queues.append(MemoryQueue(start))
        return self.queues[-1]


# -------------------------------------------------------------------- in a key-value store


class StoredQueue(LevelQueue):
    """Head chunk and tail chunk in memory, those between in a store.

    Args:
        level: the level, first part of the keys.
        start: the first index of `head` and `tail`.
        store: for full chunks.
        chunk: nodes per chunk.
    """

    def __init__(self, level: int, start: int, store: KeyValueStore, chunk: int) -> None:
        self.level = level
        self.head = self.tail = start
        self._store = store
        self._chunk = chunk
        self._head_number = -1  # the number of the head's chunk, once it has been read
        self._head_chunk: Chunk = ()
        self._tail_chunk: list[LevelNode | None] = [None] * (start % chunk)

    def append(self, node: LevelNode) -> None:
        self._tail_chunk.append(node)
        self.tail += 1
        if len(self._tail_chunk) == self._chunk:
            number, full = self.tail // self._chunk - 1, tuple(self._tail_chunk)
            self._store.put_many({(self.level, number): full})
            self.keep(number, full)
            self._tail_chunk = []

    def drop(self, head: int) -> None:
        stored = self.tail // self._chunk
        first, last = self.head // self._chunk, min(head // self._chunk, stored)
        if first < last:
            self._store.delete_range(self.level, first, last)
        if self._head_number != head // self._chunk:
            self._head_number, self._head_chunk = -1, ()
        if head > self.tail:
            self.tail = head
            self._tail_chunk = [None] * (head % self._chunk)
        self.head = head

    def __getitem__(self, index: int) -> LevelNode:
        number, fetched = self.lacks(index), None
        if number is not None:
            (fetched,) = self._store.get_many([(self.level, number)])
            self.keep(number, fetched)
        return self.pick(fetched, index)

    @property
    def local(self) -> int:
        return len(self._tail_chunk) + len(self._head_chunk)

    def lacks(self, index: int) -> int | None:
        """Return the number of the chunk that must be fetched to read a node; None if it is in memory."""
        number = index // self._chunk
        return None if number in (self.tail // self._chunk, self._head_number) else number

    def keep(self, number: int, chunk: Chunk) -> None:
        """Take a chunk that was fetched or written; keep it if the head is in it."""
        if number == self.head // self._chunk:
            self._head_number, self._head_chunk = number, chunk

    def pick(self, fetched: Chunk | None, index: int) -> LevelNode:
        """Return a node from the fetched chunk, or from a chunk in memory."""
        in_tail = index // self._chunk == self.tail // self._chunk
        chunk = fetched or (self._tail_chunk if in_tail else self._head_chunk)
        node = chunk[index % self._chunk]
        assert self.head <= index < self.tail
        assert node is not None
        return node


class StoredLevels(Levels):
    """Queues with their middle in a store.

    Args:
        store: for full chunks, of this forest alone.
        chunk: nodes per chunk, even, so that the two halves of a pair share one.

    Raises:
        InvalidArgument: `chunk` is not an even integer from 2 on.
    """

    def __init__(self, store: KeyValueStore, chunk: int = 16) -> None:
        if not isinstance(chunk, int) or chunk < 2 or chunk % 2:
            raise InvalidArgument(f"chunk is {chunk!r}, not an even number from 2 on", field="chunk", limit="2")
        self.queues: list[StoredQueue] = []
        self._store = store
        self._chunk = chunk

    def add(self, start: int) -> StoredQueue:
        self.queues.append(StoredQueue(len(self.queues), start, self._store, self._chunk))
        return self.queues[-1]

    def read(self, places: Sequence[Place]) -> list[LevelNode]:
        """Read several nodes. Those that are not in memory are fetched in one round trip."""
        keys = {(level, number) for level, index in places if (number := self.queues[level].lacks(index)) is not None}
        fetched = dict(zip(keys, self._store.get_many([*keys]), strict=True)) if keys else {}
        for (level, number), chunk in fetched.items():
            self.queues[level].keep(number, chunk)
        return [self.queues[level].pick(fetched.get((level, index // self._chunk)), index) for level, index in places]


class DictStore:
    """A store in a dict: for tests and demonstrations. `round_trips` counts the calls of `get_many`."""

    def __init__(self) -> None:
        self._chunks: dict[Key, Chunk] = {}
        self.round_trips = 0

    def __len__(self) -> int:
        return len(self._chunks)

    def get_many(self, keys: Sequence[Key]) -> list[Chunk]:
        """Read chunks; count one round trip."""
        self.round_trips += 1
        return [self._chunks[key] for key in keys]

    def put_many(self, chunks: Mapping[Key, Chunk]) -> None:
        """Write chunks."""
        self._chunks.update(chunks)

    def delete_range(self, level: int, first: int, last: int) -> None:
        """Delete the chunks first <= number < last of a level; each of them must be there."""
        for number in range(first, last):
            del self._chunks[level, number]
