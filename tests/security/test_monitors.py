"""Health needs no token; so nobody can do harm by it."""

from __future__ import annotations

import contextlib
import queue
import socket
import struct
import threading

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from sash.limits.memory import MIB, used_bytes
from sash.limits.open_calls import FEW
from sash.rpc import monitors, server
from sash_proto.v1 import windows_pb2 as pb
from sash_proto.v1 import windows_pb2_grpc as pb_grpc
from tests.support.servers import running_service
from tests.support.tokens import bearer, write_tokens
from tests.support.waiting import wait_until

ASKED = health_pb2.HealthCheckRequest()
SERVING = health_pb2.HealthCheckResponse.SERVING
DATA, HEADERS, RESET, SETTINGS, WINDOW_UPDATE = 0, 1, 3, 4, 8


class Raw:
    """A connection of HTTP/2 that does only what it is told."""

    def __init__(self, port, window=65_535):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=10)  # gRPC ends it after 20 s
        self.socket.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        self.send(4, 0, 0, struct.pack(">HI", 4, window))  # SETTINGS_INITIAL_WINDOW_SIZE
        self.send(4, 1, 0)

    def send(self, kind, flags, stream, payload=b""):
        self.socket.sendall(struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload)

    def call(self, path):
        fields = {":method": "POST", ":scheme": "http", ":path": path, ":authority": "localhost", "te": "trailers"}
        fields["content-type"] = "application/grpc"
        block = b"".join(
            b"\0%c%s%c%s" % (len(name), name.encode(), len(value), value.encode()) for name, value in fields.items()
        )
        self.send(HEADERS, 4, 1, block)

    def frames(self):
        """The kinds of the frames that come, until the connection is closed."""
        file = self.socket.makefile("rb")
        while head := file.read(9):
            file.read(int.from_bytes(head[:3], "big"))
            yield head[3], int.from_bytes(head[5:], "big")


@contextlib.contextmanager
def raw(running, count, **given):
    with contextlib.ExitStack() as stack:
        made = [Raw(running.grpc_port, **given) for _ in range(count)]
        for each in made:
            stack.enter_context(each.socket)
        yield made


def health(running):
    return health_pb2_grpc.HealthStub(running.channel())


def test_a_watcher_that_reads_nothing_keeps_nobody_waiting():
    """The library holds a lock while it writes: others saw nothing, and the service did not shut down."""
    with running_service() as running, raw(running, 1, window=0) as (stuck,):
        stuck.call("/grpc.health.v1.Health/Watch")
        stuck.send(0, 1, 1, bytes(5))
        assert (HEADERS, 1) in stuck.frames()  # it is being written to
        watch = health(running).Watch(ASKED, timeout=120)
        assert next(watch).status == SERVING
        watch.cancel()


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("/grpc.health.v1.Health/Watch", ASKED),
        (
            "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
            reflection_pb2.ServerReflectionRequest(list_services=""),
        ),
    ],
)
def test_a_stream_whose_first_message_is_on_its_way_ends_with_the_service(path, asked):
    """Its status was never sent, so it held the service for all of the grace."""
    with running_service(shutdown_grace_s=240) as running, raw(running, 1, window=0) as (stuck,):
        stuck.call(path)
        asked = asked.SerializeToString()
        stuck.send(DATA, 1, 1, struct.pack(">BI", 0, len(asked)) + asked)
        frames = stuck.frames()
        assert (HEADERS, 1) in frames
        stopping = threading.Thread(target=running.stop)
        stopping.start()
        wait_until(lambda: refused(running.rest_port))
        stuck.send(WINDOW_UPDATE, 0, 1, struct.pack(">I", 65_535))
        rest = (kind for kind, stream in frames if stream == 1 and kind != WINDOW_UPDATE)
        assert [next(rest), next(rest)] == [DATA, HEADERS]
        stuck.socket.shutdown(socket.SHUT_RDWR)  # else gRPC waits for it to answer a ping
        stopping.join()


