"""What the command line says about itself, and where its options may stand."""

import re

import pytest

from docs.generate.lists import all_commands
from sash_cli.app import HEADINGS
from sash_client import Client
from tests.support.servers import running_service
from tests.support.tokens import write_tokens

COMMANDS = sorted(all_commands())
EARLIER = sorted(set(all_commands(hidden=True)) - set(COMMANDS))


def test_each_command_is_below_one_heading():
    below = [name for names in HEADINGS.values() for name in names]
    assert sorted(below) == sorted({name.split()[0] for name in COMMANDS})


def test_each_command_of_a_group_has_its_earlier_name():
    grouped = {name.partition(" ")[2] for name in COMMANDS if " " in name}
    assert set(EARLIER) == {*grouped, "shards"}


@pytest.mark.parametrize("option", ["-h", "--help"])
def test_commands_stand_in_groups(sash, option):
    shown = sash(option).out
    assert [line[:-1] for line in shown.splitlines() if line.endswith(":") and not line.startswith(" ")] == [
        "Options",
        *HEADINGS,
    ]
    assert "  query " in shown
    assert "Windows: create, list" in shown
    assert not [name for name in EARLIER if f"\n  {name} " in shown]
    assert "..." not in shown.partition("Questions:")[2], "no sentence is cut"


@pytest.mark.parametrize("group", ["window", "data", "admin"])
def test_a_group_shows_its_commands(sash, group):
    shown = sash(group, "-h").out
    assert {line.split()[0] for line in shown.partition("Commands:")[2].splitlines() if line[2:3].strip()} == {
        name.split()[1] for name in COMMANDS if name.startswith(f"{group} ")
    }
    assert sash(group, expect=2).err == shown


@pytest.mark.parametrize("command", ["", "admin token", *COMMANDS, *EARLIER])
def test_help_has_no_types_of_python(sash, command):
    shown = sash(*command.split(), "-h").out
    assert not re.search(r"<(?!=)|\{|\bINTEGER\b|\bFLOAT\b|\bPATH\b|--\S+ TEXT", shown.replace("--prefix TEXT", "")), (
        shown
    )
    assert "Usage: sash" in shown


def test_help_of_serve_points_to_the_settings(sash):
    shown = sash("serve", "-h").out
    assert {"SASH_TOKENS", "SASH_TLS_CERT", "sash admin token new", "docs/reference/settings.md"} <= {
        word
        for word in ("SASH_TOKENS", "SASH_TLS_CERT", "sash admin token new", "docs/reference/settings.md")
        if word in shown
    }


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    path = write_tokens(tmp_path_factory.mktemp("tokens") / "tokens.yaml", {"root": {"role": "admin"}})
    with running_service(tokens=path) as running, Client(running.grpc_target, token="root-token") as client:
        window = client.create_window({"name": "w", "keyed": True, "aggregates": {"n": {"function": "count"}}})
        window.bulk_insert([1, 2, 3], [1.0] * 3, keys=["a", "b", "b"])
        yield running


def test_target_and_token_stand_before_or_behind_a_command(sash, guarded, tmp_path, monkeypatch):
    monkeypatch.setenv("SASH_TARGET", "127.0.0.1:1")
    at, token = ("--target", guarded.grpc_target), ("--token", "root-token")
    file = tmp_path / "token"
    file.write_text("root-token\n")
    for before, behind in (
        ([*at, *token], []),
        ([], [*at, *token]),
        (at, token),
        (token, at),
        (["-t", "127.0.0.1:2", "--token", "wrong"], ["-t", guarded.grpc_target, *token]),
        ([*at, "--token", "wrong"], ["--token-file", str(file)]),
        ([*at, "--token-file", str(file)], []),
    ):
        assert "w " in sash(*before, "list", *behind).out
    assert "unknown" in sash(*at, *token, "list", "--token", "wrong", expect=1).err
    assert "asks for a token" in sash(*at, "list", expect=1).err


def test_watch_shows_several_keys(sash, guarded):
    login = ("--target", guarded.grpc_target, "--token", "root-token")
    for given in (("--all-keys",), ("-k", "a", "-k", "b")):
        lines = sash(*login, "watch", "w", *given, "--times", "1").out.splitlines()
        assert [line.split()[0] for line in lines] == ["key", "a", "b"]
    assert "either" in sash(*login, "watch", "w", "-k", "a", "--all-keys", expect=1).err
