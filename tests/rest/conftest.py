"""One service for each module, and an HTTP client of it."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import httpx
import pytest

from sash.rest.connection import Connection
from tests.support.servers import Running, running_service


@pytest.fixture(scope="module")
def service() -> Iterator[Running]:
    with running_service(max_body_bytes=1 << 20, max_entries_per_write=20_000, max_windows=50) as running:
        yield running


@pytest.fixture(scope="module")
def openapi(http: httpx.Client) -> Any:
    return http.get("/openapi.json").json()


@pytest.fixture
def window(http: httpx.Client) -> Iterator[str]:
    """A window of one float64 with count, sum and collect, gone after the test."""
    yield from made(http, name="plain", time_unit="s", fields={"value": "float64"})


@pytest.fixture
def typed(http: httpx.Client) -> Iterator[str]:
    """A keyed window with a field of every type."""
    fields = {"f": "float64", "i": "int64", "s": "string", "b": "bool"}
    aggregates: dict[str, Any] = {"n": {"function": "count"}}
    aggregates |= {name: {"function": "collect", "field": name} for name in fields}
    yield from made(http, name="typed", time_unit="ms", keyed=True, fields=fields, aggregates=aggregates)


def made(http: httpx.Client, **spec: Any) -> Iterator[str]:
    spec.setdefault(
        "aggregates",
        {"n": {"function": "count"}, "total": {"function": "sum"}, "all": {"function": "collect"}},
    )
    assert http.post("/v1/windows", json=spec).status_code == 201
    yield spec["name"]
    http.delete(f"/v1/windows/{spec['name']}")


@pytest.fixture
def unchanged(http: httpx.Client, window: str, typed: str) -> Iterator[str]:
    """Check after the test that no window has changed."""
    http.post(f"/v1/windows/{window}/insert", json={"time": 1, "value": 1})
    before = http.get("/v1/windows").json()
    yield window
    assert http.get("/v1/windows").json() == before


@pytest.fixture
def answered(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether the answer to each small request began without a task, in order."""
    found = list[bool]()
    may = Connection._may_begin_at_once

    def noted(self: Connection, exchange: Any) -> bool:
        found.append(may(self, exchange))
        return found[-1]

    monkeypatch.setattr(Connection, "_may_begin_at_once", noted)
    return found


@contextmanager
def held_by_a_write(running: Running, window: str = "w") -> Iterator[Callable[[], None]]:
    """A long write holds a window; what is given ends it, as the end of the block does."""
    plane: Any = running.plane
    with ExitStack() as held:
        running.on_loop(lambda: held.enter_context(plane._windows._storage.store.lock(window).exclusive()))
        end = held.pop_all()
        held.callback(lambda: running.on_loop(end.close))
        yield lambda: running.on_loop(end.close)
