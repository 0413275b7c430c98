r"""The shape of a B-tree: nodes that take entries in, split, borrow and join.

    split     [|1|2|3|4|5|]                 [   |3|   ]          min_arity = 2: a node has three entries at most
                                     ->     /         \
                                        [|1|2|]     [|4|5|]

    borrow      [   |4|   ]                 [   |5|   ]          an entry moves through the ancestor
                /         \          ->     /         \
              [ ]       [|5|6|]           [|4|]     [|6|]

    join        [ |2|  |4| ]                [   |4|   ]          a node and the entry above it
                /    |    \          ->     /         \          move into the neighbour
              [ ]  [|3|]  [|5|]        [|2|3|]       [|5|]

This half of the B-tree (`btree.py`) knows times, partials and children, and keeps all leaves equally deep. It does not
know totals: it notes each node that it changes (`_touch`), and the other half recomputes those.

Source: Cormen, Leiserson, Rivest, Stein, "Introduction to Algorithms", on B-trees.  Differs: a node may overflow by any
number of entries and then splits into several, and a node may take entries from a neighbour that is not its sibling.
Bulk operations (`bulk_fiba.py`) need both.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import repeat
from operator import itemgetter

from sash_engine.monoids.base import Partial


class Node:
    """A node: k entries and, unless it is a leaf, k + 1 children around them.

    `total` is the partial of the subtree. In the finger trees it depends on the place of the node (see `fiba.py`), and
    `left` and `right` tell whether the node is on the left or right spine. Only the bulk tree uses `size`, the number
    of entries in the subtree.
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


class Shape:
    """A tree whose inner nodes have from `min_arity` to 2 `min_arity` children.

    Args:
        min_arity: the least number of children of an inner node, at least 2.
    """

    def __init__(self, min_arity: int) -> None:
        self.min_arity = min_arity
        self._max_entries = 2 * min_arity - 1
        self._size = 0
        self._root = self._new_node(0)
        self._touched: list[set[Node]] = []  # by height: the nodes whose entries or children changed

    def _touch(self, node: Node) -> None:
        """Note that a node's entries or children changed."""
        while len(self._touched) <= node.height:
            self._touched.append(set())
        self._touched[node.height].add(node)

    # ---------------------------------------------------------------- growing

    def _add(self, sites: list[tuple[Node, list[Item]]]) -> None:
        """Insert new entries into leaves, and split nodes that overflow, level by level from the leaves up.

        Args:
            sites: leaves, each once and in time order, with their new entries in time order.
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
        """Insert items, each with the child to its right."""
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
        """Cut an overfull node into pieces; return all but the first, each with the entry before it.

        The pieces have min_arity + 1 children, and the last one has the rest, from min_arity to twice that. So each
        piece is far enough from both bounds that many inserts or evicts come before its next split or join. `node`
        becomes the first piece.
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
        """Put a new root without entries above the root."""
        root = self._new_node(self._root.height + 1)
        root.children.append(self._root)
        self._root.parent = root
        self._root = root

    def _new_node(self, height: int) -> Node:
        return Node(height)

    # ---------------------------------------------------------------- shrinking

    def _refill(self, node: Node) -> None:
        """Bring a node that lacks one entry, and then its ancestors, back to the least arity."""
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
        """Move all of `node`, and after it entry `at` of their ancestor `above`, into the newer neighbour.

        If `above` is not the parent, the nodes between them have only this subtree as a child, and are dropped too.
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
        """Detach a node and its subtree from the tree."""
        node.parent = None