def refused(port):
    try:
        socket.create_connection(("127.0.0.1", port), timeout=10).close()
    except ConnectionRefusedError:
        return True
    return False


def test_watchers_have_places():
    """Each takes 23 KB."""
    with running_service(max_concurrent_calls=3) as running:
        stub = health(running)
        watching = [stub.Watch(ASKED) for _ in range(3)]
        assert [next(each).status for each in watching] == [SERVING] * 3
        with pytest.raises(grpc.RpcError) as error:
            next(stub.Watch(ASKED))
        assert error.value.code() is grpc.StatusCode.UNAVAILABLE
        assert stub.Check(ASKED).status == SERVING
        watching[0].cancel()

        def another():
            with contextlib.suppress(grpc.RpcError):
                return next(stub.Watch(ASKED)).status == SERVING

        wait_until(another)


@pytest.mark.parametrize("method", ["Check", "Watch"])
def test_a_message_that_does_not_arrive_is_not_waited_for(method):
    """gRPC kept what there was of it, up to the length of a bulk, for as long as the connection was open."""
    with running_service() as running, raw(running, 6) as slow:
        for each in slow:
            each.call(f"/grpc.health.v1.Health/{method}")
            each.send(0, 0, 1, b"\0" + struct.pack(">I", 1 << 20) + b"\x0a")
        for each in slow:
            assert any(frame in ((HEADERS, 1), (RESET, 1)) for frame in each.frames())
        assert health(running).Check(ASKED).status == SERVING


def test_health_has_calls_by_address():
    """Four thousand checks without a message took all that may wait, and nobody else was told anything."""
    with running_service(max_concurrent_calls=2, max_calls_per_address=1) as running, raw(running, 2) as slow:
        for each in slow:
            each.call("/grpc.health.v1.Health/Check")

        def refused():
            try:
                health(running).Check(ASKED)
            except grpc.RpcError as error:
                return (
                    error.code() is grpc.StatusCode.UNAVAILABLE and "2 calls of 127.0.0.1 are open" in error.details()
                )

        wait_until(refused)
        assert running.http().get("/healthz").status_code == 200
        for each in slow:
            assert any(frame in ((HEADERS, 1), (RESET, 1)) for frame in each.frames())
        assert health(running).Check(ASKED).status == SERVING


def test_calls_whose_messages_do_not_arrive_are_counted_by_address():
    """A call had no place before its message was there, so one address could open any number of them."""
    with running_service(max_concurrent_calls=9, max_calls_per_address=2) as running, raw(running, 4) as slow:
        stub = pb_grpc.WindowsStub(running.channel())
        for each in slow:
            each.call("/sash.v1.Windows/Watch")

        def refused():
            try:
                stub.ListWindows(pb.ListWindowsRequest())
            except grpc.RpcError as error:
                return "4 calls of 127.0.0.1 are open" in error.details() and error.code().name == "UNAVAILABLE"

        wait_until(refused)
        assert health(running).Check(ASKED).status == SERVING
        slow[0].socket.close()
        wait_until(lambda: not refused())


def test_connections_with_calls_are_counted_by_address():
    with running_service(max_connections_per_address=2) as running, raw(running, 2) as slow:
        for each in slow:
            each.call("/sash.v1.Windows/Watch")

        def refused():
            try:
                pb_grpc.WindowsStub(running.channel()).ListWindows(pb.ListWindowsRequest())
            except grpc.RpcError as error:
                return "127.0.0.1 has calls on 2 connections" in error.details()

        wait_until(refused)


