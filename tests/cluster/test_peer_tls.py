"""TLS between processes: they reach each other by their certificates, and nobody else reaches them."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import grpc
import pytest

from sash.access.tls import Certificates
from sash.shards.leased_host import LeasedHost
from sash.shards.peer_server import PEER_SECRET, PeerServer
from sash.shards.peer_tls import PeerTls
from sash.shards.peers import SERVICE, Peer
from sash_client import TLS, Client
from sash_engine.errors import InvalidArgument, Unavailable
from tests.support.certificates import Authority
from tests.support.deployments import KEYS, SPEC
from tests.support.redis_servers import BINARIES, redis_server
from tests.support.servers import running_service
from tests.support.waiting import wait_until

Given = Callable[[Authority, bool], Certificates]


async def resolve(*args: object) -> str:
    return "served"


@pytest.fixture
def given(tmp_path: Path) -> Given:
    """Certificates of a process from an authority, with the authority itself or without."""
    made = 0

    def give(authority: Authority, named: bool) -> Certificates:
        nonlocal made
        made += 1
        folder = tmp_path / str(made)
        folder.mkdir()
        cert, key = authority.give(folder)
        (folder / "ca.pem").write_bytes(authority.pem)
        return Certificates(cert, key, peer_ca=folder / "ca.pem" if named else None)

    return give


async def answer_of(
    port: int, credentials: grpc.ChannelCredentials | None, host: str = "127.0.0.1", name: str | None = None
) -> str:
    peer = Peer(f"{host}:{port}", "it", [(PEER_SECRET, "s")], credentials, name)
    try:
        return await peer.call(-1, "x", (), {})
    finally:
        await peer.close()


@contextlib.asynccontextmanager
async def serving(certificates: Certificates, address: str = "127.0.0.1") -> AsyncIterator[int]:
    """A process with a certificate, and its port."""
    server = PeerServer(f"{address}:0", lambda shard, operation: resolve, "s", PeerTls(certificates).server())
    await server.start()
    try:
        yield server.port
    finally:
        await server.stop()


async def test_only_processes_of_the_deployment_reach_each_other(given: Given) -> None:
    ours, others = Authority("ours"), Authority("others")
    async with serving(given(ours, True)) as port:
        assert await answer_of(port, PeerTls(given(ours, True)).client()) == "served"
        theirs = given(others, True)
        for credentials in (
            None,
            grpc.ssl_channel_credentials(ours.pem),
            PeerTls(theirs).client(),
            grpc.ssl_channel_credentials(ours.pem, theirs.pem.key, theirs.pem.cert),
        ):
            with pytest.raises(Unavailable):
                await answer_of(port, credentials)


async def test_a_process_without_the_right_certificate_is_not_called(given: Given) -> None:
    async with serving(given(Authority("others"), False)) as port:
        with pytest.raises(Unavailable):
            await answer_of(port, PeerTls(given(Authority("ours"), True)).client())


async def test_the_certificate_of_a_process_is_for_its_address_or_the_given_name(given: Given) -> None:
    ours = Authority("ours")
    async with serving(given(ours, True), "0.0.0.0") as port:
        caller = PeerTls(given(ours, True)).client()
        with pytest.raises(Unavailable):
            await answer_of(port, caller, "127.0.0.2")
        assert await answer_of(port, caller, "127.0.0.2", "localhost") == "served"
        with pytest.raises(Unavailable):
            await answer_of(port, caller, "127.0.0.1", "other.example.com")


async def test_processes_with_one_certificate_need_no_authority(given: Given) -> None:
    one = given(Authority("ours"), False)
    async with serving(one) as port:
        assert await answer_of(port, PeerTls(one).client()) == "served"
        with pytest.raises(Unavailable):
            await answer_of(port, PeerTls(given(Authority("ours"), False)).client())


@pytest.mark.parametrize("content", [b"", b"no PEM", b"\xff"])
def test_authorities_that_are_none_are_refused(tmp_path: Path, content: bytes) -> None:
    cert, key = Authority("ours").give(tmp_path)
    (tmp_path / "ca.pem").write_bytes(content)
    with pytest.raises(InvalidArgument, match=r"SASH_TLS_PEER_CA: .*ca\.pem") as raised:
        Certificates(cert, key, peer_ca=tmp_path / "ca.pem")
    assert raised.value.field == "tls_peer_ca"


@pytest.fixture
def redis() -> Iterator[str]:
    with redis_server(BINARIES["valkey"], "appendfsync no") as server:
        yield server.url


def test_a_deployment_forwards_over_tls_and_follows_its_files(tmp_path: Path, redis: str) -> None:
    old, new = Authority("old"), Authority("new")
    cert, key = old.give(tmp_path)
    ca = tmp_path / "ca.pem"
    ca.write_bytes(old.pem)
    settings = {"data": redis, "shards": 4, "lease_s": 1, "tls_cert": cert, "tls_key": key, "tls_client_ca": ca}

    with running_service(**settings) as first, running_service(**settings) as second:
        hosts: list[LeasedHost] = [running.plane._windows.move.__self__ for running in (first, second)]

        def client(port: int) -> Client:
            return Client(f"127.0.0.1:{port}", tls=TLS(ca=ca, cert=cert, key=key), timeout_s=60)

        def write_and_ask(times: int) -> None:
            for running in (first, second):
                with client(running.grpc_port) as asked:
                    window = asked.window("w")
                    window.bulk_insert([times] * len(KEYS), {"value": [1] * len(KEYS)}, keys=KEYS)
                    answers = window.query(keys=KEYS)
                times += 1
                assert {answer.key: answer.entries for answer in answers} == dict.fromkeys(KEYS, times)

        wait_until(lambda: all(len(host.shards.hosted) == 2 for host in hosts), 60, look_s=0.05)
        for host in hosts:
            with grpc.insecure_channel(host._me.address) as channel:
                call = channel.unary_stream(f"/{SERVICE}/Read")(b"", metadata=[(PEER_SECRET, host._table.secret)])
                with pytest.raises(grpc.RpcError) as raised:
                    next(call)
                assert raised.value.code() == grpc.StatusCode.UNAVAILABLE
        with client(first.grpc_port) as asked:
            asked.create_window(SPEC)
        write_and_ask(0)
        peers = {peer for host in hosts for peer in host.serving._peers.values()}
        assert len(peers) == 2
        # Both authorities count, then the new certificates come, then the old authority goes.
        for authorities, issuer in ((old.pem + new.pem, None), (old.pem + new.pem, new), (new.pem, None)):
            ca.write_bytes(authorities)
            if issuer is not None:
                issuer.give(tmp_path)
            now = (cert.read_bytes(), authorities)
            wait_until(lambda: all((host._pem.cert, host._pem.client_ca) == now for host in hosts), 60, look_s=0.05)  # noqa: B023  # it is called in this round only
        write_and_ask(2)
        assert not peers & {peer for host in hosts for peer in host.serving._peers.values()}
