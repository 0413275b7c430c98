"""Blocks that are kept in a tier: who has them in memory, and which of them nobody needs any more.

    dirty ──number──▶ in flight ──landed──▶ cached ◀──trim / load──▶ in the tier only
      ▲                   │                    │                          │
      └────── edited: copied, its id released ─┴──────── evicted: its id released

A sealed block is *dirty* until somebody gives it an id and hands its columns to a writer. Until the tier says that
it has them the block is *in flight* and stays in memory; after that it is one of many in a cache with a budget, which
all windows share. Columns of a block with an id are never written to: an edit makes a new, dirty block of a copy.
A large partial (external.py) is stored in the same way, as a block of one row with the bytes that it is.

Example, with a dictionary for a tier:

>>> import numpy as np
>>> from sash_engine.forest import Cache, Cold, Forest, Layout
>>> from sash_engine.monoids import Sum
>>> tier = {}
>>> cold = Cold(lambda ids: [tier[id] for id in ids], Cache(budget_bytes=0))
>>> forest = Forest(Layout({"value": "float64"}, {"sum": (Sum(), ["value"])}, block=4), cold)
>>> forest.bulk_insert(np.arange(10), [np.ones(10)])
>>> blocks = forest.unsaved()
>>> for id, block in enumerate(blocks, 1):
...     block.stored = id
...     tier[id] = block.columns
>>> cold.landed([(block, block.stored) for block in blocks])
>>> cold.cache.trim()
>>> forest.query(), forest.range_query(2, 5), cold.cache.misses
([10.0], (4, [4.0]), 2)

A trim comes between operations and never within one: what an operation has loaded it finds again.

Cost of a block that is at hand: a look-up, below a microsecond. Space: an entry per block in memory.
Threads: none; whoever stores says `landed` on the thread of the engine.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import numpy as np

from sash_engine.forest.block import Block
from sash_engine.monoids.base import Array

__all__ = ["Cache", "Cold", "Load", "PendingBlock"]

Load = Callable[[Sequence[int]], list[list[Array]]]
"""Loads k >= 1 stored blocks in one round trip: for each id its columns, times first. They may be read-only, and
are the engine's from then on. Raises Unavailable, or DataLoss where a block is not there or damaged."""


class PendingBlock:
    """A sealed block, or a partial, that is not stored yet.

    It is valid until the next operation on its forest. With an id it stays valid.

    Attributes:
        columns: times and one array per field, sorted; to be read only, and as long as it takes where it has an id. Of
            a partial one array of dtype object, with the bytes that it is.
        rows: how many rows that are.
        partial: whether it is a partial.
        nbytes: how much the cache counts for it, in bytes.
    """

    __slots__ = ("_give", "_stored", "columns", "nbytes", "partial", "rows")

    def __init__(self, block: Block, give: Callable[[int], None], partial: bool = False) -> None:
        self.partial = partial
        self.rows = block.rows
        self.columns = [column[: block.rows] for column in block.columns]
        self.nbytes = _size(block)
        self._give = give
        self._stored: int | None = None

    @property
    def stored(self) -> int | None:
        """The id under which it is stored, >= 0; given once, and to no other block of the window, ever."""
        return self._stored

    @stored.setter
    def stored(self, number: int) -> None:
        assert self._stored is None, f"the block is stored as {self._stored} already"
        self._give(number)
        self._stored = number


class Dirty(Protocol):
    """What has blocks to store: the directory of a forest."""

    dirty: int
    """Entries in such blocks."""
    loose: int
    """Partials to store; none where there are none, or only of such blocks."""

    def unsaved(self, most: int | None = None) -> list[PendingBlock]:
        """See `Forest.unsaved`."""


class _Held:
    """A cached block."""

    __slots__ = ("block", "size", "state")

    def __init__(self, block: Block, size: int, state: int) -> None:
        self.block = block
        self.size = size
        self.state = state


_LANDED, _LOADED, _READ = range(3)
"""Why a block is cached: it was stored and nobody has read it since, was loaded just now, or was read before."""


class Cache:
    """Columns of stored blocks, those that were used last. Shared by all windows of a server.

    Args:
        budget_bytes: how much `trim` leaves, in bytes of columns; strings are counted once per block.

    Attributes:
        used_bytes: how much there is now.
        hits: how often a stored block was at hand.
        misses: how many stored blocks had to be loaded.
    """

    __slots__ = ("_blocks", "budget_bytes", "hits", "misses", "used_bytes")

    def __init__(self, budget_bytes: int) -> None:
        assert budget_bytes >= 0
        self.budget_bytes = budget_bytes
        self.used_bytes = 0
        self.hits = 0
        self.misses = 0
        self._blocks: OrderedDict[tuple[Cold, int], _Held] = OrderedDict()

    def __len__(self) -> int:
        return len(self._blocks)

    def trim(self) -> None:
        """Forget the blocks that were not used for longest until the rest fits into the budget."""
        blocks, used, budget = self._blocks, self.used_bytes, self.budget_bytes
        while used > budget:
            used -= blocks.popitem(last=False)[1].size
        self.used_bytes = used

    def has(self, cold: Cold, number: int) -> bool:
        """Whether a block is there."""
        return (cold, number) in self._blocks

    def read(self, cold: Cold, number: int) -> Block | None:
        """A block, which is the one used last from now on; None where it is not there."""
        key = (cold, number)
        held = self._blocks.get(key)
        if held is None:
            return None
        self._blocks.move_to_end(key)
        self.hits += held.state != _LOADED  # the first to read what was loaded is whom it was loaded for
        if held.state == _LANDED:
            # Blocks of one bulk are views of the same long arrays. They leave the cache one after the other, in the
            # order in which they came; one that stays for longer must not keep all of them in memory.
            held.block.columns = [_owned(column, held.block.rows) for column in held.block.columns]
        held.state = _READ
        return held.block

    def peek(self, cold: Cold, number: int) -> Block | None:
        """A block, whose place in the order is none the better for it; None where it is not there."""
        held = self._blocks.get((cold, number))
        return None if held is None else held.block

    def put_landed(self, cold: Cold, number: int, block: Block) -> None:
        """Take a block that the tier has now."""
        self._put(cold, number, block, _LANDED)

    def put_loaded(self, cold: Cold, number: int, block: Block) -> None:
        """Take a block that was loaded from the tier."""
        self.misses += 1
        self._put(cold, number, block, _LOADED)

    def _put(self, cold: Cold, number: int, block: Block, state: int) -> None:
        assert (cold, number) not in self._blocks, f"block {number} is cached already"
        held = self._blocks[cold, number] = _Held(block, _size(block), state)
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
            assert cold.flying(number) is None, f"block {number} is in flight and cached"


