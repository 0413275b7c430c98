"""Blocks that are kept in a tier: which of them are in memory, and which are not needed any more.

    dirty ──number──▶ in flight ──landed──▶ cached ◀──trim / load──▶ in the tier only
      ▲                   │                    │                          │
      └────── edited: copied, its id released ─┴──────── evicted: its id released

A sealed block is *dirty* until it gets an id and its columns are handed to a writer. It is *in flight*, and stays in
memory, until the tier says that it has them. Then it is one of many blocks in a cache with a budget, which all windows
share. The columns of a block with an id are never written to: an edit makes a new, dirty block of a copy. A large
partial (external.py) is stored in the same way, as a block of one row with its bytes.

Example, with a dictionary for a tier:

>>> import numpy as np
>>> from sash_engine.forest import Cache, Cold, Forest, Layout
>>> from sash_engine.monoids import Sum
>>> tier = {}
>>> cold = Cold(lambda ids: [tier[id] for id in ids], Cache(budget_bytes=0))
>>> forest = Forest(Layout({"value": "float64"}, {"sum": (Sum(), ["value"])}, block=4), cold)
>>> forest.bulk_insert(np.arange(10), [np.ones(10)])
>>> blocks = forest.pending_blocks()
>>> for id, block in enumerate(blocks, 1):
...     block.stored = id
...     tier[id] = block.columns
>>> cold.landed([(block, block.stored) for block in blocks])
>>> cold.cache.trim()
>>> forest.query(), forest.range_query(2, 5), cold.cache.misses
([10.0], (4, [4.0]), 2)

A trim comes between operations and never within one, so that an operation finds again what it has loaded.

Cost of a block in memory: a look-up, below a microsecond. Space: an entry per block in memory.
Threads: none. `landed` is called on the thread of the engine.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import numpy as np

from sash_engine.forest.block import Block
from sash_engine.forest.layout import Layout
from sash_engine.monoids.base import Array

Load = Callable[[Sequence[int]], list[list[Array]]]
"""Loads k >= 1 stored blocks in one round trip: for each id its columns, times first. They may be read-only, and
are the engine's from then on. Raises Unavailable, or DataLoss where a block is not there or damaged."""

LoadAs = Callable[[Sequence[int], Layout], list[list[Array]]]
"""As `Load`, of blocks with this layout."""


class PendingBlock:
    """A sealed block, or a partial, that is not stored yet.

    It is valid until the next operation on its forest. With an id it stays valid.

    Attributes:
        columns: times and one array per field, sorted; read only. Of a partial, one array of dtype
            object with its bytes.
        rows: how many rows these are.
        partial: whether it is a partial.
        layout: the layout of its columns, where that is another one than the window's.
        nbytes: how much the cache counts for it, in bytes.
    """

    __slots__ = ("_give", "_stored", "columns", "layout", "nbytes", "partial", "rows")

    def __init__(
        self, block: Block, give: Callable[[int], None], partial: bool = False, layout: Layout | None = None
    ) -> None:
        self.partial, self.layout = partial, layout
        self.rows = block.rows
        self.columns = [column[: block.rows] for column in block.columns]
        self.nbytes = _size(block)
        self._give = give
        self._stored: int | None = None

    @property
    def stored(self) -> int | None:
        """The id under which it is stored, >= 0. An id is given once, and never to another block of the window."""
        return self._stored

    @stored.setter
    def stored(self, number: int) -> None:
        assert self._stored is None, f"the block is stored as {self._stored} already"
        self._give(number)
        self._stored = number


class Owner(Protocol):
    """What has blocks: a directory.

    Attributes:
        dirty: entries in its sealed blocks without an id.
        unstored_partials: how many large partials are not stored.
    """

    dirty: int
    unstored_partials: int

    def pending_blocks(self) -> list[PendingBlock]:
        """Its blocks and partials that are not stored yet."""


class _CacheEntry:
    """A cached block."""

    __slots__ = ("block", "size", "state")

    def __init__(self, block: Block, size: int, state: int) -> None:
        self.block = block
        self.size = size
        self.state = state


_LANDED, _LOADED, _READ = range(3)
"""Why a block is cached: it was stored and not read since, it was loaded just now, or it was read before."""


