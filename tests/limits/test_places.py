"""Places for calls: in all, and of one caller."""

import pytest

from sash.limits.places import Places
from sash_engine.errors import Unavailable


def test_one_caller_has_a_share_of_the_places():
    places = Places(3, 2)
    places.enter("ann")
    places.enter("ann")
    with pytest.raises(Unavailable, match="2 calls of ann are in progress") as refused:
        places.enter("ann")
    assert refused.value.limit == "SASH_MAX_CALLS_PER_ADDRESS: 2"
    places.enter("bob")
    with pytest.raises(Unavailable, match="3 calls are in progress") as refused:
        places.enter("carl")
    assert refused.value.limit == "SASH_MAX_CONCURRENT_CALLS: 3"
    places.leave("ann")
    places.enter("ann")


def test_a_refused_call_takes_no_place_and_each_gives_its_own_back():
    places = Places(4, 2)
    for _ in range(2):
        places.enter("ann")
    for _ in range(5):
        with pytest.raises(Unavailable, match="2 calls of ann"):
            places.enter("ann")
    places.enter("bob")
    places.leave("ann")
    places.check("ann")
    places.enter("ann")
    with pytest.raises(Unavailable, match="2 calls of ann"):
        places.enter("ann")
    for _ in range(2):
        places.leave("ann")
    places.enter("ann")