class Cold:
    """The stored blocks of one window, for all its forests.

    Args:
        load: brings columns back.
        cache: where they are kept.

    Attributes:
        dirty: which forests have sealed blocks without an id, in the order in which they came to it; each key has
            `unsaved`, as the forest itself.
        dirty_entries: the entries in all such blocks.
        released: ids that no block has any more, each once; see `take_released`.
    """

    __slots__ = ("_flying", "_load", "cache", "dirty", "dirty_entries", "released")

    def __init__(self, load: Load, cache: Cache) -> None:
        self._load = load
        self.cache = cache
        self.dirty: dict[Dirty, None] = {}
        self.dirty_entries = 0
        self.released: list[int] = []
        self._flying: dict[int, Block] = {}

    def landed(self, blocks: Iterable[tuple[PendingBlock, int]]) -> None:
        """The tier has these blocks under these ids: those that are still stored so need no longer be in memory.

        Blocks of which it is never said, as writing them failed, stay in memory; they may be written again.
        """
        for _, number in blocks:
            block = self._flying.pop(number, None)
            if block is not None:
                self.cache.put_landed(self, number, block)

    def take_released(self) -> list[int]:
        """The ids that no block has any more; they are the caller's to delete, and not listed again.

        A dump that was made before an id was released may still name it: delete it once the next dump is stored.
        Take them right after that dump, which releases the ids of all blocks that were evicted before. Some may be in
        flight: delete behind them.
        """
        released, self.released = self.released, []
        return released

    # ---------------------------------------------------------------- for the directories

    def soil(self, owner: Dirty, entries: int) -> None:
        """Entries have come to `owner`'s dirty blocks, or have left them."""
        self.dirty_entries += entries
        owner.dirty += entries
        if owner.dirty or owner.loose:
            self.dirty[owner] = None
        else:
            self.dirty.pop(owner, None)

    def launch(self, number: int, block: Block) -> None:
        """A block has got an id and is in flight."""
        self._flying[number] = block

    def block(self, number: int) -> Block:
        """A stored block, not to be written to; loaded where it is not in memory."""
        block = self._flying.get(number)
        if block is not None:
            self.cache.hits += 1
            return block
        block = self.cache.read(self, number)
        if block is None:
            self.fetch([number])
            block = self.cache.read(self, number)
        assert block is not None
        return block

    def fetch(self, numbers: Iterable[int]) -> None:
        """Load those of some blocks that are not in memory, in one go; they stay until the next trim."""
        lacking = [n for n in dict.fromkeys(numbers) if n not in self._flying and not self.cache.has(self, n)]
        if not lacking:
            return
        for number, columns in zip(lacking, self._load(lacking), strict=True):
            self.cache.put_loaded(self, number, Block(columns, len(columns[0])))

    def flying(self, number: int) -> Block | None:
        """A block that is in flight: if it were released now, the tier might never have it."""
        return self._flying.get(number)

    def columns(self, numbers: Sequence[int]) -> list[list[Array]]:
        """Columns of stored blocks, not to be written to; those that are not at hand come in one round trip.

        They do not enter the cache: whoever reads a window from end to end would only drive others out of it. An id
        may have been released, as long as the tier has it.
        """
        there = {number: self._flying.get(number) or self.cache.peek(self, number) for number in numbers}
        lacking = [number for number, block in there.items() if block is None]
        loaded = dict(zip(lacking, self._load(lacking), strict=True)) if lacking else {}
        return [
            loaded[number] if block is None else [column[: block.rows] for column in block.columns]
            for number, block in ((number, there[number]) for number in numbers)
        ]

    def release(self, number: int) -> None:
        """Nobody refers to a stored block any more."""
        self.released.append(number)
        if self._flying.pop(number, None) is None:
            self.cache.drop(self, number)

    def forget(self) -> None:
        """Keep nothing in memory any more: the window is gone."""
        self._flying.clear()
        self.cache.drop_all(self)

    def check_invariants(self) -> None:
        """Raise AssertionError naming the first invariant that does not hold."""
        entries = [owner.dirty for owner in self.dirty]
        assert all(owner.dirty or owner.loose for owner in self.dirty), "who is listed as dirty has blocks to store"
        assert sum(entries) == self.dirty_entries, f"{sum(entries)} dirty entries, not {self.dirty_entries}"
        assert len(set(self.released)) == len(self.released), "an id is released once"
        for number in self.released:
            assert self.flying(number) is None, f"block {number} is in flight and released"
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
