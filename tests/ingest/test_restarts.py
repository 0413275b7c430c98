"""Numbers with gaps over kills of a service with shards: each record once, whatever each shard has."""

from collections import Counter
from contextlib import suppress
from threading import Thread

from sash_client import Client, SashClientError, Unavailable
from tests.ingest.log import SPEC, ids_of, ingest, target
from tests.ingest.test_shards import NUMBERS, log_of
from tests.support.servers import service_process
from tests.support.waiting import wait_until


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
