"""Clients that are slow, idle or many do not keep others from being answered."""

from __future__ import annotations

import asyncio
import contextlib
import gc
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

from sash.limits.connections import Connections
from sash.limits.turns import Turns
from sash.rest import connection
from sash_proto.v1 import windows_pb2 as pb
from tests.rest.conftest import held_by_a_write
from tests.security.conftest import new_window, rejected, windowed
from tests.support.raw_http import connected, next_of, rest_of
from tests.support.servers import json_head, problem, running_service
from tests.support.tokens import bearer, write_tokens
from tests.support.waiting import wait_until

BULK = json_head("/v1/windows/w/bulk-insert", 1000) + b"{"
LIST = b"GET /v1/windows HTTP/1.1\r\nhost: localhost\r\n\r\n"
HEALTH = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n"
QUESTION = b"GET /v1/windows/keys/query?all_keys=true HTTP/1.1\r\nhost: localhost\r\n\r\n"


@contextlib.contextmanager
def several(running, count, sent=b""):
    """So many connections, on each of which something is sent."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(connected(running, sent)) for _ in range(count)]


@pytest.fixture(scope="module")
def open_service():
    """A service with a window of many keys."""
    with windowed() as running:
        http, names = running.http(), [f"key-{i}" for i in range(20_000)]
        new_window(http, "keys", keyed=True)
        columns = {"time": [1] * len(names), "key": names, "value": [1.0] * len(names)}
        assert http.post("/v1/windows/keys/bulk-insert", json=columns).status_code == 200
        yield running


@pytest.fixture(scope="module")
def impatient(tmp_path_factory):
    """A service that waits for a second, and asks for tokens."""
    tokens = write_tokens(tmp_path_factory.mktemp("tokens") / "tokens.yaml", {"root": {"role": "admin"}})
    with running_service(tokens=tokens, body_timeout_s=1, idle_timeout_s=1) as running:
        yield running


# ---------------------------------------------------------------- slow


def test_a_hundred_bodies_of_one_byte_hold_nobody_up():
    """There are ten places; a body on its way has none."""
    with windowed(max_concurrent_calls=10) as running, several(running, 100, BULK) as slow:
        http = running.http()
        for time in range(20):
            assert http.post("/v1/windows/w/insert", json={"time": time, "value": 1}).status_code == 200
        slow[0].sendall(b" " * 998 + b"}")  # one of them goes on after all
        assert slow[0].recv(65536).startswith(b"HTTP/1.1 400")


TOKEN = b"authorization: " + bearer("root")["authorization"].encode() + b"\r\n"
STALLED = {
    "a body": (BULK.replace(b"host:", TOKEN + b"host:"), b"", [408]),
    "a head": (b"GET /healthz HTTP/1.1\r\n", b"", [408]),
    "a line": (b"GET /health", b"", [408]),
    "nothing": (b"", b"", []),
    "an answer": (HEALTH, b"", [200]),
    "a body behind its refusal": (BULK[:-1], b"{", [401]),
    "a connection behind a refused body": (BULK[:-1], b" " * 1000, [401]),
}
"""What is sent, and then, behind an answer; and the answers until the connection is closed."""


def test_a_connection_on_which_nothing_goes_on_is_ended(impatient):
    with contextlib.ExitStack() as stack:
        slow = {}
        for what, (sent, then, _) in STALLED.items():
            made = stack.enter_context(connected(impatient, sent))
            answers = stack.enter_context(made.makefile("rb"))
            slow[what] = answers, [next_of(answers)] if then else []
            made.sendall(then)
        for what, (_, _, expected) in STALLED.items():
            answers, found = slow[what]
            while (one := next_of(answers))[0]:
                found.append(one)
            assert [status for status, _ in found] == expected, what
        assert b"no part of the body arrived" in slow["a body"][1][0][1]
    root = impatient.http()
    root.headers.update(bearer("root"))
    assert rejected(root, 408) == 3


def test_a_body_without_end_behind_its_refusal_is_not_read_for_ever(impatient):
    head = json_head("/v1/windows/w/insert", 0).replace(b"content-length: 0", b"transfer-encoding: chunked")
    with connected(impatient, head) as made, made.makefile("rb") as answers:
        assert next_of(answers)[0] == 401
        # Small chunks: the service keeps up with them, so it does not stop reading, which is not the client's time.
        block, sent = b"10\r\n" + b"x" * 16 + b"\r\n", 0
        with contextlib.suppress(ConnectionError):
            while sent < 10**9:
                made.sendall(block)
                sent += len(block)
    assert sent < 10**9


def test_the_body_behind_an_upgrade_is_no_request(impatient):
    """The parser takes no body there. A proxy does, and would see two answers to one request."""
    head = json_head("/v1/windows/w/insert", len(HEALTH))
    head = head.replace(b"host:", b"connection: upgrade\r\nupgrade: h2c\r\nhost:")
    with connected(impatient, head) as made, made.makefile("rb") as answers:
        assert next_of(answers)[0] == 401
        with contextlib.suppress(ConnectionError):
            made.sendall(HEALTH)
        assert rest_of(made) == b""


@pytest.mark.parametrize(
    "head",
    [
        b"GET /healthz HTTP/1.1\r\nx: " + b"x" * 2_000_000,
        b"GET /healthz HTTP/1.1\r\n" + b"".join(b"x-%d: %s\r\n" % (i, b"y" * 100) for i in range(20_000)) + b"\r\n",
        b"GET /" + b"x" * 2_000_000,
        b"GET /healthz HTTP/1.1\r\nx: " + b"x" * 66_000 + b"\r\n\r\n",
    ],
    ids=["a line", "lines", "an address", "whole"],
)
def test_a_long_head_is_refused(open_service, head):
    before = rejected(open_service.http(), 431)
    with connected(open_service) as made:
        with contextlib.suppress(OSError):  # it is closed before all is sent
            made.sendall(head)
        assert rest_of(made)[:13] in (b"HTTP/1.1 431 ", b"")
    assert rejected(open_service.http(), 431) == before + 1


def test_heads_of_one_connection_do_not_add_up(open_service):
    http = open_service.http()
    for _ in range(10):
        assert http.get("/healthz", headers={"x": "x" * 20_000}).status_code == 200


# ---------------------------------------------------------------- many


def test_connections_beyond_the_limit_see_health_only():
    with windowed(max_connections_per_address=3) as running:
        wait_until(lambda: running.http().get("/healthz").status_code == 200)
        with several(running, 3):
            http = running.http()
            for path in ("/healthz", "/readyz", "/metrics"):
                assert http.get(path).status_code == 200
            refused = running.http().get("/v1/windows")
            assert problem(refused)["limit"] == "SASH_MAX_CONNECTIONS_PER_ADDRESS: 3"
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
            with several(running, 30) as many:
                answer = rest_of(many[-1])
                assert answer.startswith(b"HTTP/1.1 503 ")
                assert b"(SASH_MAX_CONNECTIONS_PER_ADDRESS: 3)" in answer


def test_all_connections_have_a_limit():
    with windowed(max_connections=3) as running, several(running, 3):
        assert problem(running.http().get("/v1/windows"))["limit"] == "SASH_MAX_CONNECTIONS: 3"


def held(release):
    yield pb.BulkInsertRequest(window="w", fields={"value": pb.Column(float64=b"")})
    release.get()


def test_streams_beyond_the_limit_are_told_when_to_come_again():
    """Each of them is refused, and none is cancelled; health is answered all the time."""
    release = queue.SimpleQueue()
    with windowed(max_concurrent_calls=20, max_calls_per_address=10) as running:
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

    with windowed(body_timeout_s=0.5, max_unread_bytes=1 << 20, max_body_bytes=1 << 20) as running:
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


def hung_up(made):
    """Have the clients go, and not only send no more."""
    for each in made:
        each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


@contextlib.contextmanager
def garbage_of(running):
    """Counts what the service leaves: it has no collector that looks for circles all the time."""
    found = []
    running.on_loop(gc.collect)
    gc.disable()
    try:
        yield found
        found.append(running.on_loop(gc.collect))
    finally:
        gc.enable()


@pytest.fixture
def tasks(open_service):
    """Counts tasks of the service."""
    return lambda: open_service.on_loop(lambda: len(asyncio.all_tasks()))


def test_what_has_not_begun_leaves_no_garbage(open_service, tasks):
    before = tasks()

    def begin_and_go(sent):
        with several(open_service, 30, sent) as made:
            hung_up(made)
        wait_until(lambda: tasks() <= before)

    begun = {"body": BULK, "behind": LIST * 3 + BULK, "head": b"GET /v1", "nothing": b""}
    for sent in begun.values():
        begin_and_go(sent)
    for what, sent in begun.items():
        with garbage_of(open_service) as found:
            begin_and_go(sent)
        assert found[0] < 300, what


def test_questions_end_whose_clients_have_gone(open_service, tasks):
    """While they wait, and when they have begun: nothing of them stays."""
    before = tasks()
    with held_by_a_write(open_service, "keys"), garbage_of(open_service) as found:
        with several(open_service, 40, QUESTION) as made:
            wait_until(lambda: tasks() >= before + 40)
            hung_up(made)
        wait_until(lambda: tasks() <= before)
    assert found[0] < 1000
    assert len(open_service.http().get("/v1/windows/keys/query?all_keys=true").json()["answers"]) == 20_000


# ---------------------------------------------------------------- idle, and others come


def test_an_idle_connection_gives_way_to_one_of_another_address():
    """The oldest of the address that has most of them; one whose head does not go on is idle, too."""
    with running_service(max_connections=4) as running, contextlib.ExitStack() as stack:

        def asks(number, sent=LIST, status=b"200"):
            made = stack.enter_context(connected(running, sent, f"127.0.0.{number}"))
            if sent == LIST:
                assert made.recv(65536).startswith(b"HTTP/1.1 " + status)
            return made

        many = [asks(2), asks(2), asks(2, b"GET /v1")]
        few = asks(3)
        asks(4)
        assert rest_of(many[0]) == b"", "it was closed"
        few.sendall(LIST)
        assert few.recv(65536).startswith(b"HTTP/1.1 200")
        asks(5)
        assert rest_of(many[1]) == b""
        asks(5, status=b"503")  # others have no more than it has


def test_a_connection_ends_whose_client_reads_nothing_of_an_answer(open_service, connections):
    with connected(open_service) as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.sendall(QUESTION * 5)
        assert slow.recv(12) == b"HTTP/1.1 200"
        (mine,) = connections

        def is_over():
            over = mine not in mine._port.open
            return over or mine.look(mine._looked_s + connection.UNREAD_S + 1)

        wait_until(lambda: open_service.on_loop(is_over))


class Unread(asyncio.Transport):
    """A transport whose client does not read on, and that is to be closed once it has."""

    aborted = False

    def get_extra_info(self, name, default=None):
        return default

    def get_write_buffer_size(self):
        return 300_000

    def is_closing(self):
        return True

    def abort(self):
        self.aborted = True


async def test_a_connection_ends_that_is_to_be_closed_and_whose_client_reads_no_more():
    places = Connections(1, 1)
    port = connection.Port(None, None, lambda _: False, places, Turns(), 10.0, 10.0, None)
    transport = Unread()
    made = connection.Connection(port)
    made.begin(transport, places.admit("a"))
    made.look(1.0)
    made.look(connection.UNREAD_S)
    assert not transport.aborted
    made.look(connection.UNREAD_S + 2)
    assert transport.aborted
