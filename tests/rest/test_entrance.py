"""What a request holds is its own until the write is over that it began, and nothing is left behind by requests."""

import asyncio
import gc
from types import SimpleNamespace

import pytest
from prometheus_client import CollectorRegistry

from sash.access.access import Access
from sash.admission import Admission
from sash.calls import unbroken
from sash.limits.memory import MemoryBudget
from sash.limits.places import Places
from sash.limits.turns import Turns
from sash.rest.connection import ANSWERS
from sash.rest.entrance import Entrance, Mount
from sash.rest.guards import Guard
from sash.runtime.metrics import Metrics
from sash.settings import Settings
from sash_engine.clock import ManualClock
from sash_engine.errors import Unavailable
from tests.rest.test_whole import ask, request
from tests.support.servers import running_service
from tests.support.waiting import turns, until

LARGE = 100_000


@pytest.mark.parametrize("size", [LARGE, 10], ids=["a large body", "a small body"])
async def test_a_write_that_goes_on_keeps_its_place_and_its_memory(size):
    """A large body's place was given back when its request was cancelled, and its write went on."""
    go, places = asyncio.Event(), Places(2, 1)
    memory = MemoryBudget(10**9, {"bodies": (10**9, "")}, used=lambda: 0)

    async def write():
        await go.wait()

    async def app(scope, receive, send):
        await receive()
        await unbroken(write())

    async def refuse(scope, receive, send, error):
        raise error

    async def receive():
        return {"type": "http.request", "body": b" " * size, "more_body": False}

    admission = Admission(Access(ManualClock()), memory, Turns(), places)
    mount = Mount(prefix="", app=app, refuse=refuse, admission=admission)
    entrance = Entrance([mount], Guard(Settings()), 10**6, Metrics(CollectorRegistry()))
    headers = [(b"host", b"localhost"), (b"content-length", b"%d" % size), (b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": "/x", "http_version": "1.1", "headers": headers}
    scope |= {
        "query_string": b"",
        "client": ("a", 1),
        ANSWERS: SimpleNamespace(small_body=lambda _: None, let_follow=None),
    }
    task = asyncio.create_task(entrance(scope, receive, None))
    await turns()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    with pytest.raises(Unavailable):
        places.check("a")
    assert bool(memory._reserved) == (size == LARGE)
    go.set()
    await until(lambda: not (memory._reserved or places._calls))
    places.check("a")


def test_requests_leave_no_garbage():
    """The service has no collector that looks for circles all the time."""
    several = [
        request("GET", "/v1/windows/w/query"),
        request("GET", "/v1/windows/w"),
        request("POST", "/v1/windows/w/insert", b'{"time": 1, "value": 1}'),
        request("POST", "/sash.v1.Windows/ListWindows", b"{}"),
    ]
    with running_service() as running:
        ask(running, request("POST", "/v1/windows", b'{"name": "w", "aggregates": {"n": {"function": "count"}}}'))
        for data in several:
            ask(running, data * 10, 10)

        def found(data):
            gc.collect()
            gc.disable()
            gc.freeze()  # what is there already is not looked at again
            try:
                for _ in range(8):
                    ask(running, data * 10, 10)
                return running.on_loop(gc.collect)
            finally:
                gc.unfreeze()
                gc.enable()

        assert {data[:40]: found(data) for data in several if found(data) > 40} == {}
