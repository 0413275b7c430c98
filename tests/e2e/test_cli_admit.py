"""`sash admit`."""

import json

import pytest

from tests.support.clients import client_of
from tests.support.servers import running_service

SPEC = {
    "name": "llm",
    "time_unit": "s",
    "keys": ["tenant", "user"],
    "fields": {"tokens": "int64"},
    "aggregates": {"requests": {"function": "count"}, "tokens": {"function": "sum"}},
    "slide": {"max_age": "1d"},
}
TWO = ("--limit", "requests 1m <= 2")


@pytest.fixture(scope="module")
def service():
    with running_service() as running, client_of(running.grpc_target) as client:
        client.create_window(SPEC)
        yield running


def test_admit(sash, service):
    def admit(time, *more, expect=0):
        return sash(
            "admit", "llm", "70", "--time", str(time), "--key", "a|x", *more, service=service, expect=expect
        ).out

    assert admit(1000, *TWO) == "the entry is inserted\n  requests 1m <= 2: 1, 1 left\n"
    told = json.loads(admit(1001, *TWO, "--json"))
    assert (told["admitted"], told["limits"][0]["answer"], told["durability"]) == (True, 2, "memory")
    refused = admit(1002, *TWO, "--limit", "tokens 1d<500.5 by tenant", expect=1)
    assert refused == (
        "the entry is refused\n  requests 1m <= 2: 2, 0 left (!)\n  tokens 1d<500.5 by tenant: 140, 360.5 left\n"
        "it would go in 58 ticks later\n"
    )
    assert "never" in admit(1003, "--limit", "tokens 1d <= 69 by *", expect=1)
    assert json.loads(admit(1003, "--limit", "entries 1d <= 2 by tenant,user", "--json", expect=1))["refused"] == 1


@pytest.mark.parametrize("limit", ["", "requests", "requests 1m 2", "requests 1m = 2", "requests 1m <= many"])
def test_a_limit_that_is_none(sash, service, limit):
    told = sash("admit", "llm", "70", "--key", "a|x", "--limit", limit, service=service, expect=1)
    assert "limit" in told.err


def test_what_is_late_is_not_admitted(sash, service):
    sash("insert", "llm", "1", "--key", "b|x", "--time", "1000000", service=service)
    told = sash("admit", "llm", "70", "--key", "b|x", "--time", "1000", *TWO, service=service, expect=1)
    assert told.out == "the entry is dropped: it is late\n", told.err
