"""Calls over Connect: connections that are kept, shared and lost, answers of proxies, and what nobody asked for."""

import asyncio
import contextlib
import json
import math
import os
import socket
import ssl
import threading

import grpc
import numpy as np
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from sash_client import TLS, Client, DeadlineExceeded, InvalidArgument, NotFound, SashClientError, Unavailable
from sash_client.aio import AsyncClient
from sash_client.calls import connect
from sash_client.calls.connect import CONNECTIONS_MAX, BlockingCalls, _BlockingWire
from sash_client.calls.credentials import ssl_context
from sash_client.calls.targets import Endpoint
from sash_client.data import libraries
from sash_proto.v1 import windows_pb2 as pb
from sash_wire import traces
from tests.support.certificates import Authority
from tests.support.connect_server import over_connect
from tests.support.either_client import CLIENTS, opened
from tests.support.numbered import Numbered
from tests.support.recorder import Recorder, status
from tests.support.servers import WAIT_S, running_service
from tests.support.waiting import until, wait_until

OK = b"HTTP/1.1 200 OK\r\ncontent-type: application/proto\r\n"
WRITTEN = pb.InsertResponse(inserted=1).SerializeToString()
SPEC = {"name": "w", "time_unit": "s", "aggregates": {"n": {"function": "count"}}}


def answer(count):
    body = pb.InsertResponse(inserted=count).SerializeToString()
    return OK + b"content-length: %d\r\n\r\n" % len(body) + body


@contextlib.contextmanager
def answering(*answers):
    """A port that answers one request after the other as it is told; each connection ends with its answer's "!"."""
    pending = list(answers)
    heads = []

    def serve():
        with contextlib.suppress(OSError):
            while pending:
                connection, _ = entrance.accept()
                with connection:
                    while pending and (request := connection.recv(65536)):
                        heads.append(request)
                        answer = pending.pop(0)
                        connection.sendall(answer.removesuffix(b"!"))
                        if answer.endswith(b"!"):
                            break

    with socket.create_server(("127.0.0.1", 0)) as entrance:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"http://127.0.0.1:{entrance.getsockname()[1]}", heads
        finally:
            entrance.shutdown(socket.SHUT_RDWR)
            thread.join()


def inserted(target, **options):
    """What both clients make of one insert: the result, or the error."""
    found = []
    for kind in CLIENTS:
        with opened(kind, target, **options) as client:
            try:
                found.append(client.window("w").insert(1, 1.0))
            except SashClientError as error:
                found.append(error)
    return found


@pytest.mark.parametrize(
    "answer",
    [
        OK + b"content-length: %d\r\n\r\n" % len(WRITTEN) + WRITTEN,
        OK + b"Transfer-Encoding: chunked\r\n\r\n1\r\n" + WRITTEN[:1] + b"\r\n1\r\n" + WRITTEN[1:] + b"\r\n0\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n" + OK + b"content-length: %d\r\n\r\n" % len(WRITTEN) + WRITTEN,
        OK + b"connection: close\r\ncontent-length: %d\r\n\r\n" % len(WRITTEN) + WRITTEN,
    ],
)
def test_answers_of_other_servers_of_http(answer):
    assert len(WRITTEN) == 2
    with answering(answer + b"!", answer + b"!") as (target, heads):
        assert [result.inserted for result in inserted(target)] == [1, 1]
    for head in heads:
        assert head.startswith(b"POST /sash.v1.Windows/Insert HTTP/1.1\r\nhost: 127.0.0.1:")
        assert b"\r\nconnect-protocol-version: 1\r\nconnect-timeout-ms: " in head


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (400, "INTERNAL"),
        (401, "UNAUTHENTICATED"),
        (403, "PERMISSION_DENIED"),
        (404, "UNIMPLEMENTED"),
        (429, "UNAVAILABLE"),
        (502, "UNAVAILABLE"),
        (503, "UNAVAILABLE"),
        (504, "UNAVAILABLE"),
        (302, "UNKNOWN"),
        (500, "UNKNOWN"),
    ],
)
def test_a_proxy_answers_instead_of_the_service(status, code):
    page = b"HTTP/1.1 %d No\r\ncontent-type: text/html\r\nretry-after: 3\r\ncontent-length: 2\r\n\r\nno!" % status
    with answering(page, page) as (target, _):
        for error in inserted(target):
            assert (error.code, error.message) == (code, f"the answer has the HTTP status {status}")
            assert error.retry_after_s == 3.0


