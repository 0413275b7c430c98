"""A real Prometheus, where one is installed, with samples of the test's choice."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.ports import free_port
from tests.support.servers import PLAIN
from tests.support.waiting import wait_until

Sample = tuple[Mapping[str, str], float, float]
"""Labels, seconds and a value."""

PROMETHEUS, PROMTOOL = shutil.which("prometheus"), shutil.which("promtool")


@contextlib.contextmanager
def running_prometheus(folder: Path, config: str = "") -> Iterator[httpx.Client]:
    """Run a Prometheus on a free port, and give an HTTP client of its API; skip where none is installed."""
    if PROMETHEUS is None:
        pytest.skip("prometheus is not installed")
    (folder / "prometheus.yml").write_text(config or "{}")
    port = free_port()
    command = [
        PROMETHEUS,
        f"--config.file={folder}/prometheus.yml",
        f"--storage.tsdb.path={folder}/data",
        "--storage.tsdb.retention.time=100y",
        f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=error",
    ]
    with process(*command) as running, http_of(port, running) as http:
        yield http


@contextlib.contextmanager
def process(*command: object, **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program until the end of the block."""
    running = subprocess.Popen(list(map(str, command)), **options)
    try:
        yield running
    finally:
        running.terminate()
        running.wait()


@contextlib.contextmanager
def http_of(port: int, process: subprocess.Popen[bytes]) -> Iterator[httpx.Client]:
    """An HTTP client of a program, as soon as that is ready."""
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", **PLAIN) as http:

        def ready() -> bool:
            assert process.poll() is None
            with contextlib.suppress(httpx.TransportError):
                return http.get("/-/ready").status_code == 200
            return False

        wait_until(ready)
        yield http


@contextlib.contextmanager
def prometheus_of(folder: Path, metrics: Mapping[str, Iterable[Sample]]) -> Iterator[httpx.Client]:
    """Run a Prometheus that has these samples of these metrics."""
    if PROMETHEUS is None or PROMTOOL is None:
        pytest.skip("prometheus is not installed")
    lines = list[str]()
    for name, samples in metrics.items():
        lines.append(f"# TYPE {name} unknown")
        for labels, at, value in samples:
            said = ",".join(f'{label}="{text}"' for label, text in labels.items())
            lines.append(f"{name}{{{said}}} {value!r} {at:.3f}")
    (folder / "samples.txt").write_text("\n".join([*lines, "# EOF", ""]))
    command = [PROMTOOL, "tsdb", "create-blocks-from", "openmetrics", f"{folder}/samples.txt", f"{folder}/data"]
    subprocess.run(command, check=True, capture_output=True)
    with running_prometheus(folder) as http:
        yield http
