import pytest

from tests.ingest.log import SPEC
from tests.support.clients import client_of
from tests.support.servers import running_service


@pytest.fixture(scope="module")
def service():
    with running_service() as running:
        yield running


@pytest.fixture
def client(service):
    with client_of(service.grpc_target) as client:
        yield client


@pytest.fixture
def window(client):
    return client.create_window(SPEC)
