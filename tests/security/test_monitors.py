"""Health needs no token; so nobody can do harm by it."""

from __future__ import annotations

import contextlib
import queue
import socket
import threading

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from sash.limits.memory import MIB, used_bytes
from sash.limits.open_calls import FEW
from sash.rpc import monitors, server
from sash_proto.v1 import windows_pb2 as pb
from tests.security.conftest import ending, rejected
from tests.support import http2
from tests.support.servers import running_service
from tests.support.tokens import bearer, write_tokens
from tests.support.waiting import wait_until

CHECK, WATCH = (f"/grpc.health.v1.Health/{method}" for method in ("Check", "Watch"))
OURS = "/sash.v1.Windows/Watch"
REFLECT = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
REFLECTED = reflection_pb2.ServerReflectionRequest(list_services="")
ASKED = health_pb2.HealthCheckRequest()
SERVING = health_pb2.HealthCheckResponse.SERVING
END = [(http2.HEADERS, 1), (http2.RESET, 1)]
"""What may be the answer to a call that is refused, or its end."""


class Raw:
    """A connection of HTTP/2 that does only what it is told."""

    def __init__(self, port, window=65_535):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=10)  # gRPC ends it after 20 s
        self.send(http2.PREFACE, http2.settings(window), http2.ACKNOWLEDGED)

    def send(self, *frames):
        self.socket.sendall(b"".join(frames))

    def call(self, path, message=b""):
        self.send(http2.call(1, http2.headers(path)), http2.data(1, message, ends=False) if message else b"")

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


def reflection(running, questions):
    """Ask, as a reader, what there is."""
    stub = reflection_pb2_grpc.ServerReflectionStub(running.channel())
    return stub.ServerReflectionInfo(questions, metadata=list(bearer("reader").items()))


@pytest.fixture
def locked(tmp_path):
    return {"tokens": write_tokens(tmp_path / "tokens.yaml", {"reader": {}})}


def test_a_watcher_that_reads_nothing_keeps_nobody_waiting():
    """The library holds a lock while it writes: others saw nothing, and the service did not shut down."""
    with running_service() as running, raw(running, 1, window=0) as (stuck,):
        stuck.call(WATCH)
        stuck.send(http2.data(1, http2.message(ASKED)))
        assert (http2.HEADERS, 1) in stuck.frames()  # it is being written to
        watch = health(running).Watch(ASKED, timeout=120)
        assert next(watch).status == SERVING
        watch.cancel()


@pytest.mark.parametrize(("path", "asked"), [(WATCH, ASKED), (REFLECT, REFLECTED)], ids=["health", "reflection"])
def test_a_stream_whose_first_message_is_on_its_way_ends_with_the_service(path, asked):
    """Its status was never sent, so it held the service for all of the grace."""
    with running_service(shutdown_grace_s=240) as running, raw(running, 1, window=1) as (stuck,):
        stuck.call(path)
        stuck.send(http2.data(1, http2.message(asked)))
        frames = stuck.frames()
        assert (http2.DATA, 1) in frames  # one byte of it
        stopping = threading.Thread(target=running.stop)
        stopping.start()
        wait_until(lambda: is_closed(running.rest_port))
        stuck.send(http2.frame(http2.WINDOW_UPDATE, 0, 1, (65_535).to_bytes(4, "big")))
        rest = (kind for kind, stream in frames if stream == 1 and kind != http2.WINDOW_UPDATE)
        assert [next(rest), next(rest)] == [http2.DATA, http2.HEADERS]
        stuck.socket.shutdown(socket.SHUT_RDWR)  # else gRPC waits for it to answer a ping
        stopping.join()


def is_closed(port):
    try:
        socket.create_connection(("127.0.0.1", port), timeout=10).close()
    except ConnectionRefusedError:
        return True
    return False


@pytest.mark.parametrize("kind", ["watchers", "reflection"])
def test_streams_have_places(kind, locked):
    """Each takes 23 KB."""
    questions = []

    def opened():
        if kind == "watchers":
            return health(running).Watch(ASKED)
        questions.append(queue.SimpleQueue())
        questions[-1].put(REFLECTED)
        return reflection(running, iter(questions[-1].get, None))

    with running_service(max_concurrent_calls=2, **locked) as running:
        streams = [opened() for _ in range(2)]
        for each in streams:
            next(each)
        assert ending(lambda: next(opened()))[0] == "UNAVAILABLE"
        assert health(running).Check(ASKED).status == SERVING
        streams[0].cancel()
        wait_until(lambda: ending(lambda: next(opened()))[0] == "OK")
        for each in questions:
            each.put(None)


