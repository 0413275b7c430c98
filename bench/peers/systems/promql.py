"""What VictoriaMetrics and Prometheus have in common: remote write, and questions in PromQL over HTTP."""

from __future__ import annotations

import http.client
import json
import signal
import struct
import urllib.parse
from typing import Any

import cramjam
import numpy as np

from bench.peers.system import Server
from bench.peers.work import KEYS, LOOKBACKS_MS, SERIES_LOOKBACK_MS, SERIES_STEP_MS, Floats, Ints, Sketches, Trailing
from bench.peers.work import key_of as named


class PromQL(Server):
    """A server at `port` that takes remote write at `write_path`."""

    write_path = "/api/v1/write"
    sketched = {"median": "quantile_over_time(0.5, {})", "p99": "quantile_over_time(0.99, {})"}  # noqa: RUF012
    extra: dict[str, str] = {}  # noqa: RUF012

    def _call(self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None) -> bytes:
        if not hasattr(self, "_connections"):
            self._connections: dict[bool, http.client.HTTPConnection] = {}
        connection = self._connections.get(body is None)  # writes have one of their own: a thread may use it
        if connection is None:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
            self._connections[body is None] = connection
        try:
            connection.request(method, path, body, headers or {})
            answer = connection.getresponse()
            text = answer.read()
        except (OSError, http.client.HTTPException):
            connection.close()
            self._connections.pop(body is None)
            raise
        if answer.status >= 300:
            raise RuntimeError(f"{answer.status} {text[:200]!r}")
        return text

    def _end(self, how: signal.Signals) -> None:
        for connection in self.__dict__.pop("_connections", {}).values():
            connection.close()
        super()._end(how)

    def prepared(self, times: Ints, codes: Ints, values: Floats) -> Any:
        parts = []
        for code in range(KEYS):
            here = codes == code
            if here.any():
                labels = _message(1, _pair("__name__", "v")) + _message(1, _pair("k", named(code)))
                parts.append(_message(1, labels + _samples(times[here], values[here])))
        return bytes(cramjam.snappy.compress_raw(b"".join(parts)))

    def bulk(self, prepared: Any) -> None:
        kind = {"Content-Encoding": "snappy", "Content-Type": "application/x-protobuf"}
        self._call("POST", self.write_path, prepared, {**kind, "X-Prometheus-Remote-Write-Version": "0.1.0"})

    def _ask(self, path: str, **arguments: str) -> list[Any]:
        query = urllib.parse.urlencode({**arguments, **self.extra})
        document = json.loads(self._call("GET", f"/api/v1/{path}?{query}"))
        found: list[Any] = document["data"]["result"]
        return found

    def _instant(self, expressions: dict[str, str], now_ms: int) -> dict[str, float]:
        """Several expressions in one call, by name."""
        union = " or ".join(f'label_replace({asked}, "a", "{name}", "", "")' for name, asked in expressions.items())
        found = self._ask("query", query=union, time=f"{now_ms / 1000:.3f}")
        return {answer["metric"]["a"]: float(answer["value"][1]) for answer in found}

    def sketches(self, code: int, now_ms: int) -> Sketches:
        of = f'v{{k="{named(code)}"}}[{LOOKBACKS_MS[-1] // 1000}s]'
        asked = {name: expression.format(of) for name, expression in self.sketched.items()}
        return Sketches(**{"distinct": None, **self._instant(asked, now_ms)})

    def trailing(self, code: int, now_ms: int) -> Trailing:
        asked = {}
        for lookback in LOOKBACKS_MS:
            for function in ("count", "avg", "max"):
                asked[f"{function}{lookback}"] = f'{function}_over_time(v{{k="{named(code)}"}}[{lookback // 1000}s])'
        found = self._instant(asked, now_ms)
        return [(int(found[f"count{ms}"]), found[f"avg{ms}"], found[f"max{ms}"]) for ms in LOOKBACKS_MS]

    def series(self, code: int, ends: Ints) -> tuple[Floats, Floats]:
        asked = {"start": f"{ends[0] / 1000:.3f}", "end": f"{ends[-1] / 1000:.3f}", "step": f"{SERIES_STEP_MS / 1000}"}
        of = f'v{{k="{named(code)}"}}[{SERIES_LOOKBACK_MS // 1000}s]'
        lines = [
            self._ask("query_range", query=f"{function}_over_time({of})", **asked)[0]["values"]
            for function in ("avg", "max")
        ]
        means, tops = (np.array([float(value) for _, value in line]) for line in lines)
        return means, tops


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def _message(field: int, body: bytes) -> bytes:
    return bytes([field << 3 | 2]) + _varint(len(body)) + body


def _pair(name: str, value: str) -> bytes:
    return _message(1, name.encode()) + _message(2, value.encode())


def _samples(times: Ints, values: Floats) -> bytes:
    """The samples of a series. Milliseconds of this century are varints of six bytes, so all have the same length."""
    assert times.min() >= 1 << 35, "a varint of fewer bytes"
    assert times.max() < 1 << 42, "a varint of more bytes"
    rows = np.empty((len(times), 18), np.uint8)
    rows[:, :3] = np.frombuffer(struct.pack("BBB", 0x12, 16, 0x09), np.uint8)
    rows[:, 3:11] = values.astype("<f8").view(np.uint8).reshape(-1, 8)
    rows[:, 11] = 0x10
    for i in range(6):
        rows[:, 12 + i] = times >> 7 * i & 127 | (128 if i < 5 else 0)
    return rows.tobytes()
