"""Calls over Connect: connections that are kept, shared and lost, and answers of proxies."""

import asyncio
import contextlib
import json
import socket
import threading

import grpc
import numpy as np
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from sash_client import Client, DeadlineExceeded, NotFound, SashClientError, Unavailable
from sash_client.aio import AsyncClient
from sash_client.calls.connect import CONNECTIONS_MAX
from sash_client.data import libraries
from sash_proto.v1 import windows_pb2 as pb
from sash_wire import traces
from tests.support.connect_server import over_connect
from tests.support.either_client import CLIENTS, opened
from tests.support.numbered import Numbered
from tests.support.recorder import Recorder, status
from tests.support.servers import WAIT_S, running_service
from tests.support.waiting import until, wait_until

OK = b"HTTP/1.1 200 OK\r\ncontent-type: application/proto\r\n"
WRITTEN = pb.InsertResponse(inserted=1).SerializeToString()
SPEC = {"name": "w", "time_unit": "s", "aggregates": {"n": {"function": "count"}}}


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


def test_a_kept_connection_that_the_service_has_closed_costs_no_write():
    servicer = Recorder()
    with over_connect(servicer) as server, Client(f"http://127.0.0.1:{server.server_port}") as client:
        window = client.window("w")
        for _ in range(3):
            assert window.insert(1, 1.0).inserted == 1
            (wire,) = client._http._idle
            server.cut()
            wait_until(lambda wire=wire: wire.is_stale)
        assert len(servicer.requests) == 3


async def test_a_kept_connection_that_the_service_has_closed_costs_no_awaited_write():
    servicer = Recorder()
    with over_connect(servicer) as server:
        async with AsyncClient(f"http://127.0.0.1:{server.server_port}") as client:
            for _ in range(3):
                assert (await client.window("w").insert(1, 1.0)).inserted == 1
                (wire,) = client._http._idle
                server.cut()
                await until(lambda wire=wire: not wire.may_be_kept)
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
