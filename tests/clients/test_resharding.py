"""All windows into another deployment, with another number of shards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from typer.testing import CliRunner

from sash.commands import app
from sash_client import AlreadyExists, Client, FailedPrecondition
from sash_client.backups.resharding import reshard
from sash_client.direct import DirectClient
from tests.support.servers import running_service

KEYS = [f"key-{i}" for i in range(50)]
SPEC = {
    "name": "keyed",
    "keyed": True,
    "time_unit": "none",
    "aggregates": {"n": {"function": "count"}, "mean": {"function": "mean"}},
}
PLAIN = {"name": "plain", "time_unit": "none", "aggregates": {"list": {"function": "collect"}}}


@contextmanager
def two(old: int, new: int, client: Any = Client) -> Iterator[tuple[Any, Any]]:
    """Clients of two services with so many shards."""
    with (
        running_service(shards=old) as source,
        running_service(shards=new) as target,
        client(source.grpc_target) as before,
        client(target.grpc_target) as after,
    ):
        yield before, after


def filled(client: Client) -> None:
    client.create_window(SPEC).bulk_insert(
        range(500), [float(i) for i in range(500)], keys=[KEYS[i % 50] for i in range(500)]
    )
    client.window("keyed").bulk_evict(99)
    client.window("keyed").bulk_insert(range(500, 550), [1.0] * 50, keys=KEYS, producer="p", sequence=1)
    client.create_window(PLAIN).insert(1, 2.0, producer="p", sequence=1)


def answers(client: Client) -> Any:
    keyed = client.window("keyed")
    return (
        [(answer.key, answer.entries, answer.aggregates) for answer in keyed.query(keys=KEYS)],
        client.window("plain").query()[0].aggregates,
        [(window.name, window.entries, window.keys, window.counts) for window in client.list_windows()],
    )


@pytest.mark.parametrize(("old", "new"), [(1, 4), (4, 3), (3, 1)])
def test_windows_are_the_same_with_another_number_of_shards(old: int, new: int) -> None:
    with two(old, new) as (before, after):
        filled(before)
        told = CliRunner().invoke(app, ["reshard", "--target", before.target, after.target])
        assert (told.exit_code, told.output) == (0, "2 of 2 windows are copied\n")
        assert answers(after) == answers(before)
        assert after.window("plain").insert(1, 2.0, producer="p", sequence=1).already_applied
        assert after.window("plain").insert(2, 2.0, producer="p", sequence=2).inserted == 1
        keyed = after.window("keyed")
        retry = keyed.bulk_insert(range(500, 550), [1.0] * 50, keys=KEYS, producer="p", sequence=1)
        assert retry.already_applied
        assert keyed.insert(999, 2.0, key="new", producer="p", sequence=2).inserted == 1
        again = reshard(before, after)
        assert {name: type(error) for name, error in again.items()} == dict.fromkeys(["keyed", "plain"], AlreadyExists)
        told = CliRunner().invoke(app, ["reshard", "--target", before.target, after.target])
        assert told.exit_code == 1
        assert "0 of 2 windows are copied" in told.output


def test_the_copy_of_a_window_with_a_source_stands_alone_and_that_is_said() -> None:
    with two(1, 1) as (before, after):
        before.create_window(SPEC)
        before.create_window(SPEC | {"name": "fed", "from": {"window": "keyed", "granularity": 5}})
        before.window("keyed").insert(1, 2.0, key="a")
        told = CliRunner().invoke(app, ["reshard", "--target", before.target, after.target])
        assert told.exit_code == 1
        assert "fed: window 'fed' is copied, and its copy gets no entries from 'keyed' any more" in told.output
        assert [(window.name, window.entries) for window in after.list_windows()] == [("fed", 1), ("keyed", 1)]


def test_a_window_that_is_written_meanwhile_is_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    with two(2, 3) as (before, after):
        filled(before)
        imported = after.import_window

        def write_and_import(file: Any, name: str | None = None) -> Any:
            if name == "plain":
                before.window("plain").insert(3, 1.0)
            return imported(file, name)

        monkeypatch.setattr(after, "import_window", write_and_import)
        found = reshard(before, after)
        assert found["keyed"] is None
        assert isinstance(found["plain"], FailedPrecondition)
        assert [window.name for window in after.list_windows()] == ["keyed"]


def test_numbers_of_each_shard_mean_nothing_with_another_number_of_shards() -> None:
    with two(3, 2, DirectClient) as (before, after):
        before.create_window(SPEC)
        with before.window("keyed").producer("p", linger_s=0.0) as producer:
            for time in range(20):
                producer.insert(time, 1.0, key=KEYS[time % 3])
                producer.flush()
        numbers = producer.acknowledged
        assert len(set(numbers.values())) > 1 or len(numbers) < 3
        assert reshard(before, after) == {"keyed": None}
        for start in ({}, {shard: number for shard, number in numbers.items() if shard < 2}):
            producer = after.window("keyed").producer("p", start=start)
            producer.insert(100, 1.0, key=KEYS[0])
            with pytest.raises(FailedPrecondition, match="epoch 1 has taken the name over"):
                producer.close()
        for shard, key in enumerate(KEYS[:4]):  # nothing that was not applied counts as applied
            with pytest.raises(FailedPrecondition, match="epoch 1 has taken the name over"):
                after.window("keyed").insert(100, 1.0, key=key, producer="p", sequence=min(numbers.values()) + shard)
        with after.window("keyed").producer("p", epoch=1) as producer:
            producer.bulk_insert(range(100, 150), [1.0] * 50, keys=KEYS)
            assert producer.flush().inserted == 50
        assert after.window("keyed").describe().entries == 70


def test_a_view_is_a_view_in_the_target() -> None:
    view = {"name": "a_view", "of": "keyed", "slide": {"max_age": 20}, "aggregates": {"most": {"function": "max"}}}
    with two(1, 3) as (before, after):
        filled(before)
        before.create_window(view)
        assert reshard(before, after) == {"a_view": None, "keyed": None, "plain": None}
        assert after.window("a_view").describe().spec["of"] == "keyed"
        asked = [client.window("a_view").query(keys=KEYS) for client in (before, after)]
        assert [(each.key, each.entries, each.aggregates) for each in asked[0]] == [
            (each.key, each.entries, each.aggregates) for each in asked[1]
        ]
        assert any(each.entries for each in asked[0])
