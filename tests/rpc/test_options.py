"""gRPC passes over an option whose name it does not know: a wrong name would go unnoticed."""

from pathlib import Path

import grpc
import pytest
from grpc._cython import cygrpc

from sash.rpc import server
from sash.shards import peers
from sash_client.calls import connection
from tests.support.servers import running_service

KNOWN = Path(cygrpc.__file__).read_bytes()


@pytest.fixture
def of_server(monkeypatch):
    given = []
    make = grpc.aio.server

    def recorded(**arguments):
        given.extend(arguments["options"])
        return make(**arguments)

    monkeypatch.setattr(server.grpc.aio, "server", recorded)
    with running_service():
        return dict(given)


def test_grpc_knows_each_option(of_server):
    for options in (of_server, dict(connection.OPTIONS), dict(peers.OPTIONS)):
        assert options
        assert [name for name in options if name.encode() not in KNOWN] == []


def test_the_service_takes_the_pings_of_its_client(of_server):
    """With fewer allowed, a call that takes minutes is cut off (GOAWAY, too_many_pings)."""
    assert connection.OPTIONS["grpc.keepalive_time_ms"] > of_server["grpc.http2.min_ping_interval_without_data_ms"]
