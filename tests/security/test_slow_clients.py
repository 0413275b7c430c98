"""Clients that are slow, idle or many do not keep others from being answered."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import resource
import socket
import struct
import subprocess
import sys

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_status import rpc_status

from sash_proto.v1 import windows_pb2 as pb
from tests.support.servers import json_head, problem, running_service
from tests.support.waiting import wait_until

COUNT = {"n": {"function": "count"}}
BULK = json_head("/v1/windows/w/bulk-insert", 1000) + b"{"


@contextlib.contextmanager
def serving(**settings):
    with running_service(**settings) as running:
        assert running.http().post("/v1/windows", json={"name": "w", "aggregates": COUNT}).status_code == 201
        yield running


@contextlib.contextmanager
def connections(running, count, sent=b""):
    """So many connections, on each of which something is sent."""
    with contextlib.ExitStack() as stack:
        made = []
        for _ in range(count):
            made.append(stack.enter_context(socket.create_connection(("127.0.0.1", running.rest_port), timeout=120)))
            made[-1].sendall(sent)
        yield made


def received(connection):
    """All that comes until the connection is closed."""
    found = b""
    with contextlib.suppress(ConnectionResetError):
        while part := connection.recv(65536):
            found += part
    return found


# ---------------------------------------------------------------- slow


def test_a_hundred_bodies_of_one_byte_hold_nobody_up():
    """There are ten places; a body on its way has none."""
    with serving(max_concurrent_calls=10) as running, connections(running, 100, BULK) as slow:
        http = running.http()
        for time in range(20):
            assert http.post("/v1/windows/w/insert", json={"time": time, "value": 1}).status_code == 200
        slow[0].sendall(b" " * 998 + b"}")  # one of them goes on after all
        assert slow[0].recv(65536).startswith(b"HTTP/1.1 400")


def test_a_body_that_stalls_is_ended():
    with serving(body_timeout_s=1) as running, connections(running, 3, BULK) as slow:
        for connection in slow:
            answer = received(connection)
            assert answer.startswith(b"HTTP/1.1 408 Request Timeout\r\n")
            assert b"no part of the body arrived" in answer
        metrics = running.http().get("/metrics").text
        assert 'sash_requests_rejected_total{code="408",edge="rest"} 3.0' in metrics


@pytest.mark.parametrize("sent", [b"GET /healthz HTTP/1.1\r\n", b"GET /health"])
def test_a_head_that_stalls_is_ended(sent):
    with serving(body_timeout_s=1) as running, connections(running, 1, sent) as slow:
        assert received(slow[0]).startswith(b"HTTP/1.1 408 ")


@pytest.mark.parametrize("sent", [b"", b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n"])
def test_an_idle_connection_is_closed(sent):
    with serving(idle_timeout_s=1) as running, connections(running, 1, sent) as idle:
        assert received(idle[0]).startswith(b"HTTP/1.1 200 OK" if sent else b"")


@pytest.mark.parametrize(
    "head",
    [
        b"GET /healthz HTTP/1.1\r\nx: " + b"x" * 2_000_000,
        b"GET /healthz HTTP/1.1\r\n" + b"".join(b"x-%d: %s\r\n" % (i, b"y" * 100) for i in range(20_000)) + b"\r\n",
        b"GET /" + b"x" * 2_000_000,
        b"GET /healthz HTTP/1.1\r\nx: " + b"x" * 66_000 + b"\r\n\r\n",
    ],
)
def test_a_long_head_is_refused(head):
    with serving() as running, connections(running, 1) as (connection,):
        with contextlib.suppress(OSError):  # it is closed before all is sent
            connection.sendall(head)
        assert received(connection)[:13] in (b"HTTP/1.1 431 ", b"")
        metrics = running.http().get("/metrics").text
        assert 'sash_requests_rejected_total{code="431",edge="rest"} 1.0' in metrics


def test_heads_of_one_connection_do_not_add_up():
    with serving() as running:
        http = running.http()
        for _ in range(10):
            assert http.get("/healthz", headers={"x": "x" * 20_000}).status_code == 200


# ---------------------------------------------------------------- many


def test_connections_beyond_the_limit_see_health_only():
    with serving(max_connections_per_address=3) as running:
        wait_until(lambda: running.http().get("/healthz").status_code == 200)
        with connections(running, 3):
            http = running.http()
            for path in ("/healthz", "/readyz", "/metrics"):
                assert http.get(path).status_code == 200
            refused = running.http().get("/v1/windows")
            assert problem(refused)["limit"] == "SASH_MAX_CONNECTIONS_PER_ADDRESS: 3"
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
            with connections(running, 30) as many:
                answer = received(many[-1])
                assert answer.startswith(b"HTTP/1.1 503 ")
                assert b"(SASH_MAX_CONNECTIONS_PER_ADDRESS: 3)" in answer


def test_all_connections_have_a_limit():
    with serving(max_connections=3) as running, connections(running, 3):
        assert problem(running.http().get("/v1/windows"))["limit"] == "SASH_MAX_CONNECTIONS: 3"


def held(release):
    yield pb.BulkInsertRequest(window="w", fields={"value": pb.Column(float64=b"")})
    release.get()


def test_streams_beyond_the_limit_are_told_when_to_come_again():
    """Each of them is refused, and none is cancelled; health is answered all the time."""
    release = queue.SimpleQueue()
    with serving(max_concurrent_calls=20, max_calls_per_address=10) as running:
        stub = running.stub()
        streams = [stub.InsertStream(held(release)) for _ in range(100)]
        refused = 0
        for stream in streams:
            try:
                next(stream)
            except grpc.RpcError as error:
                refused += error.code() == grpc.StatusCode.UNAVAILABLE
                details = rpc_status.from_call(error).details
                assert any(detail.Is(error_details_pb2.RetryInfo.DESCRIPTOR) for detail in details)
                assert "SASH_MAX_CALLS_PER_ADDRESS: 10" in str(details)
        assert refused == 90
        health = health_pb2_grpc.HealthStub(running.channel()).Check(health_pb2.HealthCheckRequest(), timeout=120)
        assert health.status == health_pb2.HealthCheckResponse.SERVING
        for _ in streams:
            release.put(None)


def test_messages_that_do_not_arrive_hold_nobody_up():
    """Sixteen places: eight calls may hold one each for as long as they like. Others end, and leave places free."""
    release, last = queue.SimpleQueue(), queue.SimpleQueue()

    def nothing(until=release):
        until.get()
        yield b""

    with serving(body_timeout_s=0.5, max_unread_bytes=1 << 20, max_body_bytes=1 << 20) as running:
        insert = running.channel().stream_unary("/sash.v1.Windows/Insert")
        calls = [insert.future(nothing()) for _ in range(12)]
        wait_until(lambda: sum(call.done() for call in calls) == 4)
        for call in calls:
            if call.done():
                assert call.exception().code() == grpc.StatusCode.UNAVAILABLE
                assert "did not arrive" in call.exception().details()
        for time in range(20):
            assert running.stub().Insert(pb.InsertRequest(window="w", time=time, value=1)).inserted == 1
        for call in calls:
            call.cancel()
            release.put(None)
        stalled = running.channel().stream_stream("/sash.v1.Windows/Watch")(nothing(last))
        with pytest.raises(grpc.RpcError, match="did not arrive"):
            next(stalled)
        last.put(None)


# ---------------------------------------------------------------- files


def test_the_limit_on_files_is_raised_and_a_low_one_is_said():
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    program = "import logging; logging.basicConfig(); from sash.limits.files import raise_limit; print(raise_limit())"
    for wanted in (hard, 500):
        limit = f'ulimit -Sn 100; ulimit -Hn {wanted}; exec "$@"'
        command = ["sh", "-c", limit, "sh", sys.executable, "-c", program]
        done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True)
        assert done.stdout == f"{wanted}\n"
        assert ("RLIMIT_NOFILE" in done.stderr) == (wanted < 4096)


# ---------------------------------------------------------------- gone


def test_questions_end_whose_clients_have_gone(monkeypatch):
    """While they wait, and when they have begun: nothing of them stays."""
    with serving() as running:
        aggregates = {"name": "keys", "keyed": True, "aggregates": COUNT}
        assert running.http().post("/v1/windows", json=aggregates).status_code == 201
        columns = {"time": [1] * 5000, "key": [f"key-{i}" for i in range(5000)], "value": [1.0] * 5000}
        assert running.http().post("/v1/windows/keys/bulk-insert", json=columns).status_code == 200
        held = []

        def kept(*_):
            """A turn that comes when the test lets it go."""
            held.append(asyncio.get_running_loop().create_future())
            return held[-1]

        tasks = lambda: running.on_loop(lambda: len(asyncio.all_tasks()))  # noqa: E731
        before = tasks()
        for method in ("goes_on", "next_turn"):  # nothing that is long goes on
            monkeypatch.setattr(running.plane.turns, method, kept)
        question = b"GET /v1/windows/keys/query?all_keys=true HTTP/1.1\r\nhost: localhost\r\n\r\n"
        with connections(running, 40, question) as made:
            wait_until(lambda: tasks() >= before + 40)
            for each in made:  # else it may want to read, and only sends no more
                each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        wait_until(lambda: tasks() <= before)
        monkeypatch.undo()
        assert held
        assert all(turn.done() for turn in held), "they were called off"
        assert len(running.http().get("/v1/windows/keys/query?all_keys=true").json()["answers"]) == 5000
