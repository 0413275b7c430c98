"""What a connection of Connect may meet: answers that nobody asked for, deadlines, forks, threads that close."""

import asyncio
import contextlib
import math
import os
import socket
import ssl
import threading

import pytest

from sash_client import TLS, Client, DeadlineExceeded, InvalidArgument, Unavailable
from sash_client.aio import AsyncClient
from sash_client.calls import connect as connect_module
from sash_client.calls.connect import BlockingCalls, _BlockingWire
from sash_client.calls.credentials import ssl_context
from sash_client.calls.targets import Endpoint
from sash_proto.v1 import windows_pb2 as pb
from tests.clients.test_connect import OK, answering, inserted
from tests.support.certificates import Authority
from tests.support.connect_server import over_connect
from tests.support.either_client import CLIENTS, opened
from tests.support.recorder import Recorder


def answer(count):
    body = pb.InsertResponse(inserted=count).SerializeToString()
    return OK + b"content-length: %d\r\n\r\n" % len(body) + body


BEHIND = {
    "another answer": answer(7),
    "half of one": answer(7)[:-1],
    "half of its head": answer(7)[:30],
    "the end of a connection": b"HTTP/1.1 408 No\r\nconnection: close\r\ncontent-length: 0\r\n\r\n",
    "garbage": b"garbage",
}


@pytest.mark.parametrize("kind", CLIENTS)
@pytest.mark.parametrize("behind", BEHIND)
def test_bytes_behind_an_answer_change_neither_it_nor_the_next_one(kind, behind):
    with answering(answer(1) + BEHIND[behind], answer(2)) as (target, _), opened(kind, target) as client:
        assert [client.window("w").insert(1, 1.0).inserted for _ in range(2)] == [1, 2]


def test_trailers_are_not_read():
    body = pb.InsertResponse(inserted=3).SerializeToString()
    chunks = b"Transfer-Encoding: chunked\r\n\r\n2\r\n" + body + b"\r\n0\r\ncontent-type: text/html\r\n\r\n"
    with answering(OK + chunks + b"!", OK + chunks + b"!") as (target, _):
        assert [result.inserted for result in inserted(target)] == [3, 3]


async def test_an_answer_to_a_call_that_was_cancelled_is_not_the_next_one_s():
    asked, cancelled = asyncio.Event(), asyncio.Event()
    counts = iter([7, 8, 9])

    async def serve(reader, writer):
        with contextlib.suppress(asyncio.IncompleteReadError):
            while await reader.readuntil(b"\r\n\r\n"):
                count = next(counts)
                if count == 7:
                    writer.write(answer(7)[:-1])
                    asked.set()
                    await cancelled.wait()
                    writer.write(answer(7)[-1:])
                else:
                    writer.write(answer(count))
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server, AsyncClient(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}") as client:
        call = asyncio.ensure_future(client.window("w").insert(1, 1.0))
        await asked.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        cancelled.set()
        assert [(await client.window("w").insert(1, 1.0)).inserted for _ in range(2)] == [8, 9]


@pytest.mark.parametrize("host", ["a" * 64, "a..b"])
def test_a_name_that_dns_cannot_have_is_unreachable(host):
    for error in inserted(f"http://{host}:1"):
        assert isinstance(error, Unavailable)
        assert error.unreachable


@pytest.mark.parametrize("timeout_s", [math.inf, math.nan, -1, 0, 1e10])
@pytest.mark.parametrize("target", ["http://127.0.0.1:1", "127.0.0.1:1"])
def test_a_timeout_that_cannot_be(target, timeout_s):
    with pytest.raises(InvalidArgument, match="timeout_s"):
        Client(target, timeout_s=timeout_s)


def test_a_deadline_may_be_over_before_the_connection_is_there():
    with answering() as (target, _):
        assert [type(error) for error in inserted(target, timeout_s=1e-9)] == [DeadlineExceeded] * 2


def test_all_addresses_of_a_name_are_tried(monkeypatch):
    with answering(answer(5)) as (target, _), Client(target) as client:
        (found,) = socket.getaddrinfo("127.0.0.1", int(target.rpartition(":")[2]), type=socket.SOCK_STREAM)
        none = (*found[:4], ("127.0.0.1", 1))
        monkeypatch.setattr(connect_module.socket, "getaddrinfo", lambda *_, **__: [none, found])
        assert client.window("w").insert(1, 1.0).inserted == 5
        monkeypatch.setattr(connect_module.socket, "getaddrinfo", lambda *_, **__: [none, none])
        # Another client: the first one may have its connection still, where the server is slow to close it.
        with Client(target) as other, pytest.raises(Unavailable, match="refused"):
            other._http.connect(60)


