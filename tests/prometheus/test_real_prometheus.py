"""A real Prometheus writes to Sash and reads from it, while both are killed and start again."""

from __future__ import annotations

import contextlib
import http.server
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support import waiting
from tests.support.ports import free_port
from tests.support.prometheus import PROMETHEUS, PROMTOOL, running_prometheus
from tests.support.servers import Process, service_process

SPEC = {
    "name": "made",
    "time_unit": "ms",
    "keyed": True,
    "fields": {"v": "float64"},
    "order": {"equal_times": "first"},
    "aggregates": {"n": {"function": "count"}, "newest": {"function": "max", "field": "v"}},
}

CONFIG = """
global: {{scrape_interval: 100ms, scrape_timeout: 100ms}}
scrape_configs:
  - job_name: exporter
    static_configs: [{{targets: ["127.0.0.1:{exporter}"]}}]
  - job_name: sash
    honor_labels: true
    metrics_path: /prometheus/federate
    params: {{"match[]": ['{{__name__=~".+:newest"}}']}}
    static_configs: [{{targets: ["127.0.0.1:{sash}"]}}]
remote_write:
  - url: http://127.0.0.1:{sash}/prometheus/api/v1/write
    queue_config: {{batch_send_deadline: 50ms, min_backoff: 10ms, max_backoff: 100ms, max_shards: 2}}
    write_relabel_configs:
      - {{source_labels: [__name__], regex: made_total, action: keep}}
      - {{target_label: __name__, replacement: "made:v"}}
      - {{source_labels: [shard], target_label: key}}
"""


class Exporter:
    """What Prometheus scrapes: two counters that grow with each look, unless they are paused."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.paused = threading.Event()


@contextlib.contextmanager
def exporter() -> Iterator[Exporter]:
    looks = 0

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            nonlocal looks
            looks += 1
            body = "".join(f'made_total{{shard="{shard}"}} {looks * n}\n' for shard, n in (("a", 1), ("b", 7)))
            self.send_response(503 if running.paused.is_set() else 200)
            self.send_header("content-type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *_: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        running = Exporter(server.server_port)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield running
        finally:
            server.shutdown()
            thread.join()


@contextlib.contextmanager
def sash(folder: Path, port: int) -> Iterator[tuple[httpx.Client, Process]]:
    given = {"SASH_DATA": str(folder / "sash"), "SASH_SHUTDOWN_DELAY_S": "0"}
    with service_process("--rest-port", str(port), **given) as running:
        assert running.process is not None
        yield running.http(), running.process


def wait_until(condition: Callable[[], object]) -> None:
    """Wait for two programs that a busy machine may hold up."""
    waiting.wait_until(condition, within_s=240)


def taken(client: httpx.Client) -> dict[str, dict[int, float]]:
    """The entries of each key."""
    found: dict[str, dict[int, float]] = {}
    for bulk in client.get("/v1/windows/made/entries?all_keys=true").json()["bulks"]:
        for key, at, value in zip(bulk["key"], bulk["time"], bulk["fields"]["v"], strict=True):
            assert at not in found.setdefault(key, {})
            found[key][at] = value
    return found


def more_than(client: httpx.Client, count: int) -> None:
    wait_until(lambda: sum(map(len, taken(client).values())) > count)


def scraped(prometheus: httpx.Client) -> dict[str, dict[int, float]]:
    """The samples that Prometheus has, but the marks of series that have ended."""
    found = prometheus.get("/api/v1/query", params={"query": "made_total[1h]"}).json()["data"]["result"]
    return {each["metric"]["shard"]: {round(at * 1000): float(value) for at, value in each["values"]} for each in found}


def test_nothing_is_lost_or_doubled_while_both_start_again(tmp_path: Path) -> None:
    """And Prometheus scrapes what Sash makes of it. It takes 5 s until it looks for targets."""
    port, newest = free_port(), {"query": 'made:newest{job="sash",key="b"} >= 14'}
    with exporter() as target:
        config = CONFIG.format(exporter=target.port, sash=port)
        with running_prometheus(tmp_path, config) as prometheus:
            wait_until(lambda: scraped(prometheus))
            with sash(tmp_path, port) as (client, process):
                assert client.post("/v1/windows", json=SPEC).status_code == 201
                more_than(client, 10)
                wait_until(lambda: prometheus.get("/api/v1/query", params=newest).json()["data"]["result"])
                process.send_signal(signal.SIGKILL)
                process.wait()
            before = max(scraped(prometheus)["a"])
            wait_until(lambda: max(scraped(prometheus)["a"]) > before)  # Sash is away meanwhile
            with sash(tmp_path, port) as (client, _):
                first = min(taken(client)["a"])
                # A Prometheus that ends does not send what it has not read from its own log yet.
                target.paused.set()
                wait_until(lambda: since(first, scraped(prometheus)) == taken(client))
        target.paused.clear()
        with sash(tmp_path, port) as (client, _), running_prometheus(tmp_path, config) as prometheus:
            more_than(client, sum(map(len, taken(client).values())) + 10)
            target.paused.set()
            wait_until(lambda: since(first, scraped(prometheus)) == taken(client))


def since(first: int, samples: dict[str, dict[int, float]]) -> dict[str, dict[int, float]]:
    """What was scraped after Sash had the window: what it refused before, Prometheus does not send again."""
    return {key: {at: value for at, value in of.items() if at >= first} for key, of in samples.items()}


def test_promtool_asks(tmp_path: Path) -> None:
    if PROMETHEUS is None or PROMTOOL is None:
        pytest.skip("prometheus is not installed")
    port = free_port()
    with sash(tmp_path, port) as (client, _):
        assert client.post("/v1/windows", json=SPEC).status_code == 201
        bulk = {"time": [1_700_000_000_000], "key": ["a"], "fields": {"v": [2.5]}}
        assert client.post("/v1/windows/made/bulk-insert", json=bulk).status_code == 200
        url = f"http://127.0.0.1:{port}/prometheus"

        def said(*arguments: str) -> str:
            return subprocess.run([PROMTOOL, "query", *arguments], check=True, capture_output=True, text=True).stdout

        assert said("instant", "--time=1700000001", url, "made:v") == 'made:v{key="a"} => 2.5 @[1700000001]\n'
        assert "2 @[1700000000]" in said("range", "--start=1700000000", "--end=1700000010", "--step=5s", url, "1+1")
        assert said("labels", url, "key") == "a\n"
        assert "made:newest" in said("series", "--match=made:newest", url)
