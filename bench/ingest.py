"""What `sash ingest kafka` costs a core: JSON records of 130 bytes from topic to window, and where the time goes.

    mock brokers (a process) ──▶ sash ingest, in this process: poll ▶ decode ▶ rows ▶ write ──▶ sash serve (a process)

Rates are records for each second of processor time of the ingesting process, all of its threads together. Stages are
measured one after the other on the same records, and then the whole.

The printed digest is of the window's answer: it depends on the records and on nothing else.

Does not show: a real broker, TLS, compression, the service's own processor time.

Run ``python -m bench.ingest`` (about a minute; Linux), or with ``--smoke`` (seconds, figures meaningless).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import time
from collections.abc import Callable
from threading import Thread
from typing import Any

from sash_client import Client
from sash_ingest.config import IngestConfig
from sash_ingest.connector import Records
from sash_ingest.decode import Json
from sash_ingest.kafka import Kafka
from sash_ingest.runner import Ingest
from sash_ingest.target import Target
from sash_wire.pipeline import parsed
from tests.support.kafka import mock_cluster
from tests.support.servers import service_process

PARTITIONS = 4
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
    """Serve a topic until standard input ends."""
    with mock_cluster(1) as cluster:
        cluster.create("flights", PARTITIONS)
        cluster.send("flights", ((n % PARTITIONS, record(n)) for n in range(records)))
        print(cluster.servers, flush=True)
        sys.stdin.read()


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


def measure(servers: str, target: str, records: int) -> None:
    source = {"format": "kafka", "servers": servers, "topic": "flights"}
    document = {"name": "bench", "source": source, "time": "timestamp_millis(at)", "windows": [
        {"spec": SPEC, "fields": {"delay": "dep_delay"}}]}  # fmt: skip
    config = parsed(IngestConfig, document)
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
        slow, _ = rate(records, lambda: [form._slow(each.values, made.wanted) for each in batches])
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
        shown = sorted((str(each.parts), each.entries, each.aggregates["distance"]) for each in answers)
    print("records a second of processor time")
    for what, figure in (
        *(("poll", polling), ("decode", decoding), ("decode, record by record", slow)),
        *(("rows", mapping), ("write", writing), ("whole", whole)),
    ):
        print(f"  {what:<25}{figure:>12,.0f}")
    print(f"  whole, by the clock      {records / taken_s:>12,.0f}   (with a group's first rebalance)")
    print(f"digest {hashlib.sha256(repr(shown).encode()).hexdigest()[:16]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--brokers", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.brokers is not None:
        brokers(options.brokers)
        return
    records = 4_000 if options.smoke else 400_000
    command = [sys.executable, "-m", "bench.ingest", "--brokers", str(records)]
    with (
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process,
        service_process() as service,
    ):
        assert process.stdout is not None
        assert process.stdin is not None
        measure(process.stdout.readline().strip(), service.grpc_target, records)
        process.stdin.close()


if __name__ == "__main__":
    main()
