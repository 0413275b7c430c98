"""What a seed stands for: callers, their steps, the service's limits, and faults, each at a moment that is a count."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tests.simulation.disk import COMMIT_FAULTS

__all__ = ["Fault", "Scenario", "of_seed", "smaller"]

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
class Scenario:
    """One run.

    Args:
        callers: the numbers of those that call.
        steps: of each.
        shuffled: whether the order of ready callbacks is drawn.
        options: of the storage.
    """

    seed: int
    callers: tuple[int, ...]
    steps: int
    faults: tuple[Fault, ...]
    shuffled: bool
    options: Mapping[str, Any]


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
    return Scenario(seed, callers, draw.choice([8, 15, 30, 60]), tuple(sorted(faults)), draw.random() < 0.6, options)


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
