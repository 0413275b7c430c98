"""A service of a module's own, and a client whose windows are gone after each test."""

import pytest

from sash_client import Client
from tests.support.servers import running_service


@pytest.fixture(scope="module")
def service():
    with running_service() as running:
        yield running


@pytest.fixture
def client(service):
    with Client(service.grpc_target) as client:
        yield client
        for window in client.list_windows():
            client.delete_window(window.name)
