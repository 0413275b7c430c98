"""The world of a cluster: processes that share the shards of a Redis by leases, forward calls, take over, and die.

callers ── network ──▶ process 1 ── grpc ──▶ process 2        each: LeasedHost, Plane, Operations, heartbeat
                          │ Redis tier, lease table │         (the service's own, on threads that wait in virtual time)
                          └────────▶ Redis ◀────────┘ ──▶ replica
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import random
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from sash import context
from sash.durability.catalogue import Catalogue
from sash.durability.storage import Storage
from sash.rpc.methods import methods
from sash.rpc.operations import Operations
from sash.runtime.metrics import Metrics
from sash.settings import Settings
from sash.shards import (
    commands,
    heartbeat,
    lease_table,
    leased_host,
    lifecycle,
    peer_server,
    peers,
    redis_layout,
)
from sash.shards.layout import Share, shards_of_store, store_of
from sash.shards.leased_host import LeasedHost
from sash.tiers import open_tier, owner, redis, redis_link
from sash.tiers.redis_link import Pool
from sash_client.errors import SashClientError
from sash_engine.errors import SashError
from sash_wire.placement import shard_of
from tests.simulation.callers import (
    GATHERED,
    KEPT,
    KNOWN,
    NO_KEY,
    PASSING,
    PLAIN,
    ROLLED,
    compared,
    creating,
    deleting,
)
from tests.simulation.ending import all_forms, deleted, resharded
from tests.simulation.history import Entry, KeyedHistory, Op
from tests.simulation.loop import Process, SimulatedLoop, running
from tests.simulation.peers import Network
from tests.simulation.redis import Connection, Server
from tests.simulation.scenario import Scenario
from tests.simulation.threads import Machine
from tests.simulation.world import _EPOCH_NS, _TIDY_S, Caller, LoopClock, Served, World
from tests.support.stored import ALWAYS

__all__ = ["Cluster"]

_SETTLED_S = 20.0
"""After what is late, and who stands still: longer than anything is tried again."""


class ProcessClock(LoopClock):
    """The clocks of one process."""

    def __init__(self, machine: Machine, loop: SimulatedLoop, draw: random.Random, slow: bool) -> None:
        super().__init__(loop, draw, slow)
        self._now_s = machine.now_s

    def monotonic_s(self) -> float:
        late_s = super().monotonic_s() - self._loop.time()
        return self._now_s() + late_s


class Member(Served):
    """One process of the cluster."""

    world: Cluster

    def __init__(self, world: Cluster, number: int, slot: int) -> None:
        super().__init__(world, number)
        self.slot = slot
        self.process = Process(world.loop, number, world.machine_of(slot))
        self.clock = ProcessClock(
            world.machines, world.loop, random.Random(f"{world.scenario.seed} clock {number}"), world.scenario.slow
        )
        self.host: LeasedHost | None = None

    async def _serve(self) -> None:
        world, part = self.world, self.world.part
        settings = _settings(f"node{self.process.machine}", part.shards, part.lease_s, part.replicas)
        try:
            shards = await asyncio.to_thread(shards_of_store, settings)
            pool = Pool(settings.data, 1.0, 32)
            host = self.host = LeasedHost(
                settings,
                Share(0, 1, shards),
                lambda shard: self._opened(settings, shards, shard, pool),
                Metrics(CollectorRegistry()),
                self.clock,
                pool=pool,
            )
            await host.start()
        except SashError as error:
            world.note(f"process {self.process.number} cannot start: {error.message}")
            world.failed_starts += 1
            self.process.kill()
            world.peers.died(self.process)
            self._end("did not start")
            return
        host.reachable(1, 2)
        self.methods = methods(Operations(host.plane, 100_000, asyncio.Event()))
        self.plane = host.plane
        world.note(f"process {self.process.number} serves")
        while True:
            await asyncio.sleep(_TIDY_S)
            host.plane.tidy()

    def _opened(self, settings: Settings, shards: int, shard: int, pool: Pool) -> Storage:
        data, prefix = store_of(settings, shards, shard)
        replicas = settings.redis_wait_replicas
        tier = open_tier(data, prefix, lease_s=settings.lease_s, replicas=replicas, pool=pool)
        machines = self.world.machines
        options = {"sleep": machines.sleep, "entropy": lambda count: machines.chance().randbytes(count)}
        return Storage(Catalogue(clock=self.clock), self.clock, tier, **options, **self.world.scenario.options)

    def hosts(self, shard: int) -> Any:
        """The shard, if it serves it."""
        return None if self.host is None else self.host.shards.hosted.get(shard)

    @property
    def valid(self) -> bool:
        """Whether its lease runs, by its own clock."""
        return self.host is not None and self.process.judges(self.host.shards.valid)

    @property
    def state(self) -> str:
        host = self.host
        if self.plane is None or host is None:
            return "starting"
        shards = [*host.shards.hosted.values(), *host.shards.joining.values()]
        stores: list[Any] = [hosted.storage.store for hosted in shards]
        said = [
            "committing" * any(not store.session.journal._idle.is_set() for store in stores),
            "retrying" * any(store.session.journal.error is not None for store in stores),
            "joining" * bool(host.shards.joining),
            "taking" * bool(host._taking),
            "giving" * bool(host._giving),
            "without a lease" * (not host._beats.valid()),
        ]
        return " ".join(filter(None, said)) or "idle"

    async def stop(self) -> None:
        if self.plane is not None:
            self.world.note(f"process {self.process.number} stops")
            self.world.met[f"stops | {self.state}"] += 1
        await super().stop()

    async def _ends(self) -> None:
        """Give the shards to others first."""
        assert self.host is not None
        await self.host.hand_over()
        await asyncio.sleep(0.5)
        await self.host.stop()


class Cluster(World):
    """See above."""

    def __init__(self, loop: SimulatedLoop, scenario: Scenario) -> None:
        super().__init__(loop, scenario)
        assert scenario.cluster is not None
        self.part = part = scenario.cluster
        self.moves = True
        self.move_share, self.stale = part.moves, part.sleeps
        self._shadowed: dict[Process, list[tuple[int, Process, Any, Process]]] = {}
        """By process: a shard, who has it still, and who has taken its prefix; the process is one of them."""
        self._taken_s: dict[int, float] = {}
        """By shard: when its prefix was taken last, or Redis lost what it had of it."""
        self._takes = Counter[int]()
        """By shard: how often that was."""
        self._takers: dict[int, tuple[bytes, Member]] = {}
        """By shard: who took its prefix last, and as which owner."""
        self._journals: dict[int, Any] = {}
        """By shard: where the writes are on their way that were answered early."""
        self.keys = _keys(part.shards)
        self.machines = Machine(loop, scenario.seed)
        self.slots: list[Member | None] = [None] * part.processes
        self.by_number: dict[int, Member] = {}
        self.peers = Network(loop, random.Random(f"{scenario.seed} peers"), self.note, self.context, self.met)
        self.redis = Server(
            loop, random.Random(f"{scenario.seed} redis"), self.note, _EPOCH_NS, part.replicas, part.nodes
        )
        self.redis.world = self.context
        self.redis.fails = self.fail
        self.redis.taken = self._taken
        self.redis.moved = self._moved
        self.redis.everysec = self.loses = part.everysec
        self.redis.marks = lambda: {name: history.mark() for name, history in self.histories.items()}
        self.redis.lost = self._lost_writes
        self.redis.go_on_s = lambda: [
            each.process.stopped_until_s for each in self.by_number.values() if each.process.stopped
        ]
        self.redis.met = self.met
        self.redis.faults = {fault.at: fault.kind for fault in scenario.faults if fault.place == "redis"}
        self.redis.faults_of = self.peers.faults_of = {(fault.place, fault.at): fault.kind for fault in scenario.faults}
        self.redis.slot_moves = {fault.at for fault in scenario.faults if fault.place == "slot"}
        self.redis.strikes = self.peers.strikes = self.strikes
        self.peers.faults = {fault.at: fault.kind for fault in scenario.faults if fault.place == "peer"}
        self._at: dict[Caller, int] = {}

    def machine_of(self, slot: int) -> int:
        """The machine of a process."""
        return 1 if self.part.together else slot + 1

    def begin(self) -> None:
        self.histories = {
            KEPT: KeyedHistory(self.keys),
            PASSING: KeyedHistory(self.keys),
            PLAIN: KeyedHistory([NO_KEY]),
        } | ({ROLLED: KeyedHistory(self.keys)} if self.scenario.rolled else {})
        # Without a commit nothing tells a process that slept that it has lost its shards; and what Redis loses counts.
        if self.scenario.gathered and not (self.part.sleeps or self.part.everysec):
            self.histories[GATHERED] = KeyedHistory(self.keys)
        if self.scenario.known and not (self.part.sleeps or self.part.everysec):
            self.histories[KNOWN] = KeyedHistory(self.keys)

    def made(self) -> None:
        self.redis.in_use = True

    def _dies(self, served: Served) -> None:
        """Its machine ends its connections. What becomes of its memory is told when others take its shards."""
        self.peers.died(served.process)

    def _taken(self, fence: bytes) -> None:
        """What the owner before had in memory only is lost."""
        prefix = fence.decode().rpartition("{")[2].partition("}")[0]
        shard = int(prefix.rpartition("/")[2])
        self._shadow(shard)
        self._has_stored()
        journal = self._journals.pop(shard, None)
        left = [each for each in self._gathered if each[0] is not journal]
        self.met["lost with memory? | a write that was answered"] += len(self._gathered) - len(left)
        self._gathered, self._taken_s[shard] = left, self.loop.time()
        self._takes[shard] += 1
        if self._takers.get(shard, (b"",))[0] != self.redis.owners[fence]:  # else Redis has lost what it had last
            assert self.redis.asking is not None
            self._takers[shard] = self.redis.owners[fence], self.by_number[self.redis.asking.number]
        for name, history in self.histories.items():
            self.checked(history.forgot, lambda key, name=name: shard_of(name, key, self.part.shards) == shard)

    def answered(self, history: Any, op: Op, result: Hashable, caller: Caller) -> None:
        if not op.soon:
            super().answered(history, op, result, caller)
            return
        shards = {key: shard_of(GATHERED, key, self.part.shards) for key in history.parts(op)}
        unsure = {key for key, shard in shards.items() if self._taken_s[shard] >= caller.began_s}
        parts = history.parts(op)
        self.checked(history.end, op, result, unsure.__contains__)
        for key in [key for key in shards if key not in unsure]:
            _, member = self._takers[shards[key]]
            hosted = member.hosts(shards[key]) if member.process.alive else None
            if hosted is not None:
                journal = self._journals[shards[key]] = hosted.storage.store.session.journal
                self._gathered.append((journal, journal.last, functools.partial(history.stored, key), parts[key]))

    def _moved(self, shard: int, old: str, new: str) -> None:
        """Nobody takes a shard in the lease table from a process that may answer for it."""
        if self.stale or self.redis.went_back:
            return
        for member in self.by_number.values():
            host, process = member.host, member.process
            if host is None or host._me.id != old or process is self.redis.asking or not process.alive:
                continue
            if member.hosts(shard) is not None and member.valid:
                self.fail(AssertionError(f"shard {shard} is taken from process {process.number}, whose lease runs"))

    def _lost_writes(self, marks: Any) -> None:
        """Redis has lost some of the last writes; somebody starts all processes again, at once or soon.

        Until then they answer questions from memory. So from now on only writes are checked, and the end.
        """
        self.stale = True
        self.met["writes are lost | "] += 1
        self.note("Redis has lost its last writes")
        for name, history in self.histories.items():
            self.checked(history.went_back, marks[name])
        # A shard may store its part of a deletion after that, while home's is lost: home makes the window anew there.
        passing = self.histories[PASSING]
        pending = [each for _, each in (*marks[PASSING].values(), *passing.mark().values())]
        if any(op.what == deleting().what for each in pending for op in each.values()):
            anew = creating()
            self.checked(passing.begin, anew)
            self.checked(passing.lost, anew)
        back_s = self.redis.up_s - self.loop.time()
        after_s = self.random.choice([0.0, back_s + 1.0, back_s + 5.0])
        self.loop.late(back_s + 20.0)  # until all have started, and each has its share
        for member in self.by_number.values():
            if member.process.alive:
                self.loop.call_later(after_s, member.die, context=self.context)

    def _shadow(self, shard: int) -> None:
        """Whoever still has a shard whose prefix another process takes must not answer once that one does.

        A process that stood still while it took a shard may go on with that, and takes the prefix from the present
        owner. It must not answer either, as long as that one does.
        """
        taker = self.redis.asking
        if self.stale or self.redis.went_back or taker is None:
            return
        for member in self.by_number.values():
            hosted = member.hosts(shard)
            if hosted is not None and member.process.alive and member.process is not taker:
                shadowed = shard, member.process, hosted, taker
                for process in (member.process, taker):
                    self._shadowed.setdefault(process, []).append(shadowed)

    def _check_shadowed(self, process: Process) -> None:
        for shard, old, hosted, taker in self._shadowed[process]:
            before, after = self.by_number[old.number], self.by_number[taker.number]
            if before.hosts(shard) is hosted and after.hosts(shard) is not None and old.alive and taker.alive:
                if before.valid and after.valid:
                    self.fail(AssertionError(f"processes {old.number} and {taker.number} answer for shard {shard}"))
            elif before.hosts(shard) is not hosted:
                self._shadowed[process] = [each for each in self._shadowed[process] if each[2] is not hosted]

    def owner_of(self, name: str, key: str) -> Hashable:
        return self._takes[shard_of(name, key, self.part.shards)]

    def knows(self, name: str, entries: Sequence[Entry]) -> None:
        self.histories[name].knows(entries)

    async def move(self, client: Caller, draw: random.Random) -> None:
        shard, process = draw.randrange(self.part.shards), draw.randrange(self.part.processes)
        self.note(f"shard {shard} is to be moved to process {process}")
        try:
            await client.move_shard(shard, process)
            self.note(f"shard {shard} is moved to process {process}")
        except SashClientError as error:
            self.note(f"shard {shard} is not moved: {error.message}")

    def all_served_by(self) -> list[Served]:
        return [member for member in self.by_number.values() if member.process.alive]

    def processes(self) -> list[Process]:
        self.machines.end()
        return [member.process for member in self.by_number.values() if member.process.alive]

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Have the service's code block, draw and connect as the simulation wants."""
        machines = self.machines
        with pytest.MonkeyPatch.context() as patch:
            for module in (heartbeat, lease_table, leased_host, redis, redis_link, redis_layout):
                patch.setattr(module, "time", machines.time)
            for module in (heartbeat, lease_table, redis, redis_link):
                patch.setattr(module, "threading", machines.threading)
            for module in (lease_table, redis_layout, commands, lifecycle, owner):
                patch.setattr(module, "secrets", machines.secrets)
            patch.setattr(redis, "random", machines.random)
            patch.setattr(heartbeat, "ThreadPoolExecutor", machines.executor)
            patch.setattr(lease_table.Lives.__init__, "__defaults__", (machines.now_s,))
            patch.setattr(context, "new_id", lambda: machines.chance().randbytes(16).hex())
            patch.setattr(leased_host, "_AT_ONCE", 6)
            patch.setattr(leased_host, "_TAKEN_AT_ONCE", 12)
            patch.setattr(peers, "grpc", self.peers.grpc)
            patch.setattr(peer_server, "grpc", self.peers.grpc)
            patch.setattr(redis_link, "Connection", lambda **options: Connection(machines, self.redis, options))
            patch.setattr(owner, "os", SimpleNamespace(getpid=lambda: running().number, kill=self._signal))  # type: ignore[union-attr]
            patch.setattr(owner, "socket", SimpleNamespace(gethostname=lambda: f"node{running().machine}"))  # type: ignore[union-attr]
            patch.setattr(owner, "_machine", lambda: f"machine {running().machine}")  # type: ignore[union-attr]
            patch.setattr(owner, "_started", self._started)
            yield

    def _signal(self, pid: int, signal: int) -> None:
        if not self.by_number[pid].process.alive:
            raise ProcessLookupError

    def _started(self, pid: int) -> str | None:
        return "once" if self.by_number[pid].process.alive else None

    # ---------------------------------------------------------------- processes

    def strikes(self, process: Process, kind: str) -> None:
        kind, soon, _ = kind.partition(" soon")
        if soon:
            process.strike = self.random.choice([0, 1, 2, 3, 5, 8, 13, 30]), kind
        elif kind == "dies":
            self.loop.call_later(
                self.random.choice([0.0, 0.0, 0.001, 0.06]), self.by_number[process.number].die, context=self.context
            )
        elif not process.stopped:
            # Shorter than its lease, so long that others take its shards, and about as long.
            lease_s = self.part.lease_s
            lasts_s = self.random.choice(
                [
                    0.5,
                    lease_s,
                    lease_s * self.random.uniform(0.9, 2.0),
                    lease_s + self.random.uniform(0.0, 3.0),
                    3 * lease_s,
                    40.0,
                ]
            )
            if kind == "sleeps":
                lasts_s = self.random.uniform(lease_s, 6 * lease_s)
            self.loop.stop_process(process, self.loop.late(lasts_s), kind == "sleeps")
            self.met[f"{kind} | {self.by_number[process.number].state}"] += 1
            self.note(f"process {process.number} {kind} until {process.stopped_until_s:.1f}")

    def _after_each(self, process: Process) -> None:
        self._callbacks += 1
        if self._shadowed and process in self._shadowed:
            self._check_shadowed(process)
        if process.strike is not None:
            left, kind = process.strike
            process.strike = (left - 1, kind) if left else None
            if not left:
                self.strikes(process, kind)
        kind = self.kills.get(self._callbacks)
        if kind is None:
            return
        member = self.by_number[process.number]
        if kind in ("stopped", "sleeps"):
            self.strikes(process, kind)
        elif kind == "clock":
            member.clock.ahead_ns += self.random.choice([-(10**9), -3600 * 10**9, 10**9, 60 * 10**9])
            self.met[f"clock jumped | {member.state}"] += 1
            self.note(f"the clock of process {process.number} jumps")
        elif kind == "ends":
            self.loop.call_soon(self._ends, member, context=self.context)
        else:
            member.die()

    def _ends(self, member: Member) -> None:
        self._stopping.append(asyncio.ensure_future(member.stop(), loop=self.loop))

    async def supervise(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for slot in range(self.part.processes):
                tasks.create_task(self._supervise_one(slot))

    async def _supervise_one(self, slot: int) -> None:
        if slot:
            await asyncio.sleep(self.random.choice([0.0, 0.1, 4.0]))
        while not self.over:
            number = len(self.by_number) + 1
            self.restarts += number > self.part.processes
            member = self.slots[slot] = self.by_number[number] = Member(self, number, slot)
            member.begin()
            await member.ended
            await asyncio.sleep(self.random.choice([0.0, 0.05, 1.0, 5.0, 20.0]))

    def target(self, caller: Caller) -> Served | None:
        slot = self._at.get(caller)
        if slot is None or self.random.random() < 0.1:
            slot = self._at[caller] = self.random.randrange(self.part.processes)
        return self.slots[slot]

    def failed(self, caller: Caller) -> None:
        self._at.pop(caller, None)

    async def serving(self) -> Served:
        """Any process that serves."""
        end_s = self.loop.time() + 900
        while True:
            for member in self.slots:
                if member is not None and member.plane is not None and member.process.alive:
                    return member
            if self.loop.time() > end_s:
                raise AssertionError("no process serves for 900 s")
            await asyncio.sleep(0.05)

    async def all_served(self) -> None:
        """Every process runs, and every shard is served by one of them."""
        end_s = self.loop.time() + 900
        while True:
            members = [each for each in self.slots if each is not None and each.plane is not None]
            shards = sorted(shard for each in members if each.host for shard in each.host.shards.hosted)
            if len(members) == len(self.slots) and shards == list(range(self.part.shards)):
                return
            if self.loop.time() > end_s:
                raise AssertionError(f"after 900 s without faults {len(members)} processes serve the shards {shards}")
            await asyncio.sleep(0.5)

    # ---------------------------------------------------------------- the end

    def heal(self) -> None:
        self.net.clear()
        self.kills.clear()
        self.net_of_life.clear()
        self.redis.heal()
        self.peers.faults.clear()
        self.peers.faults_of.clear()
        self.peers.cut.clear()
        for member in self.by_number.values():
            member.process.strike = None

    async def compare(self) -> None:
        self.heal()
        await asyncio.sleep(max(self.loop.late_until_s - self.loop.time(), 0.0) + _SETTLED_S)
        await self.all_served()
        await self._spread()
        await self._quiet()
        self.stale = False
        for history in self.histories.values():
            self.checked(history.settled)
        await compared(self, "at the end")
        await self._alike()
        await all_forms(self, "at the end")
        await resharded(self)
        ending = self.random.choice(["killed", "stopped"])
        for member in self.slots:
            if member is not None:
                if ending == "killed":
                    member.die()
                else:
                    await member.stop()
        await asyncio.sleep(1.0)
        await self.all_served()
        await compared(self, f"after all were {ending}")
        await all_forms(self, f"after all were {ending}")
        await self._emptied()

    async def _alike(self) -> None:
        """Every shard has the windows that home has, with their aggregates, and none of them is closed."""
        end_s = self.loop.time() + 120
        while (found := self._unlike()) is not None:
            if self.loop.time() > end_s:
                raise AssertionError(f"nothing has happened for 120 s, and {found}")
            await asyncio.sleep(1.0)

    def _unlike(self) -> str | None:
        windows: dict[int, dict[str, list[str]]] = {}
        for member in self.slots:
            for shard, hosted in member.host.shards.hosted.items() if member is not None and member.host else ():
                if hosted.local._closed:
                    return f"shard {shard} has closed {sorted(hosted.local._closed)}"
                windows[shard] = {each.spec.name: sorted(each.spec.aggregates) for each in hosted.catalogue.all()}
        for shard, found in sorted(windows.items()):
            if found != windows.get(0):
                return f"home has {windows.get(0)}, and shard {shard} has {found}"
        return None

    async def _spread(self) -> None:
        """Who came last has its share of the shards."""
        end_s, before = self.loop.time() + 120, None
        while (owners := self._owners()) != before or len(owners) < self.part.shards:
            if self.loop.time() > end_s:
                raise AssertionError(f"shards move for ever: {before} became {owners}")
            before = owners
            await asyncio.sleep(5.0)

    async def _quiet(self) -> None:
        """While nothing happens, no shard moves, and no process doubts that it has its shards."""
        end_s, before = self.loop.time() + 1.5 * self.part.lease_s + 2.0, self._owners()
        while self.loop.time() < end_s:
            await asyncio.sleep(0.2)
            for member in self.slots:
                if member is not None and member.host is not None and not member.valid:
                    raise AssertionError(f"nothing happens, and process {member.process.number} has lost its lease")
            if self._owners() != before:
                raise AssertionError(f"nothing happens, and shards move: {before} became {self._owners()}")

    def _owners(self) -> dict[int, int]:
        return {
            shard: each.process.number
            for each in self.slots
            if each is not None and each.host is not None
            for shard in each.host.shards.hosted
        }

    async def _emptied(self) -> None:
        await deleted(self)
        await asyncio.sleep(10.0)
        left = sorted(
            key
            for key in self.redis.stored()
            for _, found, name in [key.partition(b"}:k:")]
            if found and name not in ALWAYS
        )
        if left:
            raise AssertionError(f"the windows are deleted, and Redis has still {left[:8]}")


@functools.cache
def _settings(address: str, shards: int, lease_s: float, replicas: int) -> Settings:
    """The settings of a process; each start would read them from its environment."""
    return Settings(
        data="redis://redis:6379",
        redis_prefix="s",
        shards=shards,
        lease_s=lease_s,
        address=address,
        redis_wait_replicas=replicas,
    )


def _keys(shards: int) -> list[str]:
    """Keys of the keyed windows: one for each shard of KEPT, and one more."""
    every = [f"{'xy'[at % 2]}|{letter}" for at, letter in enumerate("abcdefghijklmnopqrstuvwxyz")]
    found: dict[int, str] = {}
    for key in every:
        found.setdefault(shard_of(KEPT, key, shards), key)
    keys = sorted(found.values())
    return [*keys, next(key for key in every if key not in keys)]
