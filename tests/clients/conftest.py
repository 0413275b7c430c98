"""A service for each module, a client that deletes its windows after each test, and producers without a service."""

import pytest

from tests.support.clients import client_of
from tests.support.connect_server import address_of
from tests.support.driven import SPEC, driven
from tests.support.producer_calls import FOREVER_S


@pytest.fixture
def address(service, transport):
    return address_of(service, transport)


@pytest.fixture
def client(address):
    with client_of(**address) as client:
        yield client


@pytest.fixture
def make(monkeypatch):
    """Make a producer on a clock and a wire of its own; nothing lingers to an end by itself."""
    return lambda spec=SPEC, **options: driven(monkeypatch, spec, **({"linger_s": FOREVER_S} | options))