@pytest.mark.parametrize(
    "body",
    [
        b"[]",
        b"{",
        b'{"code": 5}',
        b'{"code": "not_found", "details": 5}',
        b'{"code": "not_found", "details": [{"type": "google.rpc.ErrorInfo", "value": "/w"}]}',
        b'{"code": "not_found", "details": [{"type": 5}, 7, {"type": "a", "value": "\xc3\xa9"}]}',
    ],
)
def test_garbage_in_an_error_does_not_hide_it(body):
    head = b"HTTP/1.1 404 No\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
    with answering(head + body + b"!", head + body + b"!") as (target, _):
        for error in inserted(target):
            assert error.code == ("NOT_FOUND" if b"details" in body else "UNIMPLEMENTED")


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"SSH-2.0-OpenSSH_9.2\r\n!", "does not speak HTTP"),
        (b"!", "broke"),
        (OK + b"content-length: 9\r\n\r\n12!", "broke"),
        (OK + b"content-length: 2\r\n\r\n\xff\xff!", "no service of sash.v1"),
        (b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 2\r\n\r\nhi!", "no service of sash.v1"),
    ],
)
def test_what_is_no_answer_is_an_error(answer, said):
    with answering(answer, answer) as (target, _):
        for error in inserted(target):
            assert said in error.message
            assert error.code == ("UNKNOWN" if "sash.v1" in said else "UNAVAILABLE")


@pytest.mark.parametrize("kind", CLIENTS)
def test_a_kept_connection_that_the_service_has_closed_costs_no_write(kind):
    servicer = Recorder()
    with over_connect(servicer) as server, opened(kind, f"http://127.0.0.1:{server.server_port}") as client:

        def is_noticed(wire):
            client.window("w")  # the event loop runs
            return wire.is_stale if kind == "blocking" else not wire.may_be_kept

        for _ in range(3):
            assert client.window("w").insert(1, 1.0).inserted == 1
            (wire,) = client._http._idle
            server.cut()
            wait_until(lambda wire=wire: is_noticed(wire))
    assert len(servicer.requests) == 3


async def test_more_tasks_than_connections_take_turns():
    with running_service() as service:
        async with AsyncClient(service.rest_url) as client:
            window = await client.create_window(SPEC)
            results = await asyncio.gather(*(window.insert(1, 1.0) for _ in range(3 * CONNECTIONS_MAX)))
            assert sum(result.inserted for result in results) == 3 * CONNECTIONS_MAX
            assert len(client._http._all) <= CONNECTIONS_MAX


