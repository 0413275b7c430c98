"""What a seed stands for: callers, their steps, the service's limits, and faults, each at a moment that is a count."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tests.simulation.disk import COMMIT_FAULTS, COMMITS_OF
from tests.simulation.peers import MESSAGE_FAULTS, PEER_FAULTS
from tests.simulation.redis import REDIS_FAULTS

__all__ = ["ClusterPart", "Fault", "Scenario", "cluster_of_seed", "of_seed", "smaller"]

_DEATHS = ("refused", "answer lost", "dies before", "dies before", "dies unsynced", "dies after")
_KINDS = {
    "commit": COMMIT_FAULTS,
    "read": ("failed",),
    "call": ("request lost", "answer lost", "delayed", "answer delayed"),
    "callback": ("kill", "kill", "power", "power", "stopped", "clock", "ends"),
    "background": _DEATHS,
}
_REACH = {"commit": 150, "read": 200, "call": 120, "callback": 2000, "background": 12}
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
        moves: how often a caller moves a shard.
        everysec: Redis answers before it syncs, and may lose two seconds of writes.
        sleeps: machines are suspended, and their monotonic clocks with them. So a process may answer from memory after
            another one has its shards: what is read, and what is said not to be there, counts for nothing.
        nodes: of the Redis Cluster; one is none.
    """

    processes: int
    shards: int
    lease_s: float
    together: bool
    replicas: int
    moves: float = 0.04
    sleeps: bool = False
    everysec: bool = False
    nodes: int = 1


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
        theme: what the faults are about, for people.
        life: how often a caller turns to the window that comes and goes.
        batches: how often it stages and commits a batch.
        others: how often it adds an aggregate, or copies a window.
        rolled: whether there is a window with rollups.
        gathered: whether there is a window that answers before a write is durable; of one service.
        known: whether there is a window that keeps what was known when.
        limited: whether callers write what goes in only if a limit holds with it.
        misdirects: whether a disk writes a value in the place of another one when it loses its power.
        repeated: how often the network delivers a numbered write, or the commit of a batch, twice.
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
    theme: str = "anything"
    life: float = 0.25
    batches: float = 0.08
    others: float = 0.03
    rolled: bool = False
    gathered: bool = False
    known: bool = False
    limited: bool = False
    misdirects: bool = False
    repeated: float = 0.0
    cluster: ClusterPart | None = None


@dataclass(frozen=True)
class _Theme:
    """What a scenario is about, so that faults that need each other meet.

    Args:
        kinds: what happens, by place; None: anything anywhere.
        options: of the scenario, or of its cluster. Of a tuple, one is drawn.
    """

    kinds: Mapping[str, tuple[str, ...]] | None
    options: Mapping[str, Any] = field(default_factory=dict)

    def drawn(self, draw: random.Random) -> dict[str, Any]:
        """The options."""
        return {name: draw.choice(said) if isinstance(said, tuple) else said for name, said in self.options.items()}


_SINGLE_THEMES: Mapping[str, _Theme] = {
    "anything": _Theme(None),
    "writes that wait": _Theme(
        {"commit": ("refused", "full", "sync failed"), "call": ("answer lost", "answer delayed")},
        {"group_bytes": (300, 1500), "callers": (1, 2, 3)},
    ),
    "windows that come and go": _Theme(
        {"meta": _DEATHS, "deletes": _DEATHS, "pointer": _DEATHS, "callback": ("kill", "power")},
        {"life": 0.6, "callers": (1, 3, 4), "group_bytes": (300, 1500)},
    ),
    "a crowd": _Theme(
        {
            "pointer": ("dies before", "dies after", "dies unsynced", "answer lost"),
            "meta": ("dies before", "dies after"),
            "commit": ("refused", "dies after", "dies after", "dies unsynced"),
            "callback": ("kill", "power", "ends", "ends"),
        },
        {
            "callers": (4, 5),
            "steps": (6, 10),
            "group_bytes": (150, 300),
            "checkpoint_bytes": (400, 1000),
            "store_entries": (4, 8),
            "batches": 0.0,
        },
    ),
    "batches": _Theme({"staged": _DEATHS, "pointer": _DEATHS, "call": ("answer lost",)}, {"batches": 0.4}),
    "reads that fail": _Theme(
        {"read": ("failed",), "commit": ("refused", "refused", "dies before", "dies after")},
        {"cache_bytes": (0, 400), "callers": (2, 3, 4), "store_entries": (4, 8), "block": (2, 4)},
    ),
}
_LONGEST = 12
_MISDIRECTS = 0.1
_SLOTS_MOVE = 0.15


