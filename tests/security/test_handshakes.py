"""Clients that connect and do not finish their TLS handshakes: no token is needed for that."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl

import grpc
import httpx
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from sash.limits.connections import SPARE_PER_ADDRESS, Connections
from sash.limits.turns import Turns
from sash.rest import handshake
from tests.support.certificates import Authority
from tests.support.servers import running_service, service_process
from tests.support.waiting import wait_until

pytestmark = pytest.mark.timeout(600)

FILES = 256


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """The settings of a service with TLS, and its authority."""
    directory, authority = tmp_path_factory.mktemp("tls"), Authority("one")
    cert, key = authority.give(directory)
    (directory / "ca.pem").write_bytes(authority.pem)
    return {"tls_cert": cert, "tls_key": key}, directory / "ca.pem"


@contextlib.contextmanager
def half(port, count, address="127.0.0.1", sent=b""):
    """So many connections of one address whose handshakes do not go on."""
    with contextlib.ExitStack() as stack:
        made = [socket.create_connection(("127.0.0.1", port), 120, (address, 0)) for _ in range(count)]
        for each in made:
            stack.enter_context(each).sendall(sent)
        yield made


def is_closed(connection):
    """Whether the service has closed a connection."""
    connection.setblocking(False)
    try:
        return connection.recv(65536) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


def https(running, ca):
    url = f"https://127.0.0.1:{running.rest_port}"
    context = ssl.create_default_context(cafile=str(ca))
    return running._closing.enter_context(httpx.Client(base_url=url, verify=context, timeout=120, trust_env=False))


def healthy(running, ca):
    """Whether the health of gRPC is answered on a new connection."""
    credentials = grpc.ssl_channel_credentials(ca.read_bytes())
    with grpc.secure_channel(f"127.0.0.1:{running.grpc_port}", credentials) as channel:
        try:
            found = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=30)
        except grpc.RpcError:
            return False
    return found.status == health_pb2.HealthCheckResponse.SERVING


def test_they_do_not_take_all_files(files):
    """They took every file, each for a minute with HTTP and two with gRPC: health was not answered."""
    tls, ca = files
    environment = {f"SASH_{name.upper()}": str(path) for name, path in tls.items()}
    with service_process(under=["sh", "-c", f'ulimit -n {FILES}; exec "$@"', "sh"], **environment) as running:
        assert running.process is not None
        open_files = f"/proc/{running.process.pid}/fd"
        with half(running.rest_port, FILES + 50), half(running.grpc_port, FILES + 50):
            for path in ("/healthz", "/metrics", "/v1/windows"):
                assert https(running, ca).get(path).status_code == 200
            assert len(os.listdir(open_files)) < FILES - 16
            wait_until(lambda: healthy(running, ca))
            assert https(running, ca).get("/healthz").status_code == 200


@pytest.mark.parametrize("sent", [b"", b"\x16\x03\x01\x02\x00\x01\x00"], ids=["nothing", "a part"])
def test_one_that_does_not_go_on_is_closed(files, sent, monkeypatch):
    monkeypatch.setattr(handshake, "HANDSHAKE_S", 0.1)
    with running_service(**files[0]) as running, half(running.rest_port, 3, sent=sent) as made:
        wait_until(lambda: all(map(is_closed, made)))
        assert https(running, files[1]).get("/healthz").status_code == 200


def test_the_oldest_of_an_address_gives_way(files):
    tls, ca = files
    with contextlib.ExitStack() as stack:
        running = stack.enter_context(running_service(**tls, max_connections_per_address=3))
        (other,) = stack.enter_context(half(running.rest_port, 1, "127.0.0.2"))
        made = stack.enter_context(half(running.rest_port, 3))
        assert https(running, ca).get("/v1/windows").status_code == 200
        wait_until(lambda: is_closed(made[0]))
        assert not any(map(is_closed, [other, *made[1:]]))
        assert https(running, ca).get("/v1/windows").status_code == 200
        assert https(running, ca).get("/v1/windows").status_code == 200
        wait_until(lambda: all(map(is_closed, made)))
        spare = https(running, ca)
        assert spare.get("/healthz").status_code == 200
        assert spare.get("/v1/windows").status_code == 503
        assert not is_closed(other)


def test_who_goes_or_speaks_no_tls_is_counted_no_more(files, monkeypatch):
    (tls, ca), left, leave = files, [], Connections.leave
    monkeypatch.setattr(Connections, "leave", lambda *of: (left.append(of), leave(*of)))
    with running_service(**tls, max_connections=3) as running:
        for sent in (b"", b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00"):
            left.clear()
            with half(running.rest_port, 3, sent=sent):
                pass
            wait_until(lambda: len(left) >= 3, within_s=handshake.HANDSHAKE_S / 2)
        clients = [https(running, ca) for _ in range(4)]
        wait_until(lambda: clients[0].get("/v1/windows").status_code == 200)
        assert [client.get("/v1/windows").status_code for client in clients] == [200, 200, 200, 503]


def test_connections_beyond_all_limits_are_closed_before_their_handshakes(files):
    with running_service(**files[0], max_connections=1) as running:
        client = https(running, files[1])
        assert client.get("/v1/windows").status_code == 200
        monitors = [https(running, files[1]) for _ in range(SPARE_PER_ADDRESS)]
        assert {monitor.get("/healthz").status_code for monitor in monitors} == {200}
        with half(running.rest_port, 1) as (one_more,):
            wait_until(lambda: is_closed(one_more))
        assert 'sash_requests_rejected_total{code="503",edge="rest"} 1.0' in monitors[0].get("/metrics").text
        assert client.get("/v1/windows").status_code == 200


def test_they_do_not_hold_up_the_end(files):
    with running_service(**files[0], shutdown_grace_s=100) as running, half(running.rest_port, 3) as made:
        assert https(running, files[1]).get("/healthz").status_code == 200
        running.stop()
        assert all(map(is_closed, made))


@pytest.fixture
def waiting(monkeypatch):
    """The turns that handshakes wait for, and are not given."""
    found = []

    def goes_on(self, name, cost_s):
        assert (name, cost_s) == ("127.0.0.1", handshake.SHAKING_S)
        found.append(asyncio.get_running_loop().create_future())
        return found[-1]

    monkeypatch.setattr(Turns, "goes_on", goes_on)
    return found


def hello(ca):
    """The first message of a client."""
    come, to_go = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = ssl.create_default_context(cafile=str(ca)).wrap_bio(come, to_go, server_hostname="127.0.0.1")
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return to_go.read()


def test_a_handshake_waits_for_its_turn(files, waiting, monkeypatch):
    """All that came at once had their handshakes in one iteration of the loop."""
    with running_service(**files[0], max_connections=3) as running:
        first = hello(files[1])
        with half(running.rest_port, 2, sent=first[:9]) as (stays, goes):
            wait_until(lambda: len(waiting) == 2)
            stays.sendall(first[9:])
            assert not is_closed(stays)  # and nothing has come
            goes.close()
            monkeypatch.undo()
            running.on_loop(lambda: [turn.set_result(None) for turn in waiting] and None)
            stays.settimeout(60)
            assert stays.recv(1) == b"\x16"  # a message of a handshake
        for client in [https(running, files[1]) for _ in range(3)]:  # the places of both are free
            wait_until(lambda: client.get("/v1/windows").status_code == 200)  # noqa: B023


def test_one_that_is_complete_has_all_the_time(files, monkeypatch, caplog):
    """Timers of handshakes end those that are not complete, and none else."""
    monkeypatch.setattr(handshake, "HANDSHAKE_S", 0.2)
    with running_service(**files[0]) as running:
        client = https(running, files[1])
        wait_until(lambda: served(client))
        before = client._transport._pool.connections[0]
        with half(running.rest_port, 1):
            pass
        with half(running.rest_port, 1) as (late,):
            wait_until(lambda: is_closed(late))
        assert client.get("/healthz").status_code == 200
        assert client._transport._pool.connections == [before]
    assert not [record for record in caplog.records if record.name == "asyncio"]


def served(client):
    """Whether a new connection had the time for its handshake."""
    with contextlib.suppress(httpx.TransportError):
        return client.get("/healthz").status_code == 200
    return False


def test_one_for_monitors_has_less_time(files, monkeypatch):
    monkeypatch.setattr(handshake, "SPARE_S", 0.1)
    with running_service(**files[0], max_connections=1) as running:
        assert https(running, files[1]).get("/healthz").status_code == 200
        with half(running.rest_port, 1) as (spare,):
            wait_until(lambda: is_closed(spare), within_s=handshake.HANDSHAKE_S / 2)


@pytest.mark.parametrize("ends", ["a newer one", "the service"])
def test_one_that_ends_while_it_waits_for_its_turn(files, ends, waiting, monkeypatch, caplog):
    with (
        running_service(**files[0], max_connections_per_address=1) as running,
        half(running.rest_port, 1, sent=hello(files[1])) as (old,),
    ):
        wait_until(lambda: waiting)
        monkeypatch.undo()
        if ends == "the service":
            running.stop()
        else:
            assert https(running, files[1]).get("/v1/windows").status_code == 200
            running.on_loop(lambda: waiting[0].cancelled() or waiting[0].set_result(None))
        wait_until(lambda: is_closed(old))
    assert not [record for record in caplog.records if record.name == "asyncio"]


def test_a_first_message_in_parts_is_read(files):
    with running_service(**files[0]) as running:
        plain = socket.create_connection(("127.0.0.1", running.rest_port), 60)
        with contextlib.closing(plain):
            come, to_go = ssl.MemoryBIO(), ssl.MemoryBIO()
            client = ssl.create_default_context(cafile=str(files[1])).wrap_bio(come, to_go, server_hostname="127.0.0.1")
            while True:
                try:
                    client.do_handshake()
                    break
                except ssl.SSLWantReadError:
                    for byte in to_go.read():
                        plain.sendall(bytes([byte]))
                    come.write(plain.recv(65_536))
            client.write(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")
            plain.sendall(to_go.read())
            found = b""
            while b"200 OK" not in found:
                come.write(plain.recv(65_536))
                with contextlib.suppress(ssl.SSLWantReadError):
                    found += client.read(65_536)
