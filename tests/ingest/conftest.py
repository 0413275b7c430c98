import pytest

from tests.ingest.log import SPEC


@pytest.fixture
def window(client):
    return client.create_window(SPEC)
