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

import statistics
import sys
from functools import partial
from typing import Any

import numpy as np

from bench.harness import MIB, arguments, digest, head, in_fresh_process, memory_of, row, timed
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


def inserted(windows: list[Window], bulks: list[Batch]) -> None:
    """Write to each window a bulk of its own."""
    for window, bulk in zip(windows, bulks, strict=True):
        window.bulk_insert(bulk)


def measured(shared: bool, entries: int, calls: int) -> tuple[dict[str, float], str]:
    """Measure one case; return the figures, and a digest of the answers."""
    (before,) = memory_of()
    windows, asked = made(shared, entries)
    wrote, answered, rounds = list[float](), list[float](), 2 * entries // BULK
    for round_ in range(rounds + calls):
        times = np.arange(round_ * BULK, (round_ + 1) * BULK)
        bulks = [Batch(times.copy(), {"value": times * 7919 % 1000}) for _ in windows]
        wrote.append(timed(partial(inserted, windows, bulks)))
        if round_ >= rounds:
            answered.append(timed(lambda: [reader.query(Query()) for reader in asked]) / len(asked))
    answers: list[Any] = [
        {name: round(value, 6) for name, value in reader.query(Query())[0].aggregates.items()} for reader in asked
    ]
    figures = {
        "MB": (memory_of()[0] - before) / MIB,
        "µs a bulk": 1e6 * statistics.median(wrote[rounds // 2 :]),
        "µs a question after it": 1e6 * statistics.median(answered),
    }
    return figures, digest(answers)


def main() -> None:
    """Print the figures."""
    entries, calls = (2**14, 9) if arguments(__doc__).smoke else (2**20, 500)
    (shared, expected), (apart, found) = (in_fresh_process(measured, way, entries, calls) for way in (True, False))
    head("", "a window and 4 views", "5 windows")
    for what, figure in shared.items():
        row(what, f"{figure:,.1f}", f"{apart[what]:,.1f}")
    if found != expected:
        sys.exit("the answers of views are not those of windows")
    print(f"\ndigest {found}")


if __name__ == "__main__":
    main()
