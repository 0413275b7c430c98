"""The service in a simulation: nothing is lost, seeds replay, and what is planted is found.

`make simulate` runs seeds until it is stopped; here are a few.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import gc
import itertools
import os
import random
import signal
import subprocess
import sys
from collections import Counter

import pytest

from sash_engine.windows.questions import Limit
from tests.simulation import __main__ as command
from tests.simulation.callers import admitting, creating, deleting, evicting, inserting, reading
from tests.simulation.history import ANY, GONE, Contradiction, History, _within
from tests.simulation.loop import Process, SimulatedLoop, Stuck
from tests.simulation.met import never
from tests.simulation.run import replayed, run, shrunk, story
from tests.simulation.scenario import Fault, of_seed
from tests.simulation.world import World

FOUND = [128, 816, 6202304]
"""Seeds that have found something, each with the mend that it was for. A mend of the service is a planted fault, too:
what a seed stands for changes with the simulation.

128: the checker took a write that was served, and not confirmed, for durable.
816: who found no window was told so after its deletion was lost, and the checker took the deletion for durable.
6202304: a process stood still at the end, and the checker did not wait for the write that it took when it went on.
"""


MET = [
    ("killed", "idle"),
    ("killed", "committing"),
    ("lost power", "idle"),
    ("lost power", "committing"),
    ("lost power", "image"),
    ("stopped", ""),
    ("clock jumped", "idle"),
    ("refused", "group"),
    ("refused", "pointer"),
    ("refused", "meta"),
    ("full", "group"),
    ("sync failed", "group"),
    ("answer lost", "group"),
    ("dies before", "group"),
    ("dies before", "staged"),
    ("dies before", "pointer"),
    ("dies unsynced", "group"),
    ("dies after", "group"),
    ("read failed", "block"),
    ("request lost", ""),
    ("fenced", "a write that is lost"),
    ("durable", "a write that was answered before"),
    ("known", "logged"),
    ("known", "of the same"),
    ("known", "of another"),
]
"""Which faults meet which states in the seeds of the test below: where one never does, nothing tests it."""


def test_seeds_lose_nothing_replay_event_by_event_and_meet_faults_in_every_state():
    met = Counter[str]()
    for seed in [*FOUND, *range(26, 46), 72, 477, 834]:
        # Of those that have found something, as they were then: without writes that decide, and none delivered twice.
        scenario = dataclasses.replace(of_seed(seed), limited=False, repeated=0.0) if seed in FOUND else of_seed(seed)
        met += replayed(scenario, seed in FOUND or seed < 30)
    assert not never(met, MET)


def test_a_seed_replays_in_another_process():
    """Whatever Python makes of sets there: the run says which hashes it wants."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.simulation", "--seed", "104"]
    said = [subprocess.run(command, capture_output=True, text=True, check=True).stdout for _ in range(2)]
    assert said[0] == said[1]
    assert "all is well" in said[0]


def unsynced(world: World) -> None:
    """Plant a disk that does not sync."""
    world.disk.synchronous = False


def test_a_disk_that_does_not_sync_is_found_and_told_on_a_page():
    found = next(outcome for outcome in (run(of_seed(seed), unsynced) for seed in range(1, 30)) if outcome.failure)
    small = shrunk(found.scenario, unsynced, tries=25)
    assert small.failure is not None
    assert len(small.scenario.callers) <= len(found.scenario.callers)
    assert small.scenario.steps <= found.scenario.steps
    assert len(small.scenario.faults) <= len(found.scenario.faults)
    told = story(small).splitlines()
    assert len(told) < 80, "it fits a page"
    assert any("WRONG" in line for line in told)


def test_a_smaller_scenario_draws_what_the_larger_one_draws():
    """What a caller does depends on no other caller, nor on faults."""
    whole = of_seed(7)
    alone = run(dataclasses.replace(whole, callers=(0,), faults=()))
    first = [line.partition("caller 0: ")[2] for line in alone.events if "caller 0: " in line and line.endswith("…")]
    among = [
        line.partition("caller 0: ")[2] for line in run(whole).events if "caller 0: " in line and line.endswith("…")
    ]
    assert first == among


# ---------------------------------------------------------------- the checker


