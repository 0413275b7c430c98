"""Numbers with gaps over several shards, and over kills of these: each record once, whatever each shard has."""

import random
from collections import Counter
from contextlib import suppress
from threading import Thread

from sash_client import Client, SashClientError, Unavailable
from tests.ingest.log import SPEC, Log, ids_of, ingest, record, target
from tests.ingest.test_runner import faulty
from tests.support.clients import client_of
from tests.support.servers import running_service, service_process
from tests.support.waiting import wait_until

NUMBERS = [n for n in range(1, 6000) if n % 7 and n % 100 < 80]  # with gaps, short and long ones


def log_of(numbers, some):
    """Numbers in two streams, of many keys: each write goes to all shards."""
    logs = {name: [(n, record(n, carrier=f"c{n % 13}")) for n in numbers[i::2]] for i, name in enumerate("ab")}
    return Log(logs, some=some)


def test_processes_that_die_before_a_sharded_service_lose_and_double_nothing():
    with running_service(shards=3) as service, client_of(service.grpc_target) as client:
        window, chance, deaths = client.create_window(SPEC), random.Random(5), 0
        for _ in range(2000):
            one = ingest([faulty(window, dies=0.1, chance=chance)], records_per_write=chance.choice([20, 50, 200]))
            try:
                one.run(log_of(NUMBERS, some=chance.choice([30, 100])))
            except RuntimeError:
                deaths += 1
            else:
                break
        assert deaths >= 3
        assert ids_of(window) == Counter(NUMBERS)
        assert {window.last_write(f"p/{name}").number for name in "ab"} == set(NUMBERS[-2:])


def made(client):
    """Create the window, or see that it is there; False while the service is not."""
    with suppress(Unavailable):
        return client.create_window(SPEC | {"durability": "sync"})


def test_a_service_that_is_killed_has_each_record_once(tmp_path, monkeypatch):
    monkeypatch.setattr("sash_ingest.runner.pauses_s", lambda: iter([0.01] * 100_000))
    ports, goals = (), [800, 2200]
    settings = {"SASH_DATA": str(tmp_path), "SASH_SHARDS": "3"}
    running = None
    for goal in [*goals, None]:
        with service_process(*ports, **settings) as service, Client(service.grpc_target) as client:
            ports = ("--grpc-port", str(service.grpc_port))
            wait_until(lambda client=client: made(client))
            window = client.window("log")
            if running is None:
                keeper = Client(service.grpc_target)
                one = ingest([target(keeper.window("log"))], records_per_write=30)
                running = Thread(target=one.run, args=(log_of(NUMBERS, some=60),))
                running.start()
            if goal is None:
                running.join()
                assert ids_of(window) == Counter(NUMBERS)
                assert {window.last_write(f"p/{name}").number for name in "ab"} == set(NUMBERS[-2:])
                keeper.close()
            else:

                def has_come(goal=goal, window=window):
                    with suppress(SashClientError):
                        return window.describe().entries >= goal

                wait_until(has_come)
                service.process.kill()
