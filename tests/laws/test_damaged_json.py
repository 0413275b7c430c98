"""Partials in JSON that somebody changed are refused, or work."""

import copy
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sash_engine.errors import InvalidArgument
from sash_engine.monoids import Monoid, forms
from tests.support.aggregates import column, every_case, label

ODD = [None, -1, 0, 1, 2**63, -(2**70), 1.5, float("nan"), float("inf"), "", "x", "more", True, [], [[]], {}, [1, 2, 3]]
ITEMS = {"float64": [1.5, -2.0, 1.5], "int64": [3, 1, 3], "string": ["b", "a", "b"], "bool": [True, False, True]}


def in_json(monoid):
    return not monoid.fixed and type(monoid).decode in (Monoid.decode, forms.PartialForm.decode)


def places(tree, path=()):
    """Where there is something in a tree of lists."""
    yield path
    if isinstance(tree, list):
        for i, branch in enumerate(tree):
            yield from places(branch, (*path, i))


def changed(tree, path, value):
    if not path:
        return value
    tree = copy.deepcopy(tree)
    branch = tree
    for i in path[:-1]:
        branch = branch[i]
    if value == "drop":
        del branch[path[-1]]
    elif value == "twice":
        branch.insert(path[-1], branch[path[-1]])
    else:
        branch[path[-1]] = value
    return tree


@pytest.mark.parametrize("monoid", [monoid for monoid in every_case() if in_json(monoid)], ids=label)
@given(st.data())
def test_a_changed_partial_is_refused_or_works(monoid, data):
    columns = [
        np.arange(3) if read.option == "time" else column(kind, ITEMS[kind])
        for read, kind in zip(monoid.reads, monoid.types, strict=True)
    ]
    good = monoid.reduce(columns)
    tree = json.loads(monoid.encode(good))
    path = data.draw(st.sampled_from(list(places(tree))))
    tree = changed(tree, path, data.draw(st.sampled_from([*ODD, "drop", "twice"])))
    try:
        partial = monoid.decode(json.dumps(tree).encode())
    except InvalidArgument:
        return
    if monoid.implausible(monoid.pack([partial]), np.array([3]))[0]:
        return
    for each in (
        partial,
        monoid.combine(partial, good),
        monoid.combine(good, partial),
        monoid.fold(monoid.pack([partial] * 2)),
    ):
        monoid.lower(each)
        monoid.restore(monoid.encode(each))
