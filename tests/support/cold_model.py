"""A forest that keeps its blocks in a dictionary, beside its model; further steps say when what is stored.

    ("store", 3)       the three oldest blocks without an id get one, and are in flight; None: all
    ("land", 2)        the two that are in flight for longest have landed; None: all
    ("trim",)          between operations, as a server does
    ("dump",)          stores all, takes an image, deletes what nobody refers to any more
    ("restore",)       the process was killed: what came after the last dump is gone
    ("refused", step, 1)   nothing is in memory, one load succeeds, no other: the step is tried; then it is tried again
    ("at_each_load", step) so with no load, with one, with two, …, until it succeeds
    ("loaded", step)       what it needs is loaded before, and then there is no tier

An id is given once. What the tier has must never change, whoever still has the arrays; what it gives cannot be written
to. After each check what is stored, referred to and released must add up.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import strategies as st

from sash_engine.errors import DataLoss, Unavailable
from sash_engine.forest import Cache, Cold, Forest, Layout
from sash_engine.forest.block import DeferredBlock
from sash_engine.monoids import Sum
from tests.support.forest_model import LAYOUTS, Bag, ForestLockstep, Step


class LargeBag(Bag):
    """A bag that is stored in a tier, as sketches are."""

    large = True


def stored_layout(block):
    """Aggregates that all commute, one of which has large partials: splices are deferred, and folds load."""
    return Layout({"value": "int64"}, {"bag": (LargeBag("int64"), ["value"]), "sum": (Sum("int64"), ["value"])}, block)


COLD_LAYOUTS = LAYOUTS | {"stored": stored_layout}


class Tier:
    """Stored blocks by id; `calls` has the ids of each load."""

    def __init__(self) -> None:
        self.blocks: dict[int, list[np.ndarray]] = {}
        self._handed_over: dict[int, list[np.ndarray]] = {}
        self.damaged: set[int] = set()
        self.calls: list[list[int]] = []
        self.down = False
        self.failing: int | None = None
        """After so many loads there are no more."""
        self.next = 0

    def store(self, block) -> int:
        """Give a block its id and store it."""
        number, self.next = self.next, self.next + 1
        block.stored = number
        self._handed_over[number] = block.columns
        self.blocks[number] = [column.copy() for column in block.columns]
        for column in self.blocks[number]:
            column.flags.writeable = False
        return number

    def load(self, numbers: Sequence[int]) -> list[list[np.ndarray]]:
        self.calls.append(list(numbers))
        assert len(set(numbers)) == len(numbers)
        if self.failing is not None:
            self.down = not self.failing
            self.failing -= 1
        if self.down:
            raise Unavailable("the tier is away", retry_after_s=1.0)
        for number in numbers:
            if number in self.damaged:
                raise DataLoss(f"block {number} is damaged")
        return [[column.view() for column in self.blocks[number]] for number in numbers]

    def delete(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            del self.blocks[number]
            del self._handed_over[number]

    def check(self) -> None:
        """Nobody has written to what was handed over."""
        for number, columns in self.blocks.items():
            for column, stored in zip(self._handed_over[number], columns, strict=True):
                assert np.array_equal(column, stored), f"block {number} was written to"


def referred(forest: Forest, swept: bool = True) -> set[int]:
    """The ids that blocks and partials of a forest have; with those of evicted blocks not swept yet, or without."""
    directory = forest._directory
    start = (directory._swept if swept else directory.head) - directory.base
    stop = directory.tail - directory.base
    clean = {number for number in directory._ids[start:stop].tolist() if number >= 0}
    for level in forest._levels._levels:
        rows = slice(start, stop) if level is directory else slice(None)
        for slot, _ in level.external:
            ids = level.columns[slot][1][rows]
            clean |= set(ids[ids >= 0].tolist())
    return clean | {block.stored_id for block in directory._blocks[start:stop] if type(block) is DeferredBlock}


class ColdLockstep(ForestLockstep):
    """As `ForestLockstep`, with a dictionary for a tier.

    Args:
        layout: one of `LAYOUTS`.
        budget: of the cache, in blocks.
    """

    def __init__(self, layout: Layout, budget: int) -> None:
        super().__init__(layout)
        self.tier = Tier()
        self.cache = Cache(budget * layout.block * 16)
        self.cold = Cold(self.tier.load, self.cache)
        self.forest = Forest(layout, self.cold)
        self.flying: list = []
        self._saved = None

    def check(self) -> None:
        super().check()
        self.tier.check()
        self.cold.check_invariants()
        stored, released = set(self.tier.blocks), set(self.cold.released)
        assert stored == referred(self.forest) | released
        assert not released & referred(self.forest)
        blocks = [block for block in self.forest.pending_blocks() if not block.partial]
        assert sum(len(block.columns[0]) for block in blocks) == self.cold.dirty_entries
        self.trim()

    def cool(self) -> None:
        """Store all, and have nothing in memory."""
        self.store(None)
        self.land(None)
        self.empty()

    def empty(self) -> None:
        budget, self.cache.budget_bytes = self.cache.budget_bytes, 0
        self.cache.trim()
        assert (len(self.cache), self.cache.used_bytes) == (0, 0)
        self.cache.budget_bytes = budget

    # ---------------------------------------------------------------- steps

    def store(self, most: int | None) -> None:
        for block in self.forest.pending_blocks(most):
            self.flying.append((block, self.tier.store(block)))

    def land(self, most: int | None) -> None:
        self.cold.landed(self.flying[:most])
        del self.flying[:most]

    def trim(self) -> None:
        self.cache.trim()
        assert self.cache.used_bytes <= self.cache.budget_bytes

    def dump(self) -> None:
        self.store(None)
        assert (self.cold.dirty, self.cold.dirty_entries) == ({}, 0)
        calls = len(self.tier.calls)
        image = self.forest.dump()
        assert len(self.tier.calls) == calls, "a dump loads nothing"
        assert image.entries == len(self.by_row(self.entries))
        assert set(image.numbers) == referred(self.forest, swept=False)
        released = self.cold.take_released()
        assert set(self.tier.blocks) == set(image.numbers) | set(released)
        self.tier.delete(released)
        arrays = [image.ids, image.first, image.last, image.counts, *image.tail, *image.nodes.values()]
        for part in [*arrays, *sum(image.partials, ())]:
            part.flags.writeable = False
        self._saved = image, self.layout, self.entries[:], self.arrivals, self.now

    def restore(self) -> None:
        if self._saved is None:
            return
        image, self.layout, entries, self.arrivals, self.now = self._saved
        self.entries = entries[:]
        self.flying.clear()
        self.cold = Cold(self.tier.load, self.cache)
        calls = len(self.tier.calls)
        self.forest = Forest.restore(self.layout, self.cold, image)
        assert len(self.tier.calls) == calls, "nor does restoring"
        self.tier.delete(sorted(set(self.tier.blocks) - set(image.numbers)))

    def refused(self, step: Step, loads: int = 0) -> bool:
        """Return whether the step needed more loads than there were."""
        if self._fails(step, loads):
            getattr(self, step[0])(*step[1:])
            return True
        return False

    def at_each_load(self, step: Step) -> int:
        """Take a step whose first load fails, then whose second one does, and so on; return how many it needs."""
        loads = 0
        while self._fails(step, loads):
            loads += 1
        return loads

    def _fails(self, step: Step, loads: int) -> bool:
        """Take a step with nothing in memory and a tier that goes away after some loads; return whether it failed."""
        self.empty()
        stale = set(self.forest._directory.stale)  # whose partials a question may write, whether it fails or not
        before = self._state(stale)
        self.tier.failing = loads
        try:
            getattr(self, step[0])(*step[1:])
        except Unavailable:
            assert self._state(stale) == before, f"{step} was refused and has changed something"
            return True
        finally:
            self.tier.down, self.tier.failing = False, None
        return False

    def loaded(self, step: Step) -> None:
        """Load what a step needs, in as many loads as that takes; then take it without a tier."""
        load, arguments = self.loading(*step)
        self.empty()
        load(*arguments)
        self.tier.down = True
        getattr(self, step[0])(*step[1:])
        self.tier.down = False

    def _state(self, stale: set[int]) -> tuple:
        """What may not change where a step is refused; it says nothing of which blocks are in memory.

        Args:
            stale: blocks whose partials are left out.
        """
        forest = self.forest
        directory, tail = forest._directory, forest._tail
        live = slice(directory.head - directory.base, directory.tail - directory.base)
        spans = [column[live].tolist() for column in (directory._first, directory._last, directory.counts)]
        known = [
            position - directory.base for position in range(directory.head, directory.tail) if position not in stale
        ]
        partials = [part[known].tolist() for part in sum(directory.columns, ())]
        rows = [column[: tail.rows].tolist() for column in tail.columns]
        return forest._skip, len(forest), forest._newest, directory.dirty, spans, partials, rows


def storing() -> st.SearchStrategy[Step]:
    """Steps that store."""
    some = st.one_of(st.none(), st.integers(1, 4))
    return st.one_of(
        st.tuples(st.just("store"), some),
        st.tuples(st.just("land"), some),
        st.tuples(st.just("trim")),
        st.tuples(st.just("cool")),
        st.tuples(st.just("dump")),
        st.tuples(st.just("restore")),
    )
