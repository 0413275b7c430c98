"""The service in a simulation: nothing is lost, seeds replay, and what is planted is found.

`make simulate` runs seeds until it is stopped; here are a few.
"""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import itertools
import os
import random
import signal
import subprocess
import sys
import threading
from collections import Counter

import pytest

from sash_engine.windows.questions import Limit
from tests.simulation import __main__ as command
from tests.simulation.callers import admitting, creating, deleting, evicting, inserting, reading
from tests.simulation.history import ANY, GONE, Contradiction, History, _within
from tests.simulation.loop import Process, SimulatedLoop, Stuck
from tests.simulation.met import never
from tests.simulation.run import run, shrunk, story
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
]
"""Which faults meet which states in the seeds of the test below: where one never does, nothing tests it."""


def test_seeds_lose_nothing_replay_event_by_event_and_meet_faults_in_every_state():
    met = Counter[str]()
    for seed in [*FOUND, *range(16, 16 + 40), 61, 72, 477, 834]:
        # Of those that have found something, as they were then: without writes that decide, and none delivered twice.
        scenario = dataclasses.replace(of_seed(seed), limited=False, repeated=0.0) if seed in FOUND else of_seed(seed)
        first = run(scenario)
        assert first.failure is None, story(first)
        assert not first.unchecked
        met += first.met
        if seed in FOUND or seed < 26:
            second = run(scenario)
            assert first.events == second.events
            assert (first.digest, first.callbacks) == (second.digest, second.callbacks)
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
    small = shrunk(found.scenario, unsynced, tries=60)
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


ONE, TWO, THREE = ("a", 1, 11), ("a", 2, 12), ("a", 3, 13)


def began(history, *ops):
    for op in ops:
        history.begin(op)
    return ops


def window():
    history = History()
    (create,) = began(history, creating())
    history.end(create, ANY)
    return history


def seen(*entries):
    values = tuple(value for _, _, value in entries)
    return len(values), values, max(values, default=None), sum(values)


def test_what_is_acknowledged_must_be_there():
    history = window()
    (insert,) = began(history, inserting([ONE]))
    history.end(insert, 1)
    (read,) = began(history, reading(0, 9, ["a"]))
    with pytest.raises(Contradiction, match="held one of 1 states"):
        history.end(read, seen())


def test_what_is_refused_must_be_absent():
    history = window()
    (insert,) = began(history, inserting([ONE]))
    history.refused(insert)
    (read,) = began(history, reading(0, 9, ["a"]))
    with pytest.raises(Contradiction):
        history.end(read, seen(ONE))


def test_what_was_seen_cannot_be_refused():
    history = window()
    (insert,) = began(history, inserting([ONE]))
    asked(history, seen(ONE))
    with pytest.raises(Contradiction):
        history.refused(insert)


def test_perhaps_is_one_of_the_two_and_stays_so():
    for there in (False, True):
        history = window()
        (insert,) = began(history, inserting([ONE]))
        history.lost(insert)
        history.died()
        (read,) = began(history, reading(0, 9, ["a"]))
        history.end(read, seen(*[ONE] * there))
        (read,) = began(history, reading(0, 9, ["a"]))
        with pytest.raises(Contradiction):
            history.end(read, seen(*[ONE] * (not there)))


def test_what_is_lost_may_take_effect_later_until_its_process_dies():
    history = window()
    (insert,) = began(history, inserting([ONE]))
    history.lost(insert)
    for answer in (seen(), seen(ONE)):
        (read,) = began(history, reading(0, 9, ["a"]))
        history.end(read, answer)
    (evict,) = began(history, evicting(0, 9, None))
    history.end(evict, 1)
    (read,) = began(history, reading(0, 9, ["a"]))
    with pytest.raises(Contradiction):
        history.end(read, seen(ONE))


