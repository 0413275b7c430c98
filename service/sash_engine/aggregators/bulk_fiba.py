"""Bulk FiBA: a finger B-tree that evicts a prefix, or inserts a bulk of entries, in one pass.

    bulk_evict(6), min_arity = 2; x is cut away, = is the boundary path

                           [ |8|12| ]                        the path: from the lowest left-spine node that
                   ,----------'  |  '------.                 holds the boundary, down to the leaf
            = [ x|4| ]        [ |10| ]    [ |14| ]
              x      '=
          [x|1|2|3|]  [x|5|6|7|]   …                         cut -> [ |8|12| ] over [ ], over [|7|]

    The node [ ] above [|7|] has no entry left: it joins its neighbour [|10|], and 8 moves down between them:

                           [ |12| ]
                    ,---------'  '------.
           [ |8|  |10| ]             [ |14| ]
           /    |     \\
        [|7|] [|9|] [|11|]    …                              new left spine: redone from the top down

**Evict.** Climb the left spine to the lowest node whose subtree has the boundary, and cut down from there. Subtrees
that are cut away go to a *free list* as a whole. Then repair the path from the leaf up: a node with too few entries
takes several from its neighbour on the right, or joins it. The neighbour may be a cousin. Then the first entry of their
lowest common ancestor is between the two, and the nodes between them, which have nothing else, are dropped.

**Insert.** Sort the entries. Find the leaf of each new time by climbing from the leaf of the time before; the path and
the upper bound of each of its nodes are on a stack. Then make one pass over the levels, from the leaves up, in which a
node takes all its new entries at once and splits into as many pieces as it needs.

**Free list.** Evicted subtrees stay there until new nodes are needed; taking a node puts its children on the list. So
no operation takes a large subtree apart, and the memory of evicted entries is used again, not returned.

>>> from sash_engine.monoids import Sum
>>> tree = BulkFiBA(Sum("int64"), min_arity=2)
>>> tree.bulk_insert((time, time) for time in (12, 3, 5, 1, 14, 8, 4, 8))
>>> len(tree), tree.query()
(7, 55)
>>> tree.bulk_evict(6)
4
>>> tree.oldest, tree.youngest, len(tree), tree.query()
(8, 14, 3, 42)

bulk_evict: amortised O(log m), m the number of entries evicted.  bulk_insert of m sorted entries: amortised O(m log(d /
m)), d the distance of the oldest of them to the nearer end, plus the sort. Other operations: as FiBA.  Space: n
entries, at most n partials, and the nodes of evicted entries until inserts use them. Requires: associativity.  Order:
any; equal times combine (old ∘ new), also within a bulk, in the given order. Source: Tangwongsan, Hirzel, Schneider,
"Out-of-order sliding-window aggregation with efficient bulk evictions and insertions", VLDB 2023.  Differs: (a) equal
times within the bulk are combined before the search, and times that the tree has are combined during the search, at any
level; (b) a subtree knows its number of entries, so `len` is right at once after an eviction.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from operator import itemgetter

from sash_engine.aggregators.base import Bulk, Pairs
from sash_engine.aggregators.btree_shape import Item, Node
from sash_engine.aggregators.checks import require
from sash_engine.aggregators.fiba import FiBA
from sash_engine.monoids.base import Monoid

Step = tuple[Node, Node | None, Node | None]
"""A node of the boundary path, its neighbour to the right on the same level, and their lowest common ancestor."""


class BulkFiBA(FiBA, Bulk):
    """A finger B-tree with bulk eviction and bulk insertion.

    Args:
        monoid: the aggregate.
        min_arity: as for `BTree`; the paper uses 2, 4 and 8.
    """

    algorithm = "bulk_fiba"

    def __init__(self, monoid: Monoid, *, min_arity: int = 4) -> None:
        self._free: list[Node] = []
        super().__init__(monoid, min_arity=min_arity)

    # ---------------------------------------------------------------- bulk insert

    def bulk_insert(self, pairs: Pairs) -> None:
        items = self._items(pairs)
        if items:
            self._add(self._sites(items))
            self._repair()

    def _items(self, pairs: Pairs) -> list[Item]:
        """Lift and sort; equal times combine in the given order. If a value cannot be lifted, nothing has changed."""
        lifted = [(time, self.monoid.lift(value)) for time, value in pairs]
        lifted.sort(key=itemgetter(0))
        items: list[Item] = []
        for time, partial in lifted:
            if items and items[-1][0] == time:
                items[-1] = (time, self.monoid.combine(items[-1][1], partial), None)
            else:
                items.append((time, partial, None))
        return items

    def _sites(self, items: list[Item]) -> list[tuple[Node, list[Item]]]:
        """Find the leaf of every new time; items at times that the tree has are combined into their entries."""
        sites: list[tuple[Node, list[Item]]] = []
        node = self._start(items[0][0], items[0][0])
        path = [(node, self._spine_bound(node))]
        for item in items:
            time, partial, _ = item
            node, bound = path[-1]
            while bound is not None and time >= bound:
                path.pop()
                if not path:
                    assert node.parent is not None
                    path.append((node.parent, self._spine_bound(node.parent)))
                node, bound = path[-1]
            while True:
                at = bisect_left(node.times, time)
                if at < len(node.times) and node.times[at] == time:
                    node.partials[at] = self.monoid.combine(node.partials[at], partial)
                    self._touch(node)
                    break
                if not node.children:
                    if sites and sites[-1][0] is node:
                        sites[-1][1].append(item)
                    else:
                        sites.append((node, [item]))
                    break
                if at < len(node.times):
                    bound = node.times[at]
                node = node.children[at]
                path.append((node, bound))
        return sites

    def _spine_bound(self, node: Node) -> int | None:
        """Return the least time after the subtree of the root or of a spine node; None if there is none."""
        if node.left and node.parent is not None:
            return node.parent.times[0]
        return None

    # ---------------------------------------------------------------- bulk evict

    def bulk_evict(self, time: int) -> int:
        oldest, youngest, before = self.oldest, self.youngest, self._size
        if oldest is None or youngest is None or time < oldest:
            return 0
        if time >= youngest:
            self._drop(self._root)
            self._root = self._left_finger = self._right_finger = self._new_node(0)
            self._root.total = self.monoid.identity
            self._size = 0
            return before
        path = self._cut(time)
        self._refill_path(path)
        self._repair()
        return before - self._size

    def _cut(self, time: int) -> list[Step]:
        """Cut away every entry with a time <= `time`; return the boundary path, topmost node first."""
        node, below = self._left_finger, 0
        while node.parent is not None and node.parent.times[0] <= time:
            below += len(node.times) + sum(child.size for child in node.children[1:])
            node = node.parent
        if node.children:
            node.children[0].size = below  # sizes are not kept on the spines
        neighbour = node.parent.children[1] if node.parent is not None else None
        above = node.parent
        path: list[Step] = []
        while True:
            path.append((node, neighbour, above))
            at = bisect_right(node.times, time)
            for child in node.children[:at]:
                self._size -= child.size
                self._drop(child)
            self._size -= at
            del node.times[:at], node.partials[:at], node.children[:at]
            if not node.children:
                return path
            if node.times:
                neighbour, above = node.children[1], node
            elif neighbour is not None:
                neighbour = neighbour.children[0]
            node = node.children[0]

    def _refill_path(self, path: list[Step]) -> None:
        """Bring the nodes of the boundary path back to the least arity, and make the path the left spine."""
        finger = path[-1][0]
        for node, neighbour, above in reversed(path):
            if node.parent is None and node is not self._root:
                continue  # a join further down dropped it
            self._touch(node)
            if neighbour is None or above is None:
                break  # the nodes above have no entry and no other child: they collapse below
            short = self.min_arity - 1 - len(node.times)
            if short <= 0:
                continue
            if len(neighbour.times) - short >= self.min_arity - 1:
                self._borrow_newer(node, neighbour, above, 0, short)
            else:
                self._join(node, neighbour, above, 0)
                if node is finger:
                    finger = neighbour
        parent = path[0][2]
        if parent is not None:
            self._refill(parent)
        self._collapse()
        self._left_finger = node = finger
        while node.parent is not None and not node.left:
            node.left = True
            self._touch(node)
            node = node.parent

    # ---------------------------------------------------------------- nodes

    def _drop(self, node: Node) -> None:
        super()._drop(node)
        self._free.append(node)

    def _new_node(self, height: int) -> Node:
        if not self._free:
            return super()._new_node(height)
        node = self._free.pop()
        self._free += node.children
        node.reset(height)
        return node

    def _recompute(self, node: Node) -> None:
        super()._recompute(node)
        node.size = len(node.times) + sum(child.size for child in node.children)

    # ---------------------------------------------------------------- invariants

    def check_invariants(self) -> None:
        super().check_invariants()
        nodes = set(self._nodes())
        for node in nodes:
            if self._covers_subtree(node):
                size = len(node.times) + sum(child.size for child in node.children)
                require(node.size == size, "size", f"{node} has size {node.size}, not {size}")
        waiting = list(self._free)
        while waiting:
            node = waiting.pop()
            require(node not in nodes, "free list", f"{node} is on it and in the tree")
            waiting += node.children