ONE, TWO, THREE, LATE = ENTRIES = ("a", 1, 11), ("a", 2, 12), ("a", 3, 13), ("a", 20, 14)
HISTORIES = {
    "what is acknowledged is there": ["a: insert 1; a = 1; ! sees"],
    "what is refused is absent": ["a: insert 1; a refused; ! sees 1"],
    "what was seen cannot be refused": ["a: insert 1; sees 1; ! a refused"],
    "perhaps is one of the two, and stays so": [
        "a: insert 1; a lost; died; sees; ! sees 1",
        "a: insert 1; a lost; died; sees 1; ! sees",
    ],
    "what is lost may take effect later, until its process dies": [
        "a: insert 1; a lost; sees; sees 1; b: evict 0; b = 1; ! sees 1",
    ],
    "what is fenced may have come after a call that still goes on": [
        "a: insert 1; b: evict 0; a lost; a fenced; b = 0; sees 1",
    ],
    "what is fenced takes no effect later": ["a: insert 1; a lost; a fenced; sees; ! sees 1"],
    "what is served and not confirmed may be lost with memory, and takes no effect later": [
        "a: insert 1; a lost; sees 1; a served; sees 1; died; sees; ! sees 1",
        "a: insert 1; a lost; sees 1; a served; sees 1; b: evict 5; b = 0; died; sees 1",
        "a: insert 1; a lost; sees; a served; sees; ! sees 1",
    ],
    "what a reader saw before it was durable may be lost with memory, and come again": [
        "a: insert 1; sees 1; forgot; sees; a lost; died; sees",
        "a: insert 1; sees 1; forgot; sees; a = 1; sees 1",
    ],
    "what is acknowledged is never lost with memory, nor what came before it": [
        # The one that is not acknowledged may have come after it.
        "a: insert 1; b: insert 2; a lost; r: read 1; r sees 1; b = 1; forgot; sees 2",
        "a: insert 1; a lost; sees 1; b: insert 2; b = 1; forgot; ! sees 2",
    ],
    "what came before an acknowledged write survives, whatever comes after it": [
        "a: insert 1; a lost; sees 1; b: insert 2; b = 1; c: insert 3; c lost; sees 1 2 3; died; sees 1 2; ! sees 2",
        "a: insert 1; a lost; sees 1; b: insert 2; b = 1; c: insert 3; c lost; sees 1 2 3; died; sees 1 2 3; ! sees 2",
    ],
    "what was evicted for good does not come again": [
        # So the entry was there, and that is durable, too.
        "a: insert 1; a lost; b: evict 0; b = 1; forgot; ! sees 1",
    ],
    "cases that differ in what was evicted since are kept": [
        # b has come by now, or never does; if it has, the answer to a makes it durable.
        "b: insert 2; b lost; b served; a: insert 1; a = 1; c: evict 0; c lost; c served; sees; died; sees 1 2",
    ],
    "what is answered before it is durable is lost with memory from some call on": [
        "a: insert 1; b: insert 2; a soon; a = 1; b soon; b = 1; sees 1 2; died; sees; ! sees 1 2",
        "a: insert 1; b: insert 2; a soon; a = 1; b soon; b = 1; sees 1 2; a stored; died; ! sees; sees 1; ! sees 1 2",
        "a: insert 1; b: insert 2; a soon; a = 1; b soon; b = 1; sees 1 2; a stored; b stored; died; ! sees; ! sees 1",
        "a: insert 1; b: insert 2; a soon; a = 1; b soon; b = 1; sees 1 2; a stored; b stored; died; sees 1 2; ! sees",
    ],
    "what is answered before it is durable is there at once": [
        "a: insert 1; a soon; a = 1; ! sees",
        "a: insert 1; a soon; a = any; ! sees",
        "a: insert 1; a soon; a = 1; sees 1; settled; died; ! sees",
    ],
    "who found a window gone may be told so after its deletion is lost with memory": [
        "a: insert 1; a = 1; b: delete; c: insert 2; b lost; died; c = gone; sees 1",
    ],
    # Seed 3758. One that is numbered writes its number, and waits.
    "a write that limits refuse whole may be answered before what it saw is durable": [
        "a: insert 1; a lost; b: admit 2; b = [False]; sees 1; died; sees",
        "a: insert 1; a lost; b: admit_numbered 2; b = [False]; sees 1; died; ! sees",
    ],
    "a write of which limits refuse a part is durable, and so is what it saw": [
        "a: insert 1; a lost; b: admit 4 2; b = [True, False]; died; sees 1; ! sees",
    ],
    "a store that goes back has what it had then, and perhaps what was on its way": [
        "a: insert 1; a = 1; b: insert 2; mark; b = 1; c: insert 3; c = 1; went_back; sees 1; ! sees 1 2",
        "a: insert 1; a = 1; b: insert 2; mark; b = 1; c: insert 3; c = 1; went_back; sees 1 2; ! sees 1",
        "a: insert 1; a = 1; mark; went_back; ! sees",
    ],
    "an answer that was on its way when the store went back says nothing": [
        "mark; a: insert 1; r: read 9; went_back; a = 1; r sees 1; sees",
    ],
    "memory loses what came last": [
        "a: insert 1; b: insert 2; a lost; sees 1; b lost; sees 1 2; died; sees 1",
        "a: insert 1; b: insert 2; a lost; b lost; sees 1 2; died; sees 2",
        "a: insert 1; b: insert 2; a lost; b lost; sees 1; sees 1 2; died; ! sees 2",
    ],
    "what is settled is durable": ["a: insert 1; a lost; sees 1; settled; forgot; ! sees"],
    "calls at the same time may have either order, and no other": [
        "a: insert 1; b: evict 0; b = 0; a = 1; sees 1",
        "a: insert 1; b: evict 0; a = 1; ! b = 2",
    ],
    "one window after the other of the same name": [
        "a: insert 1 2; b: delete; b = 2; a = 2; c: create; c = true; sees",
    ],
}
"""What may happen to a window, and what the checker takes for wrong, `!`.

a: insert 1 2       a call begins, with entries by their numbers; evicts from a time on; reads until a time
a = 1               it is answered
a lost              what the world says of it
sees 1              a question begins, and finds these entries; `r sees 1` is the answer to one that has begun
died                what happens to the service
"""

