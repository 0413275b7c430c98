"""`check_invariants` of each algorithm names what is broken."""

from __future__ import annotations

from functools import partial

import pytest

from sash_engine.aggregators import (
    AMTA,
    DABA,
    BTree,
    BulkFiBA,
    DABALite,
    FiBA,
    FlatFIT,
    Reactive,
    Recalc,
    SubtractOnEvict,
    Timed,
    TwoStacks,
    TwoStacksLite,
    create,
)
from sash_engine.aggregators.reactive import HOLE
from sash_engine.monoids import Sum


def tree(algorithm, min_arity):
    return partial(algorithm, min_arity=min_arity)


def hole_at_the_head(window):
    window._tree[window._capacity + window._head] = HOLE
    window._size -= 1


OF_TREES = [
    ("arity", lambda tree: tree._root.children[0].times.clear()),
    ("order", lambda tree: tree._root.times.__setitem__(0, -100)),
    ("balance", lambda tree: setattr(tree._root.children[0], "height", 7)),
    ("parent", lambda tree: setattr(tree._root.children[-1], "parent", None)),
    ("partial", lambda tree: tree._root.children[1].partials.__setitem__(0, -1)),
    ("size", lambda tree: setattr(tree, "_size", 5)),
]
BREAKS = [
    (SubtractOnEvict, "total", lambda window: setattr(window, "_total", -1)),
    (TwoStacks, "front 0", lambda window: window._front.__setitem__(0, (3, 4))),
    (TwoStacks, "back 1", lambda window: window._back.__setitem__(1, (3, 4))),
    (TwoStacksLite, "back", lambda window: setattr(window, "_back", -1)),
    (TwoStacksLite, "split", lambda window: setattr(window, "_split", 100)),
    (DABA, "balance", lambda window: setattr(window, "_L", window._L.newer)),
    (DABA, "fold", lambda window: setattr(window._F, "fold", -1)),
    (DABA, "size", lambda window: setattr(window, "_size", 3)),
    (DABA, "links", lambda window: setattr(window._F.newer, "older", None)),
    (DABALite, "pointer order", lambda window: setattr(window, "_A", window._F)),
    (DABALite, "back", lambda window: setattr(window, "_back", -1)),
    (DABALite, "middle", lambda window: setattr(window, "_middle", -1)),
    (DABALite, "pointers", lambda window: setattr(window, "_L", type(window._L)(None))),
    (Reactive, "node 1", lambda window: window._tree.__setitem__(1, -1)),
    (Reactive, "size", lambda window: setattr(window, "_size", window._size + 1)),
    (Reactive, "ends", hole_at_the_head),
    (Reactive, "numbers", lambda window: window._numbers.__setitem__(window._head, 10**6)),
    (FlatFIT, "pointers", lambda window: window._next.__setitem__(window._head & window._mask, window._tail + 1)),
    (FlatFIT, "buffers", lambda window: window._partials.pop()),
    (Recalc, "size", lambda window: window._times.append(1000)),
    (Recalc, "order", lambda window: window._times.reverse()),
    (Recalc, "equal times", lambda window: window._times.__setitem__(0, window._times[1])),
    (partial(create, "two_stacks_lite"), "times", lambda window: window._times.appendleft(1000)),
    (partial(create, "two_stacks_lite"), "size", lambda window: window._times.append(1000)),
    (AMTA, "head", lambda window: window._levels.queues[2].drop(7)),
    (AMTA, "tail", lambda window: window._levels.queues[1].append((0, 0))),
    (AMTA, "node", lambda window: window._levels.queues[1]._slots.__setitem__(25, (51, 9))),
    (AMTA, "order", lambda window: setattr(window, "_open", (3, 1))),
    (AMTA, "open entry", lambda window: setattr(window, "_open", None)),
    (AMTA, "stack", lambda window: window._stack.pop()),
    (AMTA, "back", lambda window: setattr(window, "_back", 1)),
    (AMTA, "turn", lambda window: setattr(window, "_turn", 99)),
    *((tree(kind, arity), *each) for kind in (BTree, FiBA, BulkFiBA) for arity in (2, 4, 8) for each in OF_TREES),
    (tree(FiBA, 2), "(finger|partial): ", lambda tree: setattr(tree, "_left_finger", tree._root)),
    (tree(FiBA, 2), "(spine|partial): ", lambda tree: setattr(tree._root.children[0], "left", False)),
    (tree(FiBA, 2), "partial", lambda tree: setattr(tree._right_finger, "total", -1)),
    (tree(BulkFiBA, 2), "size", lambda tree: setattr(tree._root.children[0].children[1], "size", 99)),
    (tree(BulkFiBA, 2), "free list", lambda tree: tree._free.append(tree._root.children[0])),
    (tree(BulkFiBA, 2), "finger", lambda tree: setattr(tree, "_right_finger", tree._left_finger)),
]


@pytest.mark.parametrize(("make", "invariant", "break_it"), BREAKS)
def test_check_invariants_names_what_is_broken(make, invariant, break_it):
    window = make(Sum("int64"))
    if isinstance(window, AMTA):
        for time in range(60):
            window.insert(time, 1)
        window.bulk_evict(9)
    elif isinstance(window, Timed):
        for time in range(200):
            window.insert(time, time)
    else:
        for value in range(1, 16):
            window.insert(value)
        window.evict()
        for value in range(3):
            window.insert(value)
    window.check_invariants()
    break_it(window)
    with pytest.raises(AssertionError, match=f"^{invariant}"):
        window.check_invariants()
