"""FiBA, the finger B-tree aggregator: entries in any order, and changes near either end cost very little.

    min_arity = 2; |t| is an entry; the kind of a node's total depends on the place of the node

                               [ |8| ]                      root:   inner   v8
                       ,------'       '------.
              [    |4|    ]             [    |12|    ]      spines: left    v4 ∘ up(5,6,7)
               /         \\               /         \\                right   up(9,10,11) ∘ v12
     ->  [|1|2|3|]   [|5|6|7|]     [|9|10|11|]  [|13|14|]  <-
      left finger     up: v5∘v6∘v7   up           right finger
      left: v1∘v2∘v3 ∘ left([4])                  right: right([12]) ∘ v13∘v14

      answer = lower(left finger's total ∘ root's total ∘ right finger's total)

    kind    of which nodes      total                                    depends on
    up      off the spines      the whole subtree                        all children
    inner   the root            entries and children between the spines  its middle children
    left    on the left spine   all but the first child, then the parent's left (none under the root)
    right   on the right spine  the parent's right (none under the root), then all but the last child

The total of a spine node folds everything between its finger and the root. So a change in a finger changes only the
finger's total: there is no walk to the root. A change elsewhere changes the nodes of kind up from there to the spine,
and then the spine from there down to the finger. A search also starts at the fingers, and climbs both spines until the
time is in one of the subtrees.

Worked example: in the tree above, inserting 15 only changes the right finger's total, to
right([12]) ∘ v13 ∘ v14 ∘ v15. Inserting 10 again changes the leaf [9, 10, 11], then right([12]), then the right finger
below it. It does not visit the root and the left spine.

>>> from sash_engine.monoids import Sum
>>> tree = FiBA(Sum("int64"), min_arity=2)
>>> for time in (1, 2, 3, 5, 8, 4, 7, 6):
...     tree.insert(time, 10 * time)
>>> tree.insert(6, 1)
>>> tree.query(), tree.range_query(4, 6), tree.oldest, tree.youngest
(361, 151, 1, 8)
>>> tree.evict(6)
>>> tree.query()
300

Insert, evict: amortised O(1 + log d), d the distance in entries to the nearer end (worst O(log n)).  Query: O(1).
Range query: O(log n).  Space: n entries, at most n partials; about n / min_arity in practice.
Requires: associativity.  Order: any; equal times combine (old ∘ new).
Source: Tangwongsan, Hirzel, Schneider, "Optimal and general out-of-order sliding-window aggregation", VLDB 2019.
Differs: (a) the search climbs both spines in step, so an insert near the oldest entry is cheap as well; (b) an append
to the right finger extends its total by one combine instead of recomputing it; (c) changed nodes are collected by
height and recomputed once each, so single and bulk operations share the repair.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sash_engine.aggregators.btree import BTree
from sash_engine.aggregators.btree_shape import Item, Node
from sash_engine.aggregators.checks import require
from sash_engine.monoids.base import Monoid, Partial


class FiBA(BTree):
    """A B-tree with fingers at both ends and totals that depend on where a node is.

    Args:
        monoid: the aggregate.
        min_arity: as for `BTree`; the paper uses 2, 4 and 8.
    """

    algorithm = "fiba"

    def __init__(self, monoid: Monoid, *, min_arity: int = 4) -> None:
        super().__init__(monoid, min_arity=min_arity)
        self._left_finger = self._right_finger = self._root

    # ---------------------------------------------------------------- reading

    @property
    def oldest(self) -> int | None:
        times = self._left_finger.times
        return times[0] if times else None

    @property
    def youngest(self) -> int | None:
        times = self._right_finger.times
        return times[-1] if times else None

    def query(self) -> Any:
        total = self._root.total
        if self._root.children:
            total = self.monoid.combine(self._left_finger.total, total)
            total = self.monoid.combine(total, self._right_finger.total)
        return self.monoid.lower(total)

    def _start(self, start: int, end: int) -> Node:
        left, right = self._left_finger, self._right_finger
        while left.parent is not None and right.parent is not None:
            if start > right.parent.times[-1]:
                return right
            if end < left.parent.times[0]:
                return left
            left, right = left.parent, right.parent
        return self._root

    def _covers_subtree(self, node: Node) -> bool:
        return not (node.left or node.right or node is self._root)

    # ---------------------------------------------------------------- insert and evict: what differs from BTree

    def insert(self, time: int, value: Any) -> None:
        finger, youngest = self._right_finger, self.youngest
        if youngest is None or time <= youngest or len(finger.times) == self._max_entries:
            super().insert(time, value)
            return
        # The right finger's total ends with its last entry, so a newer entry takes one combine.
        partial = self.monoid.lift(value)
        finger.times.append(time)
        finger.partials.append(partial)
        self._size += 1
        finger.total = self.monoid.combine(finger.total, partial)

    def _split(self, node: Node) -> list[Item]:
        promoted = super()._split(node)
        last = promoted[-1][2]
        assert last is not None
        last.right, node.right = node.right, False
        if node is self._right_finger:
            self._right_finger = last
        return promoted

    def _grow(self) -> None:
        # For a moment the old root is on both spines; the split that follows passes the right spine on.
        self._root.left = self._root.right = True
        super()._grow()

    def _join(self, node: Node, neighbour: Node, above: Node, at: int) -> None:
        neighbour.left |= node.left
        if node is self._left_finger:
            self._left_finger = neighbour
        super()._join(node, neighbour, above, at)

    def _drop(self, node: Node) -> None:
        super()._drop(node)
        node.left = node.right = False

    def _collapse(self) -> None:
        before = self._root
        super()._collapse()
        if self._root is not before:
            # The outer children of the new root now start the spines, so their totals change.
            self._root.left = self._root.right = False
            if self._root.children:
                self._touch(self._root.children[0])
                self._touch(self._root.children[-1])

    # ---------------------------------------------------------------- repair

    def _repair(self) -> None:
        """Recompute upwards to the spines, then each spine from its highest changed node down to the finger."""
        left = right = None
        height = 0
        while height < len(self._touched):  # recomputing a level touches the next
            for node in self._touched[height]:
                if node is self._root:
                    node.total = self._inner(node)
                elif node.left:
                    left = node
                elif node.right:
                    right = node
                elif node.parent is not None:  # otherwise it was dropped after it was touched
                    self._recompute(node)
                    self._touch(node.parent)
            height += 1
        self._touched.clear()
        while left is not None:
            left.total = self._left_total(left)
            left = left.children[0] if left.children else None
        while right is not None:
            right.total = self._right_total(right)
            right = right.children[-1] if right.children else None

    def _left_total(self, node: Node) -> Partial:
        total = self._inner(node)
        if node.children:
            total = self.monoid.combine(total, node.children[-1].total)
        if node.parent is not None and node.parent is not self._root:
            total = self.monoid.combine(total, node.parent.total)
        return total

    def _right_total(self, node: Node) -> Partial:
        # From left to right, so that appending an entry to the finger gives the same grouping as recomputing it.
        parts: list[Partial] = []
        if node.parent is not None and node.parent is not self._root:
            parts.append(node.parent.total)
        if node.children:
            for child, partial in zip(node.children, node.partials, strict=False):
                parts += (child.total, partial)
        else:
            parts += node.partials
        return self._fold_all(parts)

    # ---------------------------------------------------------------- invariants

    def check_invariants(self) -> None:
        super().check_invariants()
        left = right = self._root
        require(not (left.left or left.right), "spine", f"the root, {left}, is marked")
        on_left, on_right = set(), set()
        while left.children:
            left, right = left.children[0], right.children[-1]
            on_left.add(left)
            on_right.add(right)
        require(self._left_finger is left, "finger", f"left is {self._left_finger}, not {left}")
        require(self._right_finger is right, "finger", f"right is {self._right_finger}, not {right}")
        for node in self._nodes():
            require(node.left == (node in on_left), "spine", f"{node} has left = {node.left}")
            require(node.right == (node in on_right), "spine", f"{node} has right = {node.right}")

    def _nodes(self) -> Iterator[Node]:
        waiting = [self._root]
        while waiting:
            node = waiting.pop()
            yield node
            waiting += node.children

    def _expected_total(self, node: Node) -> Partial:
        if node is self._root:
            return self._inner(node)
        if node.left:
            return self._left_total(node)
        return self._right_total(node) if node.right else self._up_total(node)
