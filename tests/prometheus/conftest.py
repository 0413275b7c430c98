"""One service for each module, with a window of two keys that nobody changes."""

from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from tests.support.servers import Running, running_service

T = 1_700_000_000
"""Seconds. Entries follow from here, one a second, 300 ms behind the whole second, of keys a and b in turn."""

SPEC: dict[str, Any] = {
    "name": "w",
    "time_unit": "ms",
    "keyed": True,
    "fields": {"v": "float64", "text": "string"},
    "slide": {"max_age": "1h"},
    "aggregates": {
        "n": {"function": "count"},
        "total": {"function": "sum", "field": "v"},
        "p99": {"function": "quantile", "field": "v", "q": 0.99},
        "all": {"function": "collect", "field": "v"},
    },
}

Ask = Callable[..., httpx.Response]


@pytest.fixture(scope="module")
def service() -> Iterator[Running]:
    with running_service(max_windows=50) as running:
        yield running


@pytest.fixture(scope="module")
def http(service: Running) -> httpx.Client:
    client = service.http()
    assert client.post("/v1/windows", json=SPEC).status_code == 201
    bulk = {
        "time": [(T + i) * 1000 + 300 for i in range(600)],
        "key": ["ab"[i % 2] for i in range(600)],
        "fields": {"v": [float(i) for i in range(600)], "text": [""] * 600},
    }
    assert client.post("/v1/windows/w/bulk-insert", json=bulk).status_code == 200
    return client


@pytest.fixture(scope="module")
def ask(http: httpx.Client) -> Ask:
    """Send a form to the API."""

    def send(path: str, **form: Any) -> httpx.Response:
        return http.post(f"/prometheus/api/v1/{path}", data=form)

    return send
