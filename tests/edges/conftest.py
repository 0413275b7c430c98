"""A service of one store and one of three shards for each module, and drivers of the edges."""

from contextlib import ExitStack

import pytest

from tests.support.edges import EDGES, edge_of
from tests.support.servers import running_service

LIMITS = {"max_body_bytes": 1 << 20, "max_entries_per_write": 20_000, "max_windows": 20}


@pytest.fixture(scope="module")
def services():
    """Returns a service, with shards or without; it is started where a test needs it."""
    with ExitStack() as stack:
        started = {}

        def service(sharded):
            if sharded not in started:
                shards = {"shards": 3} if sharded else {}
                started[sharded] = stack.enter_context(running_service(**LIMITS, **shards))
            return started[sharded]

        yield service


@pytest.fixture(params=EDGES)
def edge(request, services):
    """A driver of an edge; its windows are gone after the test. `over` says which edges, where it is not each."""
    with ExitStack() as stack:
        made = edge_of(request.param, services, stack)
        yield made
        made.clear()
