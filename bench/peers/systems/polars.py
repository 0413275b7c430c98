"""Polars in this process: a data frame."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import numpy as np
import polars as pl

from bench.peers.system import System as Base
from bench.peers.work import LOOKBACKS_MS, SERIES_LOOKBACK_MS, SERIES_STEP_MS, Floats, Ints, Sketches, Trailing


class System(Base):
    name = "Polars"
    package = "polars"
    kept = "in memory"

    def start(self) -> None:
        self._frame = _frame(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0))

    def prepared(self, times: Ints, codes: Ints, values: Floats) -> Any:
        return _frame(times, codes, values)

    def bulk(self, prepared: Any) -> None:
        self._frame = self._frame.vstack(prepared)

    def settle(self) -> None:
        self._frame = self._frame.rechunk()

    def trailing(self, code: int, now_ms: int) -> Trailing:
        value, parts = pl.col("v"), []
        for ms in LOOKBACKS_MS:
            here = value.filter(pl.col("t") > now_ms - ms)
            parts += [here.len().alias(f"n{ms}"), here.mean().alias(f"a{ms}"), here.max().alias(f"m{ms}")]
        [found] = self._part(code, now_ms).select(parts).rows()
        return [(found[i], found[i + 1], found[i + 2]) for i in range(0, len(found), 3)]

    def _part(self, code: int, now_ms: int) -> Any:
        here = (pl.col("k") == code) & (pl.col("t") <= now_ms) & (pl.col("t") > now_ms - LOOKBACKS_MS[-1])
        return self._frame.filter(here)

    def series(self, code: int, ends: Ints) -> tuple[Floats, Floats]:
        """`group_by_dynamic` counts time from zero, so that its windows end 1 ms after `ends`."""
        found = (
            self._frame.filter(pl.col("k") == code)
            .sort("t")
            .with_columns(at=pl.from_epoch("t", time_unit="ms"))
            .group_by_dynamic(
                "at",
                every=timedelta(milliseconds=SERIES_STEP_MS),
                period=timedelta(milliseconds=SERIES_LOOKBACK_MS),
                closed="left",
            )
            .agg(pl.col("v").mean().alias("mean"), pl.col("v").max().alias("max"))
            .with_columns(end=pl.col("at").dt.epoch("ms") + SERIES_LOOKBACK_MS - 1)
            .filter(pl.col("end").is_between(int(ends[0]), int(ends[-1])))
        )
        return found["mean"].to_numpy(), found["max"].to_numpy()

    def sketches(self, code: int, now_ms: int) -> Sketches:
        value = pl.col("v")
        low, high = (value.quantile(q, "linear").alias(f"q{q}") for q in (0.5, 0.99))
        return Sketches(
            *self._part(code, now_ms).select(low, high, value.n_unique().cast(pl.Float64).alias("n")).row(0)
        )


def _frame(times: Ints, codes: Ints, values: Floats) -> Any:
    return pl.DataFrame({"t": times, "k": codes.astype(np.uint8), "v": values})
