"""`sash admin token new`, and the commands that are clients with a token."""

import sys

import pytest

from sash.access.tokens import digest_of, parse_tokens
from sash.main import run
from sash_client import Client, Unauthenticated


@pytest.fixture
def sash(capsys, monkeypatch, service):
    """Runs a command in this process, as the console script does; returns its output and errors."""
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)  # typer sets its own
    monkeypatch.setenv("SASH_TARGET", service.grpc_target)

    def run_it(*arguments, expect=0):
        monkeypatch.setattr(sys, "argv", ["sash", *arguments])
        with pytest.raises(SystemExit) as ended:
            run()
        done = capsys.readouterr()
        assert (ended.value.code or 0) == expect, done.err
        return done

    return run_it


def test_a_new_token_is_printed_once_with_its_entry(sash, tmp_path):
    options = ("--role", "write", "--windows", "a-*", "--windows", "b", "--calls-per-s", "5", "--entries-per-s", "1e6")
    made = sash("token", "new", "me", *options, "--expires", "2030-01-01T00:00:00Z")
    token = made.out.strip()
    assert token not in made.err
    (entry,) = parse_tokens(f"tokens:\n{made.err}".encode(), tmp_path)
    assert entry.sha256 == digest_of(token)
    assert (entry.name, entry.role, entry.windows) == ("me", "write", ["a-*", "b"])
    assert (entry.calls_per_s, entry.entries_per_s, entry.expires.year) == (5, 1e6, 2030)
    assert sash("token", "new", "me", *options).out.strip() != token


@pytest.mark.parametrize(
    ("arguments", "wrong"),
    [
        (("a b", "--role", "read", "--windows", "*"), "name must match"),
        (("a", "--role", "boss", "--windows", "*"), "role must be 'read', 'write' or 'admin'"),
        (("a", "--role", "read", "--windows", ""), "windows must have"),
        (("a", "--role", "read", "--windows", "*", "--calls-per-s", "-1"), "calls_per_s is wrong"),
        (("a", "--role", "read", "--windows", "*", "--expires", "soon"), "expires is wrong"),
    ],
)
def test_a_wrong_entry_makes_no_token(sash, arguments, wrong):
    made = sash("token", "new", *arguments, expect=1)
    assert made.out == ""
    assert wrong in made.err


def test_commands_take_a_token(sash, monkeypatch, tmp_path):
    assert "sash: the service asks for a token: set SASH_TOKEN or" in sash("list", expect=1).err
    assert "seen" in sash("--token", "reader-token", "list").out
    monkeypatch.setenv("SASH_TOKEN", "wrong")
    assert "sash: the token is unknown" in sash("list", expect=1).err
    monkeypatch.delenv("SASH_TOKEN")
    path = tmp_path / "token"
    monkeypatch.setenv("SASH_TOKEN_FILE", str(path))
    assert f"sash: cannot read {path}" in sash("list", expect=1).err
    path.write_text("root-token\n")
    assert "hidden" in sash("list").out
    monkeypatch.setenv("SASH_TOKEN", "reader-token")
    assert "no right 'admin' on window 'seen'" in sash("delete", "seen", expect=1).err


def test_a_token_in_the_clear_is_asked_for(sash, monkeypatch):
    monkeypatch.setenv("SASH_TARGET", "sash.example")
    assert "needs tls=True" in sash("--token", "reader-token", "list", expect=1).err
    assert "give either" in sash("--no-tls", "--tls-ca", "x", "list", expect=1).err


def test_a_missing_token_says_how_to_give_one(service):
    with Client(service.grpc_target) as client, pytest.raises(Unauthenticated, match=r"token=…") as refused:
        client.list_windows()
    assert refused.value.missing
    with Client(service.rest_url) as client, pytest.raises(Unauthenticated, match=r"token=…"):
        client.list_windows()
    with Client(service.grpc_target, token="wrong") as client, pytest.raises(Unauthenticated, match="unknown") as other:
        client.list_windows()
    assert not other.value.missing
    detail = service.http().get("/v1/windows").json()["detail"]
    assert "curl -H 'Authorization: Bearer TOKEN'" in detail
