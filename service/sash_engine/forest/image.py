"""The image of a forest: everything but the columns of its sealed blocks, which are stored under their ids."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field, replace

import numpy as np

from sash_engine.monoids import Partials
from sash_engine.monoids.base import Array

BEFORE_ALL = -(2**63)
"""The time of the newest entry where there is none."""


@dataclass(frozen=True, slots=True)
class ForestImage:
    """A forest at one moment; the arrays are its own, and may be read-only where one is restored from it.

    Attributes:
        head: position of the oldest block, so that the same blocks are paired again, and floats round as they did.
        skip: how many rows at the front of the oldest block (of the tail where there is none) are evicted.
        newest: time of the newest entry; -2^63 where there is none.
        ids, first, last, counts: int64 (b,), by sealed block, oldest first: where it is stored, the times of its first
            and last entries, how many it has.
        partials: per slot of the layout b partials, one per block; () where they are large (external.py). Objects are
            the forest's own: not to be changed.
        nodes: for each slot with large partials, in order, their ids, int64 (u,): of the b blocks, of the nodes of
            level 1, and so on. Of others the nodes above level 0 are computed anew.
        done: position of the block up to which such nodes are there.
        tail: the open block: times and one array per field, evicted rows and all.
        room: how many rows it had room for; evicted ones go when there is none left.
    """

    head: int
    skip: int
    newest: int
    ids: Array
    first: Array
    last: Array
    counts: Array
    partials: list[Partials]
    tail: list[Array]
    room: int
    nodes: dict[int, Array] = field(default_factory=dict)
    done: int = 0

    def only(self, there: Container[int]) -> tuple[ForestImage, Array, list[int]]:
        """It without the blocks that are not there, as far as it can be restored without them.

        Args:
            there: ids of all that is stored and whole.

        Returns:
            the image; which blocks it lacks, bool (b,); and the positions of its blocks that lack a large partial:
            `Forest.refold` makes those anew. Nodes above level 0 follow from the rest, and are left out where it lacks
            anything.
        """
        kept = _there(self.ids, there)
        if kept.all() and all(_there(ids, there).all() for ids in self.nodes.values()):
            return self, ~kept, []
        blocks = len(kept)
        nodes = {slot: ids[:blocks][kept] for slot, ids in self.nodes.items()}
        missing = [np.flatnonzero(~_there(ids, there)) for ids in nodes.values()]
        last = self.last[kept]
        newest = self.newest if len(self.tail[0]) else last[-1].item() if len(last) else BEFORE_ALL
        image = replace(
            self,
            skip=self.skip if kept[:1].all() else 0,
            newest=newest,
            ids=self.ids[kept],
            first=self.first[kept],
            last=last,
            counts=self.counts[kept],
            partials=[tuple([part[kept] for part in parts]) for parts in self.partials],
            nodes=nodes,
            done=self.head,
        )
        refolded = np.unique(np.concatenate([*missing, np.empty(0, np.int64)])) + self.head
        return image, ~kept, refolded.tolist()

    @property
    def numbers(self) -> list[int]:
        """The ids of all that is stored of it."""
        return [number for ids in (self.ids, *self.nodes.values()) for number in ids.tolist()]

    @property
    def entries(self) -> int:
        """How many entries the forest has."""
        return int(self.counts.sum()) + len(self.tail[0]) - self.skip


def _there(ids: Array, there: Container[int]) -> Array:
    """Which of some ids are there: bool, as many."""
    return np.array([number in there for number in ids.tolist()], np.bool_)
