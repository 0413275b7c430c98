"""Completion in shells: names of windows and keys."""

import os
import shlex
import socket
import subprocess

import pytest

from sash_cli import options
from sash_client import Client
from tests.support.forked import command
from tests.support.servers import WAIT_S, running_service

SPEC = {"keyed": True, "aggregates": {"n": {"function": "count"}}}
KEYS = ["JFK", "JFK.1", "LGA", "Žilina", "$(touch evil)", "a b", "`x`", "J|K", "J;x", "J'x", 'J"x', "J\\x", "-J", "=J"]


@pytest.fixture(scope="module")
def service():
    with running_service() as running, Client(running.grpc_target) as client:
        for name in ("flights", "floats", "other"):
            client.create_window({"name": name, **SPEC})
        client.window("flights").bulk_insert([1] * len(KEYS), [1.0] * len(KEYS), keys=KEYS)
        yield running


@pytest.fixture
def patient(monkeypatch):
    monkeypatch.setattr(options, "TIMEOUT_S", WAIT_S)


@pytest.fixture
def complete(sash, monkeypatch):
    """Completes the last word of a line as a shell does; returns the completions."""

    def complete(*words, shell="bash"):
        monkeypatch.setenv("_SASH_COMPLETE", f"complete_{shell}")
        monkeypatch.setenv("COMP_WORDS", shlex.join(["sash", *words[:-1]]) + f"\n{words[-1]}")
        monkeypatch.setenv("COMP_CWORD", str(len(words)))
        monkeypatch.setenv("_TYPER_COMPLETE_ARGS", shlex.join(["sash", *words[:-1]]) + f" {words[-1]}")
        done = sash()
        assert done.err == ""
        return done.out.split()

    return complete


def test_names_of_windows(complete, patient, service, monkeypatch):
    monkeypatch.setenv("SASH_TARGET", service.grpc_target)
    assert complete("query", "fl") == ["flights", "floats"]
    assert complete("describe", "") == ["flights", "floats", "other"]
    assert complete("load", "o") == complete("data", "load", "o") == ["other"]
    assert complete("window", "de") == ["describe", "delete"]
    assert complete("que") == ["query"]
    monkeypatch.setenv("SASH_TARGET", "127.0.0.1:1")
    assert complete("query", "--target", service.grpc_target, "o") == ["other"]


@pytest.mark.parametrize("command", ["query", "series", "watch", "evict", "insert"])
def test_keys_that_no_shell_evaluates(complete, patient, service, monkeypatch, command):
    monkeypatch.setenv("SASH_TARGET", service.grpc_target)
    assert complete(command, "flights", "--key", "J") == ["JFK", "JFK.1"]
    assert complete(command, "flights", "-k", "") == ["JFK", "JFK.1", "LGA", "Žilina"]
    assert complete(command, "--key", "J") == []
    assert complete(command, "nope", "--key", "J") == []


def test_zsh(complete, patient, service, monkeypatch):
    monkeypatch.setenv("SASH_TARGET", service.grpc_target)
    assert complete("query", "fl", shell="zsh") == ["_arguments", "'*:", ':(("flights"', '"floats"))\'']


def test_bash(tmp_path):
    forks = command(tmp_path)
    script = """
        eval "$(sash --show-completion bash)"
        COMP_WORDS=(sash data pun) COMP_CWORD=2
        _sash_completion sash
        printf '%s\n' "${COMPREPLY[@]}"
    """
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    environment["_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION"] = "1"
    asked = {"env": environment, "pass_fds": [forks], "capture_output": True, "text": True, "timeout": WAIT_S}
    done = subprocess.run(["bash", "-c", script], **asked)
    assert (done.stdout.split(), done.stderr) == (["punctuate"], "")


def test_a_service_that_is_away_completes_nothing(complete, tmp_path, monkeypatch):
    monkeypatch.setattr(options, "TIMEOUT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        for target in ("127.0.0.1:1", "nonsense://", f"127.0.0.1:{silent.getsockname()[1]}"):
            assert complete("query", "--target", target, "fl") == []
            assert complete("query", "flights", "--target", target, "--key", "J") == []
    monkeypatch.setenv("SASH_TOKEN_FILE", str(tmp_path / "nowhere"))
    assert complete("query", "fl") == []


def test_aggregates_parts_formats_and_roles(complete, patient, service, monkeypatch):
    monkeypatch.setenv("SASH_TARGET", service.grpc_target)
    aggregates = {"mean": {"function": "mean"}, "most": {"function": "max"}, "n": {"function": "count"}}
    with Client(service.grpc_target) as client:
        client.create_window({"name": "parts", "keys": ["carrier", "city", "day"], "aggregates": aggregates})
        assert complete("query", "parts", "--aggregate", "m") == ["mean", "most"]
        assert complete("query", "parts", "--top", "n") == ["n"]
        assert complete("query", "parts", "--by", "c") == ["carrier", "city"]
        client.delete_window("parts")
    assert complete("query", "gone", "--by", "c") == []
    assert complete("load", "flights", "x", "--format", "p") == ["parquet"]
    assert complete("token", "new", "me", "--role", "") == ["read", "write", "admin"]


def test_completion_asks_where_the_command_would(complete, patient, service, monkeypatch):
    monkeypatch.setenv("SASH_TARGET", "127.0.0.1:1")
    assert complete("--target", service.grpc_target, "query", "o") == ["other"]
    assert complete("--target", "127.0.0.1:2", "query", "--target", service.grpc_target, "o") == ["other"]
