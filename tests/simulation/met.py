"""Which faults must meet which states in 10,000 runs: where one never does, nothing tests it.

runs ──▶ Counter of "fault | state" ──▶ never: pairs of the list that no run has met
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from tests.simulation.disk import COMMIT_FAULTS

__all__ = ["RUNS", "expected", "never"]

RUNS = 10_000
"""So many runs, of both worlds in turns, meet everything that is expected."""

_STORED = ("group", "meta", "pointer", "staged")
_SINGLE = ("idle", "committing", "image")
_CLUSTER = ("idle", "committing", "joining", "without a lease", "starting")


def expected(single: bool = True, cluster: bool = True) -> list[tuple[str, str]]:
    """Faults, and what is in the names of the states that each must meet."""
    found: list[tuple[str, str]] = []
    if single:
        found += [(fault, kind) for fault in COMMIT_FAULTS for kind in _STORED]
        found += [(fault, state) for fault in ("killed", "lost power") for state in _SINGLE]
        found += [("read failed", "block"), ("stopped", "idle"), ("clock jumped", "idle")]
        found += [("fenced", "a write that is lost"), ("request lost", ""), ("answer delayed", "")]
    if cluster:
        found += [("killed", state) for state in _CLUSTER]
        found += [(f"redis: {fault}", "EVAL of fence") for fault in ("late", "answer lost", "request lost", "cut off")]
        found += [(f"redis: {fault}", "EVAL of table") for fault in ("fades", "late", "slow")]
        found += [(f"redis: {fault}", "") for fault in ("restarts", "fails over", "lags", "no replica", "clock")]
        found += [("redis: late", "EVAL of swap"), ("redis: stands still", "MGET"), ("redis: dies", "EVAL of fence")]
        found += [(f"between processes: {fault}", "") for fault in ("cut", "late", "partition")]
        found += [(f"between processes: {fault}: {who}", "") for fault in ("dies", "stands still") for who in _SIDES]
        found += [("stops", ""), ("sleeps", ""), ("stopped", ""), ("stands still", "")]
    return found


_SIDES = ("sender", "receiver")


def never(met: Counter[str], wanted: Iterable[tuple[str, str]]) -> list[str]:
    """The pairs that were not met."""
    pairs = [each.partition(" | ")[::2] for each in met]
    return [
        f"{fault} | {state}"
        for fault, state in wanted
        if not any(fault == said and state in where for said, where in pairs)
    ]
