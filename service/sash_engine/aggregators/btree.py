"""Augmented B-tree: entries in time order, and in every node the partial of its whole subtree.

    min_arity = 2, so inner nodes have two to four children and leaves one to three entries; |t| is an entry

                     [    |4|    ]  total = v1∘…∘v7         all leaves are equally deep
                    /             \\
            [  |2|  ]             [  |6|  ]  total = v5∘v6∘v7
            /       \\             /       \\
         [|1|]     [|3|]       [|5|]     [|7|]               the answer is lower(root.total)

An entry enters a leaf. A node with too many entries splits, and the entries between the pieces move up; a node
with too few takes some from a sibling or joins it. Every node on the way to the root is then recomputed: that
walk is the price that FiBA (`fiba.py`) avoids, and this structure is the baseline that it is measured against.

Worked example, on the tree above: evicting 4 moves its successor, 5, into the root and leaves the leaf [|5|]
empty; that leaf joins its sibling ([|6|7|]); their parent now has one child, and joins its own sibling with
the root's entry between them ([|2|5|]); the root is empty, so the tree becomes one level lower.

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
from itertools import pairwise, repeat
from operator import itemgetter
from typing import Any

from sash_engine.aggregators.base import OutOfOrder, Range
from sash_engine.aggregators.checks import require, require_same
from sash_engine.errors import InvalidArgument
from sash_engine.monoids.base import Monoid, Partial

__all__ = ["BTree"]


class Node:
    """One node: k entries and, unless it is a leaf, k + 1 children around them.

    `total` is the partial of the subtree. In the finger trees it depends on where the node is (see `fiba.py`),
    and `left` and `right` say that the node is on the left or right spine; `size`, the number of entries below,
    is kept by the bulk tree only.
    """

    __slots__ = ("children", "height", "left", "parent", "partials", "right", "size", "times", "total")

    def __init__(self, height: int) -> None:
        self.reset(height)

    def reset(self, height: int) -> None:
        """Make this a new node without entries, children or parent."""
        self.height = height
        self.times: list[int] = []
        self.partials: list[Partial] = []
        self.children: list[Node] = []
        self.parent: Node | None = None
        self.total: Partial = None
        self.left = self.right = False
        self.size = 0

    def __repr__(self) -> str:
        return f"Node(height={self.height}, times={self.times})"


Item = tuple[int, Partial, Node | None]
"""An entry on its way into a node: time, partial, and the child to its right (None in leaves)."""


class BTree(OutOfOrder, Range):
    """A B-tree whose nodes carry the partials of their subtrees.

    Args:
        monoid: the aggregate.
        min_arity: the least number of children of an inner node, at least 2; the most is twice that. A leaf has
            one entry less than an inner node of the same arity.

    Raises:
        InvalidArgument: `min_arity` is no integer, or below 2.
    """

    algorithm = "btree"

    def __init__(self, monoid: Monoid, *, min_arity: int = 4) -> None:
        super().__init__(monoid)
        if not isinstance(min_arity, int) or min_arity < 2:
            raise InvalidArgument(f"min_arity is {min_arity!r}, not an integer from 2 on", field="min_arity", limit="2")
        self.min_arity = min_arity
        self._max_entries = 2 * min_arity - 1
        self._size = 0
        self._root = self._new_node(0)
        self._root.total = monoid.identity
        self._touched: list[set[Node]] = []  # by height: the nodes whose entries or children changed

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
        """Fold what `node` has within [start, end]; None where that side is known to be within."""
        if start is None and end is None and self._covers_subtree(node):
            return node.total
        times, children, combine = node.times, node.children, self.monoid.combine
        first = 0 if start is None else bisect_left(times, start)
        last = len(times) if end is None else bisect_right(times, end)
        if not children:
            return self._fold_all(node.partials[first:last])
        if first == last:
            return self._fold(children[first], start, end)
        # An entry at `start` has nothing but older ones to its left: that child is left out; likewise at `end`.
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

    def _add(self, sites: list[tuple[Node, list[Item]]]) -> None:
        """Put new entries into leaves, and let nodes that overflow split, one level of the tree after the other.

        Args:
            sites: leaves, each once and in time order, with their new entries, in time order.
        """
        self._size += sum(len(items) for _, items in sites)
        while sites:
            above: list[tuple[Node, list[Item]]] = []
            for node, items in sites:
                self._absorb(node, items)
                if len(node.times) <= self._max_entries:
                    continue
                if node.parent is None:
                    self._grow()
                assert node.parent is not None
                promoted = self._split(node)
                if above and above[-1][0] is node.parent:
                    above[-1][1].extend(promoted)
                else:
                    above.append((node.parent, promoted))
            sites = above

    def _absorb(self, node: Node, items: list[Item]) -> None:
        """Take items in, each with the child to its right."""
        self._touch(node)
        inner = bool(node.children)
        if len(items) == 1:
            time, partial, child = items[0]
            at = bisect_left(node.times, time)
            node.times.insert(at, time)
            node.partials.insert(at, partial)
            if child is not None:
                node.children.insert(at + 1, child)
        else:
            own = zip(node.times, node.partials, node.children[1:] if inner else repeat(None), strict=False)
            merged = sorted([*own, *items], key=itemgetter(0))
            node.times = [item[0] for item in merged]
            node.partials = [item[1] for item in merged]
            if inner:
                node.children[1:] = [item[2] for item in merged if item[2] is not None]
        if inner:
            for item in items:
                if item[2] is not None:
                    item[2].parent = node

    def _split(self, node: Node) -> list[Item]:
        """Cut an overfull node into pieces; return all but the first, each behind the entry that goes before it.

        The pieces have min_arity + 1 children, and the last one what is left (min_arity to twice that): far
        enough from both bounds that the splits and joins to come are paid for by the inserts and evicts before
        them. `node` stays the first piece.
        """
        width = self.min_arity + 1
        arity = len(node.times) + 1
        bounds = list(range(width, arity - self.min_arity + 1, width))
        promoted: list[Item] = []
        for begin, end in zip(bounds, [*bounds[1:], arity], strict=True):
            piece = self._new_node(node.height)
            piece.times = node.times[begin : end - 1]
            piece.partials = node.partials[begin : end - 1]
            if node.children:
                piece.children = node.children[begin:end]
                for child in piece.children:
                    child.parent = piece
            self._touch(piece)
            promoted.append((node.times[begin - 1], node.partials[begin - 1], piece))
        del node.times[width - 1 :], node.partials[width - 1 :], node.children[width:]
        return promoted

    def _grow(self) -> None:
        """Put a new root, so far without entries, above the root."""
        root = self._new_node(self._root.height + 1)
        root.children.append(self._root)
        self._root.parent = root
        self._root = root

    def _new_node(self, height: int) -> Node:
        return Node(height)

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
            # The entry is inside: its successor, which is in a leaf, takes its place and is what goes.
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

    def _refill(self, node: Node) -> None:
        """Bring a node that is one entry short, and after it its ancestors, back to the least arity."""
        while len(node.times) < self.min_arity - 1 and node.parent is not None:
            parent = node.parent
            at = parent.children.index(node)
            if at and len(parent.children[at - 1].times) >= self.min_arity:
                self._borrow_older(node, parent.children[at - 1], parent, at - 1)
            elif at:
                self._join(parent.children[at - 1], node, parent, at - 1)
            elif len(parent.children[1].times) >= self.min_arity:
                self._borrow_newer(node, parent.children[1], parent, 0, 1)
            else:
                self._join(node, parent.children[1], parent, 0)
            node = parent

    def _borrow_older(self, node: Node, neighbour: Node, above: Node, at: int) -> None:
        """Rotate one entry through entry `at` of the parent `above` from the older neighbour into `node`."""
        node.times.insert(0, above.times[at])
        node.partials.insert(0, above.partials[at])
        above.times[at] = neighbour.times.pop()
        above.partials[at] = neighbour.partials.pop()
        if node.children:
            child = neighbour.children.pop()
            child.parent = node
            node.children.insert(0, child)
        for changed in (node, neighbour, above):
            self._touch(changed)

    def _borrow_newer(self, node: Node, neighbour: Node, above: Node, at: int, count: int) -> None:
        """Move `count` entries through entry `at` of their ancestor `above` from the newer neighbour into `node`."""
        node.times += [above.times[at], *neighbour.times[: count - 1]]
        node.partials += [above.partials[at], *neighbour.partials[: count - 1]]
        above.times[at] = neighbour.times[count - 1]
        above.partials[at] = neighbour.partials[count - 1]
        del neighbour.times[:count], neighbour.partials[:count]
        if node.children:
            for child in neighbour.children[:count]:
                child.parent = node
            node.children += neighbour.children[:count]
            del neighbour.children[:count]
        for changed in (node, neighbour, above):
            self._touch(changed)

    def _join(self, node: Node, neighbour: Node, above: Node, at: int) -> None:
        """Move all of `node`, and entry `at` of their ancestor `above` behind it, into the newer neighbour.

        Where `above` is not the parent, the nodes between have `node`'s subtree as their only child: they go too.
        """
        neighbour.times[:0] = [*node.times, above.times[at]]
        neighbour.partials[:0] = [*node.partials, above.partials[at]]
        for child in node.children:
            child.parent = neighbour
        neighbour.children[:0] = node.children
        node.children = []
        del above.times[at], above.partials[at], above.children[at]
        gone: Node | None = node
        while gone is not None and gone is not above:
            parent = gone.parent
            gone.children = []
            self._drop(gone)
            gone = parent
        self._touch(neighbour)
        self._touch(above)

    def _collapse(self) -> None:
        """Make the only child of a root without entries the root."""
        while self._root.children and not self._root.times:
            root = self._root
            self._root = root.children.pop()
            self._root.parent = None
            self._drop(root)
            self._touch(self._root)

    def _drop(self, node: Node) -> None:
        """Part with a node and all that is below it."""
        node.parent = None

    # ---------------------------------------------------------------- repair

    def _touch(self, node: Node) -> None:
        while len(self._touched) <= node.height:
            self._touched.append(set())
        self._touched[node.height].add(node)

    def _repair(self) -> None:
        """Recompute the totals that the touched nodes change: theirs and, upwards, their ancestors'."""
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
        """Bring what is stored about a node's subtree up to date; its children are."""
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
