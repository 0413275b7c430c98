"""Views: each answers as a window of its own would that was sent the same entries."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.shelf import Shelf
from tests.support.twins import a_share_of_examples, alike
from tests.support.viewed import SOURCES, VIEWS, Viewed

keys_of = st.sampled_from(["x|y", "x|z", "q|y"])
times_of = st.integers(10, 60)
values_of = st.integers(-9, 9)
rows_of = st.lists(st.tuples(keys_of, times_of, values_of), min_size=1, max_size=14)
writes_of = st.lists(
    st.one_of(
        st.tuples(st.just("bulk"), rows_of),
        st.tuples(st.just("bulk"), rows_of),
        st.tuples(st.just("bulk"), rows_of.map(lambda rows: [("x|y", *row[1:]) for row in rows])),
        st.tuples(st.just("insert"), keys_of, times_of, values_of),
        st.tuples(st.just("evict"), times_of, st.one_of(st.none(), keys_of)),
        st.tuples(st.just("range"), times_of, st.integers(0, 9), st.one_of(st.none(), keys_of)),
        st.tuples(st.just("retract"), rows_of),
        st.tuples(st.just("update"), rows_of),
        st.tuples(st.just("punctuate"), times_of),
        st.tuples(st.just("clock"), st.integers(1, 12)),
        st.tuples(st.just("aggregates")),
        st.tuples(st.just("add")),
        st.tuples(st.just("drop"), st.sampled_from(list(VIEWS))),
        st.tuples(st.just("restart")),
    ),
    max_size=12,
)


@a_share_of_examples(4)
@given(kind=st.sampled_from(list(SOURCES)), writes=writes_of, late=st.lists(st.sampled_from(list(VIEWS)), unique=True))
def test_each_view_answers_as_a_window_of_its_own(kind, writes, late):
    viewed = Viewed(kind, late)
    for write in writes:
        if write[0] != "restart":
            viewed.step(*write)
    viewed.same()
    viewed.window.check_invariants()


@a_share_of_examples(6)
@given(kind=st.sampled_from(list(SOURCES)), writes=writes_of, late=st.lists(st.sampled_from(list(VIEWS)), unique=True))
def test_a_stored_window_has_the_same_views_after_restarts(kind, writes, late):
    shelf = Shelf()
    viewed = Viewed(kind, late, shelf.cold)
    for write in writes:
        if write[0] == "restart":
            parts = shelf.parts(viewed.window)
            viewed.window, shelf = shelf.reopened(parts, clock=viewed.clock)
        else:
            viewed.step(*write)
            shelf.store(viewed.window)
    viewed.same()
    viewed.window.check_invariants(alike)


@pytest.mark.parametrize("kind", list(SOURCES))
def test_many_entries_in_each_source(kind):
    viewed = Viewed(kind)
    for step in range(40):
        viewed.step(
            "bulk", [(f"{'xq'[i % 2]}|{'yz'[i % 3 > 1]}", 12 + step + (7 * i) % 5 - i % 3, i) for i in range(9)]
        )
        if step % 10 == 9:
            viewed.step("clock", 9)
            viewed.step("punctuate", 12 + step)
            viewed.same()
    viewed.window.check_invariants()
