"""Prometheus, written by remote write."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from bench.peers.system import NotInstalled, free_port
from bench.peers.systems.promql import PromQL
from bench.peers.work import LOOKBACKS_MS, Sketches
from bench.peers.work import key_of as named

CONFIG = "storage: {tsdb: {out_of_order_time_window: 1d}}\n"


class System(PromQL):
    name = "Prometheus"
    kept = "in its log, not synced"
    write_path = "/api/v1/write"

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        if shutil.which("prometheus") is None:
            raise NotInstalled("the Debian package prometheus is not installed")
        self.port = free_port()

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

    def sketches(self, code: int, now_ms: int) -> Sketches:
        of = f'v{{k="{named(code)}"}}[{LOOKBACKS_MS[-1] // 1000}s]'
        asked = {"median": f"quantile_over_time(0.5, {of})", "p99": f"quantile_over_time(0.99, {of})"}
        found = self._instant(asked, now_ms)
        return Sketches(found["median"], found["p99"], None)