def test_what_is_fenced_may_have_come_after_a_call_that_still_goes_on():
    history = window()
    insert, evict = began(history, inserting([ONE]), evicting(0, 9, None))
    history.lost(insert)
    history.fenced(insert)
    history.end(evict, 0)
    (read,) = began(history, reading(0, 9, ["a"]))
    history.end(read, seen(ONE))


def test_what_is_fenced_takes_no_effect_later():
    history = window()
    (insert,) = began(history, inserting([ONE]))
    history.lost(insert)
    history.fenced(insert)
    asked(history, seen())
    with pytest.raises(Contradiction):
        asked(history, seen(ONE))


def test_what_is_served_and_not_confirmed_may_be_lost_with_memory_and_takes_no_effect_later():
    for durable in (False, True):
        history = window()
        (insert,) = began(history, inserting([ONE]))
        history.lost(insert)
        asked(history, seen(ONE))
        history.served(insert)
        asked(history, seen(ONE))
        if durable:
            (evict,) = began(history, evicting(5, 9, None))
            history.end(evict, 0)
        history.died()
        if durable:
            asked(history, seen(ONE))
        else:
            asked(history, seen())
            with pytest.raises(Contradiction):
                asked(history, seen(ONE))
    history = window()
    (insert,) = began(history, inserting([ONE]))
    history.lost(insert)
    asked(history, seen())
    history.served(insert)
    asked(history, seen())
    with pytest.raises(Contradiction):
        asked(history, seen(ONE))


def asked(history, result):
    (read,) = began(history, reading(0, 9, ["a"]))
    history.end(read, result)


def test_what_a_reader_saw_before_it_was_durable_may_be_lost_with_memory_and_come_again():
    for again in (False, True):
        history = window()
        (insert,) = began(history, inserting([ONE]))
        asked(history, seen(ONE))
        history.forgot()
        asked(history, seen())
        if again:
            history.end(insert, 1)
        else:
            history.lost(insert)
            history.died()
        asked(history, seen(*[ONE] * again))


def test_what_is_acknowledged_is_never_lost_with_memory_nor_what_came_before_it():
    history = window()
    lost, insert = began(history, inserting([ONE]), inserting([TWO]))
    history.lost(lost)
    (read,) = began(history, reading(0, 1, ["a"]))
    history.end(read, seen(ONE))
    history.end(insert, 1)
    history.forgot()
    asked(history, seen(TWO))  # the one that is not acknowledged may have come after it

    history = window()
    (lost,) = began(history, inserting([ONE]))
    history.lost(lost)
    asked(history, seen(ONE))
    (insert,) = began(history, inserting([TWO]))
    history.end(insert, 1)
    history.forgot()
    (read,) = began(history, reading(0, 9, ["a"]))
    with pytest.raises(Contradiction):
        history.end(read, seen(TWO))


def test_what_came_before_an_acknowledged_write_survives_whatever_comes_after_it():
    for left in ((ONE, TWO), (ONE, TWO, THREE)):
        history = window()
        (lost,) = began(history, inserting([ONE]))
        history.lost(lost)
        asked(history, seen(ONE))
        (insert,) = began(history, inserting([TWO]))
        history.end(insert, 1)
        (later,) = began(history, inserting([THREE]))
        history.lost(later)
        asked(history, seen(ONE, TWO, THREE))
        history.died()
        asked(history, seen(*left))
        with pytest.raises(Contradiction):
            asked(history, seen(TWO))


def test_what_was_evicted_for_good_does_not_come_again():
    history = window()
    (insert,) = began(history, inserting([ONE]))
    history.lost(insert)
    (evict,) = began(history, evicting(0, 9, None))
    history.end(evict, 1)  # so the entry was there, and that is durable, too
    history.forgot()
    with pytest.raises(Contradiction):
        asked(history, seen(ONE))


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
    one, two = (each.number for each in began(history, inserting([ONE]), inserting([TWO])))
    has_one, wide = history.entries.bits([ONE]), (0, ((one, two), ()))
    some = {(0, ((one,), (two,), ())), wide, (has_one, ((two,), ())), (0, ((two,), (one,), ()))}
    assert history._widest(some) == [wide]
    assert history._widest({wide, (0, ((two,), ()))}) == [wide, (0, ((two,), ()))]  # there, the first is not durable


