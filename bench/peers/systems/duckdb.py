"""DuckDB in this process, on a file."""

from __future__ import annotations

from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from bench.peers.system import System as Base
from bench.peers.work import LOOKBACKS_MS, SERIES_LOOKBACK_MS, Floats, Ints, Sketches, Trailing

SERIES = """
    select avg(v), max(v) from (select unnest(?::bigint[]) as e) as ends
    join (select * from entries where k = ?) on t > e - {lookback} and t <= e group by e order by e
"""


class System(Base):
    name = "DuckDB"
    package = "duckdb"
    kept = "committed to its file and synced"

    def start(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        self._base = duckdb.connect(str(self.directory / "file"))
        self._base.execute("create table if not exists entries (t bigint, k utinyint, v double)")
        self._reader = self._base.cursor()

    def stop(self) -> None:
        self._reader.close()
        self._base.close()

    kill = stop

    def prepared(self, times: Ints, codes: Ints, values: Floats) -> Any:
        return pa.table({"t": times, "k": codes.astype(np.uint8), "v": values})

    def bulk(self, prepared: Any) -> None:
        self._base.execute("insert into entries select * from prepared")

    def single(self, time_ms: int, code: int, value: float) -> None:
        self._base.execute("insert into entries values (?, ?, ?)", [time_ms, code, value])

    def trailing(self, code: int, now_ms: int) -> Trailing:
        parts = []
        for ms in LOOKBACKS_MS:
            here = f"filter (where t > {now_ms - ms})"
            parts.append(f"count(*) {here}, avg(v) {here}, max(v) {here}")
        found = self._reader.execute(
            f"select {', '.join(parts)} from entries where k = ? and t <= ? and t > ?",
            [code, now_ms, now_ms - LOOKBACKS_MS[-1]],
        ).fetchone()
        assert found is not None
        return [(found[i], found[i + 1], found[i + 2]) for i in range(0, len(found), 3)]

    def series(self, code: int, ends: Ints) -> tuple[Floats, Floats]:
        asked = SERIES.format(lookback=SERIES_LOOKBACK_MS)
        means, tops = self._reader.execute(asked, [ends.tolist(), code]).fetchnumpy().values()
        return means, tops

    def sketches(self, code: int, now_ms: int) -> Sketches:
        found = self._reader.execute(
            "select quantile_cont(v, [0.5, 0.99]), count(distinct v) from entries where k = ? and t <= ? and t > ?",
            [code, now_ms, now_ms - LOOKBACKS_MS[-1]],
        ).fetchone()
        assert found is not None
        return Sketches(found[0][0], found[0][1], found[1])
