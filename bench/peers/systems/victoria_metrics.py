"""VictoriaMetrics, written by remote write."""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path

from bench.peers.system import NotInstalled, free_port
from bench.peers.systems.promql import PromQL
from bench.peers.work import LOOKBACKS_MS, Sketches
from bench.peers.work import key_of as named

FLUSH_S = 10


class System(PromQL):
    name = "VictoriaMetrics"
    kept = "in memory, written after some seconds"
    write_path = "/api/v1/write"
    extra = {"nocache": "1"}  # noqa: RUF012

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        if shutil.which("victoria-metrics") is None:
            raise NotInstalled("the Debian package victoria-metrics is not installed")
        self.port = free_port()

    def version(self) -> str:
        line = subprocess.run(
            ["dpkg-query", "-W", "-f", "${Version}", "victoria-metrics"], capture_output=True, text=True
        )
        return line.stdout.partition("+")[0] or "?"

    def command(self) -> list[str]:
        return [
            "victoria-metrics",
            f"-storageDataPath={self.directory / 'data'}",
            f"-httpListenAddr=127.0.0.1:{self.port}",
            "-search.latencyOffset=0s",
            "-search.maxPointsPerTimeseries=100000",
        ]

    def ready(self) -> bool:
        return self._call("GET", "/health") == b"OK"

    def settle(self) -> None:
        self._call("GET", "/internal/force_flush")

    def persist(self) -> None:
        time.sleep(FLUSH_S)

    def sketches(self, code: int, now_ms: int) -> Sketches:
        of = f'v{{k="{named(code)}"}}[{LOOKBACKS_MS[-1] // 1000}s]'
        asked = {
            "median": f"quantile_over_time(0.5, {of})",
            "p99": f"quantile_over_time(0.99, {of})",
            "distinct": f"distinct_over_time({of})",
        }
        return Sketches(**self._instant(asked, now_ms))
