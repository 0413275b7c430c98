"""Prometheus, written by remote write."""

from __future__ import annotations

import subprocess

from bench.peers.systems.promql import PromQL

CONFIG = "storage: {tsdb: {out_of_order_time_window: 1d}}\n"


class System(PromQL):
    name = "Prometheus"
    kept = "in its log, not synced"
    program = "prometheus"

    def version(self) -> str:
        line = subprocess.run(["prometheus", "--version"], capture_output=True, text=True, check=True)
        return (line.stdout or line.stderr).split()[2]

    def command(self) -> list[str]:
        config = self.directory / "prometheus.yml"
        config.write_text(CONFIG)
        return [
            "prometheus",
            f"--config.file={config}",
            f"--storage.tsdb.path={self.directory / 'data'}",
            f"--web.listen-address=127.0.0.1:{self.port}",
            "--web.enable-remote-write-receiver",
        ]

    def ready(self) -> bool:
        try:
            return bool(self._call("GET", "/-/ready"))
        except RuntimeError:
            return False