class Cache:
    """The columns of the stored blocks that were used last, of all windows of a server.

    Args:
        budget_bytes: how many bytes of columns `trim` leaves; strings are counted once per block.

    Attributes:
        used_bytes: how much there is now.
        hits: how often a stored block was in memory.
        misses: how many stored blocks had to be loaded.
    """

    __slots__ = ("_blocks", "budget_bytes", "hits", "misses", "used_bytes")

    def __init__(self, budget_bytes: int) -> None:
        assert budget_bytes >= 0
        self.budget_bytes = budget_bytes
        self.used_bytes = 0
        self.hits = 0
        self.misses = 0
        self._blocks: OrderedDict[tuple[Cold, int], _CacheEntry] = OrderedDict()

    def __len__(self) -> int:
        return len(self._blocks)

    def trim(self) -> None:
        """Drop the least recently used blocks until the rest fits into the budget."""
        blocks, used, budget = self._blocks, self.used_bytes, self.budget_bytes
        while used > budget:
            used -= blocks.popitem(last=False)[1].size
        self.used_bytes = used

    def has(self, cold: Cold, number: int) -> bool:
        """Whether a block is there."""
        return (cold, number) in self._blocks

    def read(self, cold: Cold, number: int) -> Block | None:
        """Return a block and mark it as the one used last; None where it is not there."""
        key = (cold, number)
        held = self._blocks.get(key)
        if held is None:
            return None
        self._blocks.move_to_end(key)
        self.hits += held.state != _LOADED  # the first read of a loaded block is the miss that loaded it
        if held.state == _LANDED:
            # Blocks of one bulk are views of the same long arrays. They leave the cache one after the other, in the
            # order in which they came; one that stays for longer must not keep all of them in memory.
            held.block.columns = [_owned(column, held.block.rows) for column in held.block.columns]
        held.state = _READ
        return held.block

    def peek(self, cold: Cold, number: int) -> Block | None:
        """Return a block without marking it as used; None where it is not there."""
        held = self._blocks.get((cold, number))
        return None if held is None else held.block

    def put_landed(self, cold: Cold, number: int, block: Block) -> None:
        """Add a block that the tier has now."""
        self._put(cold, number, block, _LANDED)

    def put_loaded(self, cold: Cold, number: int, block: Block) -> None:
        """Add a block that was loaded from the tier."""
        self.misses += 1
        self._put(cold, number, block, _LOADED)

    def _put(self, cold: Cold, number: int, block: Block, state: int) -> None:
        assert (cold, number) not in self._blocks, f"block {number} is cached already"
        held = self._blocks[cold, number] = _CacheEntry(block, _size(block), state)
        self.used_bytes += held.size

    def drop(self, cold: Cold, number: int) -> None:
        """Forget a block, if it is there."""
        held = self._blocks.pop((cold, number), None)
        if held is not None:
            self.used_bytes -= held.size

    def drop_all(self, cold: Cold) -> None:
        """Forget all blocks of one window."""
        for number in [number for of, number in self._blocks if of is cold]:
            self.drop(cold, number)

    def check_invariants(self) -> None:
        """Raise AssertionError naming the first invariant that does not hold."""
        sizes = [held.size for held in self._blocks.values()]
        assert sum(sizes) == self.used_bytes, f"{sum(sizes)} bytes are cached, `used_bytes` says {self.used_bytes}"
        for (cold, number), held in self._blocks.items():
            assert held.size == _size(held.block), f"block {number} was counted as {held.size} bytes"
            assert cold.in_flight(number) is None, f"block {number} is in flight and cached"


