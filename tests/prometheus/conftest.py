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


def create(http: httpx.Client, name: str, *, headers: Any = None, **changed: Any) -> None:
    """A window of a float64, with its number of entries."""
    spec = {"time_unit": "s", "fields": {"v": "float64"}, "aggregates": {"n": {"function": "count"}}, **changed}
    created = http.post("/v1/windows", json={"name": name, **spec}, headers=headers)
    assert created.status_code == 201, created.text


def insert(
    http: httpx.Client, name: str, times: list[int], values: list[Any], *, headers: Any = None, **more: Any
) -> None:
    bulk = {"time": times, "fields": {"v": values}} | more
    answer = http.post(f"/v1/windows/{name}/bulk-insert", json=bulk, headers=headers)
    assert answer.status_code == 200, answer.text


@pytest.fixture(scope="module")
def http(service: Running) -> httpx.Client:
    client, n = service.http(), 600
    create(client, **SPEC)
    values = [float(i) for i in range(n)]
    keys = ["ab"[i % 2] for i in range(n)]
    insert(client, "w", [(T + i) * 1000 + 300 for i in range(n)], [], key=keys, fields={"v": values, "text": [""] * n})
    return client


@pytest.fixture(scope="module")
def ask(http: httpx.Client) -> Ask:
    """Send a form to the API."""

    def send(path: str, **form: Any) -> httpx.Response:
        return http.post(f"/prometheus/api/v1/{path}", data=form)

    return send