def test_cases_that_differ_in_what_was_evicted_since_are_kept():
    history = window()
    (lost,) = began(history, inserting([TWO]))
    history.lost(lost)
    history.served(lost)  # it has come by now, or never does
    (insert,) = began(history, inserting([ONE]))
    history.end(insert, 1)  # if the other one has come, it is durable
    (evict,) = began(history, evicting(0, 9, None))
    history.lost(evict)
    history.served(evict)
    asked(history, seen())
    history.died()
    asked(history, seen(ONE, TWO))


def test_what_is_answered_before_it_is_durable_is_lost_with_memory_from_some_call_on():
    for stored in (0, 1, 2):
        history = window()
        ops = began(history, inserting([ONE]), inserting([TWO]))
        for op, result in zip(ops, (1, 1), strict=True):
            op.soon = True
            history.end(op, result)
        asked(history, seen(ONE, TWO))
        for op in ops[:stored]:
            history.stored(op)
        history.died()
        left = [(), (ONE,), (ONE, TWO)]
        for held in left[:stored]:
            with pytest.raises(Contradiction):
                asked(history, seen(*held))
        asked(history, seen(*left[stored]))
        with pytest.raises(Contradiction):
            asked(history, seen(ONE, TWO) if stored < 2 else seen())


def test_what_is_answered_before_it_is_durable_is_there_at_once():
    for result in (1, ANY):
        history = window()
        (insert,) = began(history, inserting([ONE]))
        insert.soon = True
        history.end(insert, result)
        with pytest.raises(Contradiction):
            asked(history, seen())
    history = window()
    (insert,) = began(history, inserting([ONE]))
    insert.soon = True
    history.end(insert, 1)
    asked(history, seen(ONE))
    history.settled()
    history.died()
    with pytest.raises(Contradiction):
        asked(history, seen())


def test_who_found_a_window_gone_may_be_told_so_after_its_deletion_is_lost_with_memory():
    history = window()
    (insert,) = began(history, inserting([ONE]))
    history.end(insert, 1)
    delete, late = began(history, deleting(), inserting([TWO]))
    history.lost(delete)
    history.died()
    history.end(late, GONE)
    asked(history, seen(ONE))


def test_a_write_that_limits_refuse_whole_may_be_answered_before_what_it_saw_is_durable():
    """Seed 3758. One that is numbered writes its number, and waits."""
    for numbered in (False, True):
        history = window()
        (insert,) = began(history, inserting([ONE]))
        history.lost(insert)
        admit = admitting([TWO], Limit("n", 9, "<=", 1, None))
        if numbered:
            admit.idle = frozenset((GONE,))
        began(history, admit)
        history.end(admit, "[False]")
        asked(history, seen(ONE))
        history.died()
        if numbered:
            with pytest.raises(Contradiction):
                asked(history, seen())
        else:
            asked(history, seen())


def test_a_write_of_which_limits_refuse_a_part_is_durable_and_so_is_what_it_saw():
    history = window()
    (insert,) = began(history, inserting([ONE]))
    history.lost(insert)
    (admit,) = began(history, admitting([("a", 20, 14), TWO], Limit("n", 9, "<=", 1, None)))
    history.end(admit, "[True, False]")
    history.died()
    asked(history, seen(ONE))
    with pytest.raises(Contradiction):
        asked(history, seen())


