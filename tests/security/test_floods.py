"""Floods of gRPC calls without a token: whoever has one is answered."""

from __future__ import annotations

import contextlib
import resource
import socket
from pathlib import Path

import pytest

from sash.rpc import server, unacknowledged
from sash_proto.v1 import windows_pb2 as pb
from tests.security.conftest import rejected
from tests.support import http2
from tests.support.servers import running_service, service_process
from tests.support.tokens import bearer, write_tokens

CALLS = 2000
CONNECTIONS = 4
SENT_MIB = 64

ROOT = bearer("root")
HEAD = http2.headers("/sash.v1.Windows/Query")
MORE = http2.more(1, (b"\0\x01a\x7e" + b"x" * 126) * 100)


def flood(resets):
    """Many calls on one connection, each of them called off at once or not at all."""
    sent = [http2.PREFACE, http2.settings()]
    for stream in range(1, 2 * CALLS, 2):
        sent.append(http2.call(stream, HEAD))
        if resets:
            sent.append(http2.reset(stream))
    return b"".join(sent)


def resident_mib(pid):
    """The memory of a process, without pages of files."""
    _, resident, shared, *_ = map(int, Path(f"/proc/{pid}/statm").read_text().split())
    return (resident - shared) * resource.getpagesize() / 2**20


def connect(stack, running, address="127.0.0.1"):
    return stack.enter_context(socket.create_connection(("127.0.0.1", running.grpc_port), 30, (address, 0)))


def endless(stack, running, acknowledged=b"", address="127.0.0.1"):
    """A connection that has begun a call whose headers do not end."""
    connection = connect(stack, running, address)
    connection.sendall(http2.PREFACE + http2.settings() + acknowledged + http2.call(1, HEAD, whole=False))
    return connection


@pytest.fixture
def locked(tmp_path):
    """The setting of a service that asks for tokens."""
    return {"tokens": write_tokens(tmp_path / "tokens.yaml", {"root": {"role": "admin"}})}


def refused(running, code="UNAUTHENTICATED"):
    """How many calls of gRPC were refused."""
    http = running.http()
    http.headers.update(ROOT)
    return rejected(http, code, "grpc")


def ask(stub):
    """Make an honest call."""
    stub.ListWindows(pb.ListWindowsRequest(), metadata=tuple(ROOT.items()))


@pytest.mark.parametrize("resets", [False, True], ids=["streams", "rapid reset"])
def test_they_are_not_all_refused_before_others_are_answered(resets, locked):
    """gRPC took up 2,800 of each connection in their order: others waited for seconds of the loop's time."""
    with running_service(**locked) as running, contextlib.ExitStack() as stack:
        stub = running.stub()
        ask(stub)
        for _ in range(CONNECTIONS):
            connect(stack, running).sendall(flood(resets))
        for _ in range(3):
            ask(stub)
        assert refused(running) < CONNECTIONS * CALLS / 2


def test_who_does_not_acknowledge_the_settings_is_closed(monkeypatch):
    """Until then gRPC limits no headers: a connection could send them for a minute, and gRPC kept them all."""
    monkeypatch.setattr(server, "_SETTINGS_MS", 100)
    with running_service() as running, contextlib.ExitStack() as stack:
        connection = endless(stack, running)
        with contextlib.suppress(ConnectionError):
            connection.makefile("rb").read()  # times out after 30 s
        ask(running.stub())


