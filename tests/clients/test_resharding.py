"""All windows into another deployment, with another number of shards."""

from __future__ import annotations

from typing import Any

import pytest
from typer.testing import CliRunner

from sash.main import app
from sash_client import AlreadyExists, Client, FailedPrecondition
from sash_client.resharding import reshard
from tests.support.servers import running_service

KEYS = [f"key-{i}" for i in range(50)]
SPEC = {
    "name": "keyed",
    "keyed": True,
    "time_unit": "none",
    "aggregates": {"n": {"function": "count"}, "mean": {"function": "mean"}},
}
PLAIN = {"name": "plain", "time_unit": "none", "aggregates": {"list": {"function": "collect"}}}


def filled(client: Client) -> None:
    client.create_window(SPEC).bulk_insert(
        range(500), [float(i) for i in range(500)], keys=[KEYS[i % 50] for i in range(500)]
    )
    client.window("keyed").bulk_evict(99)
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
    with (
        running_service(shards=old) as source,
        running_service(shards=new) as target,
        Client(source.grpc_target) as before,
        Client(target.grpc_target) as after,
    ):
        filled(before)
        told = CliRunner().invoke(app, ["reshard", "--target", source.grpc_target, target.grpc_target])
        assert (told.exit_code, told.output) == (0, "2 of 2 windows are copied\n")
        assert answers(after) == answers(before)
        assert after.window("plain").insert(1, 2.0, producer="p", sequence=1).already_applied
        assert after.window("plain").insert(2, 2.0, producer="p", sequence=2).inserted == 1
        again = reshard(before, after)
        assert {name: type(error) for name, error in again.items()} == dict.fromkeys(["keyed", "plain"], AlreadyExists)
        told = CliRunner().invoke(app, ["reshard", "--target", source.grpc_target, target.grpc_target])
        assert told.exit_code == 1
        assert "0 of 2 windows are copied" in told.output


def test_a_window_that_is_written_meanwhile_is_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        running_service(shards=2) as source,
        running_service(shards=3) as target,
        Client(source.grpc_target) as before,
        Client(target.grpc_target) as after,
    ):
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