def of_seed(seed: int) -> Scenario:
    """Return the scenario of a seed."""
    draw = random.Random(f"{seed} scenario")
    name = draw.choice(["anything", "anything", *_SINGLE_THEMES])
    theme = _SINGLE_THEMES[name]
    kinds = _KINDS if theme.kinds is None else theme.kinds
    faults = set()
    weights = {place: draw.choice([0, 1, 1, 3] if theme.kinds is None else [1, 1, 3]) for place in kinds}
    places = [place for place, weight in weights.items() for _ in range(weight)] or [*kinds][:1]
    for _ in range(draw.choice([0, 1, 2, 4, 6, 10] if theme.kinds is None else [2, 4, 8])):
        place = draw.choice(places)
        at = int(math.exp(draw.uniform(0, math.log(_REACH.get(place, _REACH["background"])))))
        kind = draw.choice(kinds[place])
        if place == "background":
            place = draw.choice(sorted(COMMITS_OF))
        lasts = place == "commit" and kind in ("refused", "full", "sync failed")
        some = draw.choice([1, 1, 1, 3, _LONGEST] if theme.kinds is None else [1, 3, 6, _LONGEST]) if lasts else 1
        faults |= {Fault(place, at + more, kind) for more in range(some)}
        if some > 1 and draw.random() < 0.5:  # what waits for it, and is told more than that, shows
            after = draw.choice([0, 0, 1, 2])
            faults.add(Fault(place, at + some + after, draw.choice(["dies before", "dies unsynced"])))
    options = {
        "cache_bytes": draw.choice([0, 400, 1000, 10**6]),
        "checkpoint_bytes": draw.choice([400, 1000, 2000, 10**6]),
        "store_entries": draw.choice([4, 8, 32]),
        "interval_s": draw.choice([0.01, 0.1, 5.0]),
        "block": draw.choice([2, 4, 4, 16]),
    }
    callers = draw.choice([1, 2, 3, 3])
    steps, shuffled = draw.choice([6, 12, 24, 48]), draw.random() < 0.6
    drawn = theme.drawn(draw)
    options |= {option: drawn.pop(option) for option in [*drawn] if option in options}
    drawn.setdefault("rolled", draw.random() < 0.25)
    scenario = Scenario(
        seed,
        tuple(range(drawn.pop("callers", callers))),
        steps,
        tuple(sorted(faults)),
        shuffled,
        options,
        draw.random() < 0.6,
        draw.choice([300, 1500, 8 * 2**20]),
        draw.choice([100, 600, 4 * 2**20]),
        draw.choice([150, 600, 257 * 1024]),
        draw.choice([1000, 5000, 16 * 2**20]),
        theme=name,
        gathered=random.Random(f"{seed} gathered").random() < 0.2,
        known=random.Random(f"{seed} known").random() < 0.2,
        limited=random.Random(f"{seed} limited").random() < 0.4,
        repeated=random.Random(f"{seed} repeated").choice([0.0, 0.0, 0.0, 0.3]),
    )
    scenario = replace(scenario, **drawn)
    draw = random.Random(f"{seed} misdirects")
    if draw.random() >= _MISDIRECTS:
        return scenario
    places = draw.sample(sorted({"commit", *COMMITS_OF}), 3)
    some = (Fault(place, draw.randint(2, _REACH.get(place, _REACH["background"])), "dies unsynced") for place in places)
    return replace(scenario, misdirects=True, faults=tuple(sorted({*scenario.faults, *some})))


_STRIKES = ("dies", "stands still", "sleeps")
_LIFE_FAULTS = ("dies soon", "dies soon", "stands still soon", "stands still soon", "answer lost", "request lost")
_CLUSTER_KINDS = {
    "redis": tuple(fault for fault in REDIS_FAULTS if fault not in _STRIKES),
    "fence": (*REDIS_FAULTS, "late", "late", "answer lost", "cut off"),
    "table": ("late", "slow", "fades", "fades", "cut off", "dies", "stands still", "answer lost", "answer late"),
    "swap": ("late", "late", "answer lost", "answer late", "stands still", "dies"),
    "read": ("stands still", "stands still", "dies", "late", "cut off"),
    "peer": PEER_FAULTS,
    "write": MESSAGE_FAULTS,
    "admin": MESSAGE_FAULTS,
    "call": _KINDS["call"],
    "life": _LIFE_FAULTS,
    "callback": ("kill", "kill", "kill", "stopped", "stopped", "clock", "ends"),
}
_CLUSTER_REACH = {
    "redis": 800,
    "fence": 150,
    "table": 250,
    "swap": 15,
    "read": 120,
    "peer": 400,
    "write": 25,
    "admin": 80,
    "call": 100,
    "life": 12,
    "callback": 5000,
}