def test_a_message_that_does_not_arrive_is_not_waited_for():
    """gRPC kept what there was of it, up to the length of a bulk, for as long as the connection was open."""
    with running_service() as running, raw(running, 12) as slow:
        for number, each in enumerate(slow):
            each.call((CHECK, WATCH)[number % 2], b"\0\0\x10\0\0\x0a")
        for each in slow:
            assert any(found in END for found in each.frames())
        assert health(running).Check(ASKED).status == SERVING


@pytest.mark.parametrize(
    ("path", "count", "settings", "refusal", "serving"),
    [
        (CHECK, 2, {"max_concurrent_calls": 2, "max_calls_per_address": 1}, "2 calls of 127.0.0.1 are open", False),
        (OURS, 4, {"max_concurrent_calls": 9, "max_calls_per_address": 2}, "4 calls of 127.0.0.1 are open", True),
        (OURS, 2, {"max_connections_per_address": 2}, "127.0.0.1 has calls on 2 connections", False),
    ],
    ids=["health", "calls", "connections"],
)
def test_calls_whose_messages_do_not_arrive_are_counted_by_address(
    path, count, settings, refusal, serving, monkeypatch
):
    """Thousands of them took all that may wait, and nobody else was told anything."""
    monkeypatch.setattr(monitors, "_RECEIVED_S", 60.0)
    with running_service(**settings) as running, raw(running, count) as slow:
        for each in slow:
            each.call(path)

        def refused():
            ask = health(running).Check if path == CHECK else running.stub().ListWindows
            code, details = ending(lambda: ask(ASKED if path == CHECK else pb.ListWindowsRequest()))
            return code == "UNAVAILABLE" and refusal in details

        wait_until(refused)
        assert running.http().get("/healthz").status_code == 200
        assert not serving or health(running).Check(ASKED).status == SERVING
        slow[0].socket.close()
        wait_until(lambda: not refused())


@pytest.mark.parametrize("path", [OURS, WATCH], ids=["ours", "health"])
def test_open_calls_have_the_memory_that_there_is(path, monkeypatch):
    """An address had 1,800 of them, with 31 KB each, at any limit of the memory."""
    share = 1 if path == OURS else server._HEALTH_SHARE
    monkeypatch.setattr(server, "_PENDING_MIN", 2 * FEW * share)  # of three quarters one caller has fewer than a few
    monkeypatch.setattr(server, "_PENDING_BYTES", 2**40)
    monkeypatch.setattr(monitors, "_RECEIVED_S", 30.0)
    with running_service() as running, raw(running, 2 * FEW) as slow:
        http = running.http()
        for each in slow:
            each.call(path)
        wait_until(lambda: rejected(http, "UNAVAILABLE", "grpc") == FEW)
        _, details = ending(lambda: running.channel().unary_unary(path)(b"", timeout=60))
        assert f"{FEW} calls are open" in details


def test_streams_of_reflection_take_of_the_memory(locked, monkeypatch):
    monkeypatch.setattr(monitors, "_REFLECTED_BYTES", 512 * MIB)
    limit = used_bytes() + 1024 * MIB  # the tests before have made this process large
    with running_service(memory_bytes=limit, **locked) as running:
        assert ending(lambda: list(reflection(running, iter([REFLECTED]))))[0] == "RESOURCE_EXHAUSTED"
        monkeypatch.setattr(monitors, "_REFLECTED_BYTES", 200 * MIB)
        for _ in range(4):  # each gives back what it took
            list(reflection(running, iter([REFLECTED])))


def test_questions_that_are_none():
    another = health_pb2.HealthCheckRequest(service="another")
    with running_service() as running:
        check = running.channel().unary_unary(CHECK)
        assert ending(lambda: check(b"\xff"))[0] == "INVALID_ARGUMENT"
        assert ending(lambda: health(running).Check(another))[0] == "NOT_FOUND"
        watch = health(running).Watch(another)
        assert next(watch).status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
        watch.cancel()


def test_connections_without_a_call_have_a_limit():
    """They used up all files: HTTP took no connection any more, and new tokens were not read."""
    with running_service(max_connections=5) as running:
        with raw(running, 5) as idle:
            for each in idle:
                assert next(each.frames())[0] == http2.SETTINGS
            assert ending(lambda: health(running).Check(ASKED))[0] == "UNAVAILABLE"
            assert running.http().get("/healthz").status_code == 200
        assert health(running).Check(ASKED, wait_for_ready=True, timeout=120).status == SERVING