def test_endless_headers_are_not_kept_once_the_settings_are_acknowledged():
    with service_process() as running, contextlib.ExitStack() as stack:
        ask(running.stub())
        assert running.process is not None
        before = resident_mib(running.process.pid)
        connection = endless(stack, running, acknowledged=http2.ACKNOWLEDGED)
        with contextlib.suppress(ConnectionError):
            for _ in range(SENT_MIB * 2**20 // len(MORE)):
                connection.sendall(MORE)
        ask(running.stub())
        assert resident_mib(running.process.pid) - before < SENT_MIB / 2


def closed(connection):
    """Whether the service closes a connection: waits until it has, or for the 30 s that the connection has."""
    try:
        connection.makefile("rb").read()
    except ConnectionError:
        pass
    except TimeoutError:
        return False
    return True


LONG = {
    "many": http2.more(1, b"\x40\x01b\x01y" + b"\xbe" * 600, whole=True),
    "large": MORE + MORE + http2.more(1, b"", whole=True),
}
ATTACKER = "127.0.7.7"


def check_served(connection):
    connection.sendall(http2.PREFACE + http2.settings())
    assert connection.recv(9)[3:4] == bytes([http2.SETTINGS])


@pytest.fixture
def patient(monkeypatch):
    """gRPC does not close by itself who has not acknowledged the settings."""
    monkeypatch.setattr(server, "_SETTINGS_MS", 600_000)


@pytest.mark.parametrize("asks", [False, True], ids=["open", "tokens"])
@pytest.mark.parametrize("headers", LONG)
def test_who_sends_long_headers_is_shut_out(headers, asks, locked, patient, monkeypatch):
    monkeypatch.setattr(unacknowledged, "_BARRED_S", 600.0)
    with running_service(**(locked if asks else {})) as running, contextlib.ExitStack() as stack:
        mine = running.stub()
        ask(mine)
        before = connect(stack, running, ATTACKER)  # it may be an honest one's
        sent = endless(stack, running, address=ATTACKER)
        sent.sendall(LONG[headers])
        assert closed(sent)
        assert refused(running, "RESOURCE_EXHAUSTED") == 1
        for _ in range(2):
            assert closed(connect(stack, running, ATTACKER))
        ask(mine)
        check_served(before)
        ask(running.stub())


def test_an_address_is_not_shut_out_for_ever(patient, monkeypatch):
    monkeypatch.setattr(unacknowledged, "_BARRED_S", 0.0)
    with running_service() as running, contextlib.ExitStack() as stack:
        for _ in range(2):
            sent = endless(stack, running, address=ATTACKER)
            sent.sendall(LONG["many"])
            assert closed(sent)
        check_served(connect(stack, running, ATTACKER))


def test_the_longest_headers_that_are_allowed_are_taken():
    values = [("x-a", "x" * 1000)] * 7
    with running_service() as running:
        running.stub().ListWindows(pb.ListWindowsRequest(), metadata=values)


def test_connections_to_other_ports_are_left_alone():
    """What is looked for are sockets of the process: those of HTTP and of Redis are there, too."""
    with socket.socket() as listening, contextlib.ExitStack() as stack:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        mine = listening.getsockname()[1]
        known = unacknowledged._cut({mine}, (), {"127.0.0.1"}, None)
        there = stack.enter_context(socket.create_connection(("127.0.0.1", mine), 30))
        here = stack.enter_context(listening.accept()[0])
        unacknowledged._cut({mine + 1}, (), {"127.0.0.1"}, known)
        unacknowledged._cut({mine}, {("127.0.0.1", mine)}, {"127.0.0.2"}, known)
        there.sendall(b"1")
        assert here.recv(1) == b"1"
        unacknowledged._cut({mine}, (), {"127.0.0.1"}, known)
        assert there.recv(1) == b""


def test_little_of_a_message_arrives_unasked():
    """gRPC let megabytes of each message arrive before the service asked for it, and nothing counted them."""
    with running_service(memory_bytes=512 * 2**20) as running, contextlib.ExitStack() as stack:
        connection = connect(stack, running)
        connection.sendall(http2.PREFACE + http2.settings())
        data = b""
        while len(data) < 9 or len(data) < 9 + int.from_bytes(data[:3], "big"):
            data += connection.recv(4096)
        assert data[3] == http2.SETTINGS
        pairs = [data[at : at + 6] for at in range(9, 9 + int.from_bytes(data[:3], "big"), 6)]
        given = {int.from_bytes(pair[:2], "big"): int.from_bytes(pair[2:], "big") for pair in pairs}
        assert given.get(http2.INITIAL_WINDOW_SIZE, 65_535) <= server._LOOKAHEAD_MIN
