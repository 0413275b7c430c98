"""How the command line shows answers: times, chosen aggregates, structured answers."""

import pytest

from sash_client import Client
from tests.support.servers import running_service


@pytest.fixture(scope="module")
def service():
    with running_service() as running:
        yield running


@pytest.mark.parametrize(
    ("unit", "tick", "shown"),
    [
        ("ns", -1, "1969-12-31T23:59:59.999999999Z"),
        ("us", 1, "1970-01-01T00:00:00.000001Z"),
        ("ms", 1_700_000_000_123, "2023-11-14T22:13:20.123Z"),
        ("s", 2**63 - 3, "292277026596-12-04T15:30:05Z"),
        ("none", 7, "7"),
    ],
)
def test_times_are_shown_in_the_unit_of_the_window(sash, service, unit, tick, shown):
    with Client(service.grpc_target) as client:
        spec = {"name": "units", "time_unit": unit, "aggregates": {"n": {"function": "count"}}}
        client.create_window(spec).insert(tick, 1.0)
        assert sash("list", service=service).out.splitlines()[1].split()[8:10] == [shown, shown]
        asked = ("series", "units", "--start", str(tick), "--end", str(tick + 1), "--step", "1")
        assert sash(*asked, service=service).out.splitlines()[1].split()[0] == shown
        client.delete_window("units")
