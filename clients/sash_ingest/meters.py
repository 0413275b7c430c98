"""What `sash data ingest` says of itself: metrics for Prometheus, and one line of status."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from threading import Lock
from typing import TypeVar
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server

from sash_client import WriteResult

M = TypeVar("M", Counter, Gauge)

_OUTCOMES = ("inserted", "late", "duplicates", "ahead")


class Meters:
    """Counts what a pipeline does; threads may share it.

    Args:
        pipeline: its name, the label of all metrics.
    """

    def __init__(self, pipeline: str) -> None:
        self.registry = CollectorRegistry()

        def made(kind: Callable[..., M], name: str, text: str, *labels: str) -> M:
            return kind(f"sash_ingest_{name}", text, ["pipeline", *labels], registry=self.registry)

        self._records = made(Counter, "records", "Records read.").labels(pipeline)
        self._rejected = made(Counter, "rejected", "Records put aside, by the window that they do not fit.", "window")
        self._entries = made(Counter, "entries", "Entries written, by what became of them.", "window", "outcome")
        self._lag = made(Gauge, "lag_records", "Records not yet written.", "stream")
        self._waiting = made(Gauge, "waiting", "Whether the service is waited for.").labels(pipeline)
        self._pipeline, self._lock = pipeline, Lock()
        self._began_s = self._line_s = time.monotonic()
        self.records = self.rejected = self.inserted = self._shown = 0
        self._lags: Mapping[str, int] = {}
        self._trouble: dict[str, str] = {}
        self._server: WSGIServer | None = None

    def serve(self, port: int, host: str) -> int:
        """Serve the metrics until `close`; return the port."""
        self._server, _ = start_http_server(port, host, registry=self.registry)
        return int(self._server.server_port)

    def close(self) -> None:
        """End serving."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()

    def read(self, records: int) -> None:
        """Count records that were read."""
        self.records += records
        self._records.inc(records)

    def reject(self, window: str | None, records: int) -> None:
        """Count records that were put aside."""
        with self._lock:
            self.rejected += records
        self._rejected.labels(self._pipeline, window or "").inc(records)

    def write(self, window: str, result: WriteResult) -> None:
        """Count what became of a write."""
        with self._lock:
            self.inserted += result.inserted
        for outcome in _OUTCOMES:
            self._entries.labels(self._pipeline, window, outcome).inc(getattr(result, outcome))

    def lag(self, lags: Mapping[str, int]) -> None:
        """Take note of how many records are behind, by stream."""
        for stream in self._lags.keys() - lags.keys():
            self._lag.remove(self._pipeline, stream)
        for stream, records in lags.items():
            self._lag.labels(self._pipeline, stream).set(records)
        self._lags = dict(lags)

    def trouble(self, what: str, why: str | None) -> bool:
        """Take note of what is waited for, and why; None: no more. Return whether that is news."""
        with self._lock:
            before = self._trouble.get(what)
            if why is None:
                self._trouble.pop(what, None)
            else:
                self._trouble[what] = why
            self._waiting.set(bool(self._trouble))
        return (before is None) is not (why is None)

    def line(self) -> str:
        """Return the line of status; its rate is of the time since the last one."""
        now_s = time.monotonic()
        rate = (self.records - self._shown) / max(now_s - self._line_s, 1e-3)
        self._line_s, self._shown = now_s, self.records
        parts = [
            f"{self.records:,} records ({rate:,.0f}/s)",
            f"{self.inserted:,} inserted",
            f"{self.rejected:,} rejected",
        ]
        if self._lags:
            parts.append(f"lag {sum(self._lags.values()):,} in {len(self._lags)} streams")
        parts += [f"waiting for {what}: {why}" for what, why in sorted(self._trouble.items())]
        return ", ".join(parts)
