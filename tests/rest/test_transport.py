"""A connection over a transport: writes of one iteration of the loop become one, and nothing is lost.

What still arrives of a body that was refused is read in turns: nobody wants it, and others wait meanwhile.
"""

import asyncio
import gc
import weakref

import pytest
from prometheus_client import CollectorRegistry

from sash.context import CALL, CallContext
from sash.limits.connections import Connections
from sash.limits.turns import Turns
from sash.rest.connection import JOINED_BYTES_MAX, Connection, Port
from sash.runtime.metrics import Metrics
from tests.support.servers import running_service
from tests.support.waiting import turns


class Transport:
    """What uvloop says of a connection, and is told."""

    def __init__(self):
        self.did, self.reads = [], True

    def get_extra_info(self, name):
        return ("127.0.0.1", 7) if name in ("peername", "sockname") else None

    def write(self, data):
        self.did.append(bytes(data))

    def pause_reading(self):
        assert self.reads
        self.reads = False

    def resume_reading(self):
        assert not self.reads
        self.reads = True

    def close(self):
        self.did.append("closed")

    def abort(self):
        self.did.append("aborted")

    def get_write_buffer_size(self):
        return 7

    def is_closing(self):
        return "closed" in self.did or "aborted" in self.did


def port_of(app=None, forwarded=None, most=1):
    """What connections share that go to an app, and to another one where a proxy passes them on."""
    places = Connections(most, most)
    return Port(app, forwarded, lambda _: False, places, Turns(), 10, 10, Metrics(CollectorRegistry()))


def over(under, port=None):
    """A connection over a transport."""
    port = port or port_of()
    made = Connection(port)
    made.begin(under, port.places.admit("a"))
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
    port = port_of(most=0)
    while port.places.admit("127.0.0.1") is not None:
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

    connection = over(Transport(), port_of(noting("app"), noting("forwarded")))
    connection.data_received(b"GET / HTTP/1.1\r\n%b\r\n\r\n" % header)
    await turns(1)
    assert called == [name]


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


# ---------------------------------------------------------------- the rest of a refused body

PART = b"x" * 4096
HEAD = b"POST /x HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n"


async def refusing(scope, receive, send):
    await send({"type": "http.response.start", "status": 403, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})


@pytest.fixture
async def port():
    return port_of(refusing, refusing, 100)


async def refused(port, parts):
    """A connection whose request was answered by its head."""
    transport = Transport()
    connection = over(transport, port)
    connection.data_received(HEAD % (parts * len(PART)))
    await turns(5)
    assert b" 403 " in transport.did.pop()
    return connection, transport


async def test_the_rest_of_a_refused_body_is_read_on_where_nobody_waits(port):
    connection, transport = await refused(port, 20)
    for _ in range(20):
        connection.data_received(PART)
        assert transport.reads
        await turns(1)
    connection.data_received(HEAD % 0)
    await turns(5)
    assert b" 403 " in transport.did.pop(), "the next request is answered"


async def test_a_connection_whose_requests_wait_reads_on_when_they_are_answered():
    go = asyncio.Event()

    async def waiting(scope, receive, send):
        await go.wait()
        await refusing(scope, receive, send)

    under = Transport()
    over(under, port_of(waiting)).data_received(HEAD % 0 * 3)
    await turns(5)
    assert not under.reads
    go.set()
    await turns(20)
    assert under.reads
    assert b"".join(under.did).count(b" 403 ") == 3


async def test_of_many_refused_bodies_few_are_read_in_an_iteration_of_the_loop(port):
    """Thirty clients send as fast as they may."""
    clients = [await refused(port, 50) for _ in range(30)]
    left = {id(transport): 50 for _, transport in clients}
    most = rounds = 0
    while any(left.values()):
        read = 0
        for connection, transport in clients:
            if transport.reads and left[id(transport)]:
                connection.data_received(PART)
                left[id(transport)] -= 1
                read += 1
        most, rounds = max(most, read if rounds else 0), rounds + 1
        await turns(1)
    assert most <= 3
    assert rounds > 30 * 50 / 3


async def test_a_client_that_goes_while_it_waits_is_forgotten(port):
    clients = [await refused(port, 50) for _ in range(10)]
    for connection, _ in clients:
        connection.data_received(PART)
    waiting = [(connection, transport) for connection, transport in clients if not transport.reads]
    assert waiting
    for connection, transport in waiting:
        transport.close()
        connection.connection_lost(None)
    await turns(200)
    assert not any(transport.reads for _, transport in waiting)
    assert port.turns.waiting == 0
