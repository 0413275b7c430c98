"""Sash with a window that also keeps quantiles and distinct counts."""

from __future__ import annotations

from bench.peers.systems import sash
from bench.peers.systems.sash import SPEC, VALUE, WIDTHS, named
from bench.peers.work import Sketches

SKETCHES = {
    "median": {"function": "quantile", "q": 0.5, **VALUE},
    "p99": {"function": "quantile", "q": 0.99, **VALUE},
    "distinct": {"function": "distinct_count", **VALUE},
}


class System(sash.System):
    name = "Sash, with sketches"
    aggregates = SPEC["aggregates"] | SKETCHES

    def sketches(self, code: int, now_ms: int) -> Sketches:
        answer = self._window.query(key=named(code), lookbacks=WIDTHS[-1:], as_of=now_ms)[0]
        return Sketches(**{name: answer.aggregates[name] for name in SKETCHES})
