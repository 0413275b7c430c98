"""The processor time that processes of a deployment use, as Linux counts it."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any


class Used:
    """The processor time that processes of Sash, and Redis, have used: with all of their threads.

    Args:
        servers, redis: their ids.
    """

    def __init__(self, servers: list[int], redis: int) -> None:
        self._servers, self._redis = servers, redis
        self.at_rest = (0.0, 0.0)
        """Of Sash and of Redis, in seconds a second, while there are no calls: heartbeats, leases."""
        self.begin()

    def begin(self) -> None:
        """Measure from now on."""
        self._began_s, self._before_s = time.perf_counter(), self._now_s()

    def rest(self) -> None:
        """Take what was used since `begin` for what is used at rest."""
        self.at_rest = (0.0, 0.0)
        sash_s, redis_s = self.end()
        elapsed_s = time.perf_counter() - self._began_s
        self.at_rest = sash_s / elapsed_s, redis_s / elapsed_s

    def end(self) -> tuple[float, float]:
        """What Sash and Redis have used since `begin`, in seconds, without what they use at rest."""
        elapsed_s = time.perf_counter() - self._began_s
        now = zip(self._now_s(), self._before_s, self.at_rest, strict=True)
        sash_s, redis_s = [now_s - before_s - rest * elapsed_s for now_s, before_s, rest in now]
        return sash_s, redis_s

    def _now_s(self) -> tuple[float, float]:
        return sum(map(_cpu_s, self._servers)), _cpu_s(self._redis)


def redis_pid(port: int) -> int:
    """The process of the Redis server at a port of this machine."""
    import redis

    with redis.Redis(port=port) as client:
        found: Any = client.info("server")
        return int(found["process_id"])


def _cpu_s(pid: int) -> float:
    """The processor time that a process has used, with all of its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
