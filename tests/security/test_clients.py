"""Clients with tokens: the blocking one, and the awaiting one."""

import pytest

from sash_client import Client, InvalidArgument, PermissionDenied, Unauthenticated
from tests.support.either_client import CLIENTS, opened


@pytest.mark.parametrize("kind", CLIENTS)
def test_a_token_goes_with_every_call(address, kind, tmp_path):
    with opened(kind, **address, token="writer-token") as client:
        assert [window.name for window in client.list_windows()] == ["seen"]
        window = client.window("seen")
        window.bulk_insert([1, 2], {"value": [1.0, 2.0]}, keys=["a", "b"])
        if kind == "blocking":
            assert [result.inserted for result in window.insert_stream([])] == []
        assert sum(len(bulk.times) for bulk in window.entries()) == 2
        assert client.export_window("seen", tmp_path / "seen") > 0
        assert next(window.watch(key="a"))[0].entries == 1
        with pytest.raises(PermissionDenied, match="'writer' has no right 'read' on window 'hidden'") as refused:
            client.window("hidden").query(key="a")
        assert (refused.value.reason, refused.value.field) == ("PERMISSION_DENIED", "window")
        with pytest.raises(PermissionDenied, match="no right 'admin'"):
            client.import_window(tmp_path / "seen", "seen-2")
        window.bulk_evict(2)


@pytest.mark.parametrize("token", [None, "wrong", "late-token"])
def test_without_a_valid_token(address, token):
    with Client(**address, token=token) as client, pytest.raises(Unauthenticated):
        client.list_windows()


def test_a_token_may_change(address):
    tokens = ["reader-token", "wrong", "root-token"]
    with Client(**address, token=lambda: tokens[0]) as client:
        assert len(client.list_windows()) == 1
        tokens.pop(0)
        with pytest.raises(Unauthenticated):
            client.list_windows()
        tokens.pop(0)
        assert len(client.list_windows()) == 2


@pytest.mark.parametrize("token", ["", "a b", "a\n", "é", lambda: "a b", lambda: None, lambda: "a\r\nx: y"])
def test_a_token_that_is_none_is_not_shown(address, token):
    with pytest.raises(InvalidArgument) as refused, Client(**address, token=token) as client:
        client.list_windows()
    assert refused.value.field == "token"
    assert "a b" not in str(refused.value)


@pytest.mark.parametrize(
    "target",
    ["sash.example", "10.0.0.1:7070", "[fd00::1]:80", "dns:///sash:7070", "ipv4:10.0.0.1:80"],
)
def test_a_token_goes_to_no_other_machine_in_the_clear(target):
    with pytest.raises(InvalidArgument, match="tls=True") as refused:
        Client(target, token="secret-token")
    assert "secret" not in str(refused.value)
    for client in (Client(target, token="secret-token", tls=False), Client(target, token="secret-token", tls=True)):
        assert "secret" not in repr(client)
        client.close()


@pytest.mark.parametrize(
    "target", ["localhost", "127.0.0.1", "127.1.2.3:80", "::1", "[::1]:80", "ipv4:127.0.0.1:80", "unix:/s"]
)
def test_a_token_stays_on_this_machine(target):
    Client(target, token="secret-token").close()
