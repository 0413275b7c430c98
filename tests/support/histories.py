"""Histories of windows without times, done side by side with the oracle."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import product

import pytest
from hypothesis import strategies as st

from sash_engine.aggregators.base import InOrder
from sash_engine.aggregators.recalc import RecalcInOrder
from sash_engine.errors import FailedPrecondition
from sash_engine.monoids import Collect, Monoid

INSERT, EVICT, QUERY = "i", "e", "q"


class InOrderPair:
    """A window and the oracle: does every operation on both, and checks length and invariants after it.

    Values are scattered over -50 to 50, the same in every run. Answers are compared only by `query`, because for some
    algorithms a query is itself a step that changes what is kept.
    """

    def __init__(self, make: Callable[[Monoid], InOrder], monoid: Monoid | None = None) -> None:
        monoid = Collect("int64") if monoid is None else monoid
        self.window = make(monoid)
        self.oracle = RecalcInOrder(monoid)
        self._value = 0
        self.check()

    def insert(self, count: int = 1) -> None:
        for _ in range(count):
            self._value = (self._value * 61 + 17) % 101
            self.window.insert(self._value - 50)
            self.oracle.insert(self._value - 50)
            self.check()

    def evict(self, count: int = 1) -> None:
        for _ in range(count):
            if len(self.oracle):
                self.window.evict()
                self.oracle.evict()
            else:
                with pytest.raises(FailedPrecondition, match="empty"):
                    self.window.evict()
            self.check()

    def query(self, count: int = 1) -> None:
        for _ in range(count):
            assert self.window.query() == self.oracle.query()
            self.check()

    def check(self) -> None:
        self.window.check_invariants()
        assert len(self.window) == len(self.oracle)


def short_histories(alphabet: str, length: int) -> Iterator[str]:
    """Every word of that length; shorter histories are the beginnings of these."""
    return map("".join, product(alphabet, repeat=length))


STEPS = {INSERT: InOrderPair.insert, EVICT: InOrderPair.evict, QUERY: InOrderPair.query}

in_order_histories = st.lists(
    st.tuples(st.sampled_from([INSERT, INSERT, EVICT, EVICT, QUERY]), st.integers(1, 12)), max_size=40
)
"""Runs of operations: which one, and how often in a row."""


def follow(pair: InOrderPair, history: Iterable[str | tuple[str, int]]) -> None:
    """Do what a history says, and compare the answers at its end."""
    for operation, *count in history:
        STEPS[operation](pair, *count)
    pair.query()
