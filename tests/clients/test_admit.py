"""Writes that decide, of both clients."""

import datetime as dt

import pytest

from sash_client import Admission, InvalidArgument, Limit, LimitAnswers, ResourceExhausted
from tests.support.either_client import CLIENTS, opened
from tests.support.refused import field_of

SPEC = {
    "name": "llm",
    "time_unit": "s",
    "keys": ["tenant", "user"],
    "fields": {"id": "string", "tokens": "int64"},
    "identity": "id",
    "aggregates": {"requests": {"function": "count"}, "tokens": {"function": "sum", "field": "tokens"}},
    "slide": {"max_age": "1d"},
}
TWO = Limit("requests", "1m", 2)
BUDGET = Limit("tokens", dt.timedelta(days=1), 1000, by=["tenant"])


@pytest.fixture(params=CLIENTS)
def llm(request, service):
    with opened(request.param, service.grpc_target) as client:
        yield client.create_window(SPEC)
        client.delete_window("llm")


def row(id_, tokens=100):
    return {"id": id_, "tokens": tokens}


def test_one_entry(llm):
    first = llm.admit(100, fields=row("a"), key="acme|ada", limits=[TWO, BUDGET])
    assert first == Admission(
        (True,), (None,), (LimitAnswers((1,), (1,), (True,)), LimitAnswers((100,), (900,), (True,))), inserted=1
    )
    llm.admit("1970-01-01T00:01:41Z", fields=row("b"), key={"tenant": "acme", "user": "ada"}, limits=[TWO])
    refused = llm.admit(102, fields=row("c"), key="acme|ada", limits=[TWO, BUDGET])
    assert (bool(first), bool(refused), refused.refused, refused.retry_after) == (True, False, 1, (58,))
    assert refused.limits[1].remaining == (800,)
    assert llm.describe().entries == 2


def test_limits_of_every_form(llm):
    for limit in (
        Limit("entries", 60, 2**60, by=[]),
        Limit("tokens", "1m", float("inf"), "<"),
        Limit("tokens", "1m", -(2**60), ">="),
        Limit("requests", "90s", 0, ">", by="tenant"),
    ):
        assert llm.admit(100, fields=row("a"), key="a|x", limits=[limit])


@pytest.mark.parametrize(
    ("limit", "field"),
    [
        (Limit("requests", "1m", "many"), "limits"),
        (Limit(7, "1m", 2), "limits"),
        (Limit("requests", "1m", 2**70), "limits"),
        (Limit("requests", None, 2), "lookbacks"),
        (Limit("requests", "2d", 2), "limits.lookback"),
        (Limit("nobody", "1m", 2), "limits.aggregate"),
        (Limit("requests", "1m", 2, "=="), "limits.op"),
    ],
)
def test_limits_that_are_none(llm, limit, field):
    assert field_of(llm.admit, 100, fields=row("a"), key="a|x", limits=[limit]) == field


def test_what_does_not_fit_one_message(llm, service, request):
    """None of it is decided, not even the part that would fit."""
    columns, keys = {"id": ["x"] * 3, "tokens": [1] * 3}, {"tenant": ["a"] * 3, "user": ["b"] * 3}
    with opened(request.node.callspec.params["llm"], service.grpc_target, bulk_entries_max=2) as small:
        with pytest.raises(ResourceExhausted, match="do not fit one message") as told:
            small.window("llm").bulk_admit(range(3), columns, keys=keys, limits=[TWO])
        assert told.value.reason == "TOO_LARGE"
    assert llm.describe().entries == 0
    with pytest.raises(InvalidArgument):
        llm.admit(100, key="a|x", limits=[TWO])
