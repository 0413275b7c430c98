"""Each load of each operation fails once: a refused operation has changed nothing, and the next try succeeds.

Small forests, in blocks of 2, 3 and 8, all of which is stored and none in memory:

    [ 1 2 3 ] [ 4 5 6 ] [ 7        every operation there is on 7 entries: each range, each set of single entries, …
        ^ skip

Each operation is tried with a tier that fails at once, after one load, after two, …, until it succeeds.
"""

from itertools import combinations, islice, product

import pytest

from tests.support.cold_model import COLD_LAYOUTS, ColdLockstep
from tests.support.profile import THOROUGH

N = 7
SHAPES = {  # block size, steps
    "blocks of 3": (3, [("bulk", [1] * N)]),
    "a head of which a row left": (3, [("bulk", [1] * (N + 1)), ("evict", 1)]),
    "four levels": (2, [("bulk", [1] * 5), ("ask",), ("bulk", [1] * 4), ("evict", 2)]),
    "equal times": (2, [("bulk", [1, 0, 0, 0, 1, 0, 0])]),
    "no tail": (2, [("bulk", [1] * 8), ("evict", 1)]),
    "late ones": (3, [("bulk", [1] * 5), ("bulk", [-2, 0])]),
    "small blocks": (8, [("bulk", [2] * 4), ("bulk", [-5, 0, 0, 0, 0]), ("remove", [0, 4, 5, 6]), ("bulk", [1] * 8)]),
}
LARGE = {  # where few rows are left, blocks are joined; 24 entries, or 23
    "blocks of 8": (8, [("bulk", [1] * 24)]),
    "a head of 8": (8, [("bulk", [1] * 26), ("evict", 3)]),
    "room in each": (8, [("bulk", [1] * 24), ("remove", [3, 11, 19]), ("bulk", [1, 1, 1])]),
}
ALL_OF_8 = [[], [0], [7], [3, 4], [*range(6)], [*range(7)], [*range(1, 8)], [*range(8)]]


def sets_of(most):
    return [list(places) for size in range(1, most + 1) for places in combinations(range(N), size)]


CHANGES = [
    *(("insert", after) for after in range(-N, 2)),
    *(("bulk", [after, step]) for after, step in product(range(-N, 1), (0, 1, 4))),
    *(("bulk", [after] + [0] * more) for after, more in product(range(-N, 1), (2, 6))),
    *(("evict", count) for count in range(N + 1)),
    *(("bulk_evict", after) for after in range(-N, 1)),
    *(("evict_between", after, width) for after, width in product(range(-N, 1), range(N + 1))),
    *(("evict_while", most) for most in range(0, 22, 3)),
    *(("remove", places) for places in sets_of(N)),
    *(("correct", places) for places in sets_of(3)),
]
QUESTIONS = [
    ("ask",),
    *(("range", after, width) for after, width in product(range(-N, 1), range(N + 1))),
    *(("series", after, count, step, 3) for after, count, step in product((-N, -4, -1), (1, 3), (1, 2, 4))),
    *(("store", most) for most in (None, 1)),
]
FIRST = [  # of two operations
    ("insert", -5),
    ("bulk", [-6, 0, 2, 2]),
    ("bulk", [-4] + [0] * 6),
    ("evict", 2),
    ("evict_between", -5, 1),
    ("evict_between", -5, 3),
    ("remove", [1]),
    ("remove", [0, 3, 4]),
    ("correct", [2, 5]),
]
SECOND = [*CHANGES[::7], *QUESTIONS[::9], ("ask",), ("store", None)]
ONE_OF, ONE_OF_TWO = (1, 1) if THOROUGH else (4, 11)
"""Of the operations, and of the pairs of two, of which other layouts and shapes have others."""


def share(operations, shape, kind, one_of=ONE_OF):
    """The operations of a layout and a shape."""
    begin = list(product([*SHAPES, *LARGE], COLD_LAYOUTS)).index((shape, kind))
    return islice(operations, (begin + begin // len(COLD_LAYOUTS)) % one_of, None, one_of)


def cooled(kind, block, steps):
    lockstep = ColdLockstep(COLD_LAYOUTS[kind](block), 0)
    lockstep.run(steps, check_every=100)
    lockstep.cool()
    return lockstep


@pytest.mark.parametrize("kind", COLD_LAYOUTS)
@pytest.mark.parametrize("shape", SHAPES)
def test_of_each_operation(shape, kind):
    for step in share([*CHANGES, *QUESTIONS], shape, kind):
        lockstep = cooled(kind, *SHAPES[shape])
        lockstep.at_each_load(step)
        lockstep.check()


@pytest.mark.parametrize("kind", COLD_LAYOUTS)
@pytest.mark.parametrize("shape", LARGE)
def test_of_removals_that_join_blocks(shape, kind):
    rows = 7 if shape == "room in each" else 8
    for step, *parts in share(product(("remove", "correct"), ALL_OF_8, ALL_OF_8, ALL_OF_8), shape, kind):
        places = [rows * block + row for block, part in enumerate(parts) for row in part if row < rows]
        if step == "remove" or len(places) < 4:
            lockstep = cooled(kind, *LARGE[shape])
            lockstep.at_each_load((step, places))
            lockstep.check()


@pytest.mark.parametrize("kind", COLD_LAYOUTS)
@pytest.mark.parametrize("shape", list(SHAPES)[:4])
def test_of_two_operations(shape, kind):
    for first, second, stored in share(product(FIRST, SECOND, (False, True)), shape, kind, ONE_OF_TWO):
        lockstep = cooled(kind, *SHAPES[shape])
        lockstep.at_each_load(first)
        if stored:
            lockstep.cool()
        lockstep.at_each_load(second)
        lockstep.check()


@pytest.mark.parametrize("kind", COLD_LAYOUTS)
@pytest.mark.parametrize("shape", SHAPES)
def test_what_was_loaded_before_suffices(shape, kind):
    changes = [step for step in CHANGES if step[0] in ("bulk_evict", "evict_between", "remove", "correct")]
    for step in share(changes, shape, kind):
        lockstep = cooled(kind, *SHAPES[shape])
        lockstep.loaded(step)
        lockstep.check()
