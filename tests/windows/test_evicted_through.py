"""`info().evicted_through`: no newer entry was evicted by the slide policy, whichever it is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sash_engine.clock import ManualClock
from sash_engine.windows.spec.window import WindowSpec
from sash_engine.windows.window import Window

SLIDES = [
    {},
    {"max_age": 10},
    {"max_count": 3},
    {"max_age": 10, "max_count": 3},
    {"max_age": 10, "every": 5},
    {"max_gap": 4},
    {"when": "total.entries > 3"},
    {"max_age": 10, "until": "punctuation"},
]


def window_of(slide, keyed):
    document = {"name": "w", "time_unit": "none", "keyed": keyed, "slide": slide, "fields": {"v": "int64"}}
    return Window(
        WindowSpec.parse(document | {"aggregates": {"n": {"function": "count"}}}), block=4, clock=ManualClock(0)
    )


@pytest.mark.parametrize("keyed", [False, True])
@pytest.mark.parametrize("slide", SLIDES, ids=str)
@given(st.lists(st.tuples(st.integers(0, 40), st.sampled_from("ab"), st.booleans()), max_size=25))
def test_no_newer_entry_was_evicted(slide, keyed, history):
    window, present = window_of(slide, keyed), []
    for time, key, punctuates in history:
        if punctuates and slide.get("until"):
            window.punctuate(time)
        else:
            key = key if keyed else None
            present += [(time, key)] * window.insert(time, {"v": 1}, key).inserted
        through = window.info().evicted_through
        assert through is not None or window.counts.evicted == 0
        for own in {key for _, key in present}:
            newer = [time for time, of in present if of == own and (through is None or time > through)]
            found = window.range_query(-100 if through is None else through + 1, 100, own)
            assert found.entries == len(newer)


def test_an_entry_of_the_time_of_one_that_left_may_stay():
    window = window_of({"max_count": 1}, False)
    for _ in range(2):
        window.insert(5, {"v": 1})
    assert (window.info().evicted_through, window.info().entries) == (5, 1)


def test_it_stays_when_a_key_is_empty():
    window = window_of({"max_age": 10}, False)
    assert window.info().evicted_through is None
    window.insert(30, {"v": 1})
    window.bulk_evict(30)
    assert (window.info().evicted_through, window.info().entries) == (20, 0)
