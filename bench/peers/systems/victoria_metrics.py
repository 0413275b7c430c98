"""VictoriaMetrics, written by remote write."""

from __future__ import annotations

import subprocess
import time

from bench.peers.systems.promql import PromQL

FLUSH_S = 10


class System(PromQL):
    name = "VictoriaMetrics"
    kept = "in memory, written after some seconds"
    program = "victoria-metrics"
    sketched = PromQL.sketched | {"distinct": "distinct_over_time({})"}
    extra = {"nocache": "1"}  # noqa: RUF012

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
