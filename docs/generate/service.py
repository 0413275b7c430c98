"""What a service says of itself: one is started for it, on free ports, and keeps its windows in a scratch directory."""

from __future__ import annotations

import json
import tempfile
import urllib.request
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

from sash_client import Client, NotFound
from sash_client.local import local_service


@dataclass(frozen=True)
class Told:
    """What it said: its OpenAPI document, and its metrics once something was done with it."""

    openapi: dict[str, Any]
    metrics: str


@cache
def ask() -> Told:
    """Start a service, use it so that every metric has a sample, and ask it."""
    # No proxy stands between a machine and itself, whatever the environment says of others.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def get(url: str) -> bytes:
        with opener.open(url, timeout=20) as response:
            return bytes(response.read())

    with tempfile.TemporaryDirectory() as scratch, local_service(data=scratch) as service:
        with Client(service.target) as client:
            window = client.create_window({"name": "example", "aggregates": {"mean": {"function": "mean"}}})
            window.insert(1, 2.0)
            with suppress(NotFound):
                client.window("nope").query()
        return Told(json.loads(get(f"{service.address}/openapi.json")), get(f"{service.address}/metrics").decode())
