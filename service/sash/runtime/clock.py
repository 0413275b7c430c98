"""The machine's clocks. Only the composition root uses them; everything else takes a `Clock`."""

from __future__ import annotations

import time


class SystemClock:
    """The machine's clocks."""

    def now_ns(self) -> int:
        return time.time_ns()

    def monotonic_s(self) -> float:
        return time.perf_counter()

    def processor_s(self) -> float:
        return time.thread_time()
