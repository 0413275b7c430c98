"""Bytewax' sliding windows: a data flow in one process."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import bytewax.operators as op
import numpy as np
import pyarrow.parquet as pa_parquet
from bytewax.dataflow import Dataflow
from bytewax.operators import windowing
from bytewax.testing import TestingSink, TestingSource, run_main

from bench.peers.job import Job
from bench.peers.work import SERIES_LOOKBACK_MS, SERIES_STEP_MS, Floats, Ints

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class System(Job):
    name = "Bytewax"
    package = "bytewax"

    def series(self, code: int, ends: Ints) -> tuple[Floats, Floats]:
        table = pa_parquet.read_table(self.file(code))
        rows = zip(table["t"].to_pylist(), table["v"].to_pylist(), strict=True)
        entries = [(EPOCH + timedelta(milliseconds=t), v) for t, v in rows]
        out: list[Any] = []
        flow = Dataflow("series")
        keyed = op.key_on("key", op.input("in", flow, TestingSource(entries, batch_size=1000)), lambda _: "k")
        windows = windowing.fold_window(
            "fold",
            keyed,
            # Its watermark also goes on with the system's time: an entry that is 100 ms behind the one before it by its
            # own time, but comes after a second of folding, would be late, and left out of its windows.
            windowing.EventClock(lambda entry: entry[0], timedelta(0), now_getter=lambda: EPOCH),
            windowing.SlidingWindower(
                timedelta(milliseconds=SERIES_LOOKBACK_MS), timedelta(milliseconds=SERIES_STEP_MS), EPOCH
            ),
            lambda: (0, 0.0, -np.inf),
            lambda total, entry: (total[0] + 1, total[1] + entry[1], max(total[2], entry[1])),
            lambda a, b: (a[0] + b[0], a[1] + b[1], max(a[2], b[2])),
        )
        op.output("out", windows.down, TestingSink(out))
        run_main(flow)
        inside = sorted(self._inside(out, ends))
        return np.array([row[1] for row in inside]), np.array([row[2] for row in inside])

    def _inside(self, out: list[Any], ends: Ints) -> Iterator[tuple[int, float, float]]:
        for _, (number, (count, total, top)) in out:
            end = number * SERIES_STEP_MS + SERIES_LOOKBACK_MS - 1
            if ends[0] <= end <= ends[-1]:
                yield end, total / count, top
