"""What sharing entries saves: one window with four views, against four windows that are sent the same stream.

    shared   a window of 2^20 entries, and views of all of them, a half, a quarter and a sixteenth; one write
    apart    the same five specs, each a window with entries of its own; five writes

The specs have two to four aggregates each of one field, seven different ones in all. Bulks of 1,024 entries come in
order of time. Each case runs in a fresh process. Bytes are resident memory, before and after, garbage collected. Times
are of the processor, medians; a question is about the whole of one of the five, after a bulk.

The answers of all five are compared between the two cases: the digest is of them.

Run ``python -m bench.views`` (some seconds), or with ``--smoke`` (figures meaningless).
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import multiprocessing
import statistics
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from sash_engine.windows.batches.batch import Batch
from sash_engine.windows.questions import Query
from sash_engine.windows.reading.reader import Reader
from sash_engine.windows.spec.derived import completed
from sash_engine.windows.spec.window import WindowSpec
from sash_engine.windows.window import Window

BULK = 1_024
SUMS = {"n": {"function": "count"}, "sum": {"function": "sum"}}
AGGREGATES = (
    {**SUMS, "mean": {"function": "mean"}},
    {**SUMS, "max": {"function": "max"}},
    {"mean": {"function": "mean"}, "stddev": {"function": "stddev"}},
    {**SUMS, "min": {"function": "min"}, "max": {"function": "max"}},
    {"sum": SUMS["sum"], "range": {"function": "range"}},
)
"""Of the window, then of the views."""

processor = time.thread_time


def specs(entries: int) -> list[WindowSpec]:
    """The specs, without `of`."""
    return [
        WindowSpec.parse(
            {
                "name": f"w{i}",
                "time_unit": "none",
                "fields": {"value": "int64"},
                "aggregates": aggregates,
                "slide": {"max_age": entries >> shift},
            }
        )
        for i, (aggregates, shift) in enumerate(zip(AGGREGATES, (0, 0, 1, 2, 4), strict=True))
    ]


def made(shared: bool, entries: int) -> tuple[list[Window], list[Reader]]:
    """The windows that are written to, and those that are asked."""
    first, *others = specs(entries)
    window = Window(first)
    if not shared:
        windows = [window, *(Window(spec) for spec in others)]
        return windows, [each.reader for each in windows]
    for spec in others:
        document = {"name": spec.name, "of": "w0", "slide": spec.document()["slide"]}
        document["aggregates"] = spec.document()["aggregates"]
        window.derive(completed(WindowSpec.parse(document), first))
    return [window], [each.reader for each in (window, *window.views)]


def resident() -> int:
    """Bytes of this process in memory."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def measured(shared: bool, entries: int, calls: int) -> tuple[dict[str, float], str]:
    """Measure one case; return the figures, and a digest of the answers."""
    before = resident()
    windows, asked = made(shared, entries)
    at, wrote, answered = 0, list[float](), list[float]()
    rounds = 2 * entries // BULK
    for round_ in range(rounds + calls):
        times = np.arange(at, at + BULK)
        at += BULK
        columns = [(times.copy(), {"value": times * 7919 % 1000}) for _ in windows]
        began = processor()
        for window, (each, values) in zip(windows, columns, strict=True):
            window.bulk_insert(Batch(each, values))
        wrote.append(processor() - began)
        if round_ >= rounds:
            began = processor()
            for reader in asked:
                reader.query(Query())
            answered.append((processor() - began) / len(asked))
    answers: list[Any] = [
        {name: round(value, 6) for name, value in reader.query(Query())[0].aggregates.items()} for reader in asked
    ]
    figures = {
        "MB": (resident() - before) / 2**20,
        "µs a bulk": 1e6 * statistics.median(wrote[rounds // 2 :]),
        "µs a question after it": 1e6 * statistics.median(answered),
    }
    return figures, hashlib.sha256(repr(answers).encode()).hexdigest()[:16]


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description="What sharing entries saves.")
    parser.add_argument("--smoke", action="store_true", help="figures meaningless")
    smoke = parser.parse_args().smoke
    found = {}
    for name, shared in (("a window and 4 views", True), ("5 windows", False)):
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as fresh:
            found[name] = fresh.submit(measured, shared, 2**14 if smoke else 2**20, 9 if smoke else 500).result()
    print("| | " + " | ".join(found) + " |\n| --- | --- | --- |")
    for what in next(iter(found.values()))[0]:
        print(f"| {what} | " + " | ".join(f"{figures[what]:,.1f}" for figures, _ in found.values()) + " |")
    digests = {digest for _, digest in found.values()}
    if len(digests) > 1:
        sys.exit("the answers of views are not those of windows")
    print(f"\ndigest {digests.pop()}")


if __name__ == "__main__":
    main()