RESULTS = {"any": ANY, "gone": GONE, "true": True, "[False]": "[False]", "[True, False]": "[True, False]"}


def entries(numbers):
    return [ENTRIES[number - 1] for number in numbers]


class Told:
    """Tells a history what the steps of a line say."""

    def __init__(self):
        self.history, self.ops = window(), {}

    def begin(self, name, verb, *numbers):
        limit = Limit("n", 9, "<=", 1, None)
        made = {
            "insert": lambda: inserting(entries(numbers)),
            "evict": lambda: evicting(numbers[0], 9, None),
            "read": lambda: reading(0, numbers[0], ["a"]),
            "admit": lambda: admitting(entries(numbers), limit),
            "admit_numbered": lambda: admitting(entries(numbers), limit),
            "create": creating,
            "delete": deleting,
        }
        op = self.ops[name] = made[verb]()
        if verb == "admit_numbered":
            op.idle = frozenset((GONE,))
        self.history.begin(op)

    def step(self, step):
        words = step.split()
        if words[0].endswith(":"):
            self.begin(words[0][:-1], words[1], *map(int, words[2:]))
        elif "sees" in words:
            at = words.index("sees")
            if not at:
                self.begin("r", "read", 9)
            self.history.end(self.ops[words[0] if at else "r"], seen(*entries(map(int, words[at + 1 :]))))
        elif len(words) > 2:
            result = step.partition(" = ")[2]
            self.history.end(self.ops[words[0]], RESULTS[result] if result in RESULTS else int(result))
        elif words == ["mark"]:
            self.mark = self.history.mark()
        elif words == ["went_back"]:
            self.history.went_back(self.mark)
        elif len(words) == 1:
            getattr(self.history, words[0])()
        elif words[1] == "soon":
            self.ops[words[0]].soon = True
        else:
            getattr(self.history, words[1])(self.ops[words[0]])


def window():
    history, create = History(), creating()
    history.begin(create)
    history.end(create, ANY)
    return history


def seen(*entries):
    values = tuple(value for _, _, value in entries)
    return len(values), values, max(values, default=None), sum(values)


@pytest.mark.parametrize("what", HISTORIES)
def test_the_checker(what):
    for line in HISTORIES[what]:
        told = Told()
        for step in line.split("; "):
            with pytest.raises(Contradiction) if step[0] == "!" else contextlib.nullcontext():
                told.step(step.removeprefix("! "))


def test_the_checker_says_how_many_states_it_held():
    told = Told()
    told.step("a: insert 1")
    told.step("a = 1")
    with pytest.raises(Contradiction, match="held one of 1 states"):
        told.step("sees")


def futures(chain):
    """Which calls may be undone when memory is lost."""
    found, gone = {frozenset()}, {number for link in chain for number in link}
    for link in chain:
        for count in range(len(link)):
            found |= {frozenset(gone.difference(some)) for some in itertools.combinations(link, count)}
        gone.difference_update(link)
    return found


