"""A service, with a window whose fields may all be null."""

import pytest

from sash_client import Client
from tests.support.nulls import FIELDS, SPEC


@pytest.fixture
def http(service):
    http = service.http()
    assert http.post("/v1/windows", json={**SPEC, "nullable": list(FIELDS)}).status_code == 201
    yield http
    http.delete("/v1/windows/w")


@pytest.fixture
def window(service, http):
    with Client(service.grpc_target) as client:
        yield client.window("w")
