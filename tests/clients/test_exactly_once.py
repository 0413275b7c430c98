"""Numbered writes, batches, streams and partials against a real service."""

import numpy as np
import pytest

from sash_client import (
    Bulk,
    Client,
    FailedPrecondition,
    LastWrite,
    Producer,
    ResourceExhausted,
    WriteResult,
)
from sash_client.aio import AsyncClient
from tests.support.either_client import CLIENTS, opened
from tests.support.refused import field_of
from tests.support.servers import running_service

SPEC = {
    "name": "w",
    "time_unit": "s",
    "keyed": True,
    "aggregates": {"n": {"function": "count"}, "all": {"function": "collect"}},
}


def test_a_bulk_in_several_messages_is_known_message_by_message(client, address):
    client.create_window(SPEC)
    strings = np.array([f"k{i % 7}" for i in range(100)])
    with Client(**address, bulk_entries_max=8) as small:
        window = small.window("w")
        once, again = (
            window.bulk_insert(np.arange(100), np.arange(100), keys=strings, producer="p", sequence=1) for _ in range(2)
        )
        assert (once.inserted, once.sequences, again.already_applied) == (100, 13, True)
        with pytest.raises(FailedPrecondition, match="has sent 2 before") as caught:
            window.bulk_insert(np.arange(100), np.arange(100) // 9 * 9, keys=["k0"] * 100, producer="p", sequence=2)
        assert caught.value.applied == WriteResult()


@pytest.mark.parametrize("kind", CLIENTS)
def test_a_higher_epoch_takes_the_name_over(client, address, kind):
    client.create_window(SPEC)
    with opened(kind, **address) as other:

        def done(sequence, epoch):
            bulks = [Bulk([4], [4], "a")]
            return next(other.window("w").insert_stream(bulks, producer="p", sequence=sequence, epoch=epoch))

        for epoch in (0, 7):
            for sequence in (1, 2):
                assert not done(sequence, epoch).already_applied
                assert done(sequence, epoch).already_applied
        with pytest.raises(FailedPrecondition, match="epoch 7 has taken the name over") as caught:
            done(3, 6)
        assert (caught.value.field, caught.value.limit) == ("epoch", "7")


def test_a_producer_of_a_higher_epoch_shuts_out_the_earlier_one(client):
    window = client.create_window(SPEC)
    earlier = window.producer("p", bulk_entries=1)
    earlier.insert(1, 1, key="a")
    earlier.flush()
    with window.producer("p", epoch=1) as later:
        later.insert(2, 2, key="a")
    assert later.acknowledged == 1
    earlier.insert(3, 3, key="a")
    with pytest.raises(FailedPrecondition, match="epoch 1 has taken the name over") as caught:
        earlier.close()
    assert [bulk.times.tolist() for bulk in caught.value.unapplied] == [[3]]
    assert earlier.acknowledged == 1
    assert window.query(key="a")[0].aggregates["all"] == [1.0, 2.0]
    for wrong in (-1, 2**63, 1.5, "1"):
        assert field_of(Producer, window, "p", epoch=wrong) == "epoch"


def test_a_second_producer_of_the_same_name_loses_nothing(client):
    """Each of its messages is refused where the first one used the number, and is its caller's again."""
    window = client.create_window(SPEC)
    with window.producer("p", bulk_entries=1) as first:
        for i in range(3):
            first.insert(i, i, key="a")
    second = window.producer("p", bulk_entries=1)
    for i in range(10, 13):
        second.insert(i, i, key="a")
        with pytest.raises(FailedPrecondition, match="with other data") as caught:
            second.flush()
        assert [bulk.times.tolist() for bulk in caught.value.unapplied] == [[i]]
    for i in range(13, 15):
        second.insert(i, i, key="a")
    second.close()
    assert (second.acknowledged, second.result.inserted) == (5, 2)
    assert window.query(key="a")[0].aggregates["all"] == [0.0, 1.0, 2.0, 13.0, 14.0]


def test_partials_come_and_go(client):
    spec = {
        "time_unit": "s",
        "aggregates": {"mean": {"function": "mean"}, "users": {"function": "distinct_count"}},
        "granularity": "10s",
    }
    times = np.arange(100)
    source = client.create_window(spec | {"name": "source"})
    source.bulk_insert(times, times % 7)
    (answer,) = source.query(partials=True)
    assert set(answer.partials) == {"mean", "users"}
    assert source.range_query(0, 99, partials=True).partials.keys() == answer.partials.keys()
    copy = client.create_window(spec | {"name": "copy"})
    for bulk in source.entries():
        written = copy.bulk_insert(bulk.times, partials=bulk.partials, entries=bulk.entries)
        assert written.inserted == len(times)
    for one, other in zip(source.query(lookbacks=["50s"]), copy.query(lookbacks=["50s"]), strict=True):
        assert one.aggregates == other.aggregates
        assert one.entries == other.entries


def test_writes_survive_the_service_they_were_acknowledged_by(tmp_path):
    with running_service(data=str(tmp_path / "data")) as service, Client(service.grpc_target) as client:
        window = client.create_window(SPEC)
        with window.producer("p") as producer:
            producer.insert(1, 1.0, key="a")
        assert producer.result == WriteResult(inserted=1, durability="sync", sequences=1)
    with running_service(data=str(tmp_path / "data")) as service, Client(service.grpc_target) as client:
        window = client.window("w")
        assert window.bulk_insert([1], [1.0], keys="a", producer="p", sequence=1).already_applied
        with pytest.raises(FailedPrecondition, match="with other data"):
            window.bulk_insert([1], [2.0], keys="a", producer="p", sequence=1)
        assert window.query(key="a")[0].entries == 1


async def test_a_reason_tells_errors_of_one_code_apart():
    """A request that is too large, and one too many windows: both clients say which it was."""
    large = {"name": "large", "aggregates": {"q": {"function": "quantile", "q": [0.5] * 6_000}}}
    with running_service(max_windows=1) as service, Client(service.grpc_target) as client:
        client.create_window(SPEC)
        async with AsyncClient(service.grpc_target) as other:
            for spec, reason in ((large, "TOO_LARGE"), (SPEC | {"name": "another"}, "RESOURCE_EXHAUSTED")):
                with pytest.raises(ResourceExhausted) as caught:
                    client.create_window(spec)
                assert caught.value.reason == reason
                with pytest.raises(ResourceExhausted) as caught:
                    await other.create_window(spec)
                assert caught.value.reason == reason


def test_numbers_with_gaps(client):
    window = client.create_window(SPEC)
    assert window.last_write("log") == LastWrite(0, 0)
    for again in (False, True):
        done = window.bulk_insert([1, 2], [1, 2], keys="a", producer="log", sequence=100, after=0, epoch=1)
        assert (done.inserted, done.already_applied) == (2 * (not again), again)
    assert window.last_write("log") == LastWrite(100, 1)
    with pytest.raises(FailedPrecondition) as caught:
        window.bulk_insert([1, 3], [1, 3], keys="a", producer="log", sequence=150, after=50, epoch=2)
    assert (caught.value.field, caught.value.limit) == ("after", "100")
    assert window.bulk_insert([3], [3], keys="a", producer="log", sequence=150, after=100, epoch=2).inserted == 1
    assert window.bulk_insert([], [], keys=[], producer="log", sequence=160, after=150, epoch=2).inserted == 0
    with pytest.raises(FailedPrecondition, match="has taken the name over"):
        window.bulk_insert([4], [4], keys="a", producer="log", sequence=170, after=160, epoch=1)
    assert window.last_write("log") == LastWrite(160, 2)
    assert window.query(key="a")[0].aggregates["all"] == [1.0, 2.0, 3.0]


def test_after_needs_a_number_and_one_message(client, address):
    window = client.create_window(SPEC)
    assert field_of(window.bulk_insert, [1], [1], keys="a", after=0) == "after"
    with (
        Client(**address, bulk_entries_max=8) as small,
        pytest.raises(ResourceExhausted, match="9 entries do not fit one message"),
    ):
        small.window("w").bulk_insert(range(9), range(9), keys="a", producer="p", sequence=9, after=0)
    assert window.last_write("p") == LastWrite(0, 0)