class Cold:
    """The stored blocks of one window, for all its forests.

    Args:
        load: loads columns.
        cache: keeps them.

    Attributes:
        dirty: the directories that have sealed blocks without an id, in the order in which they got the first.
        dirty_entries: the entries in all such blocks.
        released: ids that no block has any more, each once; see `take_released`.
    """

    __slots__ = ("_in_flight", "_load", "_whole", "cache", "dirty", "dirty_entries", "layout", "load_as", "released")

    def __init__(self, load: Load, cache: Cache, load_as: LoadAs | None = None) -> None:
        self._load, self.load_as = load, load_as
        self.cache = cache
        self.dirty: dict[Owner, None] = {}
        self.dirty_entries = 0
        self.released: list[int] = []
        self.layout: Layout | None = None
        self._in_flight: dict[int, Block] = {}
        self._whole: Cold = self

    def part(self, layout: Layout) -> Cold:
        """The same stored blocks, for a window that is stored with this one and has another layout."""
        load_as, whole = self._whole.load_as, self._whole
        assert load_as is not None, "blocks are loaded with any layout"
        part = Cold(lambda numbers: load_as(numbers, layout), self.cache)
        part.dirty, part.released, part._in_flight = whole.dirty, whole.released, whole._in_flight
        part.layout, part._whole = layout, whole
        return part

    def landed(self, blocks: Iterable[tuple[PendingBlock, int]]) -> None:
        """Note that the tier has these blocks under these ids, so that they need not stay in memory.

        A block that could not be written stays in memory, and may be written again.
        """
        for _, number in blocks:
            block = self._in_flight.pop(number, None)
            if block is not None:
                self.cache.put_landed(self._whole, number, block)

    def take_released(self) -> list[int]:
        """Return the ids that no block has any more, for the caller to delete; they are not listed again.

        A dump that was made before an id was released may still name it. So take the ids right after a dump, which
        releases the ids of all blocks that were evicted before, and delete them when that dump is stored. Some may be
        in flight: delete those after they are written.
        """
        released, self.released = self.released, []
        return released

    # ---------------------------------------------------------------- for the directories

    def note_dirty(self, owner: Owner, entries: int) -> None:
        """Add to the entries in the dirty blocks of `owner`, or subtract from them."""
        self._whole.dirty_entries += entries
        owner.dirty += entries
        if owner.dirty or owner.unstored_partials:
            self.dirty[owner] = None
        else:
            self.dirty.pop(owner, None)

    def launch(self, number: int, block: Block) -> None:
        """Note that a block has got an id and is in flight."""
        self._in_flight[number] = block

    def block(self, number: int) -> Block:
        """Return a stored block, which must not be written to; load it where it is not in memory."""
        block = self._in_flight.get(number)
        if block is not None:
            self.cache.hits += 1
            return block
        block = self.cache.read(self._whole, number)
        if block is None:
            self.fetch([number])
            block = self.cache.read(self._whole, number)
        assert block is not None
        return block

    def fetch(self, numbers: Iterable[int]) -> None:
        """Load those of some blocks that are not in memory, in one round trip; they stay until the next trim."""
        missing = [n for n in dict.fromkeys(numbers) if n not in self._in_flight and not self.cache.has(self._whole, n)]
        if not missing:
            return
        for number, columns in zip(missing, self._load(missing), strict=True):
            self.cache.put_loaded(self._whole, number, Block(columns, len(columns[0])))

    def in_flight(self, number: int) -> Block | None:
        """Return a block that is in flight, which the tier may not have yet; None for another."""
        return self._in_flight.get(number)

    def columns(self, numbers: Sequence[int]) -> list[list[Array]]:
        """Return columns of stored blocks, read only; those that are not in memory come in one round trip.

        They do not enter the cache, so that reading a window from end to end leaves the cache to others. An id may
        have been released, as long as the tier has it.
        """
        there = {number: self._in_flight.get(number) or self.cache.peek(self._whole, number) for number in numbers}
        missing = [number for number, block in there.items() if block is None]
        loaded = dict(zip(missing, self._load(missing), strict=True)) if missing else {}
        return [
            loaded[number] if block is None else [column[: block.rows] for column in block.columns]
            for number, block in ((number, there[number]) for number in numbers)
        ]

    def release(self, number: int) -> None:
        """Release the id of a stored block that is not needed any more."""
        self._whole.released.append(number)
        if self._in_flight.pop(number, None) is None:
            self.cache.drop(self._whole, number)

    def forget(self) -> None:
        """Drop everything from memory: the window is gone."""
        self._in_flight.clear()
        self.cache.drop_all(self._whole)

    def check_invariants(self) -> None:
        """Raise AssertionError naming the first invariant that does not hold."""
        if self._whole is not self:
            self._whole.check_invariants()
            return
        entries = [owner.dirty for owner in self.dirty]
        assert all(owner.dirty or owner.unstored_partials for owner in self.dirty), (
            "a listed directory has blocks to store"
        )
        assert sum(entries) == self.dirty_entries, f"{sum(entries)} dirty entries, not {self.dirty_entries}"
        assert len(set(self.released)) == len(self.released), "an id is released once"
        for number in self.released:
            assert self.in_flight(number) is None, f"block {number} is in flight and released"
            assert not self.cache.has(self, number), f"block {number} is cached and released"
        self.cache.check_invariants()


def _size(block: Block) -> int:
    """Bytes of a block's columns."""
    total, rows = 0, block.rows
    for column in block.columns:
        total += rows * column.itemsize
        if column.dtype.hasobject:
            total += sum(map(sys.getsizeof, set(column[:rows].tolist())))
    return total


def _owned(column: Array, rows: int) -> Array:
    """The first `rows` values of a column, copied where it is a small part of another array."""
    base = column.base
    if len(column) > rows or (isinstance(base, np.ndarray) and base.nbytes > 2 * column.nbytes):
        return column[:rows].copy()
    return column
