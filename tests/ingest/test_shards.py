"""Numbers with gaps over several shards: each record once, whatever each shard has."""

import random
from collections import Counter

from tests.ingest.log import SPEC, Log, ids_of, ingest, record
from tests.ingest.test_runner import faulty
from tests.support.clients import client_of
from tests.support.servers import running_service

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
