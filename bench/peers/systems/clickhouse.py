"""ClickHouse in this process (`chdb`), a MergeTree on disk."""

from __future__ import annotations

import io
import json
from typing import Any

import numpy as np
import pyarrow as pa
from chdb import session

from bench.peers.system import System as Base
from bench.peers.work import LOOKBACKS_MS, SERIES_LOOKBACK_MS, SERIES_STEP_MS, Floats, Ints, Sketches, Trailing


class System(Base):
    name = "ClickHouse"
    kept = "written to its file, not synced"

    def version(self) -> str:
        return str(self._ask("select version()")[0][0])

    def start(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        self._session = session.Session(str(self.directory / "data"))
        self._session.query("create database if not exists peers engine = Atomic")
        self._session.query(
            "create table if not exists peers.entries (t Int64, k UInt8, v Float64) engine = MergeTree order by (k, t)"
        )

    def stop(self) -> None:
        self._session.close()

    kill = stop

    def _ask(self, query: str) -> list[list[Any]]:
        text = str(self._session.query(query, "JSONCompactEachRow"))
        return [json.loads(line) for line in io.StringIO(text)]

    def prepared(self, times: Ints, codes: Ints, values: Floats) -> Any:
        return pa.table({"t": times, "k": codes.astype(np.uint8), "v": values})

    def bulk(self, prepared: Any) -> None:
        self._session.query("insert into peers.entries select * from Python(prepared)")

    def single(self, time_ms: int, code: int, value: float) -> None:
        self._session.query(f"insert into peers.entries values ({time_ms}, {code}, {value})")

    def trailing(self, code: int, now_ms: int) -> Trailing:
        parts = []
        for ms in LOOKBACKS_MS:
            here = f"t > {now_ms - ms}"
            parts.append(f"countIf({here}), avgIf(v, {here}), maxIf(v, {here})")
        [found] = self._ask(f"select {', '.join(parts)} from {_part(code, now_ms)}")
        return [(int(found[i]), found[i + 1], found[i + 2]) for i in range(0, len(found), 3)]

    def series(self, code: int, ends: Ints) -> tuple[Floats, Floats]:
        """Each entry counts in 240 windows: the table is spread over them with `arrayJoin`, and grouped."""
        first, last = int(ends[0]), int(ends[-1])
        per_entry = SERIES_LOOKBACK_MS // SERIES_STEP_MS
        found = self._ask(f"""
            select e, avg(v), max(v) from (
                select {first} + {SERIES_STEP_MS} * arrayJoin(range({per_entry})) as shift,
                       intDivOrZero(t - {first} + {SERIES_LOOKBACK_MS} + {SERIES_STEP_MS - 1}, {SERIES_STEP_MS})
                       * {SERIES_STEP_MS} - {SERIES_LOOKBACK_MS} + shift as e, v
                from peers.entries where k = {code} and t > {first - SERIES_LOOKBACK_MS} and t <= {last}
            ) where e >= {first} and e <= {last} group by e order by e""")
        return np.array([row[1] for row in found]), np.array([row[2] for row in found])

    def sketches(self, code: int, now_ms: int) -> Sketches:
        asked = "quantileExactInclusive(0.5)(v), quantileExactInclusive(0.99)(v), uniqExact(v)"
        [found] = self._ask(f"select {asked} from {_part(code, now_ms)}")
        return Sketches(found[0], found[1], float(found[2]))


def _part(code: int, now_ms: int) -> str:
    return f"peers.entries where k = {code} and t <= {now_ms} and t > {now_ms - LOOKBACKS_MS[-1]}"
