"""Windows that are stored with another one, for callers that may see some of them only."""

import pytest

from sash.durability import formats as values
from sash_client import Client, InvalidArgument, NotFound, PermissionDenied, backup, restore
from sash_client.backups.archive import backed_up
from tests.support.damage import flipped
from tests.support.lmdb_values import change, stored
from tests.support.servers import running_service
from tests.support.tokens import write_tokens

TOKENS = {
    "reader": {"role": "read", "windows": ["seen*"]},
    "lower": {"role": "admin", "windows": ["hours", "seen_view"]},
    "owner": {"role": "admin", "windows": ["seen*", "minutes"]},
    "root": {"role": "admin", "windows": ["*"]},
}
SPEC = {"time_unit": "none", "keyed": True, "aggregates": {"n": {"function": "count"}}}
SPECS = {
    "seen": SPEC,
    "minutes": {**SPEC, "from": {"window": "seen", "granularity": 5}},
    "hours": {**SPEC, "from": {"window": "minutes", "granularity": 10}},
    "seen_days": {**SPEC, "from": {"window": "seen", "granularity": 20}},
    "seen_view": {"of": "minutes", "aggregates": SPEC["aggregates"]},
}


@pytest.fixture
def tokens(tmp_path):
    return write_tokens(tmp_path / "tokens.yaml", TOKENS)


def client_of(service, name):
    return Client(service.grpc_target, token=f"{name}-token")


def test_a_backup_has_what_its_caller_may_read(tokens, tmp_path):
    with running_service(tokens=tokens) as service:
        with client_of(service, "root") as client:
            for name, spec in SPECS.items():
                client.create_window({"name": name, **spec})
            client.window("seen").bulk_insert(range(50), [1.0] * 50, keys=["k"] * 50)
        with client_of(service, "reader") as client:
            for derived, error in (
                (["minutes"], PermissionDenied),
                (["seen_days", "seen_days"], InvalidArgument),
                ([f"seen_{i}" for i in range(9)], NotFound),
                (["seen_view"], NotFound),
                (["seen_none"], NotFound),
                (["seen"], NotFound),
            ):
                with pytest.raises(error):
                    list(client._exported("seen", derived))
            path = tmp_path / "reader"
            assert sorted(backup(client, path)) == ["seen", "seen_days", "seen_view"]
        with client_of(service, "lower") as client:
            assert sorted(backup(client, tmp_path / "lower")) == ["hours", "seen_view"]
    with running_service() as service, Client(service.grpc_target) as client:
        # The window that the view shows is not in the backup: so it has a copy of the view's entries.
        assert set(restore(client, path).values()) == {None}
        assert {window.name: (window.entries, window.spec.get("of")) for window in client.list_windows()} == {
            "seen": (50, None),
            "seen_days": (50, None),
            "seen_view": (50, None),
        }
        assert client.window("seen_days").describe().spec["from"]["window"] == "seen"
        assert backed_up(tmp_path / "lower") == ["hours", "seen_view"]


def test_files_of_windows_that_the_caller_may_not_create_leave_nothing(tokens):
    with running_service() as service, Client(service.grpc_target) as client:
        for name, spec in SPECS.items():
            client.create_window({"name": name, **spec})
        data = [part for _, part in client._exported("seen", ["minutes", "hours"])]
    with running_service(tokens=tokens) as service, client_of(service, "owner") as client:
        with pytest.raises(PermissionDenied, match="hours"):
            client._imported(iter(data), "", ["minutes", "hours"])
        with client_of(service, "root") as root:
            assert root.list_windows() == []
            root._imported(iter(data), "", ["minutes", "hours"])


def test_a_lost_window_is_deleted_by_who_may_delete_all_that_is_stored_with_it(tokens, tmp_path):
    data = tmp_path / "data"
    with running_service(tokens=tokens, data=str(data)) as service, client_of(service, "root") as client:
        for name, spec in SPECS.items():
            client.create_window({"name": name, **spec})
    key = values.pointer_key(1)
    change(data, {key: flipped(stored(data)[key], -1)})
    with running_service(tokens=tokens, data=str(data)) as service, client_of(service, "root") as root:
        assert all(window.problem for window in root.list_windows())
        with client_of(service, "owner") as client, pytest.raises(PermissionDenied) as refused:
            client.delete_window("seen")
        assert "hours" not in refused.value.message, "who may not see it is not told its name"
        assert len(root.list_windows()) == len(SPECS)
        root.delete_window("seen")
        assert root.list_windows() == []
