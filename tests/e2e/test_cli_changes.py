"""`sash data retract`, `sash data update` and `sash data punctuate`."""

import pytest

from sash_client import Client


@pytest.mark.parametrize(("kind", "identity"), [("int64", -7), ("string", "007")])
def test_retract(sash, service, kind, identity):
    spec = {"name": "orders", "time_unit": "s", "fields": {"id": kind, "value": "float64"}, "identity": "id"}
    with Client(service.grpc_target) as client:
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
        client.delete_window("orders")


def test_update(sash, service):
    spec = {"name": "orders", "time_unit": "s", "fields": {"id": "int64", "value": "float64"}, "identity": "id"}
    spec |= {"keys": ["shop", "till"], "aggregates": {"sum": {"function": "sum", "field": "value"}}}
    with Client(service.grpc_target) as client:
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
        client.delete_window("orders")


def test_punctuate(sash, service):
    spec = {"name": "final", "time_unit": "s", "slide": {"max_age": 10, "until": "punctuation"}}
    with Client(service.grpc_target) as client:
        window = client.create_window(spec | {"aggregates": {"n": {"function": "count"}}})
        window.bulk_insert([5, 15, 25], [1.0, 2.0, 3.0])
        assert sash("punctuate", "final", "20", service=service).out == "20 is final; 1 entries have left\n"
        assert (window.describe().punctuated, window.insert(20, 1.0).late) == (20, 1)
        client.delete_window("final")