def test_a_reader_that_drips_does_not_stretch_the_deadline(monkeypatch):
    now_s = 0.0

    class Dripping:
        def settimeout(self, left_s):
            assert left_s == 10 - now_s

        def fileno(self):
            return here.fileno()

        def send(self, part):
            nonlocal now_s
            now_s += 1
            return here.send(part[:1])

    here, there = socket.socketpair()
    monkeypatch.setattr(connect_module.time, "monotonic", lambda: now_s)
    with here, there:
        with pytest.raises(TimeoutError):
            _BlockingWire(Dripping()).exchange(b"h" * 5, b"b" * 100_000, 10)
        assert there.recv(100) == b"hhhhhbbbbb"


def test_a_handshake_has_what_the_connection_left(tmp_path, monkeypatch):
    now_s = 0.0

    class Late(socket.socket):
        def connect(self, address):
            nonlocal now_s
            super().connect(address)
            now_s = 10.0

    (ca := tmp_path / "ca.pem").write_bytes(Authority("one").pem)
    monkeypatch.setattr(connect_module.time, "monotonic", lambda: now_s)
    with socket.create_server(("127.0.0.1", 0)) as entrance:
        monkeypatch.setattr(connect_module.socket, "socket", Late)
        endpoint = Endpoint("127.0.0.1", entrance.getsockname()[1], True)
        with pytest.raises(DeadlineExceeded):
            BlockingCalls(endpoint, ssl_context(TLS(ca=ca)), None).connect(10)
        with entrance.accept()[0] as connection:
            assert connection.recv(1) == b""  # no handshake began


def test_an_interrupted_connection_never_sends_in_the_clear(tmp_path):
    authority = Authority("one")
    (ca := tmp_path / "ca.pem").write_bytes(authority.pem)
    served = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    served.load_cert_chain(*authority.give(tmp_path))
    received = []

    def serve():
        plain, _ = entrance.accept()
        with plain, served.wrap_socket(plain, server_side=True) as one:
            one.recv(1)
            received.append(one.recv(100))

    with socket.create_server(("127.0.0.1", 0)) as entrance:
        thread = threading.Thread(target=serve)
        thread.start()
        calls = BlockingCalls(Endpoint("127.0.0.1", entrance.getsockname()[1], True), ssl_context(TLS(ca=ca)), None)
        calls.connect(60)
        (wire,) = calls._idle
        wire._socket.send(b"1")
        wire.interrupt()
        assert wire._socket.version() is not None
        thread.join()
        calls.close()
    assert received == [b""]


def test_a_forked_process_does_not_end_the_connections_of_the_other_one():
    with over_connect(Recorder()) as server, Client(f"http://127.0.0.1:{server.server_port}") as client:
        client.window("w").insert(1, 1.0)
        (wire,) = client._http._idle
        child = os.fork()
        if child == 0:
            client.close()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert not wire.is_stale
        assert client.window("w").insert(2, 1.0).inserted == 1


def test_two_threads_may_close_at_once():
    class Taken(list):
        def pop(self):
            self.clear()  # the other thread was faster
            return super().pop()

    client = Client("http://127.0.0.1:1")
    client._http._idle = Taken([object()])
    client.close()
    assert not client._http._idle


@pytest.mark.parametrize("kind", CLIENTS)
def test_a_call_that_failed_gives_its_connection_up(kind):
    with answering(OK, OK) as (target, _), opened(kind, target, timeout_s=0.2) as client:
        with pytest.raises(DeadlineExceeded):
            client.window("w").insert(1, 1.0)
        assert not client._http._idle
        assert not client._http._all


def test_nothing_is_opened_or_kept_after_the_end():
    async def awaited(target):
        client = AsyncClient(target)
        wire = await client._http._wire()
        client._http._is_closed = True
        client._http._keep(wire)
        assert not client._http._idle
        with pytest.raises(Unavailable, match="closed"):
            await client._http.connect()
        await client.close()

    with over_connect(Recorder()) as server:
        target = f"http://127.0.0.1:{server.server_port}"
        client = Client(target)
        client._http.connect(20)
        wire = client._http._idle.pop()
        client.close()
        client._http._keep(wire)
        with pytest.raises(Unavailable, match="closed"):
            client._http.connect(20)
        assert not client._http._idle
        assert not client._http._all
        asyncio.run(awaited(target))


def test_a_call_that_was_cancelled_there_has_the_code_of_grpc():
    head = b"HTTP/1.1 499 No\r\ncontent-type: application/json\r\ncontent-length: 20\r\n\r\n"
    with answering(*[head + b'{"code": "canceled"}'] * 2) as (target, _):
        assert [error.code for error in inserted(target)] == ["CANCELLED"] * 2
