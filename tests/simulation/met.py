"""Which faults must meet which states in 10,000 runs: where one never does, nothing tests it.

runs ──▶ Counter of "fault | state" ──▶ never: pairs of the list that no run has met
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from tests.simulation.disk import COMMIT_FAULTS

RUNS = 10_000
"""So many runs, of both worlds in turns, meet everything that is expected."""

_STORED = ("group", "meta", "pointer", "staged")
_SINGLE = ("idle", "committing", "image", "retrying", "deleting")
_CLUSTER = ("idle", "committing", "joining", "taking", "giving", "without a lease", "starting")
_COMMANDS = ("EVAL of fence", "EVAL of table", "EVAL of swap", "MGET")
_SIDES = ("sender", "receiver")


def expected(single: bool = True, cluster: bool = True) -> list[tuple[str, str]]:
    """Faults, and what is in the names of the states that each must meet."""
    found: list[tuple[str, str]] = []
    found += [("delivered twice", method) for method in ("BulkInsert", "Admit", "Retract", "BulkEvict", "CommitBatch")]
    found += [("known", what) for what in ("logged", "again of the same", "again of another")]
    if single:
        found += [(fault, kind) for fault in COMMIT_FAULTS for kind in _STORED]
        found += [(fault, state) for fault in ("killed", "lost power") for state in _SINGLE]
        found += [(fault, "image") for fault in ("refused", "dies before", "dies unsynced", "dies after")]
        found += [("read failed", kind) for kind in ("block", "image", "staged", "group", "pointer")]
        found += [("lost power", "held"), ("stopped", "idle"), ("clock jumped", "idle")]
        found += [("fenced", "a write that is lost"), ("request lost", ""), ("answer delayed", "")]
        found += [("stops", state) for state in ("idle", "committing")]
        found += [("misdirected", f"{kind} over") for kind in ("group", "journal", "meta", "pointer", "staged")]
        found += [("lost with memory?", "answered"), ("begins again", "answered is lost")]
        found += [("damaged", what) for what in ("a key is not answered", "a process starts", "no process starts")]
    if cluster:
        found += [("killed", state) for state in _CLUSTER]
        found += [(f"redis: {f}", what) for f in ("late", "answer lost", "dies", "stands still") for what in _COMMANDS]
        found += [(f"redis: {f}", "EVAL of fence") for f in ("request lost", "cut off", "fails over", "lags")]
        found += [(f"redis: {f}", "EVAL of table") for f in ("fades", "slow")]
        found += [(f"redis: {f}", "") for f in ("restarts", "no replica", "clock", "a slot moves")]
        found += [(f"redis: {f}Error", key) for f in ("Moved", "Ask", "TryAgain") for key in ("fence", "table")]
        found += [(f"between processes: {fault}", "") for fault in ("cut", "late", "partition")]
        found += [(f"between processes: {fault}: {who}", "") for fault in ("dies", "stands still") for who in _SIDES]
        found += [("stops", state) for state in ("committing", "joining", "without a lease")]
        found += [(how, state) for how in ("sleeps", "stands still") for state in ("committing", "joining")]
        found += [("lost with memory?", "answered")]
        found += [("stopped", ""), ("writes are lost", ""), ("redis: answer late", "EVAL of swap")]
    return found


def never(met: Counter[str], wanted: Iterable[tuple[str, str]]) -> list[str]:
    """The pairs that were not met."""
    pairs = [each.partition(" | ")[::2] for each in met]
    return [
        f"{fault} | {state}"
        for fault, state in wanted
        if not any(fault == said and state in where for said, where in pairs)
    ]
