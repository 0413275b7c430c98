"""A client of each transport, which deletes the windows of the service after each test."""

import pytest

from tests.support.clients import client_of
from tests.support.connect_server import address_of


@pytest.fixture
def address(service, transport):
    return address_of(service, transport)


@pytest.fixture
def client(address):
    with client_of(**address) as client:
        yield client
