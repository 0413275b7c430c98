"""A client of each transport, which deletes the windows of the service after each test; and one of no service."""

import pytest

from sash_client import Client
from tests.support.clients import client_of
from tests.support.clocks import Clock
from tests.support.connect_server import address_of


@pytest.fixture
def address(service, transport):
    return address_of(service, transport)


@pytest.fixture
def client(address):
    with client_of(**address) as client:
        yield client


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def unconnected(clock):
    """A client on the test's clock that makes no call: plans are performed by hand."""
    with Client("127.0.0.1:1", timeout_s=5) as client:
        client._now_s = clock
        yield client
