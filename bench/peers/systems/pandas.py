"""pandas in this process: a data frame."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from bench.peers.system import System as Base
from bench.peers.work import LOOKBACKS_MS, SERIES_LOOKBACK_MS, Floats, Ints, Sketches, Trailing


class System(Base):
    name = "pandas"
    package = "pandas"
    kept = "in memory"

    def start(self) -> None:
        self._frame = _frame(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0))

    def prepared(self, times: Ints, codes: Ints, values: Floats) -> Any:
        return _frame(times, codes, values)

    def bulk(self, prepared: Any) -> None:
        self._frame = pd.concat([self._frame, prepared], ignore_index=True)

    def _part(self, code: int, now_ms: int) -> Any:
        frame = self._frame
        return frame[(frame["k"] == code) & (frame["t"] <= now_ms) & (frame["t"] > now_ms - LOOKBACKS_MS[-1])]

    def trailing(self, code: int, now_ms: int) -> Trailing:
        part, found = self._part(code, now_ms), []
        for ms in LOOKBACKS_MS:
            values = part["v"][part["t"] > now_ms - ms]
            found.append((len(values), float(values.mean()), float(values.max())))
        return found

    def series(self, code: int, ends: Ints) -> tuple[Floats, Floats]:
        """Empty rows at `ends` show the rolling answers there."""
        here = self._frame[self._frame["k"] == code].set_index("t")["v"]
        asked = pd.concat([here, pd.Series(np.nan, index=ends)]).sort_index(kind="stable")
        asked.index = pd.to_datetime(asked.index, unit="ms")
        rolling, at = asked.rolling(f"{SERIES_LOOKBACK_MS}ms"), pd.to_datetime(ends, unit="ms")
        return rolling.mean()[at].to_numpy(), rolling.max()[at].to_numpy()

    def sketches(self, code: int, now_ms: int) -> Sketches:
        values = self._part(code, now_ms)["v"]
        low, high = values.quantile([0.5, 0.99])
        return Sketches(float(low), float(high), float(values.nunique()))


def _frame(times: Ints, codes: Ints, values: Floats) -> Any:
    return pd.DataFrame({"t": times, "k": codes.astype(np.uint8), "v": values})
