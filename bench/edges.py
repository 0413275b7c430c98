"""The Python client's ways to send bulk after bulk: calls one by one, one stream, a producer.

Bulks a second over gRPC, and processor time of client and server for a bulk; medians of some rounds. What a single call
costs, beside a server that does nothing, is in `bench.unary`.

The printed digest is of the window's last answer: it depends on the calls made and on nothing else.

Run ``python -m bench.edges`` (half a minute; Linux), or with ``--smoke`` (seconds, figures meaningless).
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from itertools import count, islice

import numpy as np

from bench.harness import arguments, digest, head, pid_of, processor_s, row, service
from bench.unary import SPEC
from sash_client import Bulk, Client, Window


def one_by_one(window: Window, bulks: Iterator[Bulk], name: str) -> None:
    """A call for each bulk."""
    for bulk in bulks:
        window.bulk_insert(bulk.times, bulk.columns)


def in_one_stream(window: Window, bulks: Iterator[Bulk], name: str) -> None:
    """One call for all of them."""
    for _ in window.insert_stream(bulks):
        pass


def by_producer(window: Window, bulks: Iterator[Bulk], name: str) -> None:
    """Numbered, each sent until it is answered."""
    with window.producer(name) as producer:
        for bulk in bulks:
            producer.bulk_insert(bulk.times, bulk.columns)


WAYS = {"bulk_insert": one_by_one, "insert_stream": in_one_stream, "Producer.bulk_insert": by_producer}


def main() -> None:
    """Send in all ways, and print the figures."""
    smoke = arguments(__doc__).smoke
    rounds, n, entries = (1, 5, 1024) if smoke else (5, 150, 16_384)
    with service() as running, Client(running.grpc_target) as client:
        window, pid = client.create_window(SPEC), pid_of(running)
        firsts = count(0, entries)
        head("entries", "way", "bulks/s", "client CPU, µs", "server CPU, µs")
        for size in (entries // 16, entries):
            values = np.arange(size) % 97.0
            found = {way: list[tuple[float, float, float]]() for way in WAYS}
            for round_ in range(rounds):
                for way, send in WAYS.items():
                    starts = list(islice(firsts, n))
                    bulks = (Bulk(np.arange(first, first + size), values) for first in starts)
                    cpu, own, start = processor_s(pid), time.process_time(), time.perf_counter()
                    send(window, bulks, f"{size}/{round_}")
                    took, own, cpu = time.perf_counter() - start, time.process_time() - own, processor_s(pid) - cpu
                    found[way].append((n / took, own / n * 1e6, cpu / n * 1e6))
            for way, each in found.items():
                row(f"{size:,}", way, *(f"{statistics.median(column):,.0f}" for column in zip(*each, strict=True)))
        (answer,) = window.query()
        print(f"\ndigest {digest((answer.entries, answer.aggregates['n'], answer.aggregates['total']))}")


if __name__ == "__main__":
    main()