def test_threads_share_a_client():
    with running_service() as service, Client(service.rest_url) as client:
        window = client.create_window(SPEC)

        def insert():
            for _ in range(50):
                window.insert(1, 1.0)

        threads = [threading.Thread(target=insert) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert window.describe().entries == 400
        assert 1 <= len(client._http._all) <= 8


def test_large_messages_go_out_and_come_in():
    with running_service() as service, Client(service.rest_url) as client:
        window = client.create_window({**SPEC, "aggregates": {"all": {"function": "collect"}}})
        n = 300_000
        assert window.bulk_insert(np.arange(n), np.arange(n, dtype=float)).inserted == n
        assert len(window.query()[0].aggregates["all"]) == n


def test_a_request_that_is_refused_before_it_is_read_says_why():
    with running_service(max_body_bytes=1 << 16) as service, Client(service.rest_url) as client:
        window = client.create_window(SPEC)
        with pytest.raises(SashClientError, match="too large") as refused:
            window.bulk_insert(np.arange(1_000_000), np.zeros(1_000_000))
        assert (refused.value.reason, refused.value.limit) == ("TOO_LARGE", "65,536 bytes")


def test_closing_ends_a_call_of_another_thread():
    servicer = Numbered()
    servicer.gate.clear()
    failed = []
    with over_connect(servicer) as server:
        client = Client(f"http://127.0.0.1:{server.server_port}")

        def insert():
            try:
                client.window("w").insert(1, 1.0)
            except Unavailable as error:
                failed.append(error.message)

        thread = threading.Thread(target=insert)
        thread.start()
        wait_until(lambda: servicer.arrived)
        client.close()
        thread.join()
        servicer.gate.set()
    assert failed == ["the client is closed"]


async def test_closing_does_not_wait_for_a_service_that_reads_nothing():
    """A bulk that the service does not read stays in the buffers of both sides."""
    with socket.create_server(("127.0.0.1", 0)) as mute:
        client = AsyncClient(f"http://127.0.0.1:{mute.getsockname()[1]}", timeout_s=WAIT_S)
        call = asyncio.create_task(client._call("BulkInsert", pb.BulkInsertRequest(time=bytes(1 << 24)), None))
        await until(lambda: client._http._all and any(w._transport.get_write_buffer_size() for w in client._http._all))
        async with asyncio.timeout(WAIT_S):
            await client.close()
        with pytest.raises(Unavailable):
            await call


def test_a_call_that_takes_too_long_gives_its_connection_up():
    servicer = Numbered()
    servicer.gate.clear()
    with over_connect(servicer) as server:
        target = f"http://127.0.0.1:{server.server_port}"
        assert [type(error) for error in inserted(target, timeout_s=0.2)] == [DeadlineExceeded] * 2
        with Client(target, timeout_s=0.2) as client:
            with pytest.raises(DeadlineExceeded, match=r"no answer within 0\.2 s"):
                client.window("w").insert(1, 1.0)
            servicer.gate.set()
            client.timeout_s = WAIT_S
            assert client.window("w").insert(2, 2.0).inserted == 1


def test_a_caller_s_limits_of_the_service_come_as_they_are():
    with running_service(max_windows=1) as service, Client(service.rest_url) as client:
        client.create_window(SPEC)
        with pytest.raises(SashClientError) as refused:
            client.create_window({**SPEC, "name": "v"})
        assert (refused.value.code, refused.value.reason) == ("RESOURCE_EXHAUSTED", "RESOURCE_EXHAUSTED")
        assert refused.value.limit


def test_a_host_that_the_service_does_not_allow_is_named():
    with running_service(host="127.0.0.1") as service:
        with Client(f"http://localhost:{service.rest_port}") as client:
            assert client.list_windows() == []
        with socket.create_connection(("127.0.0.1", service.rest_port)) as raw:
            raw.sendall(b"POST /sash.v1.Windows/Insert HTTP/1.1\r\nhost: evil\r\ncontent-length: 0\r\n\r\n")
            answer = raw.recv(65536)
    with answering(answer, answer) as (target, _):
        for error in inserted(target):
            assert "Host 'evil' is not allowed" in error.message
            assert error.request_id == json.loads(answer.partition(b"\r\n\r\n")[2])["request_id"]


def test_what_it_needs_is_named(monkeypatch):
    def missing(name):
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(libraries.importlib, "import_module", missing)
    with pytest.raises(ModuleNotFoundError, match="pip install httptools"):
        Client("http://127.0.0.1:7071")


async def test_a_trace_goes_with_the_call():
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    servicer = Recorder()
    traces.begin(provider)
    try:
        with over_connect(servicer) as server:
            target = f"http://127.0.0.1:{server.server_port}"
            with provider.get_tracer("test").start_as_current_span("outer") as outer:
                with Client(target) as client:
                    client.list_windows()
                    servicer.failures.append(status(grpc.StatusCode.NOT_FOUND, "no"))
                    with pytest.raises(NotFound):
                        client.list_windows()
                async with AsyncClient(target) as client:
                    await client.list_windows()
    finally:
        traces.end()
    spans = [span for span in exporter.get_finished_spans() if span.name == "sash.v1.Windows/ListWindows"]
    assert [span.attributes.get("error.type") for span in spans] == [None, "NOT_FOUND", None]
    for span in spans:
        assert span.attributes["rpc.system"] == "connect_rpc"
        assert span.parent.span_id == outer.get_span_context().span_id


# ---------------------------------------------------------------- one connection

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
        monkeypatch.setattr(connect.socket, "getaddrinfo", lambda *_, **__: [none, found])
        assert client.window("w").insert(1, 1.0).inserted == 5
        monkeypatch.setattr(connect.socket, "getaddrinfo", lambda *_, **__: [none, none])
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
    monkeypatch.setattr(connect.time, "monotonic", lambda: now_s)
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
    monkeypatch.setattr(connect.time, "monotonic", lambda: now_s)
    with socket.create_server(("127.0.0.1", 0)) as entrance:
        monkeypatch.setattr(connect.socket, "socket", Late)
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
