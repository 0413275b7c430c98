"""`sash data admit`, `retract`, `update` and `punctuate`."""

import json

import pytest

SPEC = {
    "name": "llm",
    "time_unit": "s",
    "keys": ["tenant", "user"],
    "fields": {"tokens": "int64"},
    "aggregates": {"requests": {"function": "count"}, "tokens": {"function": "sum"}},
    "slide": {"max_age": "1d"},
}
TWO = ("--limit", "requests 1m <= 2")


@pytest.fixture
def llm(client):
    return client.create_window(SPEC)


def test_admit(sash, service, llm):
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
def test_a_limit_that_is_none(sash, service, llm, limit):
    told = sash("admit", "llm", "70", "--key", "a|x", "--limit", limit, service=service, expect=1)
    assert "limit" in told.err


def test_what_is_late_is_not_admitted(sash, service, llm):
    sash("insert", "llm", "1", "--key", "b|x", "--time", "1000000", service=service)
    told = sash("admit", "llm", "70", "--key", "b|x", "--time", "1000", *TWO, service=service, expect=1)
    assert told.out == "the entry is dropped: it is late\n", told.err


@pytest.mark.parametrize(("kind", "identity"), [("int64", -7), ("string", "007")])
def test_retract(sash, service, client, kind, identity):
    spec = {"name": "orders", "time_unit": "s", "fields": {"id": kind, "value": "float64"}, "identity": "id"}
    window = client.create_window(spec | {"aggregates": {"n": {"function": "count"}}})
    window.bulk_insert([5, 5], {"id": [identity, type(identity)(8)], "value": [1.0, 2.0]})
    asked = ("retract", "orders", "--time", "5", f"--id={identity}")
    assert sash(*asked, service=service).out == "the entry is retracted\n"
    assert sash(*asked, service=service).out == "there is no such entry\n"
    window.bulk_insert([6, 7], {"id": [identity, identity], "value": [1.0, 2.0]})
    for _ in range(2):
        assert sash("retract", "orders", f"--id={identity}", service=service).out == "the entry is retracted\n"
    assert sash("retract", "orders", f"--id={identity}", service=service).out == "there is no such entry\n"
    assert window.describe().counts.retracted == 3


def test_update(sash, service, client):
    spec = {"name": "orders", "time_unit": "s", "fields": {"id": "int64", "value": "float64"}, "identity": "id"}
    spec |= {"keys": ["shop", "till"], "aggregates": {"sum": {"function": "sum", "field": "value"}}}
    window = client.create_window(spec)
    for till in ("1", "2"):
        window.insert(5, fields={"id": 7, "value": 1.0}, key={"shop": "a", "till": till})
    asked = ("update", "orders", "id=7", "value=2.5", "--time", "5")
    parts = ("shop=a", "till=2")
    assert sash(*asked, *parts, service=service).out == "the entry is corrected\n"
    assert sash(*asked[:2], "id=8", *asked[3:], *parts, service=service).out == "there is no such entry\n"
    assert "FIELD=VALUE" in sash(*asked, "other=1", service=service, expect=1).err
    assert [answer.aggregates["sum"] for answer in window.query(by=["till"])] == [1.0, 2.5]
    asked = ("update", "orders", "id=7", "value=3.5", "shop=a", "till=1")
    assert sash(*asked, service=service).out == "the entry is corrected\n"
    assert [answer.aggregates["sum"] for answer in window.query(by=["till"])] == [3.5, 2.5]
    assert window.describe().counts.corrected == 2


def test_punctuate(sash, service, client):
    spec = {"name": "final", "time_unit": "s", "slide": {"max_age": 10, "until": "punctuation"}}
    window = client.create_window(spec | {"aggregates": {"n": {"function": "count"}}})
    window.bulk_insert([5, 15, 25], [1.0, 2.0, 3.0])
    assert sash("punctuate", "final", "20", service=service).out == "20 is final; 1 entries have left\n"
    assert (window.describe().punctuated, window.insert(20, 1.0).late) == (20, 1)
