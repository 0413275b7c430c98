"""`make_tier`: every kind of tier, on one store for each test."""

from collections.abc import Callable, Iterator

import pytest

from sash.durability.tier import ColdTier
from tests.support.tiers import KINDS


@pytest.fixture(params=sorted(KINDS))
def make_tier(request, tmp_path) -> Iterator[Callable[[], ColdTier]]:
    """Opens tiers on the same store, not acquired; all are closed in the end."""
    opened: list[ColdTier] = []
    with KINDS[request.param](tmp_path) as stored:

        def make() -> ColdTier:
            opened.append(stored.open())
            return opened[-1]

        yield make
        for tier in opened:
            tier.close()


@pytest.fixture
def tier(make_tier) -> ColdTier:
    """A tier, acquired."""
    tier = make_tier()
    tier.acquire()
    return tier
