"""Sash on its embedded default, by its Python client over Connect."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from bench.peers.system import Cannot, Server
from bench.peers.work import KEYS, LOOKBACKS_MS, SERIES_LOOKBACK_MS, SERIES_STEP_MS, Floats, Ints, Sketches, Trailing
from bench.peers.work import key_of as named
from sash_client import Client
from tests.support.ports import free_port

WIDTHS = [f"{ms}ms" for ms in LOOKBACKS_MS]
VALUE = {"field": "value"}
SPEC = {
    "name": "peers",
    "keyed": True,
    "time_unit": "ms",
    "fields": {"value": "float64"},
    "aggregates": {"mean": {"function": "mean", **VALUE}, "max": {"function": "max", **VALUE}},
}
NAMES = np.array([named(code) for code in range(KEYS)], dtype=object)


class System(Server):
    name = "Sash"
    kept = "committed to LMDB and synced"
    aggregates: dict[str, Any] = SPEC["aggregates"]  # type: ignore[assignment]

    def version(self) -> str:
        shown = subprocess.run(
            [sys.executable, "-m", "sash.main", "--version"], capture_output=True, text=True, check=True
        )
        return shown.stdout.strip().removeprefix("sash ")

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._rest = free_port()
        os.environ.setdefault("SASH_LOG_LEVEL", "warning")

    def command(self) -> list[str]:
        serve = [sys.executable, "-m", "sash.main", "serve", "--data", str(self.directory / "data")]
        return [*serve, "--grpc-port", str(self.port), "--rest-port", str(self._rest)]

    def ready(self) -> bool:
        client = Client(f"http://127.0.0.1:{self._rest}")
        client.wait_until_ready(30)
        self._window = client.create_window({**SPEC, "aggregates": self.aggregates})
        self._client = client
        return True

    def _end(self, how: signal.Signals) -> None:
        self._client.close()
        super()._end(how)

    def prepared(self, times: Ints, codes: Ints, values: Floats) -> Any:
        return times, values, NAMES[codes]

    def bulk(self, prepared: Any) -> None:
        times, values, keys = prepared
        self._window.bulk_insert(times, {"value": values}, keys=keys)

    def single(self, time_ms: int, code: int, value: float) -> None:
        self._window.insert(time_ms, value, key=named(code))

    def trailing(self, code: int, now_ms: int) -> Trailing:
        answers = self._window.query(key=named(code), lookbacks=WIDTHS, as_of=now_ms)
        return [(answer.entries, answer.aggregates["mean"], answer.aggregates["max"]) for answer in answers]

    def series(self, code: int, ends: Ints) -> tuple[Floats, Floats]:
        first = int(ends[0]) - SERIES_LOOKBACK_MS + 1
        last = first + SERIES_STEP_MS * len(ends)
        found = self._window.series(first, last, step=SERIES_STEP_MS, width=SERIES_LOOKBACK_MS, key=named(code))
        return np.asarray(found.aggregates["mean"]), np.asarray(found.aggregates["max"])

    def sketches(self, code: int, now_ms: int) -> Sketches:
        raise Cannot("not among the aggregates of this window; the next column has them")
