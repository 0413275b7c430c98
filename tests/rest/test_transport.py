"""Writes of one iteration of the loop become one; nothing is lost, and the order stays."""

import asyncio
import gc
import weakref

from sash.rest.transport import JOINED_BYTES_MAX, JoiningTransport
from tests.support.servers import running_service
from tests.support.waiting import turns


class Transport:
    def __init__(self):
        self.did = []

    def write(self, data):
        self.did.append(data)

    def close(self):
        self.did.append("closed")

    def abort(self):
        self.did.append("aborted")

    def get_write_buffer_size(self):
        return 7

    def is_closing(self):
        return "closed" in self.did or "aborted" in self.did


async def test_what_is_written_in_one_iteration_is_one_write():
    under = Transport()
    transport = JoiningTransport(under, asyncio.get_running_loop())
    transport.write(b"head")
    transport.write(b"body")
    assert under.did == []
    assert transport.get_write_buffer_size() == 7 + 8
    await turns(1)
    assert under.did == [b"headbody"]
    assert transport.get_write_buffer_size() == 7
    transport.write(b"next")
    await turns(1)
    assert under.did == [b"headbody", b"next"]


async def test_closing_writes_what_is_left_first_and_aborting_does_not():
    for end, expected in (("close", [b"last", "closed"]), ("abort", ["aborted"])):
        under = Transport()
        transport = JoiningTransport(under, asyncio.get_running_loop())
        transport.write(b"last")
        getattr(transport, end)()
        await turns(1)
        assert under.did == expected


async def test_a_lost_transport_is_known_no_more():
    """It has the buffers of TLS. What goes on for a client that has gone must not keep them."""
    under = Transport()
    known = weakref.ref(under)
    transport = JoiningTransport(under, asyncio.get_running_loop())
    transport.write(b"late")
    transport.lost()
    del under
    gc.collect()
    assert known() is None
    transport.write(b"last")
    transport.write_now(b"head", b"body")
    await turns(1)
    transport.close()
    transport.abort()
    assert transport.is_closing()
    assert transport.get_write_buffer_size() == 0


async def test_nothing_is_written_to_a_connection_that_ends():
    """uvloop raises for one that is closed. A request may still be worked on that came in front of nonsense."""
    under = Transport()
    transport = JoiningTransport(under, asyncio.get_running_loop())
    transport.write(b"late")
    under.close()  # by itself: the client is gone
    transport.write(bytes(JOINED_BYTES_MAX + 1))
    transport.write_now(b"head", b"body")
    transport.write_now(b"head", bytes(JOINED_BYTES_MAX + 1))
    transport.write(b"last")
    await turns(1)
    assert under.did == ["closed"]


async def test_many_bytes_are_written_at_once_behind_what_waits():
    """A writer that never yields to the loop must still be paused when the client is slow."""
    under = Transport()
    transport = JoiningTransport(under, asyncio.get_running_loop())
    many = bytes(JOINED_BYTES_MAX)
    transport.write(b"head")
    transport.write(many)
    assert under.did == [b"head", many]
    transport.write(many + b"!")
    transport.write(b"tail")
    assert under.did == [b"head", many, many + b"!"]
    await turns(1)
    assert b"".join(under.did) == b"head" + many + many + b"!tail"
    assert transport.get_write_buffer_size() == 7


def test_an_answer_is_one_write_without_tls_too(monkeypatch):
    writes = []
    monkeypatch.setattr(JoiningTransport, "_flush", _noted(JoiningTransport._flush, writes))
    with running_service() as running:
        assert running.http().get("/v1/windows/missing").status_code == 404
    assert [part.startswith(b"HTTP/1.1 404") and part.endswith(b"}\n") for part in writes] == [True]


def _noted(flush, writes):
    def noted(self):
        if self._parts:
            writes.append(b"".join(self._parts))
        flush(self)

    return noted
