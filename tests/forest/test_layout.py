"""Layouts that are made of others: the same columns and slots, other answers. Compiled classes need this shown, too."""

import inspect

import pytest

from sash_engine.forest import Layout, PaneLayout
from sash_engine.monoids import Collect, Count, Max, Sum, Variance

ENTRIES = Layout(
    {"value": "float64", "other": "int64"},
    {
        "n": (Count(), ["time"]),
        "sum": (Sum(), ["value"]),
        "spread": (Variance(), ["value"]),
        "again": (Sum(), ["value"]),
        "most": (Max("int64"), ["other"]),
        "all": (Collect(), ["value"]),
    },
    7,
)
LAYOUTS = {"entries": ENTRIES, "panes": PaneLayout(ENTRIES)}


def state(layout):
    """All attributes: of a compiled class its type has them, else the object."""
    names = {name for each in type(layout).__mro__ for name, of in vars(each).items() if inspect.isgetsetdescriptor(of)}
    names |= set(getattr(layout, "__dict__", {}))
    return {name: getattr(layout, name) for name in names if not name.startswith("__")}


@pytest.mark.parametrize("kind", LAYOUTS)
def test_a_layout_with_all_names_is_the_same_in_all_it_has(kind):
    layout = LAYOUTS[kind]
    other = layout.named(layout.names)
    assert type(other) is type(layout)
    assert state(other) == state(layout)
    assert len(state(layout)) >= 19


def test_a_layout_like_another_one_is_the_same_in_all_it_has():
    hidden = Layout({"value": "int64"}, {"sum": (Sum("int64"), ["value"])}, 5, [(Max("int64"), ["value"])])
    for layout in (ENTRIES, hidden, ENTRIES.only([0])):
        assert state(Layout({}, {}, like=layout)) == state(layout)
    assert ENTRIES.only([0]).is_small_part, "a list is left out"
    assert state(PaneLayout(hidden, like=LAYOUTS["panes"])) == state(LAYOUTS["panes"])


@pytest.mark.parametrize("kind", LAYOUTS)
def test_a_layout_of_some_names_has_all_slots_and_leaves_the_other_as_it_was(kind):
    layout = LAYOUTS[kind]
    before = state(layout)
    other = layout.named(["again", "n"])
    assert state(layout) == before
    changed = {name for name, value in state(other).items() if value != before[name]}
    assert changed - {"answering_monoids"} == {"names", "answers", "_lowers"}
    assert other.names == ("again", "n")
    assert other.lower(5, [2.0] * len(layout.monoids)) == [2.0, 5 if kind == "entries" else 2]


def test_answers_of_a_view_need_no_name_that_the_layout_has():
    other = ENTRIES.answering({"total": (Sum(), ["value"]), "entries": (Count(), ["time"])})
    assert (other.names, other.answers) == (("total", "entries"), (ENTRIES.answers[1], -1))
    assert LAYOUTS["panes"].renamed({"total": "sum"}).names == ("total",)


@pytest.mark.parametrize("kind", LAYOUTS)
def test_a_layout_of_some_slots_folds_these_alone(kind):
    layout = LAYOUTS[kind]
    last = len(layout.monoids) - 1
    narrow = layout.only([0, last])
    assert type(narrow) is type(layout)
    assert (narrow.slots, len(narrow.monoids), narrow.block) == ([0, last], 2, 7)
    assert (narrow.dtypes, narrow.answers) == (layout.dtypes, ())
    assert layout.named(["n", "most"]).lean().names == ("n", "most")
