"""A service is killed while it streams: every stream ends with an error, and none waits longer than it may.

    service_process ── 4 readers of entries, 4 of exports, of both clients, over and over ──▶ messages
           ▲                                                                                     │
           └───────────────── kill -9 after so many messages, also before the first ◀───────────┘

`SASH_PROFILE=soak` kills 40 times.
"""

import asyncio
import itertools
import random
import threading

import numpy as np
import pytest

from sash_client import Bulk, Client, SashClientError, Unavailable
from sash_client.aio import AsyncClient
from tests.support.either_client import CLIENTS, opened
from tests.support.profile import THOROUGH
from tests.support.servers import WAIT_S, service_process

KILLS = 40 if THOROUGH else 2
TIMEOUT_S = 60
ROWS = 400_000
READERS = 2  # of each kind and client


class Reading:
    """What one reader has seen of its last stream, and the error that ended it."""

    def __init__(self, arrived):
        self._arrived = arrived
        self.begun = threading.Event()
        self.times = []
        self.error = None

    def begin(self):
        self.times.clear()
        self.begun.set()

    def took(self, bulk):
        self.times.append(bulk.times)
        self._arrived.release()

    def write(self, data):
        """As a file that an export is written to."""
        self._arrived.release()
        return len(data)


def entries(client, reading):
    for bulk in client.window("w").entries():
        reading.took(bulk)


def export(client, reading):
    client.export_window("w", reading)


def run(kind, read, target, reading):
    """Read the same stream over and over, until an error ends one."""
    with opened(kind, target, timeout_s=TIMEOUT_S) as client:
        try:
            while True:
                reading.begin()
                read(client, reading)
        except SashClientError as error:
            reading.error = error


async def inserted(target, kill, after):
    """Insert bulks over one call, and kill the service after so many answers: the error that ends the stream."""

    def bulks():
        for number in itertools.count():
            yield Bulk(np.arange(1000) + 1000 * number, np.zeros(1000))

    async with AsyncClient(target, timeout_s=TIMEOUT_S) as client:
        window = client.window("w")
        answers = 0
        try:
            async for _ in window.insert_stream(bulks()):
                answers += 1
                if answers == after:
                    kill()
        except SashClientError as error:
            return error


@pytest.mark.parametrize("kill", range(KILLS))
def test_a_stream_of_inserts_ends_as_any_call_does(kill):
    with service_process() as service:
        with Client(service.grpc_target) as client:
            client.create_window({"name": "w", "time_unit": "s", "aggregates": {"n": {"function": "count"}}})
        error = asyncio.run(inserted(service.grpc_target, service.process.kill, random.Random(kill).randrange(1, 40)))
    assert type(error) is Unavailable, error.message


@pytest.mark.parametrize("kill", range(KILLS))
def test_no_stream_outlives_its_service(kill):
    messages = 0 if kill % 2 else random.Random(kill).randrange(1, 100)
    arrived = threading.Semaphore(0)
    with service_process() as service:
        with Client(service.grpc_target) as client:
            window = client.create_window({"name": "w", "time_unit": "s", "aggregates": {"n": {"function": "count"}}})
            window.bulk_insert(np.arange(ROWS), np.zeros(ROWS))
        readers = []
        for kind, read in itertools.product(CLIENTS, (entries, export) * READERS):
            reading = Reading(arrived)
            thread = threading.Thread(target=run, args=(kind, read, service.grpc_target, reading), daemon=True)
            thread.start()
            readers.append((thread, reading))
        for _, reading in readers:
            assert reading.begun.wait(WAIT_S)
        for _ in range(messages):
            assert arrived.acquire(timeout=WAIT_S)
        service.process.kill()
        for thread, _ in readers:
            thread.join(TIMEOUT_S + WAIT_S)
    assert [thread.is_alive() for thread, _ in readers] == [False] * len(readers)
    assert {type(reading.error) for _, reading in readers} == {Unavailable}
    for _, reading in readers:  # what was yielded of a stream is its beginning: nothing twice, nothing left out
        times = np.concatenate([*reading.times, np.empty(0, "i8")])
        np.testing.assert_array_equal(times, np.arange(len(times)))
