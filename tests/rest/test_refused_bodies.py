"""What still arrives of a body that was refused is read in turns: nobody wants it, and others wait meanwhile."""

import pytest
from prometheus_client import CollectorRegistry

from sash.limits.connections import Connections
from sash.limits.turns import Turns
from sash.rest.connection import Connection, Port
from sash.runtime.metrics import Metrics
from tests.support.waiting import turns as steps

PART = b"x" * 4096
HEAD = b"POST /x HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n"


class Transport:
    """What uvloop says of a connection, and is told."""

    def __init__(self):
        self.reads, self.closing, self.written = True, False, b""

    def get_extra_info(self, name, default=None):
        return ("127.0.0.1", 7) if name in ("peername", "sockname") else default

    def is_closing(self):
        return self.closing

    def get_write_buffer_size(self):
        return 0

    def write(self, data):
        self.written += data

    def pause_reading(self):
        assert self.reads
        self.reads = False

    def resume_reading(self):
        assert not self.reads
        self.reads = True

    def close(self):
        self.closing = True


async def refusing(scope, receive, send):
    await send({"type": "http.response.start", "status": 403, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})


@pytest.fixture
async def port():
    shared = Turns()
    made = Port(
        refusing, refusing, lambda _: False, Connections(100, 100), shared, 10, 10, Metrics(CollectorRegistry())
    )
    made.open, made.tasks = set(), set()
    return made


async def refused(port, parts):
    """A connection whose request was answered by its head."""
    connection, transport = Connection(port), Transport()
    connection.begin(transport, port.places.admit("127.0.0.1"))
    connection.data_received(HEAD % (parts * len(PART)))
    await steps(5)
    assert b" 403 " in transport.written
    return connection, transport


async def test_the_rest_of_a_refused_body_is_read_on_where_nobody_waits(port):
    connection, transport = await refused(port, 20)
    for _ in range(20):
        connection.data_received(PART)
        assert transport.reads
        await steps(1)
    transport.written = b""
    connection.data_received(HEAD % 0)
    await steps(5)
    assert b" 403 " in transport.written, "the next request is answered"


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
        await steps(1)
    assert most <= 3
    assert rounds > 30 * 50 / 3


async def test_a_client_that_goes_while_it_waits_is_forgotten(port):
    clients = [await refused(port, 50) for _ in range(10)]
    for connection, _ in clients:
        connection.data_received(PART)
    waiting = [(connection, transport) for connection, transport in clients if not transport.reads]
    assert waiting
    for connection, transport in waiting:
        transport.closing = True
        connection.connection_lost(None)
    await steps(200)
    assert not any(transport.reads for _, transport in waiting)
    assert port.turns.waiting == 0
