"""A run of a scenario, from its seed to its digest; and how one that fails is made small and told."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import logging
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from sash.durability import storage
from sash.durability.images import blocks, checkpoint
from sash.durability.journal import journal
from sash.shards import lifecycle
from sash_client.errors import SashClientError
from tests.simulation.callers import PASSING, calls, creating, spec, view
from tests.simulation.history import ANY
from tests.simulation.loop import SimulatedLoop
from tests.simulation.scenario import Scenario, smaller
from tests.simulation.single import Single
from tests.simulation.world import Caller, World

Setup = Callable[[World], None]

_ATTEMPTS = 1000
_RUNS = itertools.count(1)
COLLECTED = 20
"""After so many runs garbage is collected: what they leave are circles."""
_LATEST_S = 60_000.0
"""Virtual seconds after which somebody waits for ever."""


@dataclass(frozen=True)
class Outcome:
    """What became of a run.

    Args:
        failure: what was wrong; None if nothing was.
        digest: of all events; equal for equal scenarios.
        events: as lines.
        met: which faults met which states.
        virtual_s: how long it took, in virtual time.
        callbacks: how many were run.
        unchecked: whether there were too many cases to follow.
    """

    scenario: Scenario
    failure: str | None
    digest: str
    events: list[str]
    met: Counter[str]
    virtual_s: float
    callbacks: int
    restarts: int
    unchecked: bool


def run(scenario: Scenario, setup: Setup = lambda world: None) -> Outcome:
    """Run a scenario; `setup` may change its world before it begins."""
    if next(_RUNS) % COLLECTED == 0:
        gc.collect()
    loop = SimulatedLoop(random.Random(f"{scenario.seed} order"), scenario.shuffled)
    world: World
    if scenario.cluster is None:
        world = Single(loop, scenario)
    else:
        from tests.simulation.cluster import Cluster  # brings gRPC, redis-py and Lua

        world = Cluster(loop, scenario)
    world.begin()
    setup(world)
    loop.set_exception_handler(
        lambda _, context: world.fail(context.get("exception") or AssertionError(context["message"]))
    )
    with _quiet(), _limits(scenario), world.installed():
        try:
            asyncio.set_event_loop(loop)
            loop.run_until_complete(_all(world))
        except Exception as error:
            world.fail(error)
        finally:
            world.ended = True
            left = asyncio.all_tasks(loop)
            loop.dead += world.processes()
            loop.close()
            asyncio.set_event_loop(None)
            loop.bury()
            for task in left:
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                with contextlib.suppress(BaseException):
                    task.get_coro().close()  # type: ignore[union-attr]
    failure = None if world.failure is None else f"{type(world.failure).__name__}: {world.failure}"
    return Outcome(
        scenario,
        failure,
        world.digest.hexdigest(),
        world.events,
        world.met + world.disk.met,
        loop.time(),
        loop.ran,
        world.restarts,
        world.unchecked,
    )


async def _all(world: World) -> None:
    async with asyncio.timeout(_LATEST_S):
        supervisor = asyncio.create_task(world.supervise())
        await world.serving()
        first = Caller(world, "first", 60.0)
        for name in [name for name in world.histories if name != PASSING]:
            op = creating()
            world.checked(world.histories[name].begin, op)
            await _made(first, spec(name))
            world.checked(world.histories[name].end, op, ANY)
        await _made(first, view())
        world.made()
        async with asyncio.TaskGroup() as tasks:
            for number in world.scenario.callers:
                tasks.create_task(calls(world, number))
        if world.failure is None:
            await world.compare()
        world.over = True
        supervisor.cancel()


async def _made(client: Caller, wanted: dict[str, Any]) -> None:
    """Create a window. All faults of the run may come meanwhile, one behind the other."""
    for _ in range(_ATTEMPTS):
        with contextlib.suppress(SashClientError):
            await client.create_window(wanted)
            return
        await asyncio.sleep(1.0)
    raise AssertionError(f"a window cannot be created in {_ATTEMPTS:,} attempts")


@contextlib.contextmanager
def _limits(scenario: Scenario) -> Iterator[None]:
    """Have the code go by the limits of a scenario."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(journal, "GROUP_BYTES", scenario.group_bytes)
        patch.setattr(journal, "PENDING_BYTES", scenario.pending_bytes)
        patch.setattr(blocks, "CHUNK_BYTES", scenario.chunk_bytes)
        patch.setattr(checkpoint, "CHUNK_BYTES", scenario.chunk_bytes)
        patch.setattr(storage, "_LONG_BYTES", scenario.long_bytes)
        draw = random.Random(f"{scenario.seed} tokens")
        patch.setattr(lifecycle, "secrets", SimpleNamespace(token_hex=lambda count: draw.randbytes(count).hex()))
        yield


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Nothing is logged, and no garbage is looked for: a run is short, and a sixth faster without."""
    before, collects = logging.root.manager.disable, gc.isenabled()
    logging.disable(logging.CRITICAL)
    gc.disable()
    try:
        yield
    finally:
        logging.disable(before)
        if collects:
            gc.enable()


def shrunk(scenario: Scenario, setup: Setup = lambda world: None, tries: int = 300) -> Outcome:
    """Make a scenario that fails smaller, as long as it fails; return the outcome of the smallest."""
    outcome = run(scenario, setup)
    smaller_ = outcome.failure is not None
    while smaller_ and tries > 0:
        smaller_ = False
        for candidate in smaller(outcome.scenario):
            tries -= 1
            found = run(candidate, setup)
            if found.failure is not None:
                outcome, smaller_ = found, True
                break
    return outcome


def replayed(scenario: Scenario, again: bool) -> Counter[str]:
    """Run a scenario in which nothing goes wrong, and once more if so asked; return which faults met which states."""
    first = run(scenario)
    assert first.failure is None, story(first)
    assert not first.unchecked
    if again:
        second = run(scenario)
        assert first.events == second.events
        assert (first.digest, first.callbacks) == (second.digest, second.callbacks)
    return first.met


def story(outcome: Outcome, lines: int = 60) -> str:
    """Tell who did what when, on one page."""
    scenario = outcome.scenario
    head = [
        f"seed {scenario.seed}: {outcome.failure or 'all is well'}",
        f"callers {list(scenario.callers)}, {scenario.steps} steps, shuffled {scenario.shuffled}",
        f"options {dict(scenario.options)}, slow {scenario.slow}, a group has {scenario.group_bytes:,} bytes, a chunk "
        f"{scenario.chunk_bytes:,}; long from {scenario.long_bytes:,}, congested from {scenario.pending_bytes:,}",
        *(f"fault: {fault.kind} at {fault.place} {fault.at}" for fault in scenario.faults),
        f"{outcome.callbacks} callbacks, {outcome.virtual_s:.1f} s of virtual time, digest {outcome.digest}",
    ]
    events = [event[:200] for event in outcome.events]
    if len(events) > lines:
        events = [*events[:5], f"… {len(events) - lines} more …", *events[5 - lines :]]
    return "\n".join([*head, "", *events])
