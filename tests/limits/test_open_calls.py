"""Calls of gRPC that are open, by address and by connection."""

from contextlib import ExitStack

import pytest

from sash.limits.open_calls import FEW, OpenCalls
from sash_engine.errors import Unavailable


def opened(stack, calls, *peers):
    for peer in peers:
        stack.enter_context(calls.call(peer))


def test_an_address_has_so_many_calls_on_all_its_connections():
    calls = OpenCalls(100, 3, 9)
    with ExitStack() as stack:
        opened(stack, calls, "ipv4:1.1.1.1:5", "ipv4:1.1.1.1:5", "ipv4:1.1.1.1:6", "ipv6:%5B::1%5D:5")
        with (
            pytest.raises(Unavailable, match=r"3 calls of 1\.1\.1\.1 are open") as refused,
            calls.call("ipv4:1.1.1.1:7"),
        ):
            pass
        assert (refused.value.limit, refused.value.retry_after_s) == ("SASH_MAX_CALLS_PER_ADDRESS, twice: 3", 1.0)
        opened(stack, calls, "ipv4:2.2.2.2:5", "ipv6:%5B::1%5D:5")
    assert calls._calls == calls._connections == {}, "nothing is kept of those who have gone"
    with ExitStack() as stack:
        opened(stack, calls, *["ipv4:1.1.1.1:5"] * 3)


def test_an_address_has_calls_on_so_many_connections():
    calls = OpenCalls(100, 9, 2)
    with ExitStack() as stack:
        opened(stack, calls, "ipv4:1.1.1.1:5", "ipv4:1.1.1.1:6", "ipv4:1.1.1.1:6", "ipv4:2.2.2.2:7")
        with pytest.raises(Unavailable, match=r"1\.1\.1\.1 has calls on 2 connections") as refused:
            opened(stack, calls, "ipv4:1.1.1.1:7")
        assert refused.value.limit == "SASH_MAX_CONNECTIONS_PER_ADDRESS: 2"
        opened(stack, calls, "ipv4:1.1.1.1:5")
    assert calls._calls == calls._connections == {}


def test_a_call_that_fails_is_no_longer_open():
    calls = OpenCalls(100, 1, 1)
    for _ in range(2):
        with pytest.raises(ValueError, match="wrong"), calls.call("ipv4:1.1.1.1:5"):
            raise ValueError("wrong")


def test_a_refused_call_of_another_address_leaves_nothing():
    calls = OpenCalls(100, 0, 1)
    with pytest.raises(Unavailable), calls.call("ipv4:1.1.1.1:5"):
        pass
    assert calls._connections == {}


def most(stack, calls, peer):
    """How many calls a peer may open beside those that are there."""
    for count in range(200):
        try:
            opened(stack, calls, peer)
        except Unavailable as refused:
            return count, refused.limit, refused.retry_after_s
    raise AssertionError("there is no limit")


def test_who_has_many_leaves_room_for_those_who_have_few():
    """Of three quarters, the first one has half, the next one a quarter, and so on; then each one a few, of all."""
    calls = OpenCalls(80, 200, 9)
    with ExitStack() as stack:
        found = [most(stack, calls, f"ipv4:1.1.1.{n}:5") for n in range(8)]
        assert [count for count, _, _ in found] == [30, 15, FEW, FEW, FEW, FEW, 3, 0]
        assert {(limit, again_s) for _, limit, again_s in found} == {("SASH_MEMORY_BYTES: 80 calls", 1.0)}
    assert calls._calls == calls._connections == {}
    with ExitStack() as stack:
        assert most(stack, calls, "ipv4:1.1.1.1:5")[0] == 30
