"""The columnar engine: an AMTA forest over column blocks. One forest holds the entries of one key.

     level 1        o       o             partials of pairs (levels.py), the fold of the whole
     level 0      o   o   o   o   o       blocks kept up to date by a stack and a pair (sealed_fold.py)
                 [x ] [ ] [ ] [ ] [ ] [..
      skip rows --^head block          ^tail block: open
                  (head_tail.py)         (head_tail.py)

Insert, in order: a row in the tail; amortised O(1).  Insert, out of order: a splice in one block, O(B + log n).
Bulk insert of m: O(m), a few vectorised passes.  Evict, bulk evict: O(log n), whatever the number of entries.
Remove from the middle: O(B + log n), and O(n / B) where a whole block goes; see remover.py.
Query: amortised O(1).  Range query: O(B + log n).  Space: the raw columns and 2 n / B partials.
Requires: associativity; deferred splices only where every aggregate commutes.
Source: Villalba, Berral, Carrera, TPDS 2019 (AMTA); the head's scan and the small window are Two-Stacks Lite
(Tangwongsan, Hirzel, Schneider, VLDBJ 2021).  Differs: see `service/ARCHITECTURE.md`.

No I/O, no threads, no clock, no randomness. Arrays that are passed in are handed over: the forest keeps views of
them and never writes to them, and nobody else may write to them.

The class is in four parts: `reader.py` has the state and what reads it, `writer.py` inserts, `remover.py` removes
entries from the middle, and this file evicts, changes aggregates and stores.

Blocks may be kept in a tier (cold.py) and loaded when their rows are read. So may the partials of sketches and
collections, at all levels (external.py), which are loaded when they are folded; others are in memory for all blocks:

    in order, evict, whole window     nothing, but the block that the head lands in; at once with it, as the head moves
                                      on, large partials of the next blocks to be evicted and of O(log n) nodes
    range query                       its two end blocks and large partials of its O(log n) nodes, at once
    series                            the blocks with ends in them at once, the partials of wide ranges at once, and
                                      the blocks of narrow ones at once
    out of order                      the blocks that are spliced, at once, but none for rows that are deferred; with
                                      them what their ancestors are combined from
    remove from the middle            the blocks at both ends of the range, or those of the single entries and the next
                                      of each that becomes small; what their ancestors are combined from
    a cut, other aggregates           when nodes are next read, the large partials of all blocks that moved

An operation loads all it needs before it changes anything: where loading raises, the forest is as it was. If a block is
lost or damaged, only operations that need its rows fail, until the block is evicted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from sash_engine.forest.cold import Cold, PendingBlock
from sash_engine.forest.external import inline_partials, level_monoids
from sash_engine.forest.image import ForestImage
from sash_engine.forest.layout import Layout
from sash_engine.forest.pieces import pieces
from sash_engine.forest.prefix import Prefix
from sash_engine.forest.reader import BEFORE_ALL
from sash_engine.forest.remover import BlockRemover
from sash_engine.monoids import Monoid, Partial, Partials
from sash_engine.steps import Steps, finished

__all__ = ["Forest"]

_FOLDS = 256
"""Folds of blocks that one step makes for new aggregates: 0.5 to 2 ms, or one block where partials are sketches."""


class Forest(BlockRemover):
    """The entries of one key, sorted by (time, arrival), and their aggregates.

    Args:
        layout: columns, aggregates and block size.
        cold: where sealed blocks are kept that are not in memory; None keeps all in memory.

    Methods that read entries raise what `cold` raises where it loads: Unavailable, DataLoss.

    >>> from sash_engine.forest import Forest, Layout
    >>> from sash_engine.monoids import Sum
    >>> forest = Forest(Layout({"value": "float64"}, {"sum": (Sum(), ["value"])}))
    >>> for time, value in [(1, 10.0), (3, 30.0), (2, 20.0)]:
    ...     forest.insert(time, (value,))
    >>> forest.query(), forest.range_query(2, 3)
    ([60.0], (2, [50.0]))
    """

    __slots__ = ()

    @property
    def forest(self) -> Forest:
        """The forest itself; see `KeyStore.forest`."""
        return self

    # ---------------------------------------------------------------- evicting

    def evict(self, count: int = 1) -> int:
        """Evict the `count` >= 0 oldest entries, or as many as there are; return how many."""
        skip = self._skip + count
        if skip < self._head.rows:
            self._skip = skip
            self._len -= count
            self._answers = None
            return count
        if count >= self._len:
            return self._clear()
        directory = self._directory
        position, tail = directory.head, directory.tail
        if position < tail:
            rows = directory.count(position)
            if skip >= rows:
                position, skip = position + 1, skip - rows
                if skip and position < tail and skip >= directory.count(position):
                    position, skip = self._levels.seek_count(position, skip)
        self._cut(position, skip, count)
        return count

    def bulk_evict(self, time: int) -> int:
        """Evict all entries with a time <= `time`; return how many."""
        if not self._len:
            return 0
        if time >= self._newest:
            return self._clear()
        position, row = self._locate(time, "right")
        count = self._count(position, row)
        if count:
            self._cut(position, row, count)
        return count

    def load_evicted(self, time: int, counted: bool = False) -> None:
        """Load what `bulk_evict(time)` reads, so that it cannot fail afterwards.

        Args:
            counted: whether `sum_through` is asked before: then the head block is needed, where rows of it have left.
        """
        if counted and self._len and self._skip:
            self._columns(self._directory.head)
        if self._directory.loads and self._len and time < self._newest:
            self._locate(time, "right")

    def evict_while(self, holds: Callable[[int, Sequence[Partial]], bool]) -> tuple[int, int | None]:
        """Evict the longest run of oldest entries for which `holds`.

        Returns:
            how many left, and the time of the newest of them; None where none did.

        Args:
            holds: asked with a number n >= 1 and the partials, one per slot, over the n oldest entries. It must be
                monotone: where it holds for some n, it holds for every smaller one. It is asked O(log n) times,
                and once where the answer is that nothing goes.
        """
        if not self._len:
            return 0, None
        self._stale.freshen()
        directory, layout = self._directory, self._layout
        prefix, position = Prefix(layout, holds), directory.head
        if self._has_blocks():
            block = directory.block(position)
            row = prefix.take_rows(block.columns, self._skip, block.rows)
            if row == block.rows:
                position, row = self._levels.seek(position + 1, self._taker(prefix)), 0
                if position < directory.tail:
                    block = directory.block(position)
                    row = prefix.take_rows(block.columns, 0, block.rows)
        else:
            row = self._skip
        if position == directory.tail:
            row = prefix.take_rows(self._tail.columns, row, self._tail.rows)
        if not prefix.entries:
            return 0, None
        last = self._columns(position)[0].item(row - 1) if row else directory.last(position - 1)
        if prefix.entries == self._len:
            self._clear()
        else:
            self._cut(position, row, prefix.entries)
        return prefix.entries, last

    def pieces(self, slot: int) -> tuple[list[int], list[Partial]]:
        """Cut the entries into O(log n) pieces: how many entries each has, and its partial in a slot, oldest first.

        A piece has one entry, or at most a fifth of the newer entries, or is a block.
        """
        self._stale.freshen()
        return pieces(self._directory, self._levels, self._tail, self._skip, self._layout, slot)

    def _taker(self, prefix: Prefix) -> Callable[[int, int], bool]:
        levels = self._levels
        return lambda i, index: prefix.take(levels.entries(i, index), levels.node(i, index))

    def sweep(self, blocks: int = 256) -> bool:
        """Free the memory of up to `blocks` evicted blocks and release their ids; return whether there are more."""
        return self._directory.sweep(blocks)

    def drop(self) -> None:
        """Evict all entries and release all ids at once: the forest is not used any more."""
        self._clear()
        self._directory.sweep(self._directory.tail)
        self._levels.sweep()

    # ---------------------------------------------------------------- other aggregates

    def relayout(self, layout: Layout) -> None:
        """Change the aggregates: those that are new are computed from the stored entries.

        Args:
            layout: the same columns and block size, other aggregates.
        """
        finished(self.relayout_steps(layout))

    def relayout_steps(self, layout: Layout) -> Steps[None]:
        """As `relayout`, in steps; nobody may use the forest from the first to the last."""
        assert (layout.dtypes, layout.block) == (self._layout.dtypes, self._layout.block), "the same columns and block"
        self._stale.freshen()
        directory = self._directory
        _, kept = directory.slices(directory.head, directory.tail)
        known = dict(zip(self._layout.keys, kept, strict=True))
        slots = [slot for slot, key in enumerate(layout.keys) if key not in known]
        folds = yield from self._reduce_blocks(layout, slots)
        for slot, partials in zip(slots, folds, strict=True):
            known[layout.keys[slot]] = partials
        monoids = level_monoids(layout.monoids, self._cold)
        self._levels.relevel(monoids)
        directory.relevel(monoids, [known[key] for key in layout.keys])
        self._tail.relayout(layout)
        self._use(layout)
        self._split = 0

    def _reduce_blocks(self, layout: Layout, slots: Sequence[int]) -> Steps[list[Partials]]:
        """The fold of each sealed block, for some slots of a layout; of the blocks one at a time is in memory."""
        directory = self._directory
        folds: list[list[Partial]] = [[] for _ in slots]
        large = any(layout.monoids[slot].large for slot in slots)
        blocks = 1 if large else max(_FOLDS // max(len(slots), 1), 1)
        for position in range(directory.head, directory.tail) if slots else ():
            block = directory.block(position)
            for into, slot in zip(folds, slots, strict=True):
                into.append(layout.monoids[slot].reduce([block.columns[i][: block.rows] for i in layout.reads[slot]]))
            if self._cold is not None:
                self._cold.cache.trim()
            if not position % blocks:
                yield
        return [layout.monoids[slot].pack(fold) for slot, fold in zip(slots, folds, strict=True)]

    # ---------------------------------------------------------------- storing

    def pending_blocks(self, most: int | None = None) -> list[PendingBlock]:
        """Return the sealed blocks that have no id yet, oldest first; at most the `most` oldest.

        Give each its id (`block.stored = id`) before the next operation on the forest, write its columns, and call
        `Cold.landed` when the tier has them. Loads the blocks that have deferred rows.
        """
        return [] if self._tiered is None else self._tiered.pending_blocks(most)

    def dump(self) -> ForestImage:
        """An image: everything but the columns of sealed blocks, each of which must have an id.

        It sweeps, so that the ids of all evicted blocks are released: see `Cold.take_released`.
        """
        directory, tail = self._tiered, self._tail
        assert directory is not None, "a forest in memory has nothing stored"
        directory.sweep(directory.head)
        self._levels.sweep()
        done, nodes = self._levels.dump()
        first, last = directory.spans(directory.head, directory.tail)
        counts, columns = directory.slices(directory.head, directory.tail)
        return ForestImage(
            head=directory.head,
            skip=self._skip,
            newest=self._newest,
            ids=directory.block_ids(),
            first=first.copy(),
            last=last.copy(),
            counts=counts.copy(),
            partials=directory.dumped(columns),
            tail=[column[: tail.rows].copy() for column in tail.columns],
            room=len(tail.columns[0]),
            done=done,
            nodes=nodes,
        )

    @classmethod
    def restore(cls, layout: Layout, cold: Cold, image: ForestImage) -> Forest:
        """The forest that an image was made of; the image's arrays are copied.

        Nothing is loaded, unless an aggregate was large when the image was made and is not any more.

        Args:
            layout: the same as it had, but for which aggregates are large; see `relayout` for another.
            cold: loads the blocks that the image names.
            image: as `dump` made it.
        """
        forest = cls(layout, cold)
        image = inline_partials(image, layout.monoids, cold)
        assert forest._tiered is not None
        forest._tiered.restore(image)
        forest._levels.restore(image.done, image.nodes)
        forest._tail.restore(image.tail, image.room)
        forest._skip = image.skip
        forest._len = image.entries
        forest._newest = image.newest
        return forest

    def refold(self, positions: Iterable[int]) -> None:
        """Fold the blocks at `positions` anew from their rows, for large partials that cannot be read any more."""
        for position in positions:
            block = self._directory.edit(position)
            self._directory.change(position, block.rows, self._layout.reduce_rows(block.columns, 0, block.rows))

    # ---------------------------------------------------------------- invariants

    def check_invariants(self, same: Callable[[Monoid, Partial, Partial], bool] | None = None) -> None:
        """Raise AssertionError naming the first invariant that does not hold.

        Args:
            same: compares two partials; equality where None.
        """
        same = same or (lambda monoid, a, b: bool(a == b))
        directory, tail, layout = self._directory, self._tail, self._layout
        directory.check_invariants(self._skip)
        for position in range(directory.head, directory.tail):
            block = directory.raw_block(position)
            rows = block.rows + sum(b - a for _, a, b in block.pending or []) - len(block.gone or [])
            assert directory.count(position) == rows, f"block {position} has {rows} rows"
        self._levels.check_counts()
        self._stale.freshen()
        self._levels.check_invariants(same)
        entries = tail.rows - self._skip
        for position in range(directory.head, directory.tail):
            count, partials = directory.count(position), directory.node(position)
            block = directory.raw_block(position)
            rows = block.rows + sum(b - a for _, a, b in block.pending or []) - len(block.gone or [])
            assert count == rows, f"block {position} has {rows} rows, the directory says {count}"
            assert rows <= 2 * layout.block, f"block {position} outgrew its bound: {rows}"
            entries += rows
            whole = directory.block(position)
            expected = layout.reduce_rows(whole.columns, 0, whole.rows)
            for monoid, found, fold in zip(layout.monoids, partials, expected, strict=True):
                assert same(monoid, found, fold), f"{monoid!r} of block {position}: {found}, not {fold}"
        assert entries == self._len, f"{entries} entries counted, len says {self._len}"
        assert tail.rows < layout.block or not tail.rows, f"the tail has {tail.rows} rows and is not sealed"
        columns = self.columns()
        times = columns[0]
        assert (times[1:] >= times[:-1]).all(), "entries are sorted by time"
        if self._len:
            assert times[-1] == self._newest, f"newest is {times[-1]}, not {self._newest}"
            front_rows = directory.raw_block(directory.head).rows if self._has_blocks() else tail.rows
            assert 0 <= self._skip < front_rows, f"skip {self._skip} lies in the first block"
            assert self._head.rows in (0, front_rows), f"the head knows {self._head.rows} rows of {front_rows}"
        else:
            assert self._newest == BEFORE_ALL, "an empty forest has no newest entry"
        expected = layout.reduce_rows(columns, 0, self._len)
        for monoid, found, fold in zip(layout.monoids, self.totals(), expected, strict=True):
            assert same(monoid, found, fold), f"{monoid!r} over all: {found}, not {fold}"