@pytest.mark.parametrize("service", ["sash.v1.Windows", "grpc.health.v1.Health"])
def test_open_calls_have_the_memory_that_there_is(service, monkeypatch):
    """An address had 1,800 of them, with 31 KB each, at any limit of the memory."""
    share = server._HEALTH_SHARE if service.startswith("grpc") else 1
    monkeypatch.setattr(server, "_PENDING_MIN", 2 * FEW * share)  # of three quarters one caller has fewer than a few
    monkeypatch.setattr(server, "_PENDING_BYTES", 2**40)
    monkeypatch.setattr(monitors, "_RECEIVED_S", 30.0)
    with running_service() as running, raw(running, 2 * FEW) as slow:
        http = running.http()
        for each in slow:
            each.call(f"/{service}/Watch")
        refused = f'sash_requests_rejected_total{{code="UNAVAILABLE",edge="grpc"}} {FEW}.0'
        wait_until(lambda: refused in http.get("/metrics").text)
        with pytest.raises(grpc.RpcError) as error:
            running.channel().unary_unary(f"/{service}/Watch")(b"", timeout=60)
        assert f"{FEW} calls are open" in error.value.details()


def test_streams_of_reflection_take_of_the_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(monitors, "_REFLECTED_BYTES", 512 * MIB)
    tokens = write_tokens(tmp_path / "tokens.yaml", {"reader": {}})
    limit = used_bytes() + 1024 * MIB  # the tests before have made this process large
    with running_service(memory_bytes=limit, tokens=tokens) as running:
        stub = reflection_pb2_grpc.ServerReflectionStub(running.channel())
        asked = [reflection_pb2.ServerReflectionRequest(list_services="")]
        with pytest.raises(grpc.RpcError) as error:
            list(stub.ServerReflectionInfo(iter(asked), metadata=list(bearer("reader").items())))
        assert error.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        monkeypatch.setattr(monitors, "_REFLECTED_BYTES", 200 * MIB)
        for _ in range(4):  # each gives back what it took
            list(stub.ServerReflectionInfo(iter(asked), metadata=list(bearer("reader").items())))


def test_a_message_that_is_none():
    with running_service() as running:
        check = running.channel().unary_unary("/grpc.health.v1.Health/Check")
        with pytest.raises(grpc.RpcError) as error:
            check(b"\xff")
        assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        with pytest.raises(grpc.RpcError) as error:
            health(running).Check(health_pb2.HealthCheckRequest(service="another"))
        assert error.value.code() is grpc.StatusCode.NOT_FOUND


def test_a_watch_of_an_unknown_service_says_so():
    with running_service() as running:
        watch = health(running).Watch(health_pb2.HealthCheckRequest(service="another"))
        assert next(watch).status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
        watch.cancel()


def test_reflection_has_places(tmp_path):
    tokens = write_tokens(tmp_path / "tokens.yaml", {"reader": {}})
    with running_service(max_concurrent_calls=2, tokens=tokens) as running:
        stub = reflection_pb2_grpc.ServerReflectionStub(running.channel())
        metadata, questions = list(bearer("reader").items()), [queue.Queue() for _ in range(3)]

        def stream(questions):
            questions.put(reflection_pb2.ServerReflectionRequest(list_services=""))
            return stub.ServerReflectionInfo(iter(questions.get, None), metadata=metadata)

        streams = [stream(each) for each in questions[:2]]
        for each in streams:
            next(each)
        with pytest.raises(grpc.RpcError) as error:
            next(stream(questions[2]))
        assert error.value.code() is grpc.StatusCode.UNAVAILABLE
        for each in questions:
            each.put(None)


def test_connections_without_a_call_have_a_limit():
    """They used up all files: HTTP took no connection any more, and new tokens were not read."""
    with running_service(max_connections=5) as running:
        with raw(running, 5) as idle:
            for each in idle:
                assert next(each.frames())[0] == SETTINGS
            with pytest.raises(grpc.RpcError) as error:
                health(running).Check(ASKED)
            assert error.value.code() is grpc.StatusCode.UNAVAILABLE
            assert running.http().get("/healthz").status_code == 200
        assert health(running).Check(ASKED, wait_for_ready=True, timeout=120).status == SERVING
