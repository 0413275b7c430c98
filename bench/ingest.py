"""What `sash ingest kafka` costs a core: JSON records of 130 bytes from topic to window, where the time goes, and how
soon a record is in the answers.

    mock brokers (a process) ──▶ sash ingest, in this process: poll ▶ decode ▶ rows ▶ write ──▶ sash serve (a process)
                             ──▶ by hand, in this process:     poll ▶ decode ▶ one transaction ──▶ Redis (a process)

Rates are records for each second of processor time of the ingesting process, all of its threads together. Stages are
measured one after the other on the same records, and then the whole.

By hand, each batch is one MULTI: a count and a sum of each key and minute, and the offset up to which they are. That is
as little as gives the same answers, to the minute, once for each record.

Freshness: 20,000 records a second come by a clock, each with the time at which it was due. Somebody asks for the newest
time of each partition again and again. A record's freshness is from its due time to the answer that has it.

The printed digest is of the window's answer: it depends on the records and on nothing else.

Does not show: a real broker, TLS, compression, the service's own processor time.

Run ``python -m bench.ingest`` (half a minute; Linux), or with ``--smoke`` (seconds, figures meaningless).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from io import BytesIO
from threading import Thread
from typing import Any

import fastavro
import numpy as np
import orjson
import redis

from bench.harness import arguments, digest, service
from sash_client import Client
from sash_ingest.config import IngestConfig
from sash_ingest.connector import Records
from sash_ingest.decode import Json
from sash_ingest.kafka import Kafka
from sash_ingest.registry import Avro, Registry
from sash_ingest.runner import Ingest
from sash_ingest.target import Target
from sash_wire.pipeline import parsed
from tests.support.kafka import mock_cluster
from tests.support.redis_servers import BINARIES, EVERYSEC, redis_server

PARTITIONS = 4
RATE = 20_000
CLOCK = {
    "name": "clock",
    "time_unit": "us",
    "keys": ["partition"],
    "fields": {"delay": "float64"},
    "aggregates": {"mean": {"function": "mean"}},
    "slide": {"max_age": "10m"},
}
AVRO = {"type": "record", "name": "Flight", "fields": [
    {"name": "at", "type": "long"}, {"name": "airport", "type": "string"}, {"name": "carrier", "type": "string"},
    {"name": "dep_delay", "type": ["null", "double"]}, {"name": "distance", "type": "long"},
    {"name": "tail", "type": "string"}, {"name": "cancelled", "type": "boolean"}]}  # fmt: skip
SPEC = {
    "name": "flights",
    "time_unit": "ms",
    "keys": ["airport", "carrier"],
    "fields": {"delay": "float64", "distance": "int64"},
    "aggregates": {"n": {"function": "count"}, "distance": {"function": "sum", "field": "distance"}},
}


def record(n: int) -> bytes:
    """One record; two of its members are not read."""
    document = {
        "at": 1_700_000_000_000 + n,
        "airport": ("JFK", "LGA", "EWR")[n % 3],
        "carrier": f"C{n % 16}",
        "dep_delay": n % 977 / 8,
        "distance": n % 3000,
        "tail": f"N{n % 9999:05}",
        "cancelled": False,
    }
    return json.dumps(document).encode()


def brokers(records: int) -> None:
    """Serve a topic until standard input ends; with each line of it, put records into another one by the clock."""
    with mock_cluster(1) as cluster:
        for topic in ("flights", "clock"):
            cluster.create(topic, PARTITIONS)
        cluster.send("flights", ((n % PARTITIONS, record(n)) for n in range(records)))
        print(cluster.servers, flush=True)
        for line in sys.stdin:
            cluster.send("clock", _by_the_clock(float(line), records))


def _by_the_clock(begin_s: float, records: int) -> Iterator[tuple[int, bytes]]:
    for n in range(records):
        due_s = begin_s + n / RATE
        if n % 20 == 0 and (ahead_s := due_s - time.time()) > 0:
            time.sleep(ahead_s)
        document = {
            "at": int(due_s * 1e6),
            "partition": f"{n % PARTITIONS}",
            "dep_delay": n % 977 / 8,
            "tail": f"N{n:05}",
        }
        yield n % PARTITIONS, json.dumps(document).encode()


class _Streams:
    """Nobody: every partition begins at its beginning."""

    def begin(self, stream: str) -> int:
        return 0

    def end(self, stream: str, drain: bool = True) -> None:
        pass


def rate(records: int, work: Callable[[], Any]) -> tuple[float, Any]:
    began_s = time.process_time()
    found = work()
    return records / (time.process_time() - began_s), found


def polled(kafka: Kafka, records: int) -> list[Records]:
    found: list[Records] = []
    while sum(map(len, found)) < records:
        found += kafka.poll(0.02)
    return found


class _Schemas(Registry):
    """A registry that has one schema."""

    def __init__(self) -> None:
        super().__init__("")

    def get(self, path: str, what: str) -> dict[str, Any]:
        return {"schema": json.dumps(AVRO)}


def as_avro(values: list[bytes | None]) -> list[bytes | None]:
    """The records in Avro, behind the number of a schema."""
    schema = fastavro.parse_schema(AVRO)
    made: list[bytes | None] = []
    for value in values:
        assert value is not None
        body = BytesIO(b"\0" * 5)
        body.seek(5)
        fastavro.schemaless_writer(body, schema, json.loads(value))
        made.append(body.getvalue())
    return made


def by_hand(servers: str, records: int) -> tuple[float, list[tuple[str, int, int]]]:
    """Read the topic into Redis; return the rate, and the answers."""
    binary = next(iter(BINARIES.values()))
    with redis_server(binary, EVERYSEC) as server, redis.Redis.from_url(server.url) as store:
        kafka = Kafka(parsed(IngestConfig, _document(servers)).source, "by hand")
        kafka.open(_Streams())

        def read() -> None:
            done = 0
            while done < records:
                for batch in kafka.poll(0.02):
                    pipe = store.pipeline(transaction=True)
                    for value in batch.values:
                        row = orjson.loads(value or b"")
                        place = f"{row['airport']}:{row['carrier']}:{row['at'] // 60_000}"
                        pipe.hincrby(place, "n", 1)
                        pipe.hincrby(place, "distance", row["distance"])
                        pipe.hincrbyfloat(place, "delay", row["dep_delay"])
                    pipe.set(f"offset:{batch.stream}", batch.numbers[-1])
                    pipe.execute()
                    done += len(batch)

        found, _ = rate(records, read)
        kafka.close()
        totals: dict[str, tuple[int, int]] = {}
        for place in store.scan_iter("*:*:*"):
            airport = place.decode().partition(":")[0]
            n, distance = totals.get(airport, (0, 0))
            totals[airport] = (n + int(store.hget(place, "n")), distance + int(store.hget(place, "distance")))
    return found, [(airport, *each) for airport, each in sorted(totals.items())]


def freshness(servers: str, target: str, records: int, go: Callable[[float], None]) -> Any:
    """Ask for the newest records while they come; return how many seconds after its due time each one is there."""
    # A real broker answers as soon as there is a record. The mock looks when it is asked, and answers so much later.
    options = {"fetch.wait.max.ms": 10}
    source = {"format": "kafka", "servers": servers, "topic": "clock", "options": options}
    document = {"name": "bench", "source": source, "time": "timestamp_micros(at)", "windows": [
        {"spec": CLOCK, "fields": {"delay": "dep_delay"}}]}  # fmt: skip
    config = parsed(IngestConfig, document)
    with Client(target) as client:
        window = client.create_window(CLOCK)
        made = Target(window, config.sources(0, window.spec), "windows[0]", frozenset())
        run = Ingest("bench", [made], Json(), None, say=lambda line: None)
        thread = Thread(target=run.run, args=(Kafka(config.source, "clock"),))
        thread.start()
        begin_s = time.time() + 3.0  # behind the group's first rebalance
        go(begin_s)
        due_s = begin_s + np.arange(records) / RATE
        seen, waited_s = [0] * PARTITIONS, []
        while sum(seen) < records:
            answers = window.query(by=["partition"])
            now_s = time.time()
            for answer in answers:
                place = int(answer.parts["partition"])
                waited_s.append(now_s - due_s[place::PARTITIONS][seen[place] : answer.entries])
                seen[place] = answer.entries
            time.sleep(0.002)
        run.stop()
        thread.join()
    return np.concatenate(waited_s)


def _document(servers: str) -> dict[str, Any]:
    source = {"format": "kafka", "servers": servers, "topic": "flights"}
    return {"name": "bench", "source": source, "time": "timestamp_millis(at)", "windows": [
        {"spec": SPEC, "fields": {"delay": "dep_delay"}}]}  # fmt: skip


def measure(servers: str, target: str, records: int) -> None:
    config = parsed(IngestConfig, _document(servers))
    with Client(target) as client:
        window = client.create_window(SPEC)
        made = Target(window, config.sources(0, window.spec), "windows[0]", frozenset())
        kafka = Kafka(config.source, "alone")
        kafka.open(_Streams())
        polling, batches = rate(records, lambda: polled(kafka, records))
        kafka.close()
        batches = [each.cut(16_384) for each in batches for _ in range(-(-len(each) // 16_384))]
        form = Json()
        decoding, decoded = rate(records, lambda: [form.decode(each.values, made.wanted) for each in batches])
        coded, avro = [as_avro(each.values) for each in batches], Avro(_Schemas())
        reading, _ = rate(records, lambda: [avro.decode(values, made.wanted) for values in coded])
        mapping, rows = rate(
            records, lambda: [made.rows(each, done)[0] for each, done in zip(batches, decoded, strict=True)]
        )
        numbers = iter(range(1, 10**9))
        writing, _ = rate(records, lambda: [made.write(each, "x", n := next(numbers), 1, n - 1) for each in rows])
        client.delete_window("flights")
        made = Target(client.create_window(SPEC), config.sources(0, window.spec), "windows[0]", frozenset())
        run = Ingest("bench", [made], form, None, say=lambda line: None)
        whole_kafka = Kafka(config.source, "whole")

        def until_all() -> None:
            while made.window.describe().entries < records:
                time.sleep(0.1)
            run.stop()

        thread = Thread(target=until_all)
        thread.start()
        began_s = time.perf_counter()
        whole, _ = rate(records, lambda: run.run(whole_kafka))
        taken_s = time.perf_counter() - began_s
        thread.join()
        answers = made.window.query(by=["airport"])
        shown = sorted((each.parts["airport"], each.entries, each.aggregates["distance"]) for each in answers)
    hand, same = by_hand(servers, records)
    assert same == [(airport, n, distance) for (airport, n, distance) in shown], "by hand there are other answers"
    print("records a second of processor time")
    for what, figure in (
        *(("poll", polling), ("decode", decoding), ("decode Avro", reading)),
        *(("rows", mapping), ("write", writing), ("whole", whole), ("by hand into Redis", hand)),
    ):
        print(f"  {what:<25}{figure:>12,.0f}")
    print(f"  whole, by the clock      {records / taken_s:>12,.0f}   (with a group's first rebalance)")
    print(f"digest {digest(shown)}")


def main() -> None:
    options = arguments(__doc__, {"--brokers": {"type": int, "help": argparse.SUPPRESS}})
    if options.brokers is not None:
        brokers(options.brokers)
        return
    records = 4_000 if options.smoke else 100_000  # a partition of the mock keeps 5 MB; and 5 s of the clock
    command = [sys.executable, "-m", "bench.ingest", "--brokers", str(records)]
    with (
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process,
        service() as running,
    ):
        assert process.stdout is not None
        assert process.stdin is not None
        to = process.stdin
        servers = process.stdout.readline().strip()
        measure(servers, running.grpc_target, records)
        go = lambda begin_s: print(begin_s, file=to, flush=True)  # noqa: E731
        p50, p99, most = np.quantile(1000 * freshness(servers, running.grpc_target, records, go), (0.5, 0.99, 1))
        print(f"freshness at {RATE:,} records a second, ms: p50 {p50:,.0f}, p99 {p99:,.0f}, most {most:,.0f}")
        process.stdin.close()


if __name__ == "__main__":
    main()
