"""Flink's sliding windows (`HOP`) in a local cluster: a job over a CSV file."""

from __future__ import annotations

import numpy as np
from pyflink.table import EnvironmentSettings, TableEnvironment

from bench.peers.job import Job
from bench.peers.work import SERIES_LOOKBACK_MS, SERIES_STEP_MS, Floats, Ints

SOURCE = """
    create temporary table entries (
        t bigint, v double, at_ as to_timestamp_ltz(t, 3), watermark for at_ as at_
    ) with ('connector' = 'filesystem', 'path' = 'file://{path}', 'format' = 'csv')
"""
HOP = """
    select timestampdiff(second, timestamp '1970-01-01 00:00:00', window_end) as e,
           extract(millisecond from window_end) as ms, avg(v), max(v)
    from table(hop(table entries, descriptor(at_), interval '{step}' second(5, 3), interval '{width}' second(5)))
    group by window_start, window_end
"""


class System(Job):
    name = "Flink"
    package = "apache-flink"
    suffix = ".csv"

    def series(self, code: int, ends: Ints) -> tuple[Floats, Floats]:
        table = TableEnvironment.create(EnvironmentSettings.in_streaming_mode())
        table.get_config().set("table.local-time-zone", "UTC")
        table.get_config().set("parallelism.default", "2")
        table.execute_sql(SOURCE.format(path=self.file(code)))
        asked = HOP.format(step=f"{SERIES_STEP_MS / 1000:.3f}", width=SERIES_LOOKBACK_MS // 1000)
        with table.execute_sql(asked).collect() as rows:
            found = sorted((1000 * row[0] + row[1] % 1000 - 1, row[2], row[3]) for row in rows)
        inside = [row for row in found if ends[0] <= row[0] <= ends[-1]]
        return np.array([row[1] for row in inside]), np.array([row[2] for row in inside])
