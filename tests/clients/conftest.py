"""A service for each module, and a client that deletes its windows after each test."""

import pytest

from tests.support.clients import client_of
from tests.support.connect_server import address_of
from tests.support.servers import running_service


@pytest.fixture(scope="module")
def service():
    with running_service() as running:
        yield running


@pytest.fixture
def address(service, transport):
    return address_of(service, transport)


@pytest.fixture
def client(address):
    with client_of(**address) as client:
        yield client
