"""Server-sent events: changed answers only, until the window is gone or the service is."""

import asyncio
import json

import pytest

from sash.limits.watches import Watches
from sash.rest import watch
from tests.rest.conftest import made

PATH = "/v1/windows/watched"


@pytest.fixture
def watched(http):
    aggregates = {"n": {"function": "count"}, "total": {"function": "sum"}}
    for _ in made(http, name="watched", time_unit="s", keyed=True, aggregates=aggregates):
        http.post(f"{PATH}/insert", json={"time": 1, "key": "a", "value": 1})
        yield PATH


def events(response):
    """The events of a stream as (kind, document); comments are none."""
    kind, data = "message", None
    for line in response.iter_lines():
        name, _, value = line.partition(": ")
        if name == "event":
            kind = value
        elif name == "data":
            data = json.loads(value)
        elif not line and data is not None:
            yield kind, data
            kind, data = "message", None


def test_changes_and_nothing_else(http, watched):
    question = {"key": "a", "lookback": ["10s", "1m"], "interval": 50}
    headers = {"x-request-id": "watching"}
    with http.stream("GET", f"{watched}/watch", params=question, headers=headers) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        assert response.headers["cache-control"] == "no-store"
        stream = events(response)
        kind, first = next(stream)
        asked = {"key": "a", "lookback": ["10s", "1m"]}
        assert (kind, first) == ("message", http.get(f"{watched}/query", params=asked).json())
        # Another key's entries change nothing here, so the next event is this key's next answer.
        http.post(f"{watched}/insert", json={"time": 2, "key": "b", "value": 5})
        http.post(f"{watched}/insert", json={"time": 20, "key": "a", "value": 2})
        _, second = next(stream)
        assert [each["aggregates"] for each in second["answers"]] == [{"n": 1, "total": 2.0}, {"n": 2, "total": 3.0}]
        http.delete(watched)
        problem = {"detail": "there is no window 'watched'", "reason": "NOT_FOUND", "field": "window"}
        kind, document = next(stream)
        assert document.pop("request_id") == "watching"
        assert (kind, document) == ("problem", problem)
        assert next(stream, None) is None


async def _same():
    return b"{}"


async def test_a_sign_of_life_where_nothing_changes():
    stream = watch.events(Watches().changes("q", _same, 1, asyncio.Event(), quiet_s=0.0))
    assert [await anext(stream) for _ in range(3)] == [b"data: {}\n\n", b":\n\n", b":\n\n"]
    await stream.aclose()