def chains(numbers):
    """All chains of some of the calls."""
    if not numbers:
        return [()]
    first, *rest = numbers
    found = set()
    for chain in chains(rest):
        found.add(chain)
        for at in range(len(chain) + 1):
            found.add((*chain[:at], (first,), *chain[at:]))
            if at < len(chain):
                found.add((*chain[:at], tuple(sorted((first, *chain[at]))), *chain[at + 1 :]))
    return sorted(found)


def test_a_case_is_left_out_only_if_another_one_allows_all_of_it():
    every, left_out = chains([1, 2, 3]), 0
    for chain, wider in itertools.product(every, every):
        if _within((*chain, ()), (*wider, ())):
            assert futures(chain) <= futures(wider), (chain, wider)
            left_out += chain != wider
    assert len(every) == 26
    assert left_out > 50
    history = window()
    ops = inserting([ONE]), inserting([TWO])
    for op in ops:
        history.begin(op)
    one, two = (op.number for op in ops)
    has_one, wide = history.entries.bits([ONE]), (0, ((one, two), ()))
    some = {(0, ((one,), (two,), ())), wide, (has_one, ((two,), ())), (0, ((two,), (one,), ()))}
    assert history._widest(some) == [wide]
    assert history._widest({wide, (0, ((two,), ()))}) == [wide, (0, ((two,), ()))]  # there, the first is not durable


# ---------------------------------------------------------------- the loop


def test_the_dead_run_nothing_more_not_even_what_comes_last():
    loop = SimulatedLoop(random.Random(1), shuffled=False)
    said = []

    async def works():
        try:
            said.append("begins")
            await asyncio.sleep(5)
            said.append("goes on")
        finally:
            said.append("ends")

    async def main():
        process = Process(loop, 1)
        process.spawn(works())
        await asyncio.sleep(1)
        process.kill()
        await asyncio.sleep(10)
        assert said == ["begins"]

    loop.run_until_complete(main())
    loop.close()
    loop.bury()


def test_who_waits_for_ever_is_found():
    loop = SimulatedLoop(random.Random(1), shuffled=False)

    async def waits():
        await loop.create_future()

    task = loop.create_task(waits())
    with pytest.raises(Stuck):
        loop.run_until_complete(task)
    task._log_destroy_pending = False
    task.get_coro().close()
    loop.close()


def test_faults_happen_where_the_scenario_says():
    scenario = dataclasses.replace(of_seed(3), faults=(Fault("commit", 5, "dies unsynced"), Fault("commit", 9, "full")))
    outcome = run(scenario)
    assert outcome.failure is None
    assert any("commit 5" in line and "dies unsynced" in line for line in outcome.events)
    assert any("commit 9" in line and "full" in line for line in outcome.events)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_who_stops_it_is_told_the_sum_also_where_a_shell_has_it_ignore_interrupts(monkeypatch, capsys, number):
    outcome = run(dataclasses.replace(of_seed(3), callers=(0,), steps=1, faults=()))

    def outcomes(runs, workers):
        for each in itertools.count():
            if each == 1:
                os.kill(os.getpid(), number)
            yield outcome, None

    before = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
    monkeypatch.setattr(command, "_outcomes", outcomes)
    monkeypatch.setattr(sys, "argv", ["simulation", "--single"])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert command.main() == 0
        assert signal.getsignal(number) is signal.SIG_DFL  # the second one ends it at once
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
    assert "\n2 runs in " in capsys.readouterr().out


def test_a_run_that_fails_is_made_small_where_it_ran(monkeypatch):
    """A process that forks others runs nothing: a fork in the middle of Lua waited for ever."""
    failed = dataclasses.replace(
        run(dataclasses.replace(of_seed(3), callers=(0,), steps=1, faults=())), failure="wrong"
    )
    monkeypatch.setattr("tests.simulation.run.run", lambda scenario: failed)
    monkeypatch.setattr("tests.simulation.run.shrunk", lambda scenario: ("small", scenario))
    assert command._run((False, 3)) == (dataclasses.replace(failed, events=[]), ("small", failed.scenario))


def test_garbage_of_runs_is_collected_now_and_then(monkeypatch):
    collected = []
    monkeypatch.setattr(gc, "collect", lambda: collected.append(True))
    scenario = dataclasses.replace(of_seed(3), callers=(0,), steps=1, faults=())
    for _ in range(20):
        run(scenario)
    assert len(collected) == 1
