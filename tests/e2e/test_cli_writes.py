"""`sash data insert`, `admit`, `retract`, `update`, `punctuate` and `ingest`; and `sash window describe`."""

import json
import re

import pytest

ORDERS = {
    "name": "orders",
    "time_unit": "s",
    "keys": ["shop", "till"],
    "fields": {"amount": "float64", "items": "int64", "paid": "bool", "who": "string"},
    "slide": {"max_age": 100},
    "aggregates": {"n": {"function": "count"}, "last": {"function": "last", "field": "who"}},
}
ENTRY = ("amount=-1.5", "items=3", "paid=true", "who=a=b", "shop=eu", "till=1")


@pytest.fixture
def orders(client):
    return client.create_window(ORDERS)


def test_insert(sash, service, orders):
    done = sash("insert", "orders", "--time", "1970-01-01T00:16:40Z", *ENTRY, service=service)
    assert done.out == "the entry is inserted\n"
    (bulk,) = orders.entries()
    columns = {name: values.tolist() for name, values in bulk.columns.items()}
    assert (bulk.times.tolist(), bulk.keys.tolist()) == ([1000], ["eu|1"])
    assert columns == {"amount": [-1.5], "items": [3], "paid": [True], "who": ["a=b"]}
    done = sash("insert", "orders", "--time", "1010", "--key", "us|2", *ENTRY[:4], "--json", service=service)
    assert json.loads(done.out)["inserted"] == 1
    assert sash("insert", "orders", "--time", "5", *ENTRY, service=service).out.startswith(
        "the entry is dropped: it is o"
    )
    assert orders.describe().counts.late == 1


def test_insert_now_into_a_window_with_one_field(sash, service, client):
    client.create_window({"name": "one", "time_unit": "ms", "aggregates": {"n": {"function": "count"}}})
    assert sash("insert", "one", "7.5", service=service).out == "the entry is inserted\n"
    newest = client.window("one").describe().newest
    client.create_window({"name": "next", "time_unit": "none", "aggregates": {"n": {"function": "count"}}})
    client.window("one").insert(newest + 3_600_000, 1.0)  # the clock's unit: less than an hour has passed
    sash("insert", "one", "8.5", service=service)
    (bulk,) = client.window("one").entries()
    assert bulk.columns["value"].tolist() == [7.5, 8.5, 1.0]
    assert "give --time" in sash("insert", "next", "7.5", service=service, expect=1).err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("amount=1",), "items is missing: write items=VALUE"),
        ((*ENTRY, "amount=2"), "amount is given twice"),
        ((*ENTRY, "colour=red"), "colour=red: write FIELD=VALUE, with one of shop, till, amount, items, paid, who"),
        ((*ENTRY, "7"), "7: write FIELD=VALUE, with one of shop, till, amount, items, paid, who"),
        ((*ENTRY[:1], "items=3.5", *ENTRY[2:]), "items: 3.5 is no int64"),
        ((*ENTRY[:2], "paid=yes", *ENTRY[3:]), "paid: yes is no bool"),
        ((*ENTRY, "--key", "eu|1"), "give either --key or the parts of the key"),
        (ENTRY[:5], "part 'till' of the key is missing"),
        ((*ENTRY[:1], "items=9223372036854775808", *ENTRY[2:]), "items: 9223372036854775808 is no int64"),
    ],
)
def test_an_entry_that_is_wrong_changes_nothing(sash, service, orders, arguments, said):
    done = sash("insert", "orders", "--time", "1000", *arguments, service=service, expect=1)
    assert done.err.startswith(f"sash: {said}")
    assert done.err.count("\n") == 1
    assert orders.describe().counts.inserted == 0


def test_describe(sash, service, client, orders):
    orders.bulk_insert(
        [1000, 1020, 1125],
        {"amount": [1.0, 2.0, 3.0], "items": [1, 2, 3], "paid": [True] * 3, "who": ["a"] * 3},
        keys={"shop": ["us", "eu", "eu"], "till": ["2", "1", "1"]},
    )
    state, spec = sash("describe", "orders", service=service).out.split("\n\n")
    lines = dict(re.split("  +", line, maxsplit=1) for line in state.splitlines())
    assert (lines["entries"], lines["keys"], lines["inserted"], lines["evicted"]) == ("2", "2", "3", "1")
    assert lines["newest"] == "1970-01-01T00:18:45Z"
    assert "newest       1125\n" in sash("describe", "orders", "--ticks", service=service).out
    whole = json.loads(sash("describe", "orders", "--json", service=service).out)
    assert (whole["entries"], whole["newest"], whole["spec"]["keys"]) == (2, 1125, ["shop", "till"])
    alone = sash("describe", "orders", "--spec", service=service).out
    assert alone == spec
    assert json.loads(sash("describe", "orders", "--spec", "--json", service=service).out) == whole["spec"]
    sash("create", "-", text=alone, service=service)  # the very same: no error
    client.delete_window("orders")
    sash("create", "-", text=alone, service=service)
    assert client.window("orders").describe().spec == whole["spec"]
    assert "no window" in sash("describe", "nope", service=service, expect=1).err


def test_an_insert_says_how_many_entries_left(sash, service, client):
    """One time in the wrong unit moves the whole window on: the first insert shows it."""
    spec = {"name": "short", "time_unit": "s", "slide": {"max_age": "1h"}, "order": {"ahead": "none"}}
    client.create_window(spec | {"aggregates": {"n": {"function": "count"}}}).bulk_insert([1, 2], [1.0, 1.0])
    said = [
        sash("insert", "short", "1", "--time", time, service=service).out
        for time in ("1970-01-01T00:00:03Z", "1357018200000", "1357018200")
    ]
    assert said[0] == "the entry is inserted\n"
    assert said[1] == "the entry is inserted; 3 entries left the window\n"
    assert said[2] == "the entry is dropped: it is older than what has left the window\n"


KAFKA = {"format": "kafka", "servers": "h:1", "topic": "t"}


@pytest.mark.parametrize(
    ("source", "more", "said"),
    [
        ("-", {}, None),
        ("kafka", {"source": KAFKA}, None),
        ("file", {}, "file: write kafka, or - for lines of standard input"),
        ("kafka", {}, "p.yaml: source.format: the document is not for kafka"),
        ("-", {"source": KAFKA}, "p.yaml: source.format: the document is not for -"),
        ("-", {"windows": []}, "p.yaml: windows"),
    ],
    ids=str,
)
def test_the_document_of_an_ingest_is_checked(sash, tmp_path, source, more, said):
    document = {"name": "p", "time": "at", "windows": [{"spec": ORDERS}]} | more
    (path := tmp_path / "p.yaml").write_text(json.dumps(document))
    told = sash("ingest", source, path, "--check", expect=int(said is not None)).err
    assert told == "" if said is None else said in told


LLM = {
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
    return client.create_window(LLM)


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