_THEMES: Mapping[str, _Theme] = {
    "anything": _Theme(None),
    "zombies": _Theme(
        {
            "callback": ("stopped",),
            "fence": ("stands still", "slow", "late", "cut off"),
            "read": ("stands still",),
            "table": ("slow", "stands still", "cut off"),
            "swap": ("late", "late", "stands still"),
            "write": ("stands still: receiver", "stands still soon: receiver", "late"),
        },
        {"lease_s": (2.0, 5.0), "together": False},
    ),
    "answers that come late": _Theme(
        {"table": ("fades",), "fence": ("cut off", "late"), "callback": ("kill",)},
        {"lease_s": (5.0, 5.0, 10.0), "together": False},
    ),
    "late commits": _Theme({"fence": ("late", "late", "answer lost", "request lost"), "redis": ("slow", "restarts")}),
    "replicas": _Theme(
        {"fence": ("lags", "fails over", "no replica", "answer lost"), "redis": ("lags", "fails over")},
        {"replicas": 1},
    ),
    "clocks": _Theme({"redis": ("clock",), "fence": ("clock", "dies"), "callback": ("kill", "clock", "stopped")}),
    "writes between processes": _Theme(
        {"write": ("cut", "cut", "cut", *MESSAGE_FAULTS), "callback": ("kill", "stopped")},
        {"together": False, "life": 0.1, "steps": (16, 30)},
    ),
    "batches": _Theme(
        {"write": MESSAGE_FAULTS, "call": ("answer lost",), "callback": ("kill", "stopped")}, {"batches": 0.4}
    ),
    "windows that come and go": _Theme(
        {"admin": MESSAGE_FAULTS, "life": _LIFE_FAULTS, "callback": ("kill", "stopped")}, {"life": 0.7, "others": 0.15}
    ),
    "moves": _Theme(
        {
            "callback": ("kill", "ends", "stopped"),
            "table": ("slow", "late", "stands still"),
            "swap": ("late", "answer late", "answer late", "answer lost", "stands still"),
            "fence": ("late", "answer lost"),
        },
        {"moves": 0.3},
    ),
    "machines that sleep": _Theme(
        {
            "callback": ("sleeps",),
            "life": ("sleeps soon",),
            "admin": ("sleeps soon: receiver", "sleeps: receiver"),
            "fence": ("sleeps",),
            "read": ("sleeps",),
        },
        {"lease_s": 10.0, "life": 0.5, "sleeps": True},
    ),
    "a Redis that syncs each second": _Theme(
        {"redis": ("loses writes",), "fence": ("loses writes", "late"), "callback": ("kill", "stopped")},
        {"everysec": True, "replicas": 0, "batches": 0.0, "others": 0.0, "lease_s": (2.0, 5.0)},
    ),
}


def cluster_of_seed(seed: int) -> Scenario:
    """Return the scenario of a seed, of a cluster."""
    draw = random.Random(f"{seed} cluster")
    name = draw.choice(["anything", "anything", *_THEMES])
    theme = _THEMES[name]
    part = {
        "processes": draw.choice([2, 2, 3]),
        "shards": draw.choice([2, 3, 3]),
        "lease_s": draw.choice([2.0, 5.0, 10.0]),
        "together": draw.random() < 0.3,
        "replicas": draw.choice([0, 0, 1]),
    } | theme.drawn(draw)
    kinds = _CLUSTER_KINDS if theme.kinds is None else theme.kinds
    weights = {place: draw.choice([0, 1, 1, 3] if theme.kinds is None else [1, 1, 3]) for place in kinds}
    places = [place for place, weight in weights.items() for _ in range(weight)] or [*kinds][:1]
    faults = set()
    for _ in range(draw.choice([0, 2, 4, 8, 12, 20] if theme.kinds is None else [6, 10, 14])):
        place = draw.choice(places)
        # Early, where processes start and take shards, or anywhere.
        first = min(20, _CLUSTER_REACH[place] // 10 + 1)
        early = math.exp(draw.uniform(math.log(first), math.log(_CLUSTER_REACH[place])))
        at = int(draw.choice([early, draw.uniform(first, _CLUSTER_REACH[place])]))
        some = [
            kind
            for kind in kinds[place]
            if (part["replicas"] or kind not in ("fails over", "no replica", "lags"))
            and (part.get("everysec") or kind != "loses writes")
            and (part.get("sleeps") or not kind.startswith("sleeps"))
        ]
        if some:
            faults.add(Fault(place, at, draw.choice(some)))
    scenario = replace(
        of_seed(seed),
        callers=tuple(range(draw.choice([1, 2, 3]))),
        steps=part.pop("steps", draw.choice([6, 10, 16, 30])),
        faults=tuple(sorted(faults)),
        theme=name,
        life=part.pop("life", 0.25),
        batches=part.pop("batches", 0.08),
        others=part.pop("others", 0.03),
        cluster=ClusterPart(**part),
    )
    assert scenario.cluster is not None
    draw = random.Random(f"{seed} slots")
    if draw.random() >= _SLOTS_MOVE:
        return scenario
    moves = (Fault("slot", draw.randint(20, _CLUSTER_REACH["redis"]), "moves") for _ in range(draw.choice([1, 2, 4])))
    faults = tuple(sorted({*scenario.faults, *moves}))
    return replace(scenario, cluster=replace(scenario.cluster, nodes=3), faults=faults)


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
