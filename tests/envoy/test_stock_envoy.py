"""Envoy itself, as its package brings it, asks Sash about each of its requests."""

import subprocess

import httpx
import pytest
import yaml

from sash_client import ALL_KEYS, Client
from tests.support.envoy import ENVOY, configuration
from tests.support.ports import free_port
from tests.support.servers import running_service
from tests.support.tokens import write_tokens
from tests.support.waiting import wait_until

pytestmark = pytest.mark.skipif(not ENVOY.exists(), reason="Envoy is not installed")

FILE = """
domain: shop
window: requests
response_headers: true
descriptors:
  - key: user
    rate_limit: {unit: hour, requests_per_unit: 3}
  - key: user
    value: root
    rate_limit: {unlimited: true}
  - key: path
    shadow_mode: true
    rate_limit: {unit: hour, requests_per_unit: 1}
"""
WINDOW = {
    "name": "requests",
    "time_unit": "ms",
    "keyed": True,
    "aggregates": {"hits": {"function": "sum"}},
    "slide": {"max_age": "1d"},
}


@pytest.fixture
def envoy(tmp_path):
    """Requests through an Envoy that asks a service with tokens."""
    limits, tokens = tmp_path / "limits.yaml", tmp_path / "tokens.yaml"
    limits.write_text(FILE)
    write_tokens(tokens, {"envoy": {"role": "write", "windows": ["requests"]}, "root": {"role": "admin"}})
    settings = {"rate_limits": str(limits), "tokens": str(tokens)}
    with running_service(**settings) as running, Client(running.grpc_target, token="root-token") as client:
        window = client.create_window(WINDOW)
        port, found = free_port(), tmp_path / "envoy.yaml"
        found.write_text(yaml.safe_dump(configuration(port, free_port(), running.grpc_port, "envoy-token")))
        command = [ENVOY, "--config-path", found, "--base-id", str(port), "--concurrency", "1", "-l", "warning"]
        with (tmp_path / "log").open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{port}") as http:
                wait_until(lambda: process.poll() is not None or answers(http))
                assert process.poll() is None, (tmp_path / "log").read_text()
                yield http, window
        finally:
            process.kill()
            process.wait()


def answers(http):
    try:
        return http.get("/", headers={"x-user": "root"}).status_code == 200
    except httpx.TransportError:
        return False


def test_stock_envoy_is_told_whom_to_let_in(envoy):
    http, window = envoy

    def ask(user, path="/"):
        return http.get(path, headers={"x-user": user})

    found = [ask("ann") for _ in range(5)]
    assert [each.status_code for each in found] == [200, 200, 200, 429, 429]
    assert [each.headers["x-ratelimit-remaining"] for each in found] == ["2", "1", "0", "0", "0"]
    assert {each.headers["x-ratelimit-limit"] for each in found} == {"3"}
    assert found[0].headers["x-ratelimit-reset"] == "3600"
    assert 3590 < int(found[-1].headers["x-ratelimit-reset"]) <= 3600
    assert "x-envoy-ratelimited" in found[-1].headers
    assert [ask("bob").status_code, ask("root").status_code] == [200, 200]
    assert [ask("root", "/slow").status_code for _ in range(3)] == [200] * 3  # only shadows are over
    of_keys = {answer.key: answer.aggregates["hits"] for answer in window.query(keys=ALL_KEYS)}
    assert of_keys["shop|user|ann"] == 3
    assert of_keys["shop|user|bob"] == 1
    assert of_keys["shop|path|/slow"] == 1
