"""What the garbage collector looks at in a process that serves."""

import gc
import weakref

import pytest

from sash.runtime import memory
from tests.support.clocks import Clock


class Node:
    def __init__(self):
        self.itself = self


@pytest.fixture
def process(monkeypatch):
    """As a process of its own: nothing is left out at first."""
    thresholds = gc.get_threshold()
    gc.unfreeze()
    monkeypatch.setattr(memory, "_settled", False)
    gc.disable()
    yield
    gc.set_threshold(*thresholds)
    gc.enable()
    gc.freeze()  # other tests look at none of it again


def test_what_was_there_at_the_start_is_left_out_also_after_long_work(process):
    there = Node()
    memory.settle()
    memory.grow_old()
    assert all(each is not there for each in gc.get_objects())
    assert gc.get_freeze_count() > 10_000


def test_what_lives_for_long_is_rarely_looked_through(process):
    """Among the calls of 200 callers that held the loop for up to 100 ms, once in seven seconds."""
    generations = []

    def note(phase, info):
        if phase == "stop":
            generations.append(info["generation"])

    memory.settle()
    gc.callbacks.append(note)
    gc.enable()
    try:
        kept = [[] for _ in range(200_000)]
    finally:
        gc.disable()
        gc.callbacks.remove(note)
    assert len(kept) == 200_000
    assert 2 not in generations
    assert generations.count(1) > 20


def test_garbage_that_was_left_out_is_found_in_the_end(process):
    memory.settle()
    garbage = weakref.ref(Node())
    memory.grow_old()
    gc.collect()
    assert garbage() is not None
    memory.look_again()
    assert garbage() is None
    assert gc.get_freeze_count() > 10_000


def test_a_process_that_has_not_settled_leaves_nothing_out(process):
    memory.grow_old()
    assert gc.get_freeze_count() == 0


def test_searches_for_garbage_take_a_thousandth_of_the_loop_and_a_hundredth_when_memory_is_full(monkeypatch):
    """When memory is full, there are more of them; but not where each holds the loop for long."""
    clock, looks = Clock(), []
    search = memory.GarbageSearch(clock)

    def looked(is_full, seconds, cost_s):
        """Whether there is a search in so many seconds."""
        monkeypatch.setattr(
            memory, "look_again", lambda: (looks.append(clock()), setattr(clock, "now_s", clock() + cost_s))
        )
        clock.now_s += seconds
        looks.clear()
        search.look_if_due(is_full)
        return bool(looks)

    assert not looked(False, 899, 0.001)
    assert looked(False, 2, 0.001)
    assert not looked(True, 29, 0.4)
    assert looked(True, 2, 0.4)
    assert not looked(True, 39, 1.0)
    assert looked(True, 2, 1.0)
    assert not looked(False, 999, 0.001)
    assert looked(False, 2, 0.001)
    assert not looked(True, 29, 0.001)
    assert looked(True, 2, 0.001)
