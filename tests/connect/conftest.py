"""One service for each module, and an HTTP client of it."""

from collections.abc import Iterator
from typing import Any

import pytest

from sash_proto.v1 import windows_pb2 as pb
from tests.support.servers import Running, running_service

BODY_BYTES_MAX = 1 << 16


@pytest.fixture(scope="module")
def service() -> Iterator[Running]:
    with running_service(max_body_bytes=BODY_BYTES_MAX, max_entries_per_write=20_000, max_windows=20) as running:
        yield running


@pytest.fixture
def window(stub: Any) -> Iterator[str]:
    """A window of one float64 with count and sum, gone after the test."""
    aggregates = {"n": pb.AggregateSpec(function="count"), "total": pb.AggregateSpec(function="sum")}
    spec = pb.WindowSpec(name="plain", time_unit="s", aggregates=aggregates)
    assert stub.CreateWindow(pb.CreateWindowRequest(spec=spec)).created
    yield spec.name
    stub.DeleteWindow(pb.DeleteWindowRequest(name=spec.name))