def test_a_store_that_goes_back_has_what_it_had_then_and_perhaps_what_was_on_its_way():
    for there in (False, True):
        history = window()
        (first,) = began(history, inserting([ONE]))
        history.end(first, 1)
        (second,) = began(history, inserting([TWO]))
        mark = history.mark()
        history.end(second, 1)
        (third,) = began(history, inserting([("a", 3, 13)]))
        history.end(third, 1)
        history.went_back(mark)
        asked(history, seen(ONE, *[TWO] * there))
        with pytest.raises(Contradiction):
            asked(history, seen(ONE, *[TWO] * (not there)))
    history = window()
    (first,) = began(history, inserting([ONE]))
    history.end(first, 1)
    history.went_back(history.mark())
    with pytest.raises(Contradiction):
        asked(history, seen())


def test_an_answer_that_was_on_its_way_when_the_store_went_back_says_nothing():
    history = window()
    mark = history.mark()
    insert, read = began(history, inserting([ONE]), reading(0, 9, ["a"]))
    history.went_back(mark)
    history.end(insert, 1)
    history.end(read, seen(ONE))
    asked(history, seen())


def test_memory_loses_what_came_last():
    history = window()
    for op, read in zip(began(history, inserting([ONE]), inserting([TWO])), [(ONE,), (ONE, TWO)], strict=True):
        history.lost(op)
        asked(history, seen(*read))
    history.died()
    asked(history, seen(ONE))
    for between in (False, True):
        history = window()
        for op in began(history, inserting([ONE]), inserting([TWO])):
            history.lost(op)
        if between:
            asked(history, seen(ONE))
        asked(history, seen(ONE, TWO))
        history.died()
        (read,) = began(history, reading(0, 9, ["a"]))
        if between:
            with pytest.raises(Contradiction):
                history.end(read, seen(TWO))
        else:
            history.end(read, seen(TWO))


def test_what_is_settled_is_durable():
    history = window()
    (insert,) = began(history, inserting([ONE]))
    history.lost(insert)
    asked(history, seen(ONE))
    history.settled()
    history.forgot()
    (read,) = began(history, reading(0, 9, ["a"]))
    with pytest.raises(Contradiction):
        history.end(read, seen())


def test_calls_at_the_same_time_may_have_either_order_and_no_other():
    history = window()
    insert, evict = began(history, inserting([ONE]), evicting(0, 9, None))
    history.end(evict, 0)
    history.end(insert, 1)
    (read,) = began(history, reading(0, 9, ["a"]))
    history.end(read, seen(ONE))
    history = window()
    insert, evict = began(history, inserting([ONE]), evicting(0, 9, None))
    history.end(insert, 1)
    with pytest.raises(Contradiction):
        history.end(evict, 2)


def test_one_window_after_the_other_of_the_same_name():
    history = window()
    insert, delete = began(history, inserting([ONE, TWO]), deleting())
    history.end(delete, 2)
    history.end(insert, 2)
    (create,) = began(history, creating())
    history.end(create, True)
    (read,) = began(history, reading(0, 9, ["a"]))
    history.end(read, seen())


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
        gc.unfreeze()
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


LEAKS = {"os": ["urandom"], "time": ["time", "time_ns", "sleep"], "secrets": ["token_bytes", "token_hex"]}


def test_nothing_asks_the_machine_for_its_clock_or_for_chance(monkeypatch):
    """What the seed does not determine would not replay."""
    asked, mine = [], threading.get_ident()  # threads that other tests have left go on

    def leak(name, real):
        def asks(*args):
            if threading.get_ident() == mine:
                asked.append(name)
            return real(*args)

        return asks

    for module, names in LEAKS.items():
        for name in names:
            monkeypatch.setattr(f"{module}.{name}", leak(name, getattr(sys.modules[module], name)))
    for seed in range(200, 205):
        run(of_seed(seed))
    assert not asked


def test_nothing_starts_a_thread():
    before = len(os.listdir("/proc/self/task")) if os.path.isdir("/proc/self/task") else 0
    for seed in range(210, 213):
        run(of_seed(seed))
    after = len(os.listdir("/proc/self/task")) if os.path.isdir("/proc/self/task") else 0
    assert after == before
