"""Augmented B-tree: entries in time order, and in every node the partial of its whole subtree.

    min_arity = 2, so inner nodes have two to four children and leaves one to three entries; |t| is an entry

                     [    |4|    ]  total = v1∘…∘v7         all leaves are equally deep
                    /             \\
            [  |2|  ]             [  |6|  ]  total = v5∘v6∘v7
            /       \\             /       \\
         [|1|]     [|3|]       [|5|]     [|7|]               the answer is lower(root.total)

An entry is inserted into a leaf. A node with too many entries splits, and the entries between the pieces move up. A
node with too few entries takes some from a sibling or joins it (`btree_shape.py`). Then every node on the way to the
root is recomputed. FiBA (`fiba.py`) avoids this walk; this structure is its baseline.

Worked example, on the tree above: evicting 4 moves its successor, 5, into the root and leaves the leaf [|5|] empty.
That leaf joins its sibling ([|6|7|]). Their parent now has one child, and joins its own sibling with the entry of the
root between them ([|2|5|]). The root is empty, so the tree becomes one level lower.

>>> from sash_engine.monoids import Sum
>>> tree = BTree(Sum("int64"), min_arity=2)
>>> for time in (4, 2, 6, 1, 3, 7, 5, 5):
...     tree.insert(time, time)
>>> tree.query(), len(tree), tree.range_query(2, 5)
(33, 7, 19)
>>> tree.evict(4)
>>> tree.query(), tree.oldest, tree.youngest
(29, 1, 7)

Insert, evict, range query: O(log n).  Query: O(1).  Space: n entries, at most n partials.
Requires: associativity.  Order: any; equal times combine (old ∘ new).
Source: Cormen, Leiserson, Rivest, Stein, "Introduction to Algorithms", on B-trees and on augmenting data structures;
the baseline in Tangwongsan, Hirzel, Schneider, VLDB 2019.  Differs: (a) a node may overflow by any number of entries
and then splits into several, so that the bulk tree (`bulk_fiba.py`) uses the same pass; (b) changed nodes are
collected by height and recomputed once each, lowest first.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from sash_engine.aggregators.base import OutOfOrder, Range
from sash_engine.aggregators.btree_shape import Node, Shape
from sash_engine.aggregators.checks import require, require_same
from sash_engine.errors import InvalidArgument
from sash_engine.monoids.base import Monoid, Partial


class BTree(Shape, OutOfOrder, Range):
    """A B-tree whose nodes have the partials of their subtrees.

    Args:
        monoid: the aggregate.
        min_arity: the least number of children of an inner node, at least 2; the greatest is twice that. A leaf has
            one entry less than an inner node has children.

    Raises:
        InvalidArgument: `min_arity` is not an integer from 2 on.
    """

    algorithm = "btree"

    def __init__(self, monoid: Monoid, *, min_arity: int = 4) -> None:
        OutOfOrder.__init__(self, monoid)
        if not isinstance(min_arity, int) or min_arity < 2:
            raise InvalidArgument(f"min_arity is {min_arity!r}, not an integer from 2 on", field="min_arity", limit="2")
        Shape.__init__(self, min_arity)
        self._root.total = monoid.identity

    # ---------------------------------------------------------------- reading

    def __len__(self) -> int:
        return self._size

    @property
    def oldest(self) -> int | None:
        node = self._root
        while node.children:
            node = node.children[0]
        return node.times[0] if node.times else None

    @property
    def youngest(self) -> int | None:
        node = self._root
        while node.children:
            node = node.children[-1]
        return node.times[-1] if node.times else None

    def query(self) -> Any:
        return self.monoid.lower(self._root.total)

    def range_query(self, start: int, end: int) -> Any:
        if start > end or not self._size:
            return self.monoid.lower(self.monoid.identity)
        return self.monoid.lower(self._fold(self._start(start, end), start, end))

    def _fold(self, node: Node, start: int | None, end: int | None) -> Partial:
        """Fold the entries below `node` within [start, end]; a bound is None if the subtree does not cross it."""
        if start is None and end is None and self._covers_subtree(node):
            return node.total
        times, children, combine = node.times, node.children, self.monoid.combine
        first = 0 if start is None else bisect_left(times, start)
        last = len(times) if end is None else bisect_right(times, end)
        if not children:
            return self._fold_all(node.partials[first:last])
        if first == last:
            return self._fold(children[first], start, end)
        # The child before an entry at `start` has only older entries, so it is left out; likewise at `end`.
        total = node.partials[first]
        if times[first] != start:
            total = combine(self._fold(children[first], start, None), total)
        for at in range(first + 1, last):
            total = combine(combine(total, self._fold(children[at], None, None)), node.partials[at])
        if times[last - 1] != end:
            total = combine(total, self._fold(children[last], None, end))
        return total

    def _fold_all(self, partials: Sequence[Partial]) -> Partial:
        if not partials:
            return self.monoid.identity
        total = partials[0]
        for partial in partials[1:]:
            total = self.monoid.combine(total, partial)
        return total

    # ---------------------------------------------------------------- insert

    def insert(self, time: int, value: Any) -> None:
        partial = self.monoid.lift(value)
        node, at = self._locate(time)
        if at < len(node.times) and node.times[at] == time:
            node.partials[at] = self.monoid.combine(node.partials[at], partial)
            self._touch(node)
        else:
            self._add([(node, [(time, partial, None)])])
        self._repair()

    def _start(self, start: int, end: int) -> Node:
        """Return a node whose subtree holds, or would hold, every time in [start, end]."""
        return self._root

    def _locate(self, time: int) -> tuple[Node, int]:
        """Return the node and position of the entry at `time`, or the leaf and position where it would be."""
        node = self._start(time, time)
        while True:
            at = bisect_left(node.times, time)
            if not node.children or (at < len(node.times) and node.times[at] == time):
                return node, at
            node = node.children[at]

    # ---------------------------------------------------------------- evict

    def evict(self, time: int | None = None) -> None:
        if time is None:
            time = self.oldest
        if time is None or not self._size:
            raise self._nothing_to_evict()
        node, at = self._locate(time)
        if at == len(node.times) or node.times[at] != time:
            raise self._absent(time)
        if node.children:
            # The entry is in an inner node: its successor, which is in a leaf, takes its place.
            leaf = node.children[at + 1]
            while leaf.children:
                leaf = leaf.children[0]
            node.times[at], node.partials[at] = leaf.times[0], leaf.partials[0]
            self._touch(node)
            node, at = leaf, 0
        del node.times[at], node.partials[at]
        self._size -= 1
        self._touch(node)
        self._refill(node)
        self._collapse()
        self._repair()

    # ---------------------------------------------------------------- repair

    def _repair(self) -> None:
        """Recompute the totals of the touched nodes and of their ancestors."""
        height = 0
        while height < len(self._touched):  # recomputing a level touches the next
            for node in self._touched[height]:
                if node.parent is None and node is not self._root:
                    continue  # dropped after it was touched
                self._recompute(node)
                if node.parent is not None:
                    self._touch(node.parent)
            height += 1
        self._touched.clear()

    def _recompute(self, node: Node) -> None:
        """Recompute what a node stores about its subtree; its children are up to date."""
        node.total = self._up_total(node)

    def _up_total(self, node: Node) -> Partial:
        """Fold the whole subtree of a node, from its children's totals."""
        total = self._inner(node)
        if node.children:
            total = self.monoid.combine(node.children[0].total, total)
            total = self.monoid.combine(total, node.children[-1].total)
        return total

    def _inner(self, node: Node) -> Partial:
        """Fold the entries of a node and the children between them, without the first and the last child."""
        if not node.children:
            return self._fold_all(node.partials)
        combine = self.monoid.combine
        total = node.partials[0]
        for child, partial in zip(node.children[1:-1], node.partials[1:], strict=True):
            total = combine(combine(total, child.total), partial)
        return total

    def _covers_subtree(self, node: Node) -> bool:
        """Whether `total` is the partial of the whole subtree."""
        return True

    # ---------------------------------------------------------------- invariants

    def check_invariants(self) -> None:
        require(self._root.parent is None, "root", "it has a parent")
        require(not self._touched, "repair", f"{self._touched} wait for it")
        count = self._check_subtree(self._root, None, None)
        require(count == self._size, "size", f"{count} entries, but len is {self._size}")

    def _check_subtree(self, node: Node, low: int | None, high: int | None) -> int:
        """Check a subtree whose times must be between `low` and `high`; return its number of entries."""
        entries, is_root = len(node.times), node is self._root
        least = self.min_arity - 1 if not is_root else 1 if node.children else 0
        require(least <= entries <= self._max_entries, "arity", f"{node} has {entries} entries")
        require(len(node.partials) == entries, "arity", f"{node} has {len(node.partials)} partials")
        bounds = [*([] if low is None else [low]), *node.times, *([] if high is None else [high])]
        require(all(a < b for a, b in pairwise(bounds)), "order", f"{node} is between {low} and {high}")
        if node.height or node.children:
            require(len(node.children) == entries + 1, "arity", f"{node} has {len(node.children)} children")
        count = entries
        edges = [low, *node.times, high]
        for child, (below, above) in zip(node.children, pairwise(edges), strict=False):
            require(child.parent is node, "parent", f"{child} does not know {node}")
            require(child.height == node.height - 1, "balance", f"{child} is below {node}")
            count += self._check_subtree(child, below, above)
        require_same(node.total, self._expected_total(node), "partial", repr(node))
        return count

    def _expected_total(self, node: Node) -> Partial:
        return self._up_total(node)
