"""What a seed stands for: callers, their steps, the service's limits, and faults, each at a moment that is a count."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tests.simulation.disk import COMMIT_FAULTS
from tests.simulation.peers import PEER_FAULTS
from tests.simulation.redis import REDIS_FAULTS

__all__ = ["ClusterPart", "Fault", "Scenario", "cluster_of_seed", "of_seed", "smaller"]

_KINDS = {
    "commit": COMMIT_FAULTS,
    "read": ("failed",),
    "call": ("request lost", "answer lost", "delayed", "answer delayed"),
    "callback": ("kill", "kill", "power", "power", "stopped", "clock"),
}
_REACH = {"commit": 250, "read": 400, "call": 200, "callback": 4000}
"""About how many there are in a run, of what faults are counted by."""


@dataclass(frozen=True, order=True)
class Fault:
    """At the `at`th commit, read, call or callback of a process."""

    place: str
    at: int
    kind: str


@dataclass(frozen=True)
class ClusterPart:
    """What a scenario says of a cluster.

    Args:
        together: whether all processes are on one machine.
        replicas: of Redis, for which commits wait; with one, Redis may lose its machine.
    """

    processes: int
    shards: int
    lease_s: float
    together: bool
    replicas: int


@dataclass(frozen=True)
class Scenario:
    """One run.

    Args:
        callers: the numbers of those that call.
        steps: of each.
        shuffled: whether the order of ready callbacks is drawn.
        options: of the storage.
        slow: whether work takes time, so that long work is done in slices.
        group_bytes, chunk_bytes, long_bytes, pending_bytes: the limits in the code that bound a commit, what is handed
            over in one go, what is applied at once, and what may wait.
    """

    seed: int
    callers: tuple[int, ...]
    steps: int
    faults: tuple[Fault, ...]
    shuffled: bool
    options: Mapping[str, Any]
    slow: bool = False
    group_bytes: int = 8 * 2**20
    chunk_bytes: int = 4 * 2**20
    long_bytes: int = 257 * 1024
    pending_bytes: int = 16 * 2**20
    cluster: ClusterPart | None = None


def of_seed(seed: int) -> Scenario:
    """Return the scenario of a seed."""
    draw = random.Random(f"{seed} scenario")
    faults = set()
    weights = {place: draw.choice([0, 1, 1, 3]) for place in _KINDS}
    places = [place for place, weight in weights.items() for _ in range(weight)] or ["callback"]
    for _ in range(draw.choice([0, 1, 2, 4, 6, 10])):
        place = draw.choice(places)
        at = int(math.exp(draw.uniform(0, math.log(_REACH[place]))))
        kind = draw.choice(_KINDS[place])
        some = draw.choice([1, 1, 1, 3, 12]) if place == "commit" and kind in ("refused", "full", "sync failed") else 1
        faults |= {Fault(place, at + more, kind) for more in range(some)}
    options = {
        "cache_bytes": draw.choice([0, 400, 1000, 10**6]),
        "checkpoint_bytes": draw.choice([400, 1000, 2000, 10**6]),
        "store_entries": draw.choice([4, 8, 32]),
        "interval_s": draw.choice([0.01, 0.1, 5.0]),
        "block": draw.choice([2, 4, 4, 16]),
    }
    callers = tuple(range(draw.choice([1, 2, 3, 3])))
    steps, shuffled = draw.choice([6, 12, 24, 48]), draw.random() < 0.6
    return Scenario(
        seed,
        callers,
        steps,
        tuple(sorted(faults)),
        shuffled,
        options,
        draw.random() < 0.6,
        draw.choice([300, 1500, 8 * 2**20]),
        draw.choice([100, 600, 4 * 2**20]),
        draw.choice([150, 600, 257 * 1024]),
        draw.choice([1000, 5000, 16 * 2**20]),
    )


_CLUSTER_KINDS = {
    "redis": REDIS_FAULTS,
    "peer": PEER_FAULTS,
    "call": _KINDS["call"],
    "callback": ("kill", "kill", "kill", "stopped", "stopped", "clock", "ends"),
}
_CLUSTER_REACH = {"redis": 800, "peer": 1000, "call": 150, "callback": 8000}


def cluster_of_seed(seed: int) -> Scenario:
    """Return the scenario of a seed, of a cluster."""
    draw = random.Random(f"{seed} cluster")
    replicas = draw.choice([0, 0, 1])
    weights = {place: draw.choice([0, 1, 1, 3]) for place in _CLUSTER_KINDS}
    places = [place for place, weight in weights.items() for _ in range(weight)] or ["callback"]
    faults = set()
    for _ in range(draw.choice([0, 2, 4, 8, 12, 20])):
        place = draw.choice(places)
        # Early, where processes start and take shards, or anywhere.
        early = math.exp(draw.uniform(math.log(20), math.log(_CLUSTER_REACH[place])))
        at = int(draw.choice([early, draw.uniform(20, _CLUSTER_REACH[place])]))
        kinds = [kind for kind in _CLUSTER_KINDS[place] if replicas or kind not in ("fails over", "no replica")]
        faults.add(Fault(place, at, draw.choice(kinds)))
    base = of_seed(seed)
    return replace(
        base,
        callers=tuple(range(draw.choice([1, 2, 3]))),
        steps=draw.choice([6, 10, 16, 30]),
        faults=tuple(sorted(faults)),
        cluster=ClusterPart(
            draw.choice([2, 2, 3]), draw.choice([2, 3, 3]), draw.choice([2.0, 5.0, 10.0]), draw.random() < 0.3, replicas
        ),
    )


def smaller(scenario: Scenario) -> Iterator[Scenario]:
    """Scenarios that are a step smaller, the smallest first."""
    for steps in (scenario.steps // 2, scenario.steps * 3 // 4, scenario.steps - 1):
        if 0 < steps < scenario.steps:
            yield replace(scenario, steps=steps)
    for caller in scenario.callers:
        if len(scenario.callers) > 1:
            yield replace(scenario, callers=tuple(each for each in scenario.callers if each != caller))
    for fault in scenario.faults:
        yield replace(scenario, faults=tuple(each for each in scenario.faults if each != fault))
    if scenario.shuffled:
        yield replace(scenario, shuffled=False)
