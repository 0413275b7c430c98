"""One service for each module, and a gRPC stub of it."""

from collections.abc import Iterator
from typing import Any

import pytest

from sash_proto.v1 import windows_pb2 as pb
from tests.support.servers import Running, running_service


@pytest.fixture(scope="module")
def service() -> Iterator[Running]:
    with running_service(max_body_bytes=1 << 20, max_entries_per_write=20_000, max_windows=20) as running:
        yield running


@pytest.fixture
def window(stub: Any) -> Iterator[str]:
    """A window of one float64 with count, sum and collect, gone after the test."""
    aggregates = {
        "n": pb.AggregateSpec(function="count"),
        "total": pb.AggregateSpec(function="sum"),
        "all": pb.AggregateSpec(function="collect"),
    }
    yield from made(stub, pb.WindowSpec(name="plain", time_unit="s", aggregates=aggregates))


@pytest.fixture
def typed(stub: Any) -> Iterator[str]:
    """A keyed window with a field of every type."""
    fields = {"f": "float64", "i": "int64", "s": "string", "b": "bool"}
    aggregates = {name: pb.AggregateSpec(function="collect", field=name) for name in fields}
    aggregates["n"] = pb.AggregateSpec(function="count")
    spec = pb.WindowSpec(name="typed", time_unit="ms", keyed=True, fields=fields, aggregates=aggregates)
    yield from made(stub, spec)


def made(stub: Any, spec: pb.WindowSpec) -> Iterator[str]:
    assert stub.CreateWindow(pb.CreateWindowRequest(spec=spec)).created
    yield spec.name
    stub.DeleteWindow(pb.DeleteWindowRequest(name=spec.name))
