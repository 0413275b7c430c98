"""Writes of one iteration of the loop become one; nothing is lost, and the order stays."""

import gc
import weakref

import pytest
from prometheus_client import CollectorRegistry

from sash.context import CALL, CallContext
from sash.limits.connections import Connections
from sash.limits.turns import Turns
from sash.rest.connection import JOINED_BYTES_MAX, Connection, Port
from sash.runtime.metrics import Metrics
from tests.support.servers import WAIT_S, running_service
from tests.support.waiting import turns


class Transport:
    def __init__(self):
        self.did = []

    def get_extra_info(self, name):
        return None

    def write(self, data):
        self.did.append(bytes(data))

    def close(self):
        self.did.append("closed")

    def abort(self):
        self.did.append("aborted")

    def get_write_buffer_size(self):
        return 7

    def is_closing(self):
        return "closed" in self.did or "aborted" in self.did


def metrics():
    return Metrics(CollectorRegistry())


def over(under):
    """A connection over a transport."""
    places = Connections(1, 1)
    made = Connection(Port(None, None, lambda _: False, places, Turns(), 10, 10, metrics()))
    made.begin(under, places.admit("a"))
    return made


async def test_what_is_written_in_one_iteration_is_one_write():
    under = Transport()
    connection = over(under)
    connection.write(b"head")
    connection.write(b"body")
    assert under.did == []
    assert connection.unsent_bytes() == 7 + 8
    await turns(1)
    assert under.did == [b"headbody"]
    assert connection.unsent_bytes() == 7
    connection.write(b"next")
    connection.write_now(b"whole ", b"answer")
    assert under.did == [b"headbody", b"next", b"whole answer"]
    await turns(1)
    assert len(under.did) == 3


async def test_closing_writes_what_is_left_first_and_giving_way_does_not():
    under = Transport()
    connection = over(under)
    connection.write(b"last")
    connection.break_off()
    await turns(1)
    assert under.did == [b"last", "closed"]
    under = Transport()
    connection = over(under)
    connection.look(1.0)
    connection.write(b"last")
    under.get_write_buffer_size = lambda: 3  # nobody reads what is there
    connection.look(2.0)
    connection.look(100.0)
    await turns(1)
    assert under.did == ["aborted"]


async def test_a_lost_transport_is_known_no_more():
    """It has the buffers of TLS. What goes on for a client that has gone must not keep them."""
    under = Transport()
    known = weakref.ref(under)
    connection = over(under)
    connection.write(b"late")
    connection.connection_lost(None)
    del under
    gc.collect()
    assert known() is None
    connection.write(b"last")
    connection.write_now(b"head", b"body")
    await turns(1)
    connection.break_off()
    assert connection.is_closing()
    assert connection.unsent_bytes() == 0


async def test_nothing_is_written_to_a_connection_that_ends():
    """uvloop raises for one that is closed. A request may still be worked on that came in front of nonsense."""
    under = Transport()
    connection = over(under)
    connection.write(b"late")
    under.close()  # by itself: the client is gone
    connection.write(bytes(JOINED_BYTES_MAX + 1))
    connection.write_now(b"head", b"body")
    connection.write_now(b"head", bytes(JOINED_BYTES_MAX + 1))
    connection.write(b"last")
    await turns(1)
    assert under.did == ["closed"]


async def test_many_bytes_are_written_at_once_behind_what_waits():
    """A writer that never yields to the loop must still be paused when the client is slow."""
    under = Transport()
    connection = over(under)
    many = bytes(JOINED_BYTES_MAX)
    connection.write(b"head")
    connection.write(many)
    assert under.did == [b"head", many]
    connection.write(many + b"!")
    connection.write(b"tail")
    assert under.did == [b"head", many, many + b"!"]
    await turns(1)
    assert b"".join(under.did) == b"head" + many + many + b"!tail"
    assert connection.unsent_bytes() == 7


async def test_who_is_beyond_all_limits_is_told_when_to_come_again():
    """The refusal is no answer to the request that was read last: it has an id of its own."""
    CALL.set(CallContext(lambda: [("x-request-id", "another")]))
    port = Port(None, None, lambda _: False, Connections(0, 0), Turns(), 10, 10, metrics())
    while port.places.admit("") is not None:
        pass
    under = Transport()
    Connection(port).connection_made(under)
    answer, end = under.did
    head, _, body = answer.partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    assert lines[0] == b"HTTP/1.1 503 Service Unavailable"
    assert {b"retry-after: 1", b"connection: close", b"content-length: %d" % len(body)} < set(lines)
    assert b"too many connections" in body
    assert b"another" not in answer
    assert end == "closed"


@pytest.mark.parametrize(("header", "name"), [(b"x-forwarded-for: 10.1.2.3", "forwarded"), (b"x-other: 1", "app")])
async def test_requests_that_a_proxy_passes_on_go_to_their_own_app(header, name):
    called = []

    def noting(name):
        async def app(scope, receive, send):
            called.append(name)

        return app

    port = Port(noting("app"), noting("forwarded"), lambda _: False, Connections(1, 1), Turns(), 10, 10, metrics())
    connection = Connection(port)
    connection.begin(Transport(), port.places.admit("a"))
    connection.data_received(b"GET / HTTP/1.1\r\n%b\r\n\r\n" % header)
    await turns(1)
    assert called == [name]


def test_an_idle_connection_does_not_hold_the_service_up():
    with running_service(shutdown_grace_s=2 * WAIT_S, idle_timeout_s=2 * WAIT_S) as running:
        assert running.http().get("/healthz").status_code == 200
        running.stop()  # asserts that it ends within WAIT_S


def test_an_answer_is_one_write_without_tls_too(monkeypatch):
    writes = []
    monkeypatch.setattr(Connection, "_flush", _noted(Connection._flush, writes))
    with running_service() as running:
        assert running.http().get("/v1/windows/missing").status_code == 404
    assert [part.startswith(b"HTTP/1.1 404") and part.endswith(b"}\n") for part in writes] == [True]


def _noted(flush, writes):
    def noted(self):
        if self._joined:
            writes.append(bytes(self._joined))
        flush(self)

    return noted
