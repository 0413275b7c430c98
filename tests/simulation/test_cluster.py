"""A cluster in a simulation: processes that share the shards of a Redis lose nothing, and seeds replay."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import random
import sys
import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from sash_client.errors import Unavailable
from sash_wire.placement import shard_of
from tests.simulation import callers
from tests.simulation.callers import GATHERED, KNOWN, creating, inserting, reading
from tests.simulation.cluster import Cluster, Member
from tests.simulation.history import ANY, GONE, Contradiction, KeyedHistory
from tests.simulation.loop import SimulatedLoop
from tests.simulation.met import expected, never
from tests.simulation.planted import CLUSTER, OWN, PLANTED, THEMES
from tests.simulation.run import replayed, run, story
from tests.simulation.scenario import ClusterPart, Fault, cluster_of_seed, of_seed

FOUND = {
    500248: "the view was tried to make a hundred times, while one fault came behind the other",
    500252: "an aggregate that home had, and that another shard could not take, stayed on home",
    510310: "a producer was refused for good by what a process had in memory when its machine fell asleep",
    510330: "a process had a shard again that another one had meanwhile, and waited for ever to serve it",
    510413: "shares of a process that had just come were taken for shards that move for nothing",
    3001149: "commits were late behind another owner's",
    5013707: "an admission that writes nothing is a question, too, which a Redis that went back does not stop",
    5014158: "a process exported a shard that had not its windows yet: there was no such window",
    6000296: "a command that gave a shard away arrived when the process had it again; two answered then",
    6100058: "Redis' clock went back by what a process stood still: another one's heartbeats seemed to have ended",
    6203182: "a process was asked to import a window as it began to end, and the simulation took that for a fault",
    6400103: "a deletion that went on said that nothing was changed, as its process had been away from Redis",
    6415673: "a window came back without the keys of a shard, as Redis went back; that is no fault",
}
"""Seeds that have found something, with the mend that each was for, and find it still; see `planted` for mends of the
service. They run as they did when they were found: no slot moves, and no window keeps what was known when."""

SEEDS = [2, 3, 4, 6, 7, 10, 11, 12, 14, 15, 16, 80, 98, 1545, 9116]
"""Others, of each theme. 9116: a thread waited for ever for a moment that was nearer than its clock can say."""

REPLAYED = [4, 6, 10, 510413]


def as_found(seed, **options):
    """A scenario as it was when its seed found something: no call is delivered twice, no slot moves."""
    found = cluster_of_seed(seed)
    faults = tuple(fault for fault in found.faults if fault.place != "slot")
    options = {"repeated": 0.0, "known": False} | options
    return replace(found, faults=faults, cluster=replace(found.cluster, nodes=1), **options)


def test_every_fault_can_be_planted_and_is_in_the_docs():
    table = Path("docs/background/testing.md").read_text()
    for name, (module, old, _) in (PLANTED | CLUSTER | OWN).items():
        found = importlib.util.find_spec(module)
        assert found is not None, module
        assert found.origin is not None, module
        assert Path(found.origin).read_text().count(old) == 1, name
        assert name in OWN or f"| {name} |" in table


def test_a_state_that_no_run_met_is_told():
    met = Counter({"redis: late | EVAL of fence": 3, "killed | idle": 1})
    assert never(met, [("redis: late", "EVAL of fence"), ("killed", "")]) == []
    assert never(met, [("killed", "committing"), ("late", "")]) == ["killed | committing", "late | "]
    assert set(expected(True, False)) | set(expected(False, True)) == set(expected())


def test_planted_faults_are_tried_on_themes_that_there_are():
    assert THEMES.keys() <= PLANTED.keys() | CLUSTER.keys()
    drawn = {of_seed(seed).theme for seed in range(1, 100)} | {cluster_of_seed(seed).theme for seed in range(1, 300)}
    assert {theme for themes in THEMES.values() for theme in themes} <= drawn


MET = [
    ("killed", "idle"),
    ("stopped", ""),
    ("stops", ""),
    ("redis: late", "EVAL of fence"),
    ("redis: lags", "EVAL of fence"),
    ("redis: fails over", ""),
    ("redis: fades", "EVAL of table"),
    ("between processes: cut", ""),
    ("between processes: late", ""),
    ("between processes: partition", ""),
    ("durable", "answered before"),
    ("lost with memory?", "answered"),
    ("redis: a slot moves", ""),
    ("redis: MovedError", "fence"),
    *[(f"redis: {error}Error", key) for error in ("Ask", "TryAgain") for key in ("fence", "table")],
    ("known", "logged"),
    ("known", "of the same"),
    ("known", "of another"),
]
"""Which faults meet which states in the seeds of the test below: where one never does, nothing tests it."""


def test_seeds_lose_nothing_replay_event_by_event_and_meet_faults_in_every_state():
    met = Counter[str]()
    for seed in [*FOUND, *SEEDS]:
        scenario = cluster_of_seed(seed)
        if seed in FOUND and seed < 6_400_000:  # the others, the simulation has found as it is now
            repeated = scenario.repeated if seed == 3001149 else 0.0
            scenario = as_found(seed, gathered=False, repeated=repeated)
        met += replayed(scenario, seed in REPLAYED)
    assert not never(met, MET)


@pytest.mark.parametrize("seed", [5, 6])
def test_a_process_that_stands_still_while_it_takes_a_shard_serves_it_not_beside_the_next_owner(seed):
    """It served it for up to a second (6), or waited for ever to serve it (5)."""
    still = tuple(Fault("fence", number, "stands still") for number in (1, 2, 3))
    part = ClusterPart(processes=2, shards=2, lease_s=2.0, together=False, replicas=0)
    outcome = run(replace(cluster_of_seed(seed), callers=(0,), steps=6, faults=still, cluster=part))
    assert outcome.failure is None, story(outcome)


def test_nothing_asks_the_machine_for_its_clock_or_for_chance_and_nothing_starts_a_thread(monkeypatch):
    """What the seed does not determine would not replay."""
    asked, mine = [], threading.get_ident()
    leaks = {
        "os": ["urandom"],
        "time": ["time", "time_ns", "sleep"],
        "secrets": ["token_bytes", "token_hex"],
        "threading": ["Thread"],
        "random": ["uniform", "random"],
    }

    def leak(name, real):
        def asks(*args, **options):
            if threading.get_ident() == mine:
                asked.append(name)
            return real(*args, **options)

        return asks

    for module, names in leaks.items():
        for name in names:
            monkeypatch.setattr(f"{module}.{name}", leak(name, getattr(sys.modules[module], name)))
    before = len(os.listdir("/proc/self/task")) if os.path.isdir("/proc/self/task") else 0
    for scenario in (*map(of_seed, range(200, 203)), *map(cluster_of_seed, range(200, 202))):
        run(scenario)
    assert not asked
    assert before == (len(os.listdir("/proc/self/task")) if os.path.isdir("/proc/self/task") else 0)


# ---------------------------------------------------------------- the checker


ONE, TWO = ("a", 1, 11), ("b", 2, 12)


def window():
    history = KeyedHistory(["a", "b"])
    create = creating()
    history.begin(create)
    history.end(create, ANY)
    history.knows([ONE, TWO])
    return history


def seen(*entries):
    values = tuple(value for _, _, value in entries)
    return len(values), values, max(values, default=None), sum(values)


def read(history, result, *keys):
    op = reading(0, 9, keys)
    history.begin(op)
    history.end(op, result)


def test_a_call_may_take_effect_on_one_key_and_not_on_another_one():
    history = window()
    insert = inserting([ONE, TWO])
    history.begin(insert)
    history.lost(insert)
    read(history, seen(ONE), "a", "b")
    history.settled()
    read(history, seen(ONE), "a")
    with pytest.raises(Contradiction, match="key 'b'"):
        read(history, GONE, "b")


def test_what_is_lost_may_take_effect_until_all_is_settled_whatever_died():
    history = window()
    insert = inserting([ONE])
    history.begin(insert)
    history.lost(insert)
    history.died()
    read(history, seen(), "a")
    read(history, seen(ONE), "a")
    with pytest.raises(Contradiction):
        read(history, seen(), "a")


def early(history, *entries, unsure=()):
    insert = inserting(entries)
    history.begin(insert)
    parts = history.parts(insert)
    for part in parts.values():
        part.soon = True
    history.end(insert, len(entries), unsure.__contains__)
    return parts


@pytest.mark.parametrize("stored", [False, True])
def test_what_is_answered_early_is_there_until_memory_is_lost_unless_it_is_stored(stored):
    history = window()
    parts = early(history, ONE, TWO)
    read(history, seen(ONE), "a")
    read(history, seen(TWO), "b")
    if stored:
        history.stored("a", parts["a"])
    history.forgot(lambda key: key == "a")
    read(history, seen(TWO), "b")
    if stored:
        with pytest.raises(Contradiction):
            read(history, seen(), "a")
    else:
        read(history, seen(), "a")
        read(history, seen(ONE), "a")  # another process had it to do still
        history.settled()
        with pytest.raises(Contradiction):
            read(history, seen(), "a")


def test_an_answer_that_was_on_its_way_when_memory_was_lost_says_nothing_of_those_keys():
    history = window()
    early(history, ONE, TWO, unsure=["a"])
    read(history, seen(), "a")
    read(history, seen(ONE), "a")
    with pytest.raises(Contradiction):
        read(history, seen(), "b")


def test_an_answer_that_does_not_agree_with_itself_is_found():
    history = window()
    insert = inserting([ONE, TWO])
    history.begin(insert)
    history.end(insert, 2)
    with pytest.raises(Contradiction, match="agree with itself"):
        read(history, (2, (11, 12), 12, 22), "a", "b")


# ---------------------------------------------------------------- what the world tells the checker


class Wired:
    """A world of two processes that never begin: the first one has both shards, as its answers say."""

    def __init__(self, **options):
        part = ClusterPart(processes=2, shards=2, lease_s=5.0, together=False, replicas=0)
        scenario = replace(cluster_of_seed(1), gathered=True, known=True, cluster=replace(part, **options))
        self.world = Cluster(SimulatedLoop(random.Random(1), False), scenario)
        self.world.begin()
        self.journals = [SimpleNamespace(last=5, _durable=4) for _ in range(2)]
        self.members = [self.member(number) for number in (1, 2)]
        for shard in range(2):
            self.takes(shard, 1)
        self.keys = [next(key for key in self.world.keys if self.shard(GATHERED, key) == shard) for shard in range(2)]
        for history in self.world.histories.values():
            create = creating()
            history.begin(create)
            history.end(create, ANY)

    @staticmethod
    def shard(name, key):
        return shard_of(name, key, 2)

    def member(self, number):
        found = self.world.by_number[number] = Member(self.world, number, number - 1)
        shards = SimpleNamespace(hosted={}, valid=lambda: found.runs)
        found.host, found.runs = SimpleNamespace(_me=SimpleNamespace(id=f"id{number}"), shards=shards), True
        return found

    def takes(self, shard, number, owner=None):
        """A process takes a prefix, and serves the shard."""
        member, fence = self.members[number - 1], b"{s/%d}:fence" % shard
        self.world.redis.owners[fence] = owner or b"owner %d" % number
        self.world.redis.asking = member.process
        self.world._taken(fence)
        session = SimpleNamespace(journal=self.journals[shard])
        hosted = SimpleNamespace(storage=SimpleNamespace(store=SimpleNamespace(session=session)))
        member.host.shards.hosted[shard] = hosted

    def early(self, shard, began_s=1.0):
        """A write is answered before it is durable."""
        entry = (self.keys[shard], 1, 11 + shard)
        op = inserting([entry])
        op.soon = True
        self.world.knows(GATHERED, [entry])
        self.world.checked(self.world.histories[GATHERED].begin, op)
        self.world.answered(self.world.histories[GATHERED], op, 1, SimpleNamespace(began_s=began_s))
        return entry

    def reads(self, shard, *entries):
        """What is found wrong when a key is read."""
        op = reading(0, 9, [self.keys[shard]])
        self.world.checked(self.world.histories[GATHERED].begin, op)
        self.world.answered(self.world.histories[GATHERED], op, seen(*entries), SimpleNamespace(began_s=2.0))
        found, self.world.failure = self.world.failure, None
        return found


@pytest.fixture
def wires():
    """Makes such a world; its loop ends with the test."""
    made = []

    def make(**options):
        made.append(Wired(**options))
        return made[-1]

    yield make
    for each in made:
        each.world.loop.close()


def test_a_prefix_that_is_taken_loses_what_was_in_memory_of_its_shard_alone(wires):
    wired = wires()
    mine, other = wired.early(0), wired.early(1)
    assert wired.reads(0, mine) is None
    assert wired.reads(0) is not None
    wired.takes(0, 2)
    assert wired.world.met["lost with memory? | a write that was answered"] == 1
    wired.journals[0]._durable = 5  # the one of the owner before says nothing any more
    wired.world._has_stored()
    assert wired.reads(0) is None
    assert wired.reads(1) is not None
    assert wired.reads(1, other) is None


def test_what_was_stored_before_a_prefix_was_taken_is_there(wires):
    wired = wires()
    mine = wired.early(0)
    wired.journals[0]._durable = 5
    wired.takes(0, 2)
    assert wired.reads(0) is not None
    assert wired.reads(0, mine) is None


def test_an_early_answer_of_before_a_prefix_was_taken_may_be_lost(wires):
    wired = wires()
    mine = wired.early(0, began_s=0.0)
    assert wired.reads(0) is None
    assert wired.reads(0, mine) is None  # another process had it to do still
    assert wired.reads(0) is not None


def test_early_answers_of_a_process_that_died_become_durable_by_nothing(wires):
    wired = wires()
    wired.members[0].process.alive = False
    wired.early(0)
    assert not wired.world._gathered


def test_a_redis_that_lost_what_an_owner_had_keeps_who_that_was(wires):
    wired = wires()
    wired.takes(0, 2, b"owner 2")
    wired.world.redis.asking = wired.members[0].process
    wired.world._taken(b"{s/0}:fence")
    assert wired.world._takers[0] == (b"owner 2", wired.members[1])


def test_two_processes_that_answer_for_a_shard_are_found(wires):
    wired = wires()
    before, after = wired.members
    wired.takes(0, 2)
    before.runs = False
    for member in wired.members:
        wired.world._check_shadowed(member.process)
    assert wired.world.failure is None
    before.runs, after.runs = True, False
    wired.world._check_shadowed(after.process)
    assert wired.world.failure is None
    after.runs = True
    wired.world._check_shadowed(before.process)
    assert "processes 1 and 2 answer for shard 0" in str(wired.world.failure)
    wired.world.failure = None
    before.host.shards.hosted.pop(0)
    wired.world._check_shadowed(before.process)
    assert wired.world.failure is None
    assert not wired.world._shadowed[before.process]


def test_where_machines_sleep_two_processes_may_answer_for_a_shard(wires):
    wired = wires(sleeps=True, shards=2)
    wired.takes(0, 2)
    assert not wired.world._shadowed


def test_a_shard_that_is_taken_from_a_process_whose_lease_runs_is_found(wires):
    wired = wires()
    before, after = wired.members
    wired.world.redis.asking = before.process
    wired.world._moved(0, "id1", "id2")  # it gives it away itself
    wired.world.redis.asking = after.process
    wired.world._moved(0, "id2", "id1")
    before.runs = False
    wired.world._moved(0, "id1", "id2")
    assert wired.world.failure is None
    before.runs = True
    wired.world._moved(0, "id1", "id2")
    assert "whose lease runs" in str(wired.world.failure)


def test_a_redis_that_loses_writes_takes_them_from_every_history_and_ends_all_processes(wires):
    wired = wires()
    marks = {name: history.mark() for name, history in wired.world.histories.items()}
    mine = wired.early(0)
    wired.journals[0]._durable = 5
    wired.world._has_stored()
    assert wired.reads(0) is not None
    wired.world._lost_writes(marks)
    assert wired.world.stale
    assert wired.reads(0) is None
    assert wired.reads(0, mine) is not None
    wired.world.loop.run_until_complete(asyncio.sleep(60.0))
    assert not any(member.process.alive for member in wired.members)


# ---------------------------------------------------------------- answers that are logged


class Remembers:
    """A window that answers about one key."""

    def __init__(self, *values):
        self.values, self.asked, self.loses, self.meanwhile = values, [], False, lambda: None

    async def query(self, **question):
        self.asked.append(question)
        answer = {"n": len(self.values), "all": [*self.values], "max": max(self.values), "sum": sum(self.values)}
        return [SimpleNamespace(aggregates=answer, known_at=7)]

    async def insert(self, time, **options):
        self.meanwhile()
        if self.loses:
            raise Unavailable("lost")
        return SimpleNamespace(inserted=1)

    async def answers_at(self, times, *, keys, lookbacks, **options):
        self.asked.append({"as_of": times, "key": keys} | options)
        columns = {f"n_{span}": np.array([len(self.values)] * len(times)) for span in lookbacks}
        return SimpleNamespace(
            columns=columns | {f"max_{span}": np.array([max(self.values)] * len(times)) for span in lookbacks}
        )


def logged_by(wired, window, key=None):
    calls = callers._Calls(wired.world, 1)
    calls.keys = lambda name: [key or wired.world.keys[0]]
    history = wired.world.histories[KNOWN]
    history.end = lambda *args: None  # what it may be is the checker's
    wired.world.loop.run_until_complete(calls._log(window, history))
    return wired.world.logged


def test_an_answer_is_logged_if_a_write_behind_it_is_durable_and_memory_was_not_lost(wires):
    wired, window = wires(), Remembers(3)
    key = next(key for key in wired.world.keys if wired.shard(KNOWN, key) == 0)
    window.loses = True
    assert not logged_by(wired, window, key)
    window.loses = False
    window.meanwhile = lambda: wired.takes(0, 2)
    assert not logged_by(wired, window, key)
    window.meanwhile = lambda: wired.takes(1, 2)  # another shard
    (logged,) = logged_by(wired, window, key)
    assert (logged.key, logged.known_at, logged.seen) == (key, 7, (1, (3,), 3, 3))
    assert logged.owner == wired.world.owner_of(KNOWN, key)


@pytest.mark.parametrize(("values", "wrong"), [((3,), False), ((4,), True), ((3, 3), True)])
def test_a_logged_answer_that_is_not_given_again_is_found(wires, monkeypatch, values, wrong):
    wired = wires()
    logged = logged_by(wired, Remembers(3))[0]
    for how in ("alone", "with others"):
        window = Remembers(*values)
        monkeypatch.setattr(callers, "Caller", lambda *_, window=window: SimpleNamespace(window=lambda name: window))
        wired.world.failure = None
        if how == "alone":
            work = callers._same_as_logged(wired.world, window, logged)
        else:
            work = callers.as_logged(wired.world, "at the end")
        wired.world.loop.run_until_complete(work)
        assert (wired.world.failure is not None) == wrong, how
        asked = window.asked[0]
        one = [asked["as_of"], asked["key"], asked["known_at"]]
        assert (one if how == "alone" else [each for (each,) in one]) == [logged.end, logged.key, 7]


def test_answers_about_many_pairs_are_compared_with_what_was_logged(wires, monkeypatch):
    wired, window = wires(), Remembers(3)
    logged = logged_by(wired, window)[0]
    columns = {f"{name}_{span}": np.array([3]) for name in ("n", "max") for span in callers._SPANS}

    async def answers_at(*args, **options):
        return SimpleNamespace(columns=columns)

    window.answers_at = answers_at
    monkeypatch.setattr(callers, "Caller", lambda *_: SimpleNamespace(window=lambda name: window))
    wired.world.loop.run_until_complete(callers.as_logged(wired.world, "at the end"))
    assert "again 3 and 3" in str(wired.world.failure)
    wired.world.failure = None
    columns[f"n_{logged.end - logged.start + 1}"][0] = 1
    wired.world.loop.run_until_complete(callers.as_logged(wired.world, "at the end"))
    assert wired.world.failure is None
