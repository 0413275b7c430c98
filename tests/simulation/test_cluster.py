"""A cluster in a simulation: processes that share the shards of a Redis lose nothing, and seeds replay."""

from __future__ import annotations

import importlib.util
import os
import sys
import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from tests.simulation.callers import creating, inserting, reading
from tests.simulation.history import ANY, GONE, Contradiction, KeyedHistory
from tests.simulation.met import expected, never
from tests.simulation.planted import CLUSTER, OWN, PLANTED, THEMES
from tests.simulation.run import run, story
from tests.simulation.scenario import ClusterPart, Fault, cluster_of_seed, of_seed

FOUND = [8, 109, 500139, 500235, 500248, 500252, 510310, 510330, 510365, 510413]
"""Seeds that have found something, each with the mend that it was for; see `planted` for mends of the service.

8: a process without shards answered PromQL by nothing.
109: a process counted as gone when Redis' clock jumped right after its heartbeat, and answered beside the next owner.
500139, 500235, 500252: an aggregate that home had, and that another shard could not take, stayed on home.
510310, 510365: a producer was refused for good by what a process had in memory when its machine fell asleep.
510330: a process had a shard again that another one had meanwhile, and answered from before; or waited for ever to
serve it.
510413: shares of a process that had just come were taken for shards that move for nothing.
500248: the view was tried to make a hundred times, while one fault came behind the other.
"""


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


EARLY = [1, 80]
"""Seeds of clusters with a window of durability `interval`."""

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
]
"""Which faults meet which states in the seeds of the test below: where one never does, nothing tests it."""


def test_seeds_lose_nothing_replay_event_by_event_and_meet_faults_in_every_state():
    met = Counter[str]()
    for seed in sorted({*FOUND, *range(1, 17), 40, 98}):
        scenario = cluster_of_seed(seed) if seed < 100 else as_found(seed, gathered=False)
        first = run(scenario)
        assert first.failure is None, story(first)
        assert not first.unchecked
        met += first.met
        if seed < 11:
            second = run(scenario)
            assert first.events == second.events
            assert (first.digest, first.callbacks) == (second.digest, second.callbacks)
    assert not never(met, MET)


@pytest.mark.parametrize("seed", [5, 6])
def test_a_process_that_stands_still_while_it_takes_a_shard_serves_it_not_beside_the_next_owner(seed):
    """It served it for up to a second (6), or waited for ever to serve it (5)."""
    still = tuple(Fault("fence", number, "stands still") for number in (1, 2, 3))
    part = ClusterPart(processes=2, shards=2, lease_s=2.0, together=False, replicas=0)
    outcome = run(replace(cluster_of_seed(seed), callers=(0,), steps=6, faults=still, cluster=part))
    assert outcome.failure is None, story(outcome)


def test_a_process_that_slept_makes_no_window_again_that_home_has_lost_meanwhile():
    """It found it in its memory, and made it on shard 1, where it stayed."""
    outcome = run(as_found(1025, limited=True))
    assert outcome.failure is None, story(outcome)


@pytest.mark.parametrize("seed", [3001084, 3001149])
def test_what_seeds_found(seed):
    """A process that was seen first behind a jump of Redis' clock; commits that were late behind another owner's."""
    outcome = run(as_found(seed, repeated=cluster_of_seed(seed).repeated))
    assert outcome.failure is None, story(outcome)


def test_a_cluster_has_writes_that_are_answered_early_and_some_of_them_are_lost():
    met = Counter[str]()
    for seed in EARLY:
        outcome = run(cluster_of_seed(seed))
        assert outcome.failure is None, story(outcome)
        met += outcome.met
    wanted = [("durable", "answered before"), ("lost with memory?", "answered")]
    assert not never(met, wanted)


SLOTS = [1545, 3001084]
"""Seeds of clusters on a Redis Cluster whose slots move."""


def test_slots_move_key_by_key_and_nothing_is_lost():
    met = Counter[str]()
    for seed in SLOTS:
        outcome = run(cluster_of_seed(seed))
        assert outcome.failure is None, story(outcome)
        met += outcome.met
    wanted = [(f"redis: {error}Error", key) for error in ("Ask", "TryAgain") for key in ("fence", "table")]
    assert not never(met, [("redis: a slot moves", ""), ("redis: MovedError", "fence"), *wanted])


KNOWN = [3, 11]
"""Seeds with a window that keeps what was known when."""


def test_logged_answers_are_given_again_by_later_owners():
    met = Counter[str]()
    for seed in KNOWN:
        for scenario in (of_seed(seed), cluster_of_seed(seed)):
            outcome = run(scenario)
            assert outcome.failure is None, story(outcome)
            met += outcome.met
    assert not never(met, [("known", "logged"), ("known", "of the same"), ("known", "of another")])


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
    for seed in range(200, 202):
        run(cluster_of_seed(seed))
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
